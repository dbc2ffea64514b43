//! The data of the pictures of a run, from its fold.

use super::pictures::{
    ChartAxis, ChartCheck, ChartData, ChartEffort, ChartPoint, HeldoutMark, LineageData, LineageNode, LineageStatus,
};
use synth_optimizer_core::model::event_fields::{CheckDecided, Direction};
use synth_optimizer_core::model::lifecycle::CandidateStatus;
use synth_optimizer_core::model::run_totals::Effort;
use synth_optimizer_core::model::run_view::{MeasuredCandidate, RunView};
use synth_optimizer_core::model::score::Score;

/// Returns the data of the score chart of a run.
pub fn chart_data(view: &RunView, title: &str, axis: ChartAxis) -> ChartData {
    let (objective, direction) = objective(view);
    let initial = view.candidates.first().map(|known| (true, known));
    let best = view.best().map(|known| (false, known));
    let best = best.filter(|(_, best)| initial.is_none_or(|(_, first)| first.candidate != best.candidate));
    let mark = |(is_initial, known): (bool, &MeasuredCandidate)| {
        let (label, score) = (known.candidate.candidate_id.to_string(), known.candidate.heldout_score?);
        Some(HeldoutMark { label, is_initial, score })
    };
    let check = |(check, at): &(CheckDecided, Effort)| ChartCheck {
        verdict: check.verdict,
        reason: check.reason.clone(),
        at: chart_effort(at),
    };
    ChartData {
        title: title.to_owned(),
        objective,
        direction,
        axis,
        candidates: view.candidates.iter().map(chart_point).collect(),
        checks: view.checks.iter().map(check).collect(),
        heldout: initial.into_iter().chain(best).filter_map(mark).collect(),
        spent: chart_effort(&view.totals.counts.effort()),
        is_live: view.end.is_none(),
    }
}

/// Returns the data of the lineage of a run.
pub fn lineage_data(view: &RunView, title: &str) -> LineageData {
    let (objective, direction) = objective(view);
    let undominated = view.frontier_cells.undominated();
    let is_live = view.end.is_none();
    let node = |(place, known): (usize, &MeasuredCandidate)| {
        let candidate = &known.candidate;
        LineageNode {
            id: candidate.candidate_id.to_string(),
            parents: candidate.parent_ids.iter().map(ToString::to_string).collect(),
            score: candidate.train_score.map(|score| score.mean),
            status: if place == 0 { LineageStatus::Initial } else { lineage_status(candidate.status, is_live) },
            reason: reason(known),
            is_undominated: undominated.contains(&candidate.candidate_id),
        }
    };
    LineageData {
        title: title.to_owned(),
        objective,
        direction,
        nodes: view.candidates.iter().enumerate().map(node).collect(),
        best: view.totals.best_candidate_id().map(ToString::to_string),
    }
}

/// Returns the selection objective and its direction.
fn objective(view: &RunView) -> (String, Direction) {
    let name = view.objectives.as_ref().map_or("score", |set| set.selection_objective.as_str());
    let declared = view.objectives.iter().flat_map(|set| &set.objectives).find(|known| known.name == name);
    (name.to_owned(), declared.map_or(Direction::Maximize, |known| known.direction))
}

fn chart_effort(effort: &Effort) -> ChartEffort {
    ChartEffort { rollouts: effort.rollouts, cost_usd: effort.cost.known().map(|cost| cost.usd()) }
}

fn chart_point(known: &MeasuredCandidate) -> ChartPoint {
    let candidate = &known.candidate;
    ChartPoint {
        label: candidate.candidate_id.to_string(),
        score: candidate.train_score.or(candidate.minibatch_score),
        is_screening: candidate.train_score.is_none(),
        accepted: candidate.status == CandidateStatus::Accepted,
        at: known.scored_at.as_ref().map(chart_effort).unwrap_or_default(),
    }
}

fn lineage_status(status: CandidateStatus, is_live: bool) -> LineageStatus {
    match status {
        CandidateStatus::Accepted => LineageStatus::Accepted,
        CandidateStatus::RejectedMinibatch | CandidateStatus::RejectedFullTrain => LineageStatus::Rejected,
        CandidateStatus::Superseded => LineageStatus::Superseded,
        CandidateStatus::DeferredBudget | CandidateStatus::DeferredFailures | CandidateStatus::DeferredStop => {
            LineageStatus::Undecided
        }
        CandidateStatus::Registered | CandidateStatus::MinibatchEvaluated | CandidateStatus::FullTrainEvaluated => {
            if is_live {
                LineageStatus::Running
            } else {
                LineageStatus::Undecided
            }
        }
    }
}

/// Returns why a candidate was decided so, and its score on the minibatch.
fn reason(known: &MeasuredCandidate) -> String {
    let candidate = &known.candidate;
    let decision = known.decision.clone();
    let screening = candidate.minibatch_score.map(|Score { mean, n, .. }| format!("screened {mean:.3} on {n} rows"));
    decision.into_iter().chain(screening).collect::<Vec<_>>().join("; ")
}

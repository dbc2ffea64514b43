//! Acceptance criteria: whether a candidate counts as better than another one, and why.

use std::collections::BTreeMap;

use synth_optimizer_core::config::gepa::AcceptanceCriterion;
use synth_optimizer_core::model::ids::TrainRow;
use synth_optimizer_core::model::score::Comparison;

use crate::settings::Settings;
use crate::state::Candidate;

/// A decision with its stable reason code.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct AcceptanceDecision {
    pub accepted: bool,
    pub reason: &'static str,
}

/// Compares two candidates on the rows that both have scores for. Returns `None` if there are none.
pub(crate) fn compare(
    settings: &Settings,
    candidate: &Candidate,
    incumbent: &Candidate,
    rows: &[TrainRow],
) -> Option<Comparison> {
    let shared: Vec<TrainRow> =
        rows.iter().copied().filter(|row| candidate.train.contains(*row) && incumbent.train.contains(*row)).collect();
    if shared.is_empty() {
        return None;
    }
    let mean = |side: &Candidate, objective: usize| {
        shared.iter().filter_map(|row| side.train.get(*row, objective)).sum::<f64>() / shared.len() as f64
    };
    let delta = |objective: usize| {
        settings.oriented(objective, mean(candidate, objective))
            - settings.oriented(objective, mean(incumbent, objective))
    };
    let names = settings.objectives.iter().map(|objective| objective.name.clone());
    let deltas = names.enumerate().map(|(index, name)| (name, delta(index)));
    Some(Comparison {
        rows: shared.len() as u32,
        primary_delta: delta(0),
        candidate_score: mean(candidate, 0),
        incumbent_score: mean(incumbent, 0),
        objective_deltas: if settings.objectives.len() > 1 { deltas.collect() } else { BTreeMap::new() },
    })
}

/// Applies an acceptance criterion to a comparison.
pub(crate) fn judge(
    settings: &Settings,
    criterion: AcceptanceCriterion,
    margin: f64,
    found: &Comparison,
) -> AcceptanceDecision {
    let accept = |reason| AcceptanceDecision { accepted: true, reason };
    let reject = |reason| AcceptanceDecision { accepted: false, reason };
    if found.primary_delta > margin + f64::EPSILON {
        // With the guard, a better candidate is rejected if a protected objective loses too much.
        let is_guarded = criterion == AcceptanceCriterion::ProtectedObjectiveGuard;
        let is_lost = is_guarded && !protected(settings, found);
        return if is_lost { reject("protected_objective_lost") } else { accept("primary_improved") };
    }
    match criterion {
        AcceptanceCriterion::PrimaryImprovement => reject("primary_not_improved"),
        AcceptanceCriterion::ImprovementOrEqual if found.primary_delta >= -margin - f64::EPSILON => {
            accept("primary_not_worse")
        }
        AcceptanceCriterion::ImprovementOrEqual => reject("primary_worse"),
        AcceptanceCriterion::AnyObjectiveImproved if improved(settings, found) => accept("objective_improved"),
        AcceptanceCriterion::AnyObjectiveImproved => reject("no_objective_improved"),
        AcceptanceCriterion::PrimaryOrObjective | AcceptanceCriterion::ProtectedObjectiveGuard => {
            match (improved(settings, found), protected(settings, found)) {
                (true, true) => accept("objective_improved"),
                (true, false) => reject("protected_objective_lost"),
                (false, _) => reject("no_objective_improved"),
            }
        }
    }
}

fn deltas<'a>(settings: &'a Settings, found: &'a Comparison) -> impl Iterator<Item = (&'a str, f64)> {
    settings.objectives.iter().enumerate().map(|(index, objective)| {
        let delta = found.objective_deltas.get(&objective.name).copied();
        (objective.name.as_str(), delta.unwrap_or(if index == 0 { found.primary_delta } else { 0.0 }))
    })
}

fn improved(settings: &Settings, found: &Comparison) -> bool {
    let least = settings.gepa.objective_acceptance.min_objective_delta;
    deltas(settings, found).any(|(_, delta)| delta > 0.0 && delta >= least - f64::EPSILON)
}

/// Returns whether no protected objective gets worse by too much.
pub(crate) fn protected(settings: &Settings, found: &Comparison) -> bool {
    let acceptance = &settings.gepa.objective_acceptance;
    let guarded = |name: &str| {
        acceptance.protected_objectives.is_empty() || acceptance.protected_objectives.iter().any(|guard| guard == name)
    };
    deltas(settings, found)
        .filter(|(name, _)| guarded(name))
        .all(|(_, delta)| delta >= -acceptance.objective_regression_tolerance - f64::EPSILON)
}

#[cfg(test)]
#[path = "acceptance_tests.rs"]
mod tests;

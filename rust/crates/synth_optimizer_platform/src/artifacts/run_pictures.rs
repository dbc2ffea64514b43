//! The data of the pictures of a run, from its read models.

use super::pictures::{
    ChartAxis, ChartCheck, ChartData, ChartEffort, ChartPoint, HeatCell, HeatColumn, HeatMapData, HeatRow, HeldoutMark,
    LineageData, LineageNode, LineageStatus,
};
use crate::workspace::models::{
    ChartCandidate, CheckMark, HeldoutScore, LineageCandidate, RowCell, RowColumn, RowSummary, RowTable, RunChart,
    RunLineage, SpentEffort, TableRow,
};
use synth_optimizer_core::model::event_fields::Direction;
use synth_optimizer_core::model::lifecycle::CandidateStatus;
use synth_optimizer_core::model::score::Score;

/// The name of the objective before the task is loaded.
const UNKNOWN_METRIC: &str = "score";

/// Returns the data of the score chart of a run.
pub fn chart_data(chart: &RunChart, title: &str, axis: ChartAxis) -> ChartData {
    let point = |known: &ChartCandidate| ChartPoint {
        id: known.candidate_id.clone(),
        score: known.score,
        is_screening: known.is_screening,
        accepted: known.is_accepted,
        at: effort(known.at),
    };
    let check =
        |check: &CheckMark| ChartCheck { verdict: check.verdict, reason: check.reason.clone(), at: effort(check.at) };
    let mark = |known: &HeldoutScore| HeldoutMark {
        id: known.candidate_id.clone(),
        is_initial: known.is_initial,
        score: known.score,
    };
    ChartData {
        title: title.to_owned(),
        objective: chart.metric.clone().unwrap_or_else(|| UNKNOWN_METRIC.to_owned()),
        direction: chart.direction.unwrap_or(Direction::Maximize),
        axis,
        candidates: chart.candidates.iter().map(point).collect(),
        checks: chart.checks.iter().map(check).collect(),
        heldout: chart.heldout.iter().map(mark).collect(),
        spent: effort(chart.spent),
        is_live: chart.is_live,
    }
}

fn effort(at: SpentEffort) -> ChartEffort {
    ChartEffort { rollouts: at.rollouts, cost_usd: at.cost_usd }
}

/// Returns the data of the lineage of a run.
pub fn lineage_data(lineage: &RunLineage, title: &str) -> LineageData {
    let node = |(place, known): (usize, &LineageCandidate)| LineageNode {
        id: known.candidate_id.clone(),
        parents: known.parent_ids.clone(),
        score: known.train_score.map(|score| score.mean),
        status: if place == 0 { LineageStatus::Initial } else { lineage_status(known.status, lineage.is_live) },
        reason: reason(known),
        is_undominated: known.on_frontier,
    };
    LineageData {
        title: title.to_owned(),
        objective: lineage.metric.clone().unwrap_or_else(|| UNKNOWN_METRIC.to_owned()),
        direction: lineage.direction.unwrap_or(Direction::Maximize),
        nodes: lineage.candidates.iter().enumerate().map(node).collect(),
        best: lineage.best_candidate_id.clone(),
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
fn reason(known: &LineageCandidate) -> String {
    let screening = known.minibatch_score.map(|Score { mean, n, .. }| format!("screened {mean:.3} on {n} rows"));
    known.reason.clone().into_iter().chain(screening).collect::<Vec<_>>().join("; ")
}

/// Returns the data of the heat map of a window of rows and candidates, in the order of the table. `address` returns where the
/// cell of a column leads.
pub fn heat_map_data(table: &RowTable, title: &str, address: impl Fn(&TableRow, usize) -> String) -> HeatMapData {
    let RowSummary { worst, best, unsolved } = table.summary;
    let cell = |cell: &RowCell| match cell {
        RowCell::Value(value) => HeatCell::of_score(*value, worst, best),
        RowCell::Failed(_) => HeatCell::Failed,
        RowCell::NotMeasured(()) => HeatCell::NotMeasured,
    };
    let row = |row: &TableRow| HeatRow {
        id: row.example_id.clone(),
        cells: row.cells.iter().map(cell).collect(),
        addresses: (0..row.cells.len()).map(|column| address(row, column)).collect(),
    };
    let column = |known: &RowColumn| HeatColumn {
        id: known.candidate_id.clone(),
        name: match (known.is_best, known.is_initial) {
            (true, _) => Some("best"),
            (false, true) => Some("initial"),
            (false, false) => None,
        },
    };
    let shown = (table.rows.len(), table.candidates.len());
    let all = (table.row_count as usize, table.candidate_count as usize);
    HeatMapData {
        title: title.to_owned(),
        candidates: table.candidates.iter().map(column).collect(),
        rows: table.rows.iter().map(row).collect(),
        of: (shown != all).then_some(all),
        unsolved,
    }
}

//! The read models of a run: candidates, rollouts, scores, the frontier and the log, read from its workspace during the
//! run and after.
//!
//! Each model is read in one snapshot. Nothing here writes, and the cost of a page depends on its size, not on the run's.

mod activity;
mod candidates;
mod chart;
mod comparison;
mod effort_sums;
mod lineage;
mod read_error;
mod rollouts;
mod row_grid;
mod row_table;
mod row_values;
mod run;
mod scores;
mod stop_rules;
mod turns;
mod undominated;

pub(super) use effort_sums::EffortSums;

pub use activity::{EvaluationActivity, RunActivity, TurnActivity, UnansweredCalls};
pub use candidates::{
    BestCandidate, CandidateDetail, CandidateEntry, CandidatePage, CandidateQuery, FieldChange, FrontierCell,
    FrontierEntry, FrontierMember, RunFrontier,
};
pub use chart::{ChartCandidate, CheckMark, HeldoutScore, RunChart, SpentEffort};
pub use comparison::{CompareQuery, ComparedRun, ComparedText, RunComparison, SettingDifference, compare_runs};
pub use lineage::{LineageCandidate, RunLineage, SprintCheck};
pub use read_error::{ReadError, Refusal};
pub use rollouts::{RolloutEntry, RolloutFailure, RolloutPage, RolloutQuery, RolloutStatus, RowSplit};
pub use row_table::{FailedCell, RowCell, RowColumn, RowGains, RowOrder, RowQuery, RowSummary, RowTable, TableRow};
pub use run::{EventEnvelope, EventPage, ModelUse, RunModels, event_window};
pub use scores::{
    ScoreArtifact, ScoreEntry, ScorePage, ScorePoint, ScoreSeries, ScoreSeriesList, SeriesQuery, score_window,
};
pub use stop_rules::StopRule;
pub use turns::{ProposalOutcome, ProposalRecord, TurnCall, TurnEntry, TurnPage, TurnQuery, TurnStatus};

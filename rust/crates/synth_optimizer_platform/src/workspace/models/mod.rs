//! The read models of a run: candidates, rollouts, scores, the frontier and the log, read from its workspace during the
//! run and after.
//!
//! Each model is read in one snapshot. Nothing here writes, and the cost of a page depends on its size, not on the run's.

mod candidates;
mod read_error;
mod rollouts;
mod row_values;
mod run;
mod scores;

pub use candidates::{
    BestCandidate, CandidateDetail, CandidateEntry, CandidatePage, CandidateQuery, FieldChange, FrontierCell,
    FrontierEntry, FrontierMember, RunFrontier,
};
pub use read_error::{ReadError, Refusal};
pub use rollouts::{RolloutEntry, RolloutFailure, RolloutPage, RolloutQuery, RolloutStatus, RowSplit};
pub use run::{EventEnvelope, EventPage, ModelUse, RunModels, event_window};
pub use scores::{
    ScoreArtifact, ScoreEntry, ScorePage, ScorePoint, ScoreSeries, ScoreSeriesList, SeriesQuery, score_window,
};

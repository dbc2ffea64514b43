//! What the service shows of a run: read from its workspace, while the run goes on and after.
//!
//! Each model is read at one moment of the workspace. Nothing here writes, and a page costs what the page holds.

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

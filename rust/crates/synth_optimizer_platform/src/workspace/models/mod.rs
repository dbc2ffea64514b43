//! What the service shows of a run: read from its workspace, while the run goes on and after.
//!
//! Each model is read at one moment of the workspace. Nothing here writes, and a page costs what the page holds.

mod artifact_files;
mod artifacts;
mod best;
mod candidate_detail;
mod candidates;
mod events;
mod frontier;
mod harness;
mod query;
mod refusal;
mod rollout_trace;
mod rollouts;
mod row_values;
mod score_series;
mod scores;
mod used_models;

pub use artifact_files::{ArtifactFile, open_artifact};
pub use artifacts::{ArtifactEntry, Artifacts, artifacts};
pub use best::BestCandidate;
pub use candidate_detail::{CandidateDetail, FieldChange};
pub use candidates::{CandidateEntry, CandidatePage, CandidateQuery};
pub use events::{EventEnvelope, EventPage, event_window};
pub use frontier::{FrontierCell, FrontierMember, RunFrontier};
pub use refusal::{ReadError, Refusal};
pub use rollout_trace::{RolloutDetail, RolloutEvidence, RolloutFeedback, RolloutTrace};
pub use rollouts::{RolloutEntry, RolloutFailure, RolloutPage, RolloutQuery, RolloutStatus, RowSplit};
pub use score_series::{ScorePoint, ScoreSeries, ScoreSeriesList, SeriesQuery};
pub use scores::{ScoreArtifact, ScoreEntry, ScorePage, score_window};
pub use used_models::{ModelUse, RunModels};

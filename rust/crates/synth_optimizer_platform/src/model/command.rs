//! Work that the engine wants done: a request event without an answer.

use serde::{Deserialize, Serialize};

use super::event_fields::{Operation, Problem, Stage};
use super::ids::{CandidateId, Payload, RequestId, RowId};

/// One call to make.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    Rollout(RolloutCommand),
    Propose(ProposeCommand),
}

impl Command {
    pub fn request(&self) -> RequestId {
        match self {
            Self::Rollout(command) => command.request,
            Self::Propose(command) => command.request,
        }
    }
}

/// Run a candidate on a row.
#[derive(Debug, Clone, PartialEq)]
pub struct RolloutCommand {
    pub request: RequestId,
    pub candidate_id: CandidateId,
    pub payload: Payload,
    pub row_id: RowId,
    pub heldout: bool,
    pub stage: Stage,
    pub replicate: u32,
    pub attempt: u32,
}

/// Ask for changed texts.
#[derive(Debug, Clone, PartialEq)]
pub struct ProposeCommand {
    pub request: RequestId,
    pub generation: u32,
    pub attempt: u32,
    pub operation: Operation,
    pub parents: Vec<(CandidateId, Payload)>,
    pub ancestor: Option<(CandidateId, Payload)>,
    /// What the proposed fields are laid over.
    pub base: Payload,
    /// Fields that may change.
    pub components: Vec<String>,
    /// How many proposals are wanted.
    pub proposal_count: u32,
    /// The parents' results that may be shown, with their train scores.
    pub evidence: Vec<EvidenceRow>,
    /// Rejected candidates that should not be repeated.
    pub carried_failures: Vec<CarriedAttempt>,
    /// Problems of the answer before.
    pub problems: Vec<Problem>,
}

/// A candidate that was rejected, with the reason.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CarriedAttempt {
    pub candidate_id: CandidateId,
    pub payload: Payload,
    pub reason: String,
}

/// One row of evidence: where its trace is found, and how the first parent did on it.
#[derive(Debug, Clone, PartialEq)]
pub struct EvidenceRow {
    pub row_id: RowId,
    pub score: Option<f64>,
}

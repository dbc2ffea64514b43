//! Work that the engine wants done: a request event without an answer.

use serde::{Deserialize, Serialize};

use super::event_fields::{Operation, Problem, Stage};
use super::ids::{CallId, CandidateId, Payload, RowId};
use super::lifecycle::CandidateStatus;
use crate::string_enum;

/// One call to make.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    Rollout(RolloutCommand),
    Propose(ProposeCommand),
}

impl Command {
    pub fn call_id(&self) -> CallId {
        match self {
            Self::Rollout(command) => command.call_id,
            Self::Propose(command) => command.call_id,
        }
    }
}

/// Run a candidate on a row.
#[derive(Debug, Clone, PartialEq)]
pub struct RolloutCommand {
    pub call_id: CallId,
    /// The evaluation that the rollout belongs to: the first request of it.
    pub evaluation: CallId,
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
    pub call_id: CallId,
    pub attempt: u32,
    pub question: ProposerQuestion,
    /// The parents' results that may be shown, with their train scores.
    pub evidence: Vec<EvidenceRow>,
    /// The request whose answer had the problems of the question.
    pub repairs: Option<CallId>,
}

/// What is asked of a proposer, as it was decided on. It does not name the call, so that it can be part of a cache key.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ProposerQuestion {
    pub operation: Operation,
    pub generation: u32,
    pub parents: Vec<NamedPayload>,
    pub ancestor: Option<NamedPayload>,
    /// What the proposed fields are laid over.
    pub base: Payload,
    /// Fields that may change.
    pub components: Vec<String>,
    /// How many proposals are wanted.
    pub proposal_count: u32,
    /// Rejected candidates that should not be repeated.
    pub carried_failures: Vec<CarriedAttempt>,
    /// Ancestors and children of the parents, as they stood when the question was decided on.
    pub relatives: Vec<RelatedCandidate>,
    /// The best of the frontier at that moment.
    pub frontier: Vec<FrontierMember>,
    /// How many candidates the frontier had.
    pub frontier_size: u32,
    /// Problems of the answer before.
    pub problems: Vec<Problem>,
}

/// A candidate with its texts.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NamedPayload {
    pub candidate_id: CandidateId,
    pub payload: Payload,
}

string_enum! {
    /// How a candidate is related to the first parent of a proposal.
    Relation {
        /// The first parent descends from it.
        Ancestor = "ancestor",
        /// It was made from a parent.
        Child = "child",
    }
}

/// A candidate that a parent came from or that came from a parent, and what the change was worth.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RelatedCandidate {
    pub candidate_id: CandidateId,
    pub relation: Relation,
    pub status: CandidateStatus,
    /// Mean train score, where it was fully evaluated.
    pub train_score: Option<f64>,
    /// Mean difference to its own first parent, on the rows that both were measured on, and how many they are.
    pub delta: Option<f64>,
    pub rows: u32,
    /// The texts in which it differs from the first parent, where they are still kept.
    pub changed: Payload,
}

/// A candidate of the frontier.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FrontierMember {
    pub candidate_id: CandidateId,
    pub train_score: f64,
    /// Cells of the frontier in which nobody is better.
    pub cells_won: u64,
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

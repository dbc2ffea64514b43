//! Commands: calls that the engine requested and that have no answer yet.

use serde::{Deserialize, Serialize};

use super::event_fields::{Operation, Problem, Stage};
use super::ids::{CallId, CandidateId, Payload, RowId};
use super::lifecycle::CandidateStatus;
use crate::string_enum;

/// One call to send.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    Rollout(RolloutCommand),
    Propose(ProposeCommand),
}

impl Command {
    /// Returns the number of the call.
    pub fn call_id(&self) -> CallId {
        match self {
            Self::Rollout(command) => command.call_id,
            Self::Propose(command) => command.call_id,
        }
    }
}

/// Runs a candidate on a row.
#[derive(Debug, Clone, PartialEq)]
pub struct RolloutCommand {
    pub call_id: CallId,
    /// The evaluation that the rollout belongs to, named by its first call.
    pub evaluation: CallId,
    pub candidate_id: CandidateId,
    pub payload: Payload,
    pub row_id: RowId,
    pub heldout: bool,
    pub stage: Stage,
    pub replicate: u32,
    pub attempt: u32,
}

/// Asks the proposer for changed texts.
#[derive(Debug, Clone, PartialEq)]
pub struct ProposeCommand {
    pub call_id: CallId,
    pub attempt: u32,
    pub question: ProposerQuestion,
    /// The rows whose traces the proposer may see, with the first parent's scores.
    pub evidence: Vec<EvidenceRow>,
    /// The call whose answer had the problems that this turn repairs.
    pub repairs: Option<CallId>,
}

/// The input of a proposer turn, fixed when the turn is decided. It contains no call number, so it can be part of a cache
/// key.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ProposerQuestion {
    pub operation: Operation,
    pub generation: u32,
    pub parents: Vec<NamedPayload>,
    pub ancestor: Option<Box<NamedPayload>>,
    /// The texts that a proposal starts from; proposed fields replace them.
    pub base: Payload,
    /// Fields that may change.
    pub components: Vec<String>,
    /// Those of them that the proposer should change by edits.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub edit_fields: Vec<String>,
    /// The number of proposals to return.
    pub proposal_count: u32,
    /// Rejected candidates that the proposer should not repeat.
    pub carried_failures: Vec<CarriedAttempt>,
    /// Ancestors and children of the parents at the time of the decision.
    pub relatives: Vec<RelatedCandidate>,
    /// The best members of the frontier at that time.
    pub frontier: Vec<FrontierMember>,
    /// The number of candidates on the frontier.
    pub frontier_size: u32,
    /// Problems of the previous answer, to be repaired.
    pub problems: Vec<Problem>,
    /// What the user demands of every candidate.
    #[serde(skip_serializing_if = "CandidateRules::is_empty")]
    pub rules: Box<CandidateRules>,
}

/// What the user demands of every candidate, as far as it concerns a question.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct CandidateRules {
    /// Literal texts that the requested fields must keep.
    pub keep: Vec<KeptText>,
    pub length: Option<LengthRule>,
    /// Train rows that must not get worse.
    pub guarded: Vec<RowId>,
}

impl CandidateRules {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A literal text that a field must keep.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct KeptText {
    pub field: String,
    pub text: String,
}

/// The maximum length of a candidate and the length of the base, in estimated tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct LengthRule {
    pub max_tokens: u32,
    pub base_tokens: u64,
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
        /// It descends from one of the parents.
        Child = "child",
    }
}

/// An ancestor or a child of a parent, with the effect of its change on the score.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RelatedCandidate {
    pub candidate_id: CandidateId,
    pub relation: Relation,
    pub status: CandidateStatus,
    /// Mean train score; null if it was not fully evaluated.
    pub train_score: Option<f64>,
    /// Mean difference to its own first parent on the rows that both have scores for, and the number of these rows.
    pub delta: Option<f64>,
    pub rows: u32,
    /// The texts in which it differs from the first parent; empty if they are no longer in memory.
    pub changed: Payload,
}

/// A candidate on the frontier.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FrontierMember {
    pub candidate_id: CandidateId,
    pub train_score: f64,
    /// Cells of the frontier in which no candidate is better.
    pub cells_won: u64,
}

/// A candidate that was rejected, with the reason.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CarriedAttempt {
    pub candidate_id: CandidateId,
    pub payload: Payload,
    pub reason: String,
}

/// One row whose trace the proposer sees, and the first parent's score on it.
#[derive(Debug, Clone, PartialEq)]
pub struct EvidenceRow {
    pub row_id: RowId,
    pub score: Option<f64>,
}

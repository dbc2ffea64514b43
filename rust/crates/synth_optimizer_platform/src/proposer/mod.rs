//! The proposer boundary: what a proposer is asked, and the contract that every backend keeps.

use std::future::Future;
use std::pin::Pin;

use serde::Serialize;
use serde_json::Value;

use crate::model::answer::{CallFailure, ProposalAnswer};
use crate::model::command::CarriedAttempt;
use crate::model::event_fields::{Operation, Problem};
use crate::model::ids::{CandidateId, Payload, RowId};

/// One row of evidence: what was asked, what came of it, and the score.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Evidence {
    pub row_id: RowId,
    pub row: Value,
    pub score: Option<f64>,
    /// The container's whole reply, where there is one.
    pub reply: Option<Value>,
}

/// A candidate with its texts.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NamedPayload {
    pub candidate_id: CandidateId,
    pub payload: Payload,
}

/// Everything that a proposer is told. It holds no held-out row, no secret, and nothing that depends on the run's name,
/// place or time, so that its digest is the cache key of the turn.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ProposalRequest {
    pub operation: Operation,
    pub generation: u32,
    pub program: Value,
    pub task_info: Option<Value>,
    pub parents: Vec<NamedPayload>,
    pub ancestor: Option<NamedPayload>,
    pub base: Payload,
    pub components: Vec<String>,
    pub proposal_count: u32,
    pub evidence: Vec<Evidence>,
    pub carried_failures: Vec<CarriedAttempt>,
    pub problems: Vec<Problem>,
}

/// A turn under way.
pub type Turn<'a> = Pin<Box<dyn Future<Output = Result<ProposalAnswer, CallFailure>> + Send + 'a>>;

/// Who writes proposals. A turn is dropped when the run is cancelled, and must then leave nothing behind.
pub trait Proposer: Send + Sync + std::fmt::Debug {
    /// What makes answers of this proposer different from those of another: backend, model and settings.
    fn identity(&self) -> Value;

    fn propose(&self, request: ProposalRequest) -> Turn<'_>;
}

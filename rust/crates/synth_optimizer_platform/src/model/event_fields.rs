//! The fields of each event, as they stand on the wire.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::answer::FailureClass;
use super::budget::Dimension;
use super::error::ErrorCode;
use super::ids::{CandidateId, Payload, RequestId, RowId};
use super::lifecycle::{CandidateTrigger, RunState, RunTrigger};
use super::score::{Comparison, Gain, Score};
use super::usage::{Cost, Usage};
use crate::config::gepa::{Direction, FrontierType, Selector};
use crate::config::words::words;

words! {
    /// Why a rollout is run.
    Stage {
        SeedFullTrain = "seed_full_train",
        ParentMinibatchReference = "parent_minibatch_reference",
        CandidateMinibatch = "candidate_minibatch",
        CandidateFullTrain = "candidate_full_train",
        Heldout = "heldout",
    }
}
words! {
    /// How a candidate came to be.
    Operation { Seed = "seed", Mutate = "mutate", Merge = "merge", }
}
words! {
    /// Which rule ended the search.
    StopKind {
        ScoreThreshold = "score_threshold",
        NoImprovement = "no_improvement",
        PerfectScore = "perfect_score",
        NothingMeasurable = "nothing_measurable",
        MaxCost = "max_cost_usd",
        MaxTokens = "max_tokens",
        MaxTime = "max_time_seconds",
        MaxRollouts = "max_rollouts",
        MaxGenerations = "max_generations",
        External = "external",
        CircuitBreaker = "circuit_breaker",
        SeedFailed = "seed_failed",
        ProposerExhausted = "proposer_exhausted",
        Error = "error",
    }
}

/// `gepa.run.started`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunStarted {
    pub algorithm: String,
    pub config_digest: String,
    pub seed: u64,
    pub container_url: String,
}

/// `optimizer.state.transitioned`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StateTransitioned {
    pub from: RunState,
    pub to: RunState,
    pub trigger: RunTrigger,
}

/// `container.contract.verified`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ContractVerified {
    pub version: String,
    /// `dataset`, `taskset`, or both.
    pub dialects: Vec<String>,
    pub rollout_modes: Vec<String>,
    /// Advertised routes by their key.
    pub routes: BTreeMap<String, String>,
}

/// `container.task_info.loaded`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TaskInfoLoaded {
    pub digest: String,
}

/// `dataset.seeds.mapped`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RowsMapped {
    /// `split_list` when the container lists the ids of the split, `split_and_seed` when they are put together.
    pub rule: String,
    /// Seeds with their ids, in the order of the config.
    pub train: Vec<(i64, String)>,
    pub heldout: Vec<(i64, String)>,
}

/// `run.resumed`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunResumed {
    /// Events that were stored before.
    pub events: u64,
    /// Answers that had come and wait for their turn.
    pub waiting: u32,
    /// Calls that had been sent and whose outcome is not known. They are sent again under the same id.
    pub unknown_outcomes: u32,
}

/// `rollout.transport.fallback`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TransportFallback {
    pub requested: String,
    pub effective: String,
    pub reason: String,
}

/// `rollout.concurrency.adjusted`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ConcurrencyAdjusted {
    pub old_limit: u32,
    pub new_limit: u32,
    /// The HTTP status that showed the overload; none for an increase.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
}

/// `cache.damaged`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CacheDamaged {
    pub boundary: String,
    pub key: String,
}

/// `container.program.loaded`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProgramLoaded {
    pub program_id: String,
    pub program_digest: String,
    pub mutable_fields: Vec<String>,
    pub target_fields: Vec<String>,
}

/// `dataset.rows.loaded`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RowsLoaded {
    pub train_rows: u32,
    pub heldout_rows: u32,
    pub pareto_pool: u32,
    pub minibatch_pool: u32,
    pub reflection_pool: u32,
    pub heldout_pool: u32,
    pub rows_digest: String,
}

/// One objective.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Objective {
    pub name: String,
    pub direction: Direction,
}

/// `objective_set.declared`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ObjectiveSetDeclared {
    pub selection_objective: String,
    pub frontier_type: FrontierType,
    pub objectives: Vec<Objective>,
}

/// `candidate.registered`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CandidateRegistered {
    pub candidate_id: CandidateId,
    pub operation: Operation,
    pub parent_ids: Vec<CandidateId>,
    pub generation: Option<u32>,
    pub payload: Payload,
    pub changed_fields: Vec<String>,
    pub rationale: String,
}

/// `rollout.requested`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RolloutsRequested {
    pub first_request: RequestId,
    /// The evaluation that the rollouts belong to: the first request of it.
    pub evaluation: RequestId,
    pub candidate_id: CandidateId,
    pub stage: Stage,
    pub generation: Option<u32>,
    pub row_ids: Vec<RowId>,
    pub attempt: u32,
    pub replicate: u32,
}

/// `rollout.finished`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RolloutFinished {
    pub request: RequestId,
    pub candidate_id: CandidateId,
    pub row_id: RowId,
    pub stage: Stage,
    pub reward: f64,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub objectives: BTreeMap<String, f64>,
    pub usage: Usage,
    pub cached: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace_digest: Option<String>,
}

/// `rollout.failed`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RolloutFailed {
    pub request: RequestId,
    pub candidate_id: CandidateId,
    pub row_id: RowId,
    pub stage: Stage,
    pub attempt: u32,
    pub class: FailureClass,
    pub message: String,
    pub usage: Usage,
    pub cached: bool,
    /// Whether the next event asks for the same rollout again.
    pub retried: bool,
}

/// The end of an evaluation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EvaluationCompleted {
    pub evaluation: RequestId,
    pub candidate_id: CandidateId,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generation: Option<u32>,
    /// Rows that were asked for, and those of them that gave no score.
    pub rows: u32,
    pub failed: u32,
    /// Score on the deciding objective.
    pub score: Option<Score>,
}

/// `candidate.promoted`, `candidate.accepted`, `candidate.rejected`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CandidateDecided {
    pub candidate_id: CandidateId,
    pub stage: Stage,
    /// A stable short code, such as `primary_improved`.
    pub reason: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub comparison: Option<Comparison>,
}

/// `candidate.deferred`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CandidateDeferred {
    pub candidate_id: CandidateId,
    pub stage: Stage,
    pub reason: CandidateTrigger,
}

/// How a parent was chosen.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ParentSelection {
    pub selector: Selector,
    pub cells_won: u64,
    pub total_weight: u64,
    pub frontier_size: u32,
}

/// `generation.started`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GenerationStarted {
    pub generation: u32,
    pub operation: Operation,
    pub parent_ids: Vec<CandidateId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ancestor_id: Option<CandidateId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selection: Option<ParentSelection>,
    /// The draw of parent and minibatch that this is.
    pub draw: u64,
    /// Rows on which the proposals are screened.
    pub minibatch: Vec<RowId>,
    /// Rows whose traces the proposer sees.
    pub evidence: Vec<RowId>,
    /// Fields that the proposals may change.
    pub components: Vec<String>,
    /// What a proposal is laid over: the parent's texts, or the part of a merge on which both parents agree.
    pub base: Payload,
}

/// `minibatch.skipped`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MinibatchSkipped {
    pub parent_id: CandidateId,
    pub draw: u64,
    pub rows: u32,
}

/// A rejected candidate that the proposer should not repeat.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CarriedFailure {
    pub candidate_id: CandidateId,
    pub reason: String,
}

/// What is wrong with a proposal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// A stable short code, such as `field_unknown`.
    pub code: String,
    pub field: Option<String>,
    pub message: String,
}

/// `proposer.ready`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProposerReady {
    pub backend: String,
    pub model: String,
    pub provider: String,
    /// Which program answers, where it was found, and its version; the endpoint of one that is only called.
    pub program: String,
    pub source: String,
    pub version: String,
    /// How it authenticates.
    pub auth: String,
    /// What it may touch.
    pub sandbox: String,
}

/// `proposer.started`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProposerStarted {
    pub request: RequestId,
    pub generation: u32,
    pub attempt: u32,
    pub proposal_count: u32,
    pub carried_failures: Vec<CarriedFailure>,
    /// Problems of the answer before, to be repaired; empty for a first answer.
    pub problems: Vec<Problem>,
}

/// `proposer.completed`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProposerCompleted {
    pub request: RequestId,
    pub generation: u32,
    pub proposal_count: u32,
    /// Proposals beyond those that were asked for; they are not looked at.
    pub ignored: u32,
    pub requested_model: String,
    pub effective_model: String,
    pub usage: Usage,
    pub cached: bool,
}

/// Which model a turn asked for, and which one answered as far as is known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnModels {
    pub requested: String,
    pub effective: Option<String>,
}

/// `proposer.failed`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProposerFailed {
    pub request: RequestId,
    pub generation: u32,
    pub attempt: u32,
    pub class: FailureClass,
    pub message: String,
    pub usage: Usage,
    pub cached: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub models: Option<Box<TurnModels>>,
    /// Whether the next event asks again.
    pub retried: bool,
}

/// `proposal.rejected`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProposalRejected {
    pub generation: u32,
    /// Place of the proposal in its answer.
    pub index: u32,
    pub problems: Vec<Problem>,
}

/// `candidate.duplicate_skipped`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DuplicateSkipped {
    pub candidate_id: CandidateId,
    pub generation: u32,
    pub index: u32,
}

/// `candidate.leakage_detected`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LeakageDetected {
    pub candidate_id: CandidateId,
    pub field: String,
    /// The train row whose text is repeated.
    pub row_id: RowId,
    pub chars: u32,
}

/// A cell of the frontier that a candidate holds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CellWon {
    /// The row of the cell; none where a cell is an objective over all rows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub row_id: Option<RowId>,
    pub objective: String,
    pub value: f64,
    /// Whether the holders before it lose the cell.
    pub alone: bool,
}

/// `frontier.updated`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FrontierUpdated {
    pub candidate_id: CandidateId,
    /// Its mean on the deciding objective, such that larger is better; where it has no score, that of the best counts.
    pub merit: f64,
    /// Cells that the candidate holds, alone or tied.
    pub cells_won: u32,
    pub joined: bool,
    /// These cells.
    pub cells: Vec<CellWon>,
    /// Candidates that hold no cell any more.
    pub left: Vec<CandidateId>,
    pub size: u32,
}

/// `generation.completed`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GenerationCompleted {
    pub generation: u32,
    pub operation: Operation,
    /// Candidates that were registered, and those of them that were accepted.
    pub registered: u32,
    pub accepted: u32,
    pub best_candidate_id: CandidateId,
    pub best_train_score: Option<Score>,
    pub frontier_size: u32,
    pub candidates: u32,
}

/// `budget.refused`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BudgetRefused {
    pub dimension: Dimension,
    pub wanted: u64,
    pub available: u64,
    /// What the amount was wanted for.
    pub purpose: String,
}

/// `rollout.circuit_breaker.tripped`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CircuitBreakerTripped {
    pub failures: u32,
    pub window: u32,
    pub tolerance: f64,
}

/// Which rule ended the search, and why.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StoppedBy {
    pub kind: StopKind,
    /// The limit and the value that met it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// An error that ends a run; `gepa.failure.raised`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Failure {
    pub code: ErrorCode,
    pub message: String,
}

/// `gepa.stop`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StopDecided {
    pub stopped_by: StoppedBy,
    /// Set when the run cannot end well.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
}

/// A reason in words.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reason {
    pub reason: String,
}

/// `clock.observed`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClockObserved {
    pub elapsed_millis: u64,
}

/// `heldout.started`, `heldout.partial`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HeldoutChosen {
    pub candidate_ids: Vec<CandidateId>,
    pub rows: u32,
}

/// What was used, by the limits, and what was paid.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Bill {
    /// Null is unknown.
    pub cost_usd: Cost,
    pub paid_calls: u64,
    pub cached_calls: u64,
    pub prompt_tokens: u64,
    pub completion_tokens: u64,
    pub total_tokens: u64,
    /// Measured time, where a time limit asks for it.
    pub elapsed_millis: Option<u64>,
}

/// Rollouts that count against the limits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RolloutCount {
    pub train: u64,
    pub heldout: u64,
    pub unknown_outcomes: u64,
}

/// Seed or returned candidate, on train or held-out rows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NamedScore {
    pub role: String,
    pub split: String,
    pub candidate_id: CandidateId,
    pub score: Score,
}

/// `gepa.run.finished`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunFinished {
    pub best_candidate_id: CandidateId,
    pub stopped_by: StoppedBy,
    pub scores: Vec<NamedScore>,
    /// Returned candidate minus seed on the rows that both have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub train_gain: Option<Gain>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub heldout_gain: Option<Gain>,
    pub generations: u32,
    pub candidates: u32,
    pub rollouts: RolloutCount,
    pub bill: Bill,
}

/// `gepa.run.failed`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunFailed {
    pub error_code: ErrorCode,
    pub message: String,
    pub best_candidate_id: Option<CandidateId>,
    pub rollouts: RolloutCount,
    pub bill: Bill,
}

/// `gepa.run.cancelled`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunEnded {
    pub reason: String,
    pub best_candidate_id: Option<CandidateId>,
    pub rollouts: RolloutCount,
    pub bill: Bill,
}

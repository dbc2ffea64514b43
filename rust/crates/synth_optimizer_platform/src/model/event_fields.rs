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
        /// The seed on all train rows.
        SeedFullTrain = "seed_full_train",
        /// The parent on the rows of a generation on which it has no score.
        ParentMinibatchReference = "parent_minibatch_reference",
        /// A proposal on the minibatch, against its parent.
        CandidateMinibatch = "candidate_minibatch",
        /// A promoted candidate on all train rows.
        CandidateFullTrain = "candidate_full_train",
        /// Seed and best on held-out rows, after the search.
        Heldout = "heldout",
    }
}
words! {
    /// How a candidate came to be.
    Operation {
        /// It is the text to start from.
        Seed = "seed",
        /// The proposer changed its parent.
        Mutate = "mutate",
        /// It takes fields from two parents.
        Merge = "merge",
    }
}
words! {
    /// Which rule ended the search.
    StopKind {
        /// The best score reached `gepa.score_threshold_value`.
        ScoreThreshold = "score_threshold",
        /// `gepa.no_improvement_generations` passed without a better best.
        NoImprovement = "no_improvement",
        /// The candidates have nothing to gain any more.
        PerfectScore = "perfect_score",
        /// No row is left on which anything could be measured.
        NothingMeasurable = "nothing_measurable",
        /// The money is used up.
        MaxCost = "max_cost_usd",
        /// The tokens are used up.
        MaxTokens = "max_tokens",
        /// The time is used up.
        MaxTime = "max_time_seconds",
        /// The rollouts are used up.
        MaxRollouts = "max_rollouts",
        /// The generations are used up.
        MaxGenerations = "max_generations",
        /// Somebody asked for an early finish.
        External = "external",
        /// Too many of the last rollouts failed.
        CircuitBreaker = "circuit_breaker",
        /// The seed could not be measured.
        SeedFailed = "seed_failed",
        /// The proposer brought nothing valid and new.
        ProposerExhausted = "proposer_exhausted",
        /// Something broke that the run cannot go on without.
        Error = "error",
    }
}

/// `gepa.run.started`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunStarted {
    /// The optimizer, `gepa`.
    pub algorithm: String,
    /// Digest of the settings that can change a decision.
    pub config_digest: String,
    /// `run.seed`.
    pub seed: u64,
    /// `container.url`, without credentials.
    pub container_url: String,
}

/// `optimizer.state.transitioned`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StateTransitioned {
    /// The state before.
    pub from: RunState,
    /// The state after.
    pub to: RunState,
    /// What moved it.
    pub trigger: RunTrigger,
}

/// `container.contract.verified`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ContractVerified {
    /// The advertised version of the contract.
    pub version: String,
    /// `dataset`, `taskset`, or both.
    pub dialects: Vec<String>,
    /// `capabilities.rollout_modes`; empty when the container does not say.
    pub rollout_modes: Vec<String>,
    /// Advertised routes by their key.
    pub routes: BTreeMap<String, String>,
}

/// `container.task_info.loaded`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TaskInfoLoaded {
    /// Digest of the description.
    pub digest: String,
}

/// `dataset.seeds.mapped`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RowsMapped {
    /// `split_list` when the container lists the ids of the split, `split_and_seed` when they are put together.
    pub rule: String,
    /// Train seeds with their ids, in the order of the config.
    pub train: Vec<(i64, String)>,
    /// The same for held-out seeds.
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
    /// The submission mode of the config.
    pub requested: String,
    /// The mode in which rollouts are sent from here on.
    pub effective: String,
    /// What the container said or advertises.
    pub reason: String,
}

/// `rollout.concurrency.adjusted`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ConcurrencyAdjusted {
    /// Rollouts at once before.
    pub old_limit: u32,
    /// Rollouts at once from here on.
    pub new_limit: u32,
    /// The HTTP status that showed the overload; none for an increase.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
}

/// `cache.damaged`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CacheDamaged {
    /// Which kind of call the entry belongs to.
    pub boundary: String,
    /// The key of the entry.
    pub key: String,
}

/// `container.program.loaded`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProgramLoaded {
    /// The container's name of the program.
    pub program_id: String,
    /// Digest of its modules, fixed ones included.
    pub program_digest: String,
    /// Every field that the program lets change.
    pub mutable_fields: Vec<String>,
    /// Those that this run may change.
    pub target_fields: Vec<String>,
}

/// `dataset.rows.loaded`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RowsLoaded {
    /// Train rows.
    pub train_rows: u32,
    /// Held-out rows.
    pub heldout_rows: u32,
    /// Train rows of the full evaluation.
    pub pareto_pool: u32,
    /// Train rows that minibatches are drawn from.
    pub minibatch_pool: u32,
    /// Train rows whose traces the proposer may see.
    pub reflection_pool: u32,
    /// Held-out rows that are measured.
    pub heldout_pool: u32,
    /// Digest of all rows.
    pub rows_digest: String,
}

/// One objective.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Objective {
    /// Its name.
    pub name: String,
    /// Which way is better.
    pub direction: Direction,
}

/// `objective_set.declared`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ObjectiveSetDeclared {
    /// The objective that decides.
    pub selection_objective: String,
    /// What one cell of the frontier is.
    pub frontier_type: FrontierType,
    /// Every objective, the deciding one first.
    pub objectives: Vec<Objective>,
}

/// `candidate.registered`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CandidateRegistered {
    /// The id, made from the texts.
    pub candidate_id: CandidateId,
    /// How it came to be.
    pub operation: Operation,
    /// Its parents; none for the seed, two for a merge.
    pub parent_ids: Vec<CandidateId>,
    /// The generation that made it; none for the seed.
    pub generation: Option<u32>,
    /// Its texts.
    pub payload: Payload,
    /// Fields whose text differs from the parent's.
    pub changed_fields: Vec<String>,
    /// Why, in the words of the proposer.
    pub rationale: String,
}

/// `rollout.requested`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RolloutsRequested {
    /// Number of the first request; the rows follow it in order.
    pub first_request: RequestId,
    /// The evaluation that the rollouts belong to: the first request of it.
    pub evaluation: RequestId,
    /// Whose texts are run.
    pub candidate_id: CandidateId,
    /// What the rollouts are for.
    pub stage: Stage,
    /// The generation that they belong to, if any.
    pub generation: Option<u32>,
    /// The rows, one request each.
    pub row_ids: Vec<RowId>,
    /// 1 for the first try of these rows.
    pub attempt: u32,
    /// Which repetition of the same measurement.
    pub replicate: u32,
}

/// `rollout.finished`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RolloutFinished {
    /// The request that is answered.
    pub request: RequestId,
    /// Whose texts were run.
    pub candidate_id: CandidateId,
    /// The row.
    pub row_id: RowId,
    /// What the rollout was for.
    pub stage: Stage,
    /// The reward of the container.
    pub reward: f64,
    /// Scores by objective, where the container gives any.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub objectives: BTreeMap<String, f64>,
    /// What it used.
    pub usage: Usage,
    /// Whether the answer came from the cache.
    pub cached: bool,
    /// Digest of the stored reply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace_digest: Option<String>,
}

/// `rollout.failed`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RolloutFailed {
    /// The request that is answered.
    pub request: RequestId,
    /// Whose texts were to be run.
    pub candidate_id: CandidateId,
    /// The row.
    pub row_id: RowId,
    /// What the rollout was for.
    pub stage: Stage,
    /// 1 for the first try.
    pub attempt: u32,
    /// What kind of failure it was.
    pub class: FailureClass,
    /// What happened, in words.
    pub message: String,
    /// What it used all the same.
    pub usage: Usage,
    /// Whether the failure was replayed from the cache.
    pub cached: bool,
    /// Whether the next event asks for the same rollout again.
    pub retried: bool,
}

/// The end of an evaluation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EvaluationCompleted {
    /// The evaluation: the first request of it.
    pub evaluation: RequestId,
    /// Who was evaluated.
    pub candidate_id: CandidateId,
    /// The generation that it belongs to, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generation: Option<u32>,
    /// Rows that were asked for.
    pub rows: u32,
    /// Those of them that gave no score.
    pub failed: u32,
    /// Score on the deciding objective; null without one row that has a score.
    pub score: Option<Score>,
}

/// `candidate.promoted`, `candidate.accepted`, `candidate.rejected`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CandidateDecided {
    /// Who was judged.
    pub candidate_id: CandidateId,
    /// The evaluation on which it was judged.
    pub stage: Stage,
    /// A stable short code, such as `primary_improved`.
    pub reason: String,
    /// The comparison behind it; none for the seed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub comparison: Option<Comparison>,
}

/// `candidate.deferred`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CandidateDeferred {
    /// Who could not be judged.
    pub candidate_id: CandidateId,
    /// Where it stopped.
    pub stage: Stage,
    /// Why.
    pub reason: CandidateTrigger,
}

/// How a parent was chosen.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ParentSelection {
    /// The rule.
    pub selector: Selector,
    /// Cells of the frontier that the parent holds.
    pub cells_won: u64,
    /// Sum of the weights that were drawn from; 1 where nothing was drawn.
    pub total_weight: u64,
    /// Candidates on the frontier.
    pub frontier_size: u32,
}

/// `generation.started`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GenerationStarted {
    /// Its number, from 0.
    pub generation: u32,
    /// Whether its candidates are mutations or a merge.
    pub operation: Operation,
    /// Its parents.
    pub parent_ids: Vec<CandidateId>,
    /// The common ancestor of a merge's parents.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ancestor_id: Option<CandidateId>,
    /// How the parent was chosen; none for a merge.
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
    /// The parent.
    pub parent_id: CandidateId,
    /// The draw of parent and minibatch that this is.
    pub draw: u64,
    /// Rows of the minibatch.
    pub rows: u32,
}

/// A rejected candidate that the proposer should not repeat.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CarriedFailure {
    /// Who was rejected.
    pub candidate_id: CandidateId,
    /// Why.
    pub reason: String,
}

/// What is wrong with a proposal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// A stable short code, such as `field_unknown`.
    pub code: String,
    /// The field that it is about, if it is about one.
    pub field: Option<String>,
    /// What is wrong, in words.
    pub message: String,
}

/// `proposer.ready`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ProposerReady {
    /// `proposer.backend`.
    pub backend: String,
    /// The model that is asked for.
    pub model: String,
    /// Who serves it.
    pub provider: String,
    /// Path of the program; the endpoint of a proposer that is only called.
    pub program: String,
    /// Where the program was found, or the setting that names the endpoint.
    pub source: String,
    /// Version of the program; empty for an endpoint.
    pub version: String,
    /// How it authenticates.
    pub auth: String,
    /// What it may touch.
    pub sandbox: String,
}

/// `proposer.started`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProposerStarted {
    /// The request.
    pub request: RequestId,
    /// The generation that wants proposals.
    pub generation: u32,
    /// 1 for the first try.
    pub attempt: u32,
    /// Proposals that are asked for.
    pub proposal_count: u32,
    /// Rejected candidates that are shown, with the reason.
    pub carried_failures: Vec<CarriedFailure>,
    /// Problems of the answer before, to be repaired; empty for a first answer.
    pub problems: Vec<Problem>,
}

/// `proposer.completed`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProposerCompleted {
    /// The request that is answered.
    pub request: RequestId,
    /// The generation that asked.
    pub generation: u32,
    /// Proposals that came.
    pub proposal_count: u32,
    /// Proposals beyond those that were asked for; they are not looked at.
    pub ignored: u32,
    /// The model that was asked for.
    pub requested_model: String,
    /// The model that answered.
    pub effective_model: String,
    /// What the turn used.
    pub usage: Usage,
    /// Whether the answer came from the cache.
    pub cached: bool,
}

/// Which model a turn asked for, and which one answered as far as is known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnModels {
    /// The model that was asked for.
    pub requested: String,
    /// The model that answered, if it is known.
    pub effective: Option<String>,
}

/// `proposer.failed`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProposerFailed {
    /// The request that is answered.
    pub request: RequestId,
    /// The generation that asked.
    pub generation: u32,
    /// 1 for the first try.
    pub attempt: u32,
    /// What kind of failure it was.
    pub class: FailureClass,
    /// What happened, in words.
    pub message: String,
    /// What it used all the same.
    pub usage: Usage,
    /// Whether the failure was replayed from the cache.
    pub cached: bool,
    /// Which models it was about, if the turn reached one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub models: Option<Box<TurnModels>>,
    /// Whether the next event asks again.
    pub retried: bool,
}

/// `proposal.rejected`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProposalRejected {
    /// The generation that asked.
    pub generation: u32,
    /// Place of the proposal in its answer.
    pub index: u32,
    /// Every problem that was found.
    pub problems: Vec<Problem>,
}

/// `candidate.duplicate_skipped`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DuplicateSkipped {
    /// The known candidate.
    pub candidate_id: CandidateId,
    /// The generation that asked.
    pub generation: u32,
    /// Place of the proposal in its answer.
    pub index: u32,
}

/// `candidate.leakage_detected`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LeakageDetected {
    /// Whose text it is.
    pub candidate_id: CandidateId,
    /// The field of the text.
    pub field: String,
    /// The train row whose text is repeated.
    pub row_id: RowId,
    /// Length of the repetition, in characters.
    pub chars: u32,
}

/// A cell of the frontier that a candidate holds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CellWon {
    /// The row of the cell; none where a cell is an objective over all rows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub row_id: Option<RowId>,
    /// The objective of the cell.
    pub objective: String,
    /// The value with which it is held.
    pub value: f64,
    /// Whether the holders before it lose the cell.
    pub alone: bool,
}

/// `frontier.updated`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FrontierUpdated {
    /// Who was evaluated.
    pub candidate_id: CandidateId,
    /// Its mean on the deciding objective, such that larger is better; where it has no score, that of the best counts.
    pub merit: f64,
    /// Cells that the candidate holds, alone or tied.
    pub cells_won: u32,
    /// Whether it holds any cell.
    pub joined: bool,
    /// These cells.
    pub cells: Vec<CellWon>,
    /// Candidates that hold no cell any more.
    pub left: Vec<CandidateId>,
    /// Candidates on the frontier now.
    pub size: u32,
}

/// `generation.completed`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GenerationCompleted {
    /// Its number.
    pub generation: u32,
    /// Whether its candidates were mutations or a merge.
    pub operation: Operation,
    /// Candidates that were registered.
    pub registered: u32,
    /// Those of them that were accepted.
    pub accepted: u32,
    /// The best candidate so far.
    pub best_candidate_id: CandidateId,
    /// Its score on train rows.
    pub best_train_score: Option<Score>,
    /// Candidates on the frontier.
    pub frontier_size: u32,
    /// Candidates of the run so far.
    pub candidates: u32,
}

/// `budget.refused`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BudgetRefused {
    /// What is limited.
    pub dimension: Dimension,
    /// How much was wanted, in the unit of the dimension.
    pub wanted: u64,
    /// How much was left.
    pub available: u64,
    /// What the amount was wanted for.
    pub purpose: String,
}

/// `rollout.circuit_breaker.tripped`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CircuitBreakerTripped {
    /// Failures among them.
    pub failures: u32,
    /// How many of the last rollouts were looked at.
    pub window: u32,
    /// The share of failures that is tolerated.
    pub tolerance: f64,
}

/// Which rule ended the search, and why.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StoppedBy {
    /// The rule.
    pub kind: StopKind,
    /// The limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<f64>,
    /// The value that met it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<f64>,
    /// Why, in words, where the rule has more to say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// An error that ends a run; `gepa.failure.raised`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Failure {
    /// The stable code.
    pub code: ErrorCode,
    /// What happened, in words.
    pub message: String,
}

/// `gepa.stop`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StopDecided {
    /// The rule.
    pub stopped_by: StoppedBy,
    /// Set when the run cannot end well.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
}

/// A reason in words.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reason {
    /// Why, in words.
    pub reason: String,
}

/// `clock.observed`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClockObserved {
    /// Measured time of the run, without the time in which it did not run.
    pub elapsed_millis: u64,
}

/// `heldout.started`, `heldout.partial`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HeldoutChosen {
    /// The candidates.
    pub candidate_ids: Vec<CandidateId>,
    /// Held-out rows of each.
    pub rows: u32,
}

/// What was used, by the limits, and what was paid.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Bill {
    /// Null is unknown.
    pub cost_usd: Cost,
    /// Calls that were made.
    pub paid_calls: u64,
    /// Calls that the cache answered.
    pub cached_calls: u64,
    /// Prompt tokens of paid calls.
    pub prompt_tokens: u64,
    /// Completion tokens of paid calls.
    pub completion_tokens: u64,
    /// Tokens of paid calls.
    pub total_tokens: u64,
    /// Measured time, where a time limit asks for it.
    pub elapsed_millis: Option<u64>,
}

/// Rollouts that count against the limits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RolloutCount {
    /// Train rollouts.
    pub train: u64,
    /// Held-out rollouts.
    pub heldout: u64,
    /// Those of which nobody knows whether they ran.
    pub unknown_outcomes: u64,
}

/// Seed or returned candidate, on train or held-out rows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NamedScore {
    /// `seed` or `best`.
    pub role: String,
    /// `train` or `heldout`.
    pub split: String,
    /// The candidate.
    pub candidate_id: CandidateId,
    /// Its score on the deciding objective.
    pub score: Score,
}

/// `gepa.run.finished`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunFinished {
    /// The candidate that is returned.
    pub best_candidate_id: CandidateId,
    /// Why the search ended.
    pub stopped_by: StoppedBy,
    /// Scores of the seed and of the returned candidate.
    pub scores: Vec<NamedScore>,
    /// Returned candidate minus seed on the train rows that both have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub train_gain: Option<Gain>,
    /// The same on held-out rows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub heldout_gain: Option<Gain>,
    /// Generations of the run.
    pub generations: u32,
    /// Candidates of the run.
    pub candidates: u32,
    /// Rollouts that count against the limits.
    pub rollouts: RolloutCount,
    /// What was used and paid.
    pub bill: Bill,
}

/// `gepa.run.failed`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunFailed {
    /// The stable code.
    pub error_code: ErrorCode,
    /// What happened, in words.
    pub message: String,
    /// The best candidate until then, if there was one.
    pub best_candidate_id: Option<CandidateId>,
    /// Rollouts that count against the limits.
    pub rollouts: RolloutCount,
    /// What was used and paid.
    pub bill: Bill,
}

/// `gepa.run.cancelled`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunEnded {
    /// Why, in words.
    pub reason: String,
    /// The best candidate until then, if there was one.
    pub best_candidate_id: Option<CandidateId>,
    /// Rollouts that count against the limits.
    pub rollouts: RolloutCount,
    /// What was used and paid.
    pub bill: Bill,
}

//! The fields of events about the run as a whole: its setup, how it is carried out, and its end.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::budget::Dimension;
use super::super::error::ErrorCode;
use super::super::ids::CandidateId;
use super::super::lifecycle::{RunState, RunTrigger};
use super::super::score::{Gain, Score};
use super::super::usage::Cost;
use crate::words;

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
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
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
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StateTransitioned {
    /// The state before.
    pub from: RunState,
    /// The state after.
    pub to: RunState,
    /// What moved it.
    pub trigger: RunTrigger,
}

/// `container.contract.verified`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
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
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TaskInfoLoaded {
    /// Digest of the description.
    pub digest: String,
}

/// `dataset.seeds.mapped`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RowsMapped {
    /// `split_list` when the container lists the ids of the split, `split_and_seed` when they are put together.
    pub rule: String,
    /// Train seeds with their ids, in the order of the config.
    pub train: Vec<(i64, String)>,
    /// The same for held-out seeds.
    pub heldout: Vec<(i64, String)>,
}

/// `run.resumed`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunResumed {
    /// Events that were stored before.
    pub events: u64,
    /// Answers that had come and wait for their turn.
    pub waiting: u32,
    /// Calls that had been sent and whose outcome is not known. They are sent again under the same id.
    pub unknown_outcomes: u32,
}

/// `rollout.transport.fallback`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TransportFallback {
    /// The submission mode of the config.
    pub requested: String,
    /// The mode in which rollouts are sent from here on.
    pub effective: String,
    /// What the container said or advertises.
    pub reason: String,
}

/// `rollout.concurrency.adjusted`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
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
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CacheDamaged {
    /// Which kind of call the entry belongs to.
    pub boundary: String,
    /// The key of the entry.
    pub key: String,
}

/// `container.program.loaded`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
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
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
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

/// `proposer.ready`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
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

/// `budget.refused`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
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
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CircuitBreakerTripped {
    /// Failures among them.
    pub failures: u32,
    /// How many of the last rollouts were looked at.
    pub window: u32,
    /// The share of failures that is tolerated.
    pub tolerance: f64,
}

/// Which rule ended the search, and why.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
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
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Failure {
    /// The stable code.
    pub code: ErrorCode,
    /// What happened, in words.
    pub message: String,
}

/// `gepa.stop`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StopDecided {
    /// The rule.
    pub stopped_by: StoppedBy,
    /// Set when the run cannot end well.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
}

/// A reason in words.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Reason {
    /// Why, in words.
    pub reason: String,
}

/// `clock.observed`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ClockObserved {
    /// Measured time of the run, without the time in which it did not run.
    pub elapsed_millis: u64,
}

/// What was used, by the limits, and what was paid.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
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
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RolloutCount {
    /// Train rollouts.
    pub train: u64,
    /// Held-out rollouts.
    pub heldout: u64,
    /// Those of which nobody knows whether they ran.
    pub unknown_outcomes: u64,
}

/// Seed or returned candidate, on train or held-out rows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
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
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
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
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
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
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
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

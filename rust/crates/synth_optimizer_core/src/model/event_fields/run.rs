//! The fields of events about the run as a whole: its setup, how it is carried out, and its end.

use std::collections::BTreeMap;

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

fields! {
    /// `gepa.run.started`
    RunStarted {
        /// The optimizer, `gepa`.
        algorithm: String,
        /// Digest of the settings that can change a decision.
        config_digest: String,
        /// `run.seed`.
        seed: u64,
        /// `container.url`, without credentials.
        container_url: String,
    }
    /// `optimizer.state.transitioned`
    StateTransitioned {
        /// The state before.
        from: RunState,
        /// The state after.
        to: RunState,
        /// What moved it.
        trigger: RunTrigger,
    }
    /// `container.contract.verified`
    ContractVerified {
        /// The advertised version of the contract.
        version: String,
        /// `dataset`, `taskset`, or both.
        dialects: Vec<String>,
        /// `capabilities.rollout_modes`; empty when the container does not say.
        rollout_modes: Vec<String>,
        /// Advertised routes by their key.
        routes: BTreeMap<String, String>,
    }
    /// `container.task_info.loaded`
    TaskInfoLoaded {
        /// Digest of the description.
        digest: String,
    }
    /// `dataset.seeds.mapped`
    RowsMapped {
        /// `split_list` when the container lists the ids of the split, `split_and_seed` when they are put together.
        rule: String,
        /// Train seeds with their ids, in the order of the config.
        train: Vec<(i64, String)>,
        /// The same for held-out seeds.
        heldout: Vec<(i64, String)>,
    }
    /// `run.resumed`
    RunResumed {
        /// Events that were stored before.
        events: u64,
        /// Answers that had come and wait for their turn.
        waiting: u32,
        /// Calls that had been sent and whose outcome is not known. They are sent again under the same id.
        unknown_outcomes: u32,
    }
    /// `rollout.transport.fallback`
    TransportFallback {
        /// The submission mode of the config.
        requested: String,
        /// The mode in which rollouts are sent from here on.
        effective: String,
        /// What the container said or advertises.
        reason: String,
    }
    /// `rollout.concurrency.adjusted`
    ConcurrencyAdjusted {
        /// Rollouts at once before.
        old_limit: u32,
        /// Rollouts at once from here on.
        new_limit: u32,
        /// The HTTP status that showed the overload; none for an increase.
        #[serde(skip_serializing_if = "Option::is_none")]
        status: Option<u16>,
    }
    /// `cache.damaged`
    CacheDamaged {
        /// Which kind of call the entry belongs to.
        boundary: String,
        /// The key of the entry.
        key: String,
    }
    /// `container.program.loaded`
    ProgramLoaded {
        /// The container's name of the program.
        program_id: String,
        /// Digest of its modules, fixed ones included.
        program_digest: String,
        /// Every field that the program lets change.
        mutable_fields: Vec<String>,
        /// Those that this run may change.
        target_fields: Vec<String>,
    }
    /// `dataset.rows.loaded`
    RowsLoaded {
        /// Train rows.
        train_rows: u32,
        /// Held-out rows.
        heldout_rows: u32,
        /// Train rows of the full evaluation.
        pareto_pool: u32,
        /// Train rows that minibatches are drawn from.
        minibatch_pool: u32,
        /// Train rows whose traces the proposer may see.
        reflection_pool: u32,
        /// Held-out rows that are measured.
        heldout_pool: u32,
        /// Digest of all rows.
        rows_digest: String,
    }
    /// `proposer.ready`
    ProposerReady {
        /// `proposer.backend`.
        backend: String,
        /// The model that is asked for.
        model: String,
        /// Who serves it.
        provider: String,
        /// Path of the program; the endpoint of a proposer that is only called.
        program: String,
        /// Where the program was found, or the setting that names the endpoint.
        source: String,
        /// Version of the program; empty for an endpoint.
        version: String,
        /// How it authenticates.
        auth: String,
        /// What it may touch.
        sandbox: String,
    }
    /// `budget.refused`
    BudgetRefused {
        /// What is limited.
        dimension: Dimension,
        /// How much was wanted, in the unit of the dimension.
        wanted: u64,
        /// How much was left.
        available: u64,
        /// What the amount was wanted for.
        purpose: String,
    }
    /// `rollout.circuit_breaker.tripped`
    CircuitBreakerTripped {
        /// Failures among them.
        failures: u32,
        /// How many of the last rollouts were looked at.
        window: u32,
        /// The share of failures that is tolerated.
        tolerance: f64,
    }
    /// Which rule ended the search, and why.
    StoppedBy {
        /// The rule.
        kind: StopKind,
        /// The limit.
        #[serde(skip_serializing_if = "Option::is_none")]
        limit: Option<f64>,
        /// The value that met it.
        #[serde(skip_serializing_if = "Option::is_none")]
        value: Option<f64>,
        /// Why, in words, where the rule has more to say.
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    }
    /// An error that ends a run; `gepa.failure.raised`
    Failure {
        /// The stable code.
        code: ErrorCode,
        /// What happened, in words.
        message: String,
    }
    /// `gepa.stop`
    StopDecided {
        /// The rule.
        stopped_by: StoppedBy,
        /// Set when the run cannot end well.
        #[serde(skip_serializing_if = "Option::is_none")]
        failure: Option<Failure>,
    }
    /// A reason in words.
    Reason {
        /// Why, in words.
        reason: String,
    }
    /// `clock.observed`
    ClockObserved {
        /// Measured time of the run, without the time in which it did not run.
        elapsed_millis: u64,
    }
    /// What was used, by the limits, and what was paid.
    Bill {
        /// Null is unknown.
        cost_usd: Cost,
        /// Calls that were made.
        paid_calls: u64,
        /// Calls that the cache answered.
        cached_calls: u64,
        /// Prompt tokens of paid calls.
        prompt_tokens: u64,
        /// Completion tokens of paid calls.
        completion_tokens: u64,
        /// Tokens of paid calls.
        total_tokens: u64,
        /// Measured time, where a time limit asks for it.
        elapsed_millis: Option<u64>,
    }
    /// Rollouts that count against the limits.
    RolloutCount {
        /// Train rollouts.
        train: u64,
        /// Held-out rollouts.
        heldout: u64,
        /// Those of which nobody knows whether they ran.
        unknown_outcomes: u64,
    }
    /// Seed or returned candidate, on train or held-out rows.
    NamedScore {
        /// `seed` or `best`.
        role: String,
        /// `train` or `heldout`.
        split: String,
        /// The candidate.
        candidate_id: CandidateId,
        /// Its score on the deciding objective.
        score: Score,
    }
    /// `gepa.run.finished`
    RunFinished {
        /// The candidate that is returned.
        best_candidate_id: CandidateId,
        /// Why the search ended.
        stopped_by: StoppedBy,
        /// Scores of the seed and of the returned candidate.
        scores: Vec<NamedScore>,
        /// Returned candidate minus seed on the train rows that both have.
        #[serde(skip_serializing_if = "Option::is_none")]
        train_gain: Option<Gain>,
        /// The same on held-out rows.
        #[serde(skip_serializing_if = "Option::is_none")]
        heldout_gain: Option<Gain>,
        /// Generations of the run.
        generations: u32,
        /// Candidates of the run.
        candidates: u32,
        /// Rollouts that count against the limits.
        rollouts: RolloutCount,
        /// What was used and paid.
        bill: Bill,
    }
    /// `gepa.run.failed`
    RunFailed {
        /// The stable code.
        error_code: ErrorCode,
        /// What happened, in words.
        message: String,
        /// The best candidate until then, if there was one.
        best_candidate_id: Option<CandidateId>,
        /// Rollouts that count against the limits.
        rollouts: RolloutCount,
        /// What was used and paid.
        bill: Bill,
    }
    /// `gepa.run.cancelled`
    RunEnded {
        /// Why, in words.
        reason: String,
        /// The best candidate until then, if there was one.
        best_candidate_id: Option<CandidateId>,
        /// Rollouts that count against the limits.
        rollouts: RolloutCount,
        /// What was used and paid.
        bill: Bill,
    }
}

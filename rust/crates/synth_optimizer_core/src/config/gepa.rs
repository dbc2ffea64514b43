//! The `[gepa]` section and its tables: search, transport, pipeline, limits and stop rules.

use std::collections::BTreeMap;

use super::sections::section;
use crate::string_enum;

pub use super::pools::{OUTCOME_REWARD, objective_names};
pub use crate::model::event_fields::{Direction, FrontierType, Selector};

string_enum! {
    /// When a candidate counts as better.
    AcceptanceCriterion {
        /// The deciding objective gains more than the margin.
        PrimaryImprovement = "primary_improvement",
        /// The deciding objective does not lose more than the margin.
        ImprovementOrEqual = "improvement_or_equal",
        /// The deciding objective gains, or another one does and no protected one loses much.
        PrimaryOrObjective = "primary_or_objective",
        /// Some objective gains.
        AnyObjectiveImproved = "any_objective_improved",
        /// Some objective gains, and no protected one loses much, whatever the deciding one gains.
        ProtectedObjectiveGuard = "protected_objective_guard",
    }
    /// Which target modules one proposal may change.
    ComponentSelector {
        /// One of them, in turn.
        RoundRobin = "round_robin",
        /// All of them.
        All = "all",
    }
    /// Which candidate is returned.
    DeploymentRule {
        /// The best on train rows; held-out rows only measure it.
        OptimizationSelected = "optimization_selected",
        /// The best on held-out rows; its held-out score is then biased upwards.
        HeldoutBest = "heldout_best",
    }
    /// What a stop rule looks at.
    StopMetric {
        /// The best score on train rows.
        TrainScore = "train_score" | "train_reward",
        /// Read as `train_score`, with a warning: held-out rows are measured once, after the search.
        HeldoutScore = "heldout_score" | "heldout_reward",
    }
    /// How minibatches are drawn.
    Sampler {
        /// Every minibatch anew, from the whole pool.
        SeededShuffle = "seeded_shuffle",
        /// In slices of a shuffled pool; every row has its turn before the next shuffle.
        EpochShuffled = "epoch_shuffled",
        /// In slices of the pool in its own order.
        OrderedEpoch = "ordered_epoch" | "sequential_epoch",
        /// One row of each value of `field` in turn.
        Stratified = "stratified" | "stratified_by_field",
    }
    /// What happens to a proposal that repeats train text.
    LeakagePolicy {
        /// It is refused.
        Forbid = "forbid",
        /// It is taken, and an event tells.
        Warn = "warn",
        /// It is taken.
        Allow = "allow",
    }
    /// What a merge does where both parents changed the same module.
    MergeConflict {
        /// Takes the text of the parent with the higher score.
        HigherScore = "higher_score",
        /// Asks the proposer to merge both texts.
        Proposer = "proposer",
    }
    /// How rollouts are sent.
    SubmissionMode {
        /// Sent and waited for.
        Sync = "sync",
        /// Sent, then asked for until it is at its end.
        Async = "async",
    }
    /// How work is ordered.
    PipelineMode {
        /// One generation at a time.
        SyncSerial = "sync_serial" | "sync" | "serial",
        /// As many generations as fit into `max_in_flight_candidates`.
        AsyncPipelined = "async_pipelined" | "async" | "pipelined",
    }
    /// What happens to a proposal whose parent is no longer the newest.
    StalenessPolicy {
        /// It is evaluated like any other.
        Full = "full" | "full_async",
    }
}

/// Maximum of a timeout or time limit, in seconds. Longer than any run, and safe to convert to nanoseconds.
pub(super) const MAX_SECONDS: u64 = 1_000_000_000;
/// Maximum of a token limit or estimate. Larger than any run needs, and exact as a float.
pub(super) const MAX_TOKENS: u64 = 1_000_000_000_000_000;

section! {
    /// Search, transport, limits and stop rules.
    GepaSection {
        /// Most generations: propose, screen, evaluate.
        max_generations: u32 [min = 1] = 2,
        /// Proposals asked for in one proposer turn.
        proposals_per_generation: u32 [min = 1] = 2,
        /// Rows on which a proposal is screened against its parent.
        minibatch_size: u32 [min = 1] = 8,
        /// How much better than its parent a proposal must be on the minibatch.
        minibatch_accept_margin: f64 [min = 0.0] = 0.0,
        frontier_type: FrontierType = FrontierType::PerExample,
        /// The objective that decides. Unset: the first of the declared ones.
        selection_objective: Option<String>,
        /// Objectives of the run. Empty: `outcome_reward`, the reward of the rollout.
        objective_keys: Vec<String>,
        /// Objectives that are not to be maximized.
        objective_directions: BTreeMap<String, Direction>,
        /// Compares a fully evaluated candidate with the best one.
        acceptance_criterion: AcceptanceCriterion = AcceptanceCriterion::PrimaryImprovement,
        /// Compares a proposal with its parent on the minibatch.
        minibatch_acceptance_criterion: AcceptanceCriterion = AcceptanceCriterion::PrimaryImprovement,
        objective_acceptance: ObjectiveAcceptance,
        candidate_selector: CandidateSelector,
        batch_sampler: BatchSampler,
        component_selector: ComponentSelector = ComponentSelector::RoundRobin,
        /// Row pools by seed, for `[dataset]`.
        seed_pools: SeedPools,
        /// Row pools by task id, for `[taskset]`.
        task_pools: Option<TaskPools>,
        deployment_rule: DeploymentRule = DeploymentRule::OptimizationSelected,
        leakage: Leakage,
        merge: Merge,
        /// Skips minibatches on which the parent has nothing to gain.
        skip_perfect_score: bool = true,
        /// The score that cannot be improved. Unset: 1.0, as long as the run has met no reward above it.
        perfect_score: Option<f64>,
        /// How many perfect minibatches may be skipped in one generation.
        max_perfect_skips: u32 = 16,
        /// How many rejected candidates are shown, with the reason, to the next proposal.
        carry_failures: u32 = 3,
        /// Longest text of one field, in characters.
        max_field_chars: u32 [min = 1] = 32_768,
        /// Share of the train rows that must have a score before a candidate can be accepted.
        min_full_coverage: f64 [min = 0.0, max = 1.0] = 0.25,

        rollout_submission_mode: SubmissionMode = SubmissionMode::Sync,
        /// How often an async rollout is asked for its result, in milliseconds.
        rollout_poll_interval_ms: u64 [min = 1] = 250,
        /// How long an async rollout may take, in seconds.
        rollout_async_timeout_seconds: u64 [min = 1, max = MAX_SECONDS] = 600,
        /// Rollouts handed to the transport at once. Unset: as many as are allowed to run.
        rollout_chunk_size: Option<u32> [min = 1],
        /// How often one rollout is tried when it fails in a way that may pass. Every try counts as a rollout.
        rollout_max_attempts: u32 [min = 1] = 2,
        /// Share of failed rollouts that one evaluation may have and still be judged.
        rollout_failure_rate_tolerance: f64 [min = 0.0, max = 1.0] = 0.25,
        circuit_breaker: CircuitBreaker,

        /// Most rollouts in all, held-out ones included.
        max_total_rollouts: u32 [min = 1] = 256,
        /// Most train rollouts. When only the held-out cap is given: `max_total_rollouts`.
        max_train_rollouts: Option<u32> [min = 1],
        /// Most held-out rollouts. When only the train cap is given: `max_total_rollouts`.
        max_heldout_rollouts: Option<u32> [min = 1],
        /// Most dollars of proposer and rollouts together. 0.0 is no limit. Needs both estimates.
        max_cost_usd: f64 [min = 0.0, max = 1e9] = 0.0,
        /// Longest time of the run, in seconds. Needs `rollout_estimated_wall_seconds`.
        max_time_seconds: Option<u64> [min = 1, max = MAX_SECONDS],
        /// Most prompt tokens of proposer and rollouts together. Needs both estimates.
        max_prompt_tokens: Option<u64> [min = 1, max = MAX_TOKENS],
        /// Most completion tokens of proposer and rollouts together. Needs both estimates.
        max_completion_tokens: Option<u64> [min = 1, max = MAX_TOKENS],
        /// Most tokens of proposer and rollouts together. May be written `max_tokens`. Needs estimates of both.
        #[serde(alias = "max_tokens")]
        #[schemars(extend("x-also-written" = "max_tokens"))]
        max_total_tokens: Option<u64> [min = 1, max = MAX_TOKENS],
        /// What one proposer turn costs at most.
        proposer_estimated_cost_usd: Option<f64> [min = 1e-9, max = 1e6],
        /// Prompt tokens that one proposer turn uses at most.
        proposer_estimated_prompt_tokens: Option<u64> [min = 1, max = MAX_TOKENS],
        /// Completion tokens that one proposer turn uses at most.
        proposer_estimated_completion_tokens: Option<u64> [min = 1, max = MAX_TOKENS],
        /// Tokens that one proposer turn uses at most.
        proposer_estimated_total_tokens: Option<u64> [min = 1, max = MAX_TOKENS],
        /// What one rollout costs at most.
        rollout_estimated_cost_usd: Option<f64> [min = 1e-9, max = 1e6],
        /// Prompt tokens that one rollout uses at most.
        rollout_estimated_prompt_tokens: Option<u64> [min = 1, max = MAX_TOKENS],
        /// Completion tokens that one rollout uses at most.
        rollout_estimated_completion_tokens: Option<u64> [min = 1, max = MAX_TOKENS],
        /// Tokens that one rollout uses at most.
        rollout_estimated_total_tokens: Option<u64> [min = 1, max = MAX_TOKENS],
        /// How long one rollout takes at most, in seconds.
        rollout_estimated_wall_seconds: Option<f64> [min = 1e-3, max = 1e7],

        /// Stops after this many generations in a row without a better best score.
        no_improvement_generations: Option<u32> [min = 1],
        no_improvement_metric: StopMetric = StopMetric::TrainScore,
        /// Stops when the best score reaches this value.
        score_threshold_value: Option<f64>,
        score_threshold_metric: StopMetric = StopMetric::TrainScore,
        pipeline: Pipeline,
    }
    /// How objectives other than the deciding one take part in acceptance.
    ObjectiveAcceptance {
        /// How much an objective must gain to count as improved.
        min_objective_delta: f64 [min = 0.0] = 0.05,
        /// How much a protected objective may lose.
        objective_regression_tolerance: f64 [min = 0.0] = 0.10,
        /// Objectives that may lose no more than that. Empty: all of them.
        protected_objectives: Vec<String>,
    }
    /// How parents are chosen.
    CandidateSelector {
        name: Selector = Selector::ParetoWeighted,
        /// Share of random parents of `epsilon_greedy`.
        epsilon: f64 [min = 0.0, max = 1.0] = 0.1,
        /// How many of the best candidates `top_k_pareto` looks at.
        k: u32 [min = 1] = 3,
    }
    /// How minibatches are drawn.
    BatchSampler {
        name: Sampler = Sampler::SeededShuffle,
        /// How many new rows each minibatch of an epoch takes. Unset: `minibatch_size`.
        epoch_width: Option<u32> [min = 1],
        /// Dotted path of the row field that `stratified` balances.
        field: String = "metadata.difficulty".into(),
    }
    /// Row pools by seed. An empty pool is the whole of what it is drawn from.
    SeedPools {
        /// Rows of the full evaluation. Empty: all train seeds.
        pareto_eval: Vec<i64>,
        /// Rows that minibatches are drawn from. Empty: `pareto_eval`.
        minibatch: Vec<i64>,
        /// Rows whose traces the proposer may see. Empty: the minibatch pool.
        reflection: Vec<i64>,
        /// Held-out rows. Empty: all held-out seeds.
        validation: Vec<i64>,
    }
    /// Row pools by task id.
    TaskPools {
        /// Tasks of the full evaluation. Required.
        pareto: Vec<String>,
        /// Tasks that minibatches are drawn from. Required.
        minibatch: Vec<String>,
        /// Tasks whose traces the proposer may see. Required.
        reflection: Vec<String>,
        /// Held-out tasks. Required.
        heldout: Vec<String>,
    }
    /// The scan of proposals for text of the rows. Held-out text is always refused.
    Leakage {
        /// What happens to a proposal that repeats train text.
        policy: LeakagePolicy = LeakagePolicy::Forbid,
        /// Shortest repetition that counts, in characters.
        min_span_chars: u32 [min = 8] = 32,
    }
    /// System-aware merge of two candidates that share an ancestor.
    Merge {
        /// Whether merges are tried.
        enabled: bool,
        /// Most merges that are built in a run, whatever becomes of them.
        max_merges: u32 = 5,
        conflict: MergeConflict = MergeConflict::HigherScore,
        /// Rows that both parents must have scores for.
        min_shared_rows: u32 [min = 1] = 5,
        /// Rows on which a merge is screened against both parents.
        gate_rows: u32 [min = 1] = 5,
    }
    /// Stops a run whose container has broken.
    CircuitBreaker {
        /// Whether a broken container stops the run.
        enabled: bool = true,
        /// How many of the last rollouts are looked at.
        window: u32 [min = 1] = 32,
        /// How many of them must have failed, beyond the tolerated share.
        min_failures: u32 [min = 1] = 8,
    }
    /// How work is ordered and how much of it runs at once.
    Pipeline {
        mode: PipelineMode = PipelineMode::SyncSerial,
        staleness_policy: StalenessPolicy = StalenessPolicy::Full,
        /// The logical window of `async_pipelined`: candidates that are proposed or evaluated at once.
        max_in_flight_candidates: u32 [min = 1] = 8,
        workers: Workers,
        adaptive_rollout_concurrency: AdaptiveConcurrency,
    }
    /// How much runs at once in each lane. Never changes what is decided, unless time is limited.
    Workers {
        /// Proposer turns.
        propose: u32 [min = 1] = 1,
        /// Rollouts.
        rollout: u32 [min = 1] = 8,
        /// Answers that are decoded and stored.
        evaluate: u32 [min = 1] = 1,
    }
    /// Rollout concurrency that follows the container's load.
    AdaptiveConcurrency {
        /// Whether the concurrency follows the load.
        enabled: bool = true,
        /// Rollouts at once in the beginning, within `workers.rollout`.
        initial: u32 [min = 1] = 50,
        /// Fewest rollouts at once.
        min: u32 [min = 1] = 1,
        /// Most rollouts at once.
        max: u32 [min = 1] = 120,
        /// How many more after enough successes.
        increase_step: u32 [min = 1] = 10,
        /// How many fewer after an overload, at least: the number is halved.
        decrease_step: u32 [min = 1] = 10,
        /// Successes in a row that count as enough.
        increase_after_successes: u32 [min = 1] = 40,
        /// HTTP statuses that mean overload.
        overload_status_codes: Vec<u16> = vec![408, 425, 429, 500, 502, 503, 504, 529],
    }
}

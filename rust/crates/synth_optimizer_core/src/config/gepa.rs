//! The `[gepa]` section and its tables: search, transport, pipeline, limits and stop rules.

use std::collections::BTreeMap;

use super::sections::section;
use crate::string_enum;

pub use super::pools::{CANDIDATE_TOKENS, objective_direction, objective_names};
pub use super::steering::{GuardRow, candidate_tokens, estimated_tokens};
pub use crate::model::event_fields::{Direction, FrontierType, SearchMode, Selector};
pub use crate::model::score::OUTCOME_REWARD;

/// The reason that a container is given when an async rollout passes its deadline.
pub const ASYNC_TIMEOUT_REASON: &str = "gepa_async_timeout";

string_enum! {
    /// When a candidate counts as better than another one.
    AcceptanceCriterion {
        /// The deciding objective improves by more than the margin.
        PrimaryImprovement = "primary_improvement",
        /// The deciding objective does not get worse by more than the margin.
        ImprovementOrEqual = "improvement_or_equal",
        /// The deciding objective improves; or another one improves and no protected one gets worse by too much.
        PrimaryOrObjective = "primary_or_objective",
        /// At least one objective improves.
        AnyObjectiveImproved = "any_objective_improved",
        /// At least one objective improves, and no protected one gets worse by too much, even if the deciding one improves.
        ProtectedObjectiveGuard = "protected_objective_guard",
    }
    /// The target modules that one proposal may change.
    ComponentSelector {
        /// One module, in round-robin order.
        RoundRobin = "round_robin",
        /// All modules.
        All = "all",
    }
    /// The candidate that a run returns.
    DeploymentRule {
        /// The best candidate on train rows. Held-out rows only measure it.
        OptimizationSelected = "optimization_selected",
        /// The best candidate on held-out rows. Its held-out score is then biased upwards.
        HeldoutBest = "heldout_best",
    }
    /// The score that a stop rule uses.
    StopMetric {
        /// The best score on train rows.
        TrainScore = "train_score" | "train_reward",
        /// Treated as `train_score`, with a warning, because held-out rows are measured only once, after the search.
        HeldoutScore = "heldout_score" | "heldout_reward",
    }
    /// How minibatches are drawn.
    Sampler {
        /// Each minibatch is a random sample of the whole pool.
        SeededShuffle = "seeded_shuffle",
        /// Minibatches are slices of a shuffled pool. Every row is used before the next shuffle.
        EpochShuffled = "epoch_shuffled",
        /// Minibatches are slices of the pool in its own order.
        OrderedEpoch = "ordered_epoch" | "sequential_epoch",
        /// Minibatches take one row of each value of `field` in turn.
        Stratified = "stratified" | "stratified_by_field",
    }
    /// What happens to a proposal that repeats train text.
    LeakagePolicy {
        /// The proposal is rejected.
        Forbid = "forbid",
        /// The proposal is used, and an event reports the repetition.
        Warn = "warn",
        /// The proposal is used.
        Allow = "allow",
    }
    /// How a merge resolves a module that both parents changed.
    MergeConflict {
        /// It uses the text of the parent with the higher score.
        HigherScore = "higher_score",
        /// The proposer merges both texts.
        Proposer = "proposer",
    }
    /// How rollouts are sent.
    SubmissionMode {
        /// One HTTP request that returns the result.
        Sync = "sync",
        /// A submission, followed by polling for the result.
        Async = "async",
    }
    /// How generations are scheduled.
    PipelineMode {
        /// `async_pipelined` with more than 8 workers for rollouts, otherwise `sync_serial`: one generation at a time keeps
        /// that many workers busy for most of the time, and each proposal knows all scores.
        Auto = "auto",
        /// One generation at a time.
        SyncSerial = "sync_serial" | "sync" | "serial",
        /// As many generations as fit into `max_in_flight_candidates`.
        AsyncPipelined = "async_pipelined" | "async" | "pipelined",
    }
    /// What happens to a proposal whose parent is no longer the newest candidate.
    StalenessPolicy {
        /// It is evaluated like any other.
        Full = "full" | "full_async",
    }
}

/// Maximum of a timeout or time limit, in seconds. Longer than any run, and safe to convert to nanoseconds.
pub(super) const MAX_SECONDS: u64 = 1_000_000_000;
/// Maximum of a token limit or estimate. Larger than any run needs, and exact as a float.
pub(super) const MAX_TOKENS: u64 = 1_000_000_000_000_000;

/// Maximum number of concurrent calls of one kind: each needs a connection, and a process has some thousand files.
const MAX_WORKERS: u32 = 4096;
/// Up to this many workers for rollouts are busy for most of the time with one generation at a time.
const FEW_WORKERS: u32 = 8;

section! {
    /// Search, transport, limits and stop rules.
    GepaSection {
        /// How the search decides on candidates.
        search: SearchMode = SearchMode::Auto,
        sprint: Sprint,
        /// Maximum number of generations. A generation proposes, screens and evaluates candidates. Unset: no limit of its own; the
        /// rollout limit or another stop rule ends the search.
        max_generations: Option<u32> [min = 1],
        /// Number of proposals that one proposer turn requests.
        proposals_per_generation: u32 [min = 1] = 1,
        /// Number of rows on which a proposal is compared with its parent before the full evaluation. Unset: 3 to 8, so that the
        /// rollout limit can screen about 24 proposals.
        minibatch_size: Option<u32> [min = 1],
        /// By how much a proposal must exceed its parent's score on the minibatch.
        minibatch_accept_margin: f64 [min = 0.0] = 0.0,
        frontier_type: FrontierType = FrontierType::PerExample,
        /// The deciding objective. Unset: the first of `objective_keys`.
        selection_objective: Option<String>,
        /// Objectives of the run. Empty: `outcome_reward`, the reward of the rollout. `candidate_tokens` is built in: the
        /// estimated length of the candidate, as in `max_candidate_tokens`. It cannot decide alone.
        objective_keys: Vec<String>,
        /// Directions of objectives. An objective without an entry is maximized; `candidate_tokens` is minimized.
        objective_directions: BTreeMap<String, Direction>,
        /// Criterion for a fully evaluated candidate, compared with the best one.
        acceptance_criterion: AcceptanceCriterion = AcceptanceCriterion::PrimaryImprovement,
        /// Criterion for a proposal on the minibatch, compared with its parent.
        minibatch_acceptance_criterion: AcceptanceCriterion = AcceptanceCriterion::PrimaryImprovement,
        objective_acceptance: ObjectiveAcceptance,
        candidate_selector: CandidateSelector,
        batch_sampler: BatchSampler,
        component_selector: ComponentSelector = ComponentSelector::RoundRobin,
        /// Row pools by row number, for `[dataset]`.
        seed_pools: SeedPools,
        /// Row pools by task id, for `[taskset]`.
        task_pools: Option<TaskPools>,
        deployment_rule: DeploymentRule = DeploymentRule::OptimizationSelected,
        leakage: Leakage,
        merge: Merge,
        /// Whether the reference search carries the change of a proposal over to the best candidate, if that changed since the
        /// proposal's parent was chosen, and evaluates several such changes together. It matters with `async_pipelined`.
        rebase: bool = true,
        /// Whether to replace a minibatch on which the parent has the perfect score by rows on which the best candidate, which is then
        /// the parent, can gain.
        skip_perfect_score: bool = true,
        /// The perfect score, which cannot be improved. Unset: 1.0, unless a reward of the run exceeds it.
        perfect_score: Option<f64>,
        /// Number of rejected candidates that the next proposer turn sees, with the reason.
        carry_failures: u32 = 3,
        /// Maximum length of one field, in characters.
        max_field_chars: u32 [min = 1] = 32_768,
        /// Maximum length of a candidate: all of its target texts together, in estimated tokens. The estimate is the number of
        /// characters divided by 4, rounded up. A longer proposal is refused before any rollout. Unset: no limit.
        max_candidate_tokens: Option<u32> [min = 1],
        /// Train rows that must not get worse: row ids such as `"train:3"`, or row numbers of `[dataset]`. A candidate is not
        /// accepted if its score on such a row is lower than that of the best candidate, or missing.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        guard_ids: Vec<serde_json::Value>,

        rollout_submission_mode: SubmissionMode = SubmissionMode::Sync,
        /// Poll interval of an async rollout, in milliseconds.
        rollout_poll_interval_ms: u64 [min = 1] = 250,
        /// Timeout of an async rollout, in seconds.
        rollout_async_timeout_seconds: u64 [min = 1, max = MAX_SECONDS] = 600,
        /// Number of rollouts handed to the transport at once. Unset: as many as may run concurrently.
        rollout_chunk_size: Option<u32> [min = 1],
        /// Maximum number of attempts of one rollout, if the failure is retryable. Every attempt counts as a rollout.
        rollout_max_attempts: u32 [min = 1] = 2,
        /// Maximum share of failed rollouts of an evaluation. Above it, the candidate is deferred.
        rollout_failure_rate_tolerance: f64 [min = 0.0, max = 1.0] = 0.25,
        circuit_breaker: CircuitBreaker,

        /// Maximum number of rollouts, including held-out ones.
        max_total_rollouts: u32 [min = 1] = 256,
        /// Maximum number of train rollouts. Unset while `max_heldout_rollouts` is set: `max_total_rollouts`.
        max_train_rollouts: Option<u32> [min = 1],
        /// Maximum number of held-out rollouts. Unset while `max_train_rollouts` is set: `max_total_rollouts`.
        max_heldout_rollouts: Option<u32> [min = 1],
        /// Maximum cost of proposer and rollouts together, in dollars. 0.0 is no limit. Without estimates, the
        /// cost of a call is learned: the first rollout and the first proposer turn are sent alone.
        max_cost_usd: f64 [min = 0.0, max = 1e9] = 0.0,
        /// Maximum running time, in seconds. Requires `rollout_estimated_wall_seconds`.
        max_time_seconds: Option<u64> [min = 1, max = MAX_SECONDS],
        /// Maximum number of prompt tokens of proposer and rollouts together. Learned like the cost.
        max_prompt_tokens: Option<u64> [min = 1, max = MAX_TOKENS],
        /// Maximum number of completion tokens of proposer and rollouts together. Learned like the cost.
        max_completion_tokens: Option<u64> [min = 1, max = MAX_TOKENS],
        /// Maximum number of tokens of proposer and rollouts together. Also accepted as `max_tokens`. Learned like
        /// the cost.
        #[serde(alias = "max_tokens")]
        #[schemars(extend("x-also-written" = "max_tokens"))]
        max_total_tokens: Option<u64> [min = 1, max = MAX_TOKENS],
        /// Maximum cost of one proposer turn, in dollars.
        proposer_estimated_cost_usd: Option<f64> [min = 1e-9, max = 1e6],
        /// Maximum number of prompt tokens of one proposer turn.
        proposer_estimated_prompt_tokens: Option<u64> [min = 1, max = MAX_TOKENS],
        /// Maximum number of completion tokens of one proposer turn.
        proposer_estimated_completion_tokens: Option<u64> [min = 1, max = MAX_TOKENS],
        /// Maximum number of tokens of one proposer turn.
        proposer_estimated_total_tokens: Option<u64> [min = 1, max = MAX_TOKENS],
        /// Maximum cost of one rollout, in dollars.
        rollout_estimated_cost_usd: Option<f64> [min = 1e-9, max = 1e6],
        /// Maximum number of prompt tokens of one rollout.
        rollout_estimated_prompt_tokens: Option<u64> [min = 1, max = MAX_TOKENS],
        /// Maximum number of completion tokens of one rollout.
        rollout_estimated_completion_tokens: Option<u64> [min = 1, max = MAX_TOKENS],
        /// Maximum number of tokens of one rollout.
        rollout_estimated_total_tokens: Option<u64> [min = 1, max = MAX_TOKENS],
        /// Maximum duration of one rollout, in seconds.
        rollout_estimated_wall_seconds: Option<f64> [min = 1e-3, max = 1e7],

        /// The search stops after this many consecutive generations without a better best score. In sprints, the changes since
        /// then are checked first, and the search continues if the check adopts them.
        no_improvement_generations: Option<u32> [min = 1],
        no_improvement_metric: StopMetric = StopMetric::TrainScore,
        /// The search stops when the best score reaches this value.
        score_threshold_value: Option<f64>,
        score_threshold_metric: StopMetric = StopMetric::TrainScore,
        pipeline: Pipeline,
    }
    /// Constants of the search in sprints. None of them needs to be set.
    Sprint {
        /// Rollouts of a sprint before its check. Unset: an eighth of the train rollouts of the search, from 32 to 128. If scores
        /// repeat exactly, a sprint has at most three for each row, and every rollback halves it; this also applies to a value that
        /// is set.
        rollouts: Option<u32> [min = 1],
        /// Probability from which a check adopts the head of the sprint.
        adopt: f64 [min = 0.5, max = 1.0] = 0.975,
        /// Probability up to which a check rolls the sprint back before its rollouts are used up.
        drop: f64 [min = 0.0, max = 0.5] = 0.025,
        /// Probability below which a check rolls the sprint back after its rollouts are used up.
        keep: f64 [min = 0.0, max = 1.0] = 0.2,
        /// Maximum number of rollouts of a check, as a share of the rollouts of its sprint. If scores repeat exactly, this maximum is
        /// never below 50 rollouts, or the number of rows if that is smaller.
        check_share: f64 [min = 0.01, max = 10.0] = 0.5,
        /// The same share if scores are noisy.
        noisy_check_share: f64 [min = 0.01, max = 10.0] = 0.25,
        /// Rows that a check adds at a time. Unset: the number of open generations, from 4 to 8.
        check_block: Option<u32> [min = 1],
        /// Number of rows that a check compares before its first verdict, or all rows if there are fewer.
        min_pairs: u32 [min = 1] = 8,
        /// The usual size of the gain or loss of one change, as a share of the range of scores: the standard deviation of the
        /// prior of a check.
        step_scale: f64 [min = 1e-6, max = 10.0] = 0.05,
        /// Number of rows on which the initial candidate is rolled out twice, to learn whether scores are noisy.
        repeats: u32 = 16,
        /// Number of other rows on which a screened candidate is compared with its parent, after a sprint that was clearly
        /// worse. 0: none.
        glance_rows: u32 = 3,
        /// Whether to return the best candidate even if the held-out rows do not show that it is better than the initial one.
        /// Otherwise, the initial candidate is returned, and the result names the other one.
        return_unproven: bool,
    }
    /// How objectives other than the deciding one affect acceptance.
    ObjectiveAcceptance {
        /// By how much an objective must improve to count as improved.
        min_objective_delta: f64 [min = 0.0] = 0.05,
        /// By how much a protected objective may get worse.
        objective_regression_tolerance: f64 [min = 0.0] = 0.10,
        /// The protected objectives. Empty: all objectives.
        protected_objectives: Vec<String>,
    }
    /// How parents are chosen.
    CandidateSelector {
        name: Selector = Selector::ParetoWeighted,
        /// Probability of a random parent with `epsilon_greedy`.
        epsilon: f64 [min = 0.0, max = 1.0] = 0.1,
        /// Number of best candidates that `top_k_pareto` chooses from.
        k: u32 [min = 1] = 3,
    }
    /// How minibatches are drawn.
    BatchSampler {
        name: Sampler = Sampler::SeededShuffle,
        /// Number of new rows in each minibatch of an epoch. Unset: `minibatch_size`.
        epoch_width: Option<u32> [min = 1],
        /// Dotted path of the row field that `stratified` balances.
        field: String = "metadata.difficulty".into(),
    }
    /// Row pools by row number. An empty pool contains all rows of the pool that it is drawn from.
    SeedPools {
        /// Rows of the full evaluation. Empty: all train rows.
        pareto_eval: Vec<i64>,
        /// Rows from which minibatches are drawn. Empty: `pareto_eval`.
        minibatch: Vec<i64>,
        /// Rows whose traces the proposer may see. Empty: the minibatch pool.
        reflection: Vec<i64>,
        /// Rows of the held-out evaluation. Empty: all held-out rows.
        validation: Vec<i64>,
    }
    /// Row pools by task id.
    TaskPools {
        /// Tasks of the full evaluation. Required.
        pareto: Vec<String>,
        /// Tasks from which minibatches are drawn. Required.
        minibatch: Vec<String>,
        /// Tasks whose traces the proposer may see. Required.
        reflection: Vec<String>,
        /// Held-out tasks. Required.
        heldout: Vec<String>,
    }
    /// The scan of proposals for text of rows. Proposals with text of held-out rows are always rejected.
    Leakage {
        /// What happens to a proposal that repeats train text.
        policy: LeakagePolicy = LeakagePolicy::Forbid,
        /// Minimum length of a repetition, in characters.
        min_span_chars: u32 [min = 8] = 32,
    }
    /// System-aware merge of two candidates that share an ancestor.
    Merge {
        /// Whether the search tries merges.
        enabled: bool,
        /// Maximum number of merges that a run builds, accepted or not.
        max_merges: u32 = 5,
        conflict: MergeConflict = MergeConflict::HigherScore,
        /// Minimum number of rows that both parents have scores for.
        min_shared_rows: u32 [min = 1] = 5,
        /// Number of rows on which a merge is compared with both parents.
        gate_rows: u32 [min = 1] = 5,
    }
    /// Stops a run whose container is broken. If the task has failed on every row until then, the remaining rollouts are not
    /// sent.
    CircuitBreaker {
        /// Whether the circuit breaker is active.
        enabled: bool = true,
        /// Number of recent rollouts to check.
        window: u32 [min = 1] = 32,
        /// Minimum number of failed rollouts, in addition to exceeding the tolerated share.
        min_failures: u32 [min = 1] = 8,
    }
    /// How generations are scheduled, and how many calls run concurrently.
    Pipeline {
        mode: PipelineMode = PipelineMode::Auto,
        staleness_policy: StalenessPolicy = StalenessPolicy::Full,
        /// Maximum number of candidates that `async_pipelined` proposes or evaluates at the same time. Unset: one for each
        /// worker for rollouts, and at least 8. While proposals rewrite their texts, at most 4 generations are in progress.
        max_in_flight_candidates: Option<u32> [min = 1],
        workers: Workers,
        adaptive_rollout_concurrency: AdaptiveConcurrency,
    }
    /// Number of concurrent calls of each kind. It changes decisions only if the schedule follows from it, or if there is a time
    /// limit.
    Workers {
        /// Proposer turns. Unset: one for each generation that may be in progress.
        propose: Option<u32> [min = 1, max = MAX_WORKERS],
        /// Rollouts. More than the container can take is no problem: an overload halves the number, which then grows again.
        rollout: u32 [min = 1, max = MAX_WORKERS] = 8,
        /// Answers that are decoded and stored.
        evaluate: u32 [min = 1] = 1,
    }
    /// Rollout concurrency that adapts to the container's load.
    AdaptiveConcurrency {
        /// Whether the concurrency adapts to the load.
        enabled: bool = true,
        /// Initial number of concurrent rollouts, at most `workers.rollout`.
        initial: u32 [min = 1] = 50,
        /// Minimum number of concurrent rollouts.
        min: u32 [min = 1] = 1,
        /// Maximum number of concurrent rollouts. Unset: `workers.rollout`.
        max: Option<u32> [min = 1],
        /// Increase after enough consecutive successes.
        increase_step: u32 [min = 1] = 10,
        /// Has no effect: an overload halves the number.
        decrease_step: u32 [min = 1] = 10,
        /// Number of consecutive successes before an increase.
        increase_after_successes: u32 [min = 1] = 8,
        /// HTTP statuses that mean overload.
        overload_status_codes: Vec<u16> = vec![429, 503, 529],
    }
}

impl GepaSection {
    /// Returns the maximum number of generations in progress.
    pub fn open_generations(&self) -> u32 {
        if self.pipeline.is_serial() {
            return 1;
        }
        (self.pipeline.candidates_in_flight() / self.proposals_per_generation.max(1)).max(1)
    }

    /// Returns the maximum number of proposer turns at the same time.
    pub fn proposer_turns(&self) -> u32 {
        self.pipeline.workers.propose.unwrap_or_else(|| self.open_generations()).clamp(1, MAX_WORKERS)
    }
}

impl Pipeline {
    /// Returns whether one generation at a time is in progress.
    pub fn is_serial(&self) -> bool {
        match self.mode {
            PipelineMode::Auto => self.workers.rollout <= FEW_WORKERS,
            PipelineMode::SyncSerial => true,
            PipelineMode::AsyncPipelined => false,
        }
    }

    /// Returns the maximum number of candidates that generations in progress at the same time propose or evaluate.
    pub fn candidates_in_flight(&self) -> u32 {
        self.max_in_flight_candidates.unwrap_or_else(|| self.workers.rollout.max(FEW_WORKERS))
    }

    /// Returns the maximum number of rollouts at the same time.
    pub fn concurrent_rollouts(&self) -> u32 {
        let (adaptive, workers) = (&self.adaptive_rollout_concurrency, self.workers.rollout.max(1));
        adaptive.max.filter(|_| adaptive.enabled).map_or(workers, |most| workers.min(most.max(1)))
    }
}

//! The `[gepa]` section: search, transport, limits and stop rules.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::words::words;

pub use super::objectives::{OUTCOME_REWARD, objective_names};
pub use super::pipeline::{
    AdaptiveConcurrency, CircuitBreaker, Pipeline, PipelineMode, StalenessPolicy, SubmissionMode, Workers,
};
pub use super::search::{
    BatchSampler, CandidateSelector, Leakage, LeakagePolicy, Merge, MergeConflict, ObjectiveAcceptance, Sampler,
    SeedPools, Selector, TaskPools,
};

words! {
    /// What one cell of the frontier is.
    FrontierType {
        /// A train row.
        PerExample = "per_example",
        /// An objective, by its mean over the train rows.
        PerObjective = "per_objective",
        /// An objective on a train row.
        PerExampleObjective = "per_example_objective",
    }
}
words! {
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
}
words! {
    /// Whether more or less of an objective is better.
    Direction {
        Maximize = "maximize" | "max" | "higher" | "higher_is_better" | "up",
        Minimize = "minimize" | "min" | "lower" | "lower_is_better" | "down",
    }
}
words! {
    /// Which target modules one proposal may change.
    ComponentSelector {
        /// One of them, in turn.
        RoundRobin = "round_robin",
        /// All of them.
        All = "all",
    }
}
words! {
    /// Which candidate is returned.
    DeploymentRule {
        /// The best on train rows; held-out rows only measure it.
        OptimizationSelected = "optimization_selected",
        /// The best on held-out rows; its held-out score is then biased upwards.
        HeldoutBest = "heldout_best",
    }
}
words! {
    /// What a stop rule looks at.
    StopMetric {
        /// The best score on train rows.
        TrainScore = "train_score" | "train_reward",
        /// Read as `train_score`, with a warning: held-out rows are measured once, after the search.
        HeldoutScore = "heldout_score" | "heldout_reward",
    }
}

/// Most seconds of a timeout or a limit: beyond any run, and still small in milliseconds or nanoseconds.
pub(super) const MOST_SECONDS: u64 = 1_000_000_000;
/// Most tokens of a limit or an estimate: beyond any run, and exact as a float.
pub(super) const MOST_TOKENS: u64 = 1_000_000_000_000_000;

/// Search, transport, limits and stop rules.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct GepaSection {
    /// Most generations: propose, screen, evaluate.
    #[schemars(range(min = 1))]
    pub max_generations: u32,
    /// Proposals asked for in one proposer turn.
    #[schemars(range(min = 1))]
    pub proposals_per_generation: u32,
    /// Rows on which a proposal is screened against its parent.
    #[schemars(range(min = 1))]
    pub minibatch_size: u32,
    /// How much better than its parent a proposal must be on the minibatch.
    #[schemars(range(min = 0.0))]
    pub minibatch_accept_margin: f64,
    pub frontier_type: FrontierType,
    /// The objective that decides. Unset: the first of the declared ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selection_objective: Option<String>,
    /// Objectives of the run. Empty: `outcome_reward`, the reward of the rollout.
    pub objective_keys: Vec<String>,
    /// Objectives that are not to be maximized.
    pub objective_directions: BTreeMap<String, Direction>,
    /// Compares a fully evaluated candidate with the best one.
    pub acceptance_criterion: AcceptanceCriterion,
    /// Compares a proposal with its parent on the minibatch.
    pub minibatch_acceptance_criterion: AcceptanceCriterion,
    pub objective_acceptance: ObjectiveAcceptance,
    pub candidate_selector: CandidateSelector,
    pub batch_sampler: BatchSampler,
    pub component_selector: ComponentSelector,
    /// Row pools by seed, for `[dataset]`.
    pub seed_pools: SeedPools,
    /// Row pools by task id, for `[taskset]`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task_pools: Option<TaskPools>,
    pub deployment_rule: DeploymentRule,
    pub leakage: Leakage,
    pub merge: Merge,
    /// Skips minibatches on which the parent has nothing to gain.
    pub skip_perfect_score: bool,
    /// The score that cannot be improved. Unset: 1.0, as long as the run has met no reward above it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub perfect_score: Option<f64>,
    /// How many perfect minibatches may be skipped in one generation.
    pub max_perfect_skips: u32,
    /// How many rejected candidates are shown, with the reason, to the next proposal.
    pub carry_failures: u32,
    /// Longest text of one field, in characters.
    #[schemars(range(min = 1))]
    pub max_field_chars: u32,
    /// Share of the train rows that must have a score before a candidate can be accepted.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub min_full_coverage: f64,

    pub rollout_submission_mode: SubmissionMode,
    /// How often an async rollout is asked for its result, in milliseconds.
    #[schemars(range(min = 1))]
    pub rollout_poll_interval_ms: u64,
    /// How long an async rollout may take, in seconds.
    #[schemars(range(min = 1, max = MOST_SECONDS))]
    pub rollout_async_timeout_seconds: u64,
    /// Rollouts handed to the transport at once. Unset: as many as are allowed to run.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub rollout_chunk_size: Option<u32>,
    /// How often one rollout is tried when it fails in a way that may pass. Every try counts as a rollout.
    #[schemars(range(min = 1))]
    pub rollout_max_attempts: u32,
    /// Share of failed rollouts that one evaluation may have and still be judged.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub rollout_failure_rate_tolerance: f64,
    pub circuit_breaker: CircuitBreaker,

    /// Most rollouts in all, held-out ones included.
    #[schemars(range(min = 1))]
    pub max_total_rollouts: u32,
    /// Most train rollouts. When only the held-out cap is given: `max_total_rollouts`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_train_rollouts: Option<u32>,
    /// Most held-out rollouts. When only the train cap is given: `max_total_rollouts`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_heldout_rollouts: Option<u32>,
    /// Most dollars of proposer and rollouts together. 0.0 is no limit. Needs both estimates.
    #[schemars(range(min = 0.0, max = 1e9))]
    pub max_cost_usd: f64,
    /// Longest time of the run, in seconds. Needs `rollout_estimated_wall_seconds`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = MOST_SECONDS))]
    pub max_time_seconds: Option<u64>,
    /// Most prompt tokens of proposer and rollouts together. Needs both estimates.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = MOST_TOKENS))]
    pub max_prompt_tokens: Option<u64>,
    /// Most completion tokens of proposer and rollouts together. Needs both estimates.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = MOST_TOKENS))]
    pub max_completion_tokens: Option<u64>,
    /// Most tokens of proposer and rollouts together. May be written `max_tokens`. Needs estimates of both.
    #[serde(skip_serializing_if = "Option::is_none", alias = "max_tokens")]
    #[schemars(range(min = 1, max = MOST_TOKENS), extend("x-also-written" = "max_tokens"))]
    pub max_total_tokens: Option<u64>,
    /// What one proposer turn costs at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1e-9, max = 1e6))]
    pub proposer_estimated_cost_usd: Option<f64>,
    /// Prompt tokens that one proposer turn uses at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = MOST_TOKENS))]
    pub proposer_estimated_prompt_tokens: Option<u64>,
    /// Completion tokens that one proposer turn uses at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = MOST_TOKENS))]
    pub proposer_estimated_completion_tokens: Option<u64>,
    /// Tokens that one proposer turn uses at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = MOST_TOKENS))]
    pub proposer_estimated_total_tokens: Option<u64>,
    /// What one rollout costs at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1e-9, max = 1e6))]
    pub rollout_estimated_cost_usd: Option<f64>,
    /// Prompt tokens that one rollout uses at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = MOST_TOKENS))]
    pub rollout_estimated_prompt_tokens: Option<u64>,
    /// Completion tokens that one rollout uses at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = MOST_TOKENS))]
    pub rollout_estimated_completion_tokens: Option<u64>,
    /// Tokens that one rollout uses at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = MOST_TOKENS))]
    pub rollout_estimated_total_tokens: Option<u64>,
    /// How long one rollout takes at most, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1e-3, max = 1e7))]
    pub rollout_estimated_wall_seconds: Option<f64>,

    /// Stops after this many generations in a row without a better best score.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub no_improvement_generations: Option<u32>,
    pub no_improvement_metric: StopMetric,
    /// Stops when the best score reaches this value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub score_threshold_value: Option<f64>,
    pub score_threshold_metric: StopMetric,
    pub pipeline: Pipeline,
}

impl Default for GepaSection {
    fn default() -> Self {
        Self {
            max_generations: 2,
            proposals_per_generation: 2,
            minibatch_size: 8,
            minibatch_accept_margin: 0.0,
            frontier_type: FrontierType::PerExample,
            selection_objective: None,
            objective_keys: Vec::new(),
            objective_directions: BTreeMap::new(),
            acceptance_criterion: AcceptanceCriterion::PrimaryImprovement,
            minibatch_acceptance_criterion: AcceptanceCriterion::PrimaryImprovement,
            objective_acceptance: ObjectiveAcceptance::default(),
            candidate_selector: CandidateSelector::default(),
            batch_sampler: BatchSampler::default(),
            component_selector: ComponentSelector::RoundRobin,
            seed_pools: SeedPools::default(),
            task_pools: None,
            deployment_rule: DeploymentRule::OptimizationSelected,
            leakage: Leakage::default(),
            merge: Merge::default(),
            skip_perfect_score: true,
            perfect_score: None,
            max_perfect_skips: 16,
            carry_failures: 3,
            max_field_chars: 32_768,
            min_full_coverage: 0.25,
            rollout_submission_mode: SubmissionMode::Sync,
            rollout_poll_interval_ms: 250,
            rollout_async_timeout_seconds: 600,
            rollout_chunk_size: None,
            rollout_max_attempts: 2,
            rollout_failure_rate_tolerance: 0.25,
            circuit_breaker: CircuitBreaker::default(),
            max_total_rollouts: 256,
            max_train_rollouts: None,
            max_heldout_rollouts: None,
            max_cost_usd: 0.0,
            max_time_seconds: None,
            max_prompt_tokens: None,
            max_completion_tokens: None,
            max_total_tokens: None,
            proposer_estimated_cost_usd: None,
            proposer_estimated_prompt_tokens: None,
            proposer_estimated_completion_tokens: None,
            proposer_estimated_total_tokens: None,
            rollout_estimated_cost_usd: None,
            rollout_estimated_prompt_tokens: None,
            rollout_estimated_completion_tokens: None,
            rollout_estimated_total_tokens: None,
            rollout_estimated_wall_seconds: None,
            no_improvement_generations: None,
            no_improvement_metric: StopMetric::TrainScore,
            score_threshold_value: None,
            score_threshold_metric: StopMetric::TrainScore,
            pipeline: Pipeline::default(),
        }
    }
}

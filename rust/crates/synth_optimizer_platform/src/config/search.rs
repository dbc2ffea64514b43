//! The tables of `[gepa]` that shape the search: selection, sampling, acceptance, pools, leakage and merge.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::words::words;

words! {
    /// How parents are chosen.
    Selector {
        /// From the frontier, the more often the more cells a candidate holds.
        ParetoWeighted = "pareto_weighted" | "pareto",
        /// From the frontier, all alike.
        UniformPareto = "uniform_pareto",
        /// From all evaluated candidates, all alike.
        Random = "random",
        /// The best one.
        CurrentBest = "current_best",
        /// From the best `k`, the more often the more cells a candidate holds.
        TopKPareto = "top_k_pareto",
        /// The best one, and a random one in a share of `epsilon`.
        EpsilonGreedy = "epsilon_greedy",
    }
}
words! {
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
}
words! {
    /// What happens to a proposal that repeats train text.
    LeakagePolicy {
        /// It is refused.
        Forbid = "forbid",
        /// It is taken, and an event tells.
        Warn = "warn",
        /// It is taken.
        Allow = "allow",
    }
}
words! {
    /// What a merge does where both parents changed the same module.
    MergeConflict {
        /// Takes the text of the parent with the higher score.
        HigherScore = "higher_score",
        /// Asks the proposer to merge both texts.
        Proposer = "proposer",
    }
}

/// How objectives other than the deciding one take part in acceptance.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ObjectiveAcceptance {
    /// How much an objective must gain to count as improved.
    #[schemars(range(min = 0.0))]
    pub min_objective_delta: f64,
    /// How much a protected objective may lose.
    #[schemars(range(min = 0.0))]
    pub objective_regression_tolerance: f64,
    /// Objectives that may lose no more than that. Empty: all of them.
    pub protected_objectives: Vec<String>,
}

impl Default for ObjectiveAcceptance {
    fn default() -> Self {
        Self { min_objective_delta: 0.05, objective_regression_tolerance: 0.10, protected_objectives: Vec::new() }
    }
}

/// How parents are chosen.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CandidateSelector {
    pub name: Selector,
    /// Share of random parents of `epsilon_greedy`.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub epsilon: f64,
    /// How many of the best candidates `top_k_pareto` looks at.
    #[schemars(range(min = 1))]
    pub k: u32,
}

impl Default for CandidateSelector {
    fn default() -> Self {
        Self { name: Selector::ParetoWeighted, epsilon: 0.1, k: 3 }
    }
}

/// How minibatches are drawn.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct BatchSampler {
    pub name: Sampler,
    /// How many new rows each minibatch of an epoch takes. Unset: `minibatch_size`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub epoch_width: Option<u32>,
    /// Dotted path of the row field that `stratified` balances.
    pub field: String,
}

impl Default for BatchSampler {
    fn default() -> Self {
        Self { name: Sampler::SeededShuffle, epoch_width: None, field: "metadata.difficulty".into() }
    }
}

/// Row pools by seed. An empty pool is the whole of what it is drawn from.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SeedPools {
    /// Rows of the full evaluation. Empty: all train seeds.
    pub pareto_eval: Vec<i64>,
    /// Rows that minibatches are drawn from. Empty: `pareto_eval`.
    pub minibatch: Vec<i64>,
    /// Rows whose traces the proposer may see. Empty: the minibatch pool.
    pub reflection: Vec<i64>,
    /// Held-out rows. Empty: all held-out seeds.
    pub validation: Vec<i64>,
}

/// Row pools by task id.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TaskPools {
    /// Tasks of the full evaluation. Required.
    pub pareto: Vec<String>,
    /// Tasks that minibatches are drawn from. Required.
    pub minibatch: Vec<String>,
    /// Tasks whose traces the proposer may see. Required.
    pub reflection: Vec<String>,
    /// Held-out tasks. Required.
    pub heldout: Vec<String>,
}

/// The scan of proposals for text of the rows. Held-out text is always refused.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Leakage {
    /// What happens to a proposal that repeats train text.
    pub policy: LeakagePolicy,
    /// Shortest repetition that counts, in characters.
    #[schemars(range(min = 8))]
    pub min_span_chars: u32,
}

impl Default for Leakage {
    fn default() -> Self {
        Self { policy: LeakagePolicy::Forbid, min_span_chars: 32 }
    }
}

/// System-aware merge of two candidates that share an ancestor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Merge {
    /// Whether merges are tried.
    pub enabled: bool,
    /// Most merges that are built in a run, whatever becomes of them.
    pub max_merges: u32,
    pub conflict: MergeConflict,
    /// Rows that both parents must have scores for.
    #[schemars(range(min = 1))]
    pub min_shared_rows: u32,
    /// Rows on which a merge is screened against both parents.
    #[schemars(range(min = 1))]
    pub gate_rows: u32,
}

impl Default for Merge {
    fn default() -> Self {
        Self { enabled: false, max_merges: 5, conflict: MergeConflict::HigherScore, min_shared_rows: 5, gate_rows: 5 }
    }
}

//! The tables of `[gepa]` that shape the search: selection, sampling, acceptance, pools, leakage and merge.

use super::section::section;
use crate::model::event_fields::Selector;
use crate::words;

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
}

section! {
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
}

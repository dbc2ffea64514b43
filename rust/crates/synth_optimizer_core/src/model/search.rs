//! The words of the search that both the configuration and the events use.

use crate::words;

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
    /// Whether more or less of an objective is better.
    Direction {
        Maximize = "maximize" | "max" | "higher" | "higher_is_better" | "up",
        Minimize = "minimize" | "min" | "lower" | "lower_is_better" | "down",
    }
}
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

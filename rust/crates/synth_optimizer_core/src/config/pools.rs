//! Values that the engine derives from a configuration: objectives, row pools and rollout caps.

use std::collections::BTreeMap;

use super::gepa::{Direction, GepaSection, OUTCOME_REWARD};
use super::sections::Config;

/// Maximum number of rollouts of each kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct RolloutCaps {
    pub train: u32,
    pub heldout: u32,
    /// Set if train and held-out rollouts share one cap; `train` and `heldout` then have the same value.
    pub total: Option<u32>,
}

/// The rows of each pool, as indexes of the configured train rows or, for `heldout`, held-out rows.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pools {
    /// Train rows of the full evaluation.
    pub pareto: Vec<usize>,
    /// Train rows from which minibatches are drawn.
    pub minibatch: Vec<usize>,
    /// Train rows whose traces the proposer may see.
    pub reflection: Vec<usize>,
    /// Held-out rows that measure the result.
    pub heldout: Vec<usize>,
}

/// Returns the effective caps. If only one of the train and held-out caps is set, the total replaces the other.
pub fn effective_caps(config: &Config) -> RolloutCaps {
    let gepa = &config.gepa;
    let total = gepa.max_total_rollouts;
    RolloutCaps {
        train: gepa.max_train_rollouts.unwrap_or(total),
        heldout: gepa.max_heldout_rollouts.unwrap_or(total),
        total: (gepa.max_train_rollouts.is_none() && gepa.max_heldout_rollouts.is_none()).then_some(total),
    }
}

/// Returns whether the configuration names its rows, so that the container need not be asked for them.
pub fn rows_are_known(config: &Config) -> bool {
    match (&config.dataset, &config.taskset) {
        (Some(rows), _) => rows.train_seeds.listed().is_some() && rows.heldout_seeds.listed().is_some(),
        (None, Some(rows)) => rows.train_ids.listed().is_some() && rows.heldout_ids.listed().is_some(),
        (None, None) => false,
    }
}

/// Returns the effective pools. Rows that only the container knows are left out. An empty pool contains all rows of the pool that it is drawn from.
pub fn pools(config: &Config) -> Pools {
    let (seeds, tasks) = (&config.gepa.seed_pools, config.gepa.task_pools.clone().unwrap_or_default());
    match (&config.dataset, &config.taskset) {
        (Some(rows), _) => resolve_pools(
            (rows.train_seeds.known(), rows.heldout_seeds.known()),
            [&seeds.pareto_eval, &seeds.minibatch, &seeds.reflection, &seeds.validation],
        ),
        (None, Some(rows)) => resolve_pools(
            (rows.train_ids.known(), rows.heldout_ids.known()),
            [&tasks.pareto, &tasks.minibatch, &tasks.reflection, &tasks.heldout],
        ),
        (None, None) => Pools::default(),
    }
}

fn resolve_pools<T: Ord>((train, heldout): (&[T], &[T]), pools: [&Vec<T>; 4]) -> Pools {
    let chosen = |pool: &[T], rows: &[T]| -> Option<Vec<usize>> {
        if pool.is_empty() {
            return None;
        }
        let places: BTreeMap<&T, usize> = rows.iter().zip(0..).collect();
        Some(pool.iter().filter_map(|row| places.get(row).copied()).collect())
    };
    let pareto = chosen(pools[0], train).unwrap_or_else(|| (0..train.len()).collect());
    let minibatch = chosen(pools[1], train).unwrap_or_else(|| pareto.clone());
    let reflection = chosen(pools[2], train).unwrap_or_else(|| minibatch.clone());
    let heldout = chosen(pools[3], heldout).unwrap_or_else(|| (0..heldout.len()).collect());
    Pools { pareto, minibatch, reflection, heldout }
}

/// The built-in objective: the estimated length of a candidate, in tokens. The engine computes it; no container reports it.
pub const CANDIDATE_TOKENS: &str = "candidate_tokens";

/// Returns the configured direction of an objective, or its default.
pub fn objective_direction(gepa: &GepaSection, name: &str) -> Direction {
    let usual = if name == CANDIDATE_TOKENS { Direction::Minimize } else { Direction::Maximize };
    gepa.objective_directions.get(name).copied().unwrap_or(usual)
}

/// Returns the objectives of a run: the deciding one first, the others in the order of `objective_keys`.
pub fn objective_names(gepa: &GepaSection) -> Vec<String> {
    let first = gepa.selection_objective.as_ref().or(gepa.objective_keys.first());
    let first = first.map_or(OUTCOME_REWARD, String::as_str);
    let others = gepa.objective_keys.iter().map(String::as_str).filter(|name| *name != first);
    std::iter::once(first).chain(others).map(str::to_owned).collect()
}

#[cfg(test)]
#[path = "pools_tests.rs"]
mod tests;

//! Which objectives a run has, and which of them decides.

use super::gepa::GepaSection;

/// The objective of a run that declares none: the reward of the rollout.
pub const OUTCOME_REWARD: &str = "outcome_reward";

/// The objectives of a run, the deciding one first and the others in the order of `objective_keys`.
pub fn objective_names(gepa: &GepaSection) -> Vec<String> {
    let first = gepa.selection_objective.as_ref().or(gepa.objective_keys.first());
    let first = first.map_or(OUTCOME_REWARD, String::as_str);
    let others = gepa.objective_keys.iter().map(String::as_str).filter(|name| *name != first);
    std::iter::once(first).chain(others).map(str::to_owned).collect()
}

#[cfg(test)]
#[path = "objectives_tests.rs"]
mod tests;

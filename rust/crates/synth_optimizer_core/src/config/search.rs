//! The choice of the search: sprints or the reference search.

use super::gepa::{DeploymentRule, GepaSection, SearchMode};
use super::resolve::search_rollouts;
use super::sections::Config;

/// The reference search is better with at most this many rows, if it has this many rollouts for each of them.
const FEW_ROWS: usize = 20;
const MANY_ROLLOUTS_PER_ROW: u64 = 50;

/// Minimum number of rows on which a search in sprints evaluates the initial candidate, if there are as many.
pub const MIN_SPRINT_ROWS: usize = 4;

/// The search of a run, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SearchChoice {
    /// `sprint` or `reference`.
    pub search: SearchMode,
    /// The reason in words.
    pub reason: String,
}

/// Chooses the search of a run with this many rows of the full evaluation.
pub fn choose_search(config: &Config, rows: usize) -> SearchChoice {
    let choice = |search, reason: String| SearchChoice { search, reason };
    match config.gepa.search {
        SearchMode::Sprint | SearchMode::Reference => {
            return choice(config.gepa.search, format!("`gepa.search` is {:?}", config.gepa.search.as_str()));
        }
        SearchMode::Auto => {}
    }
    if let Some(setting) = reference_setting(&config.gepa) {
        return choice(SearchMode::Reference, format!("`gepa.{setting}` belongs to it"));
    }
    let rollouts = search_rollouts(config);
    if rows <= FEW_ROWS && rollouts > MANY_ROLLOUTS_PER_ROW * rows as u64 {
        let reason = format!(
            "{rollouts} rollouts are more than {MANY_ROLLOUTS_PER_ROW} for each of {rows} rows, enough to evaluate every candidate fully"
        );
        return choice(SearchMode::Reference, reason);
    }
    choice(
        SearchMode::Sprint,
        "checking the sum of several changes needs fewer rollouts than evaluating each".to_owned(),
    )
}

/// Returns a setting that only the reference search has, if one differs from its default.
fn reference_setting(gepa: &GepaSection) -> Option<&'static str> {
    let usual = GepaSection::default();
    [
        ("candidate_selector", gepa.candidate_selector != usual.candidate_selector),
        ("frontier_type", gepa.frontier_type != usual.frontier_type),
        ("acceptance_criterion", gepa.acceptance_criterion != usual.acceptance_criterion),
        ("minibatch_acceptance_criterion", gepa.minibatch_acceptance_criterion != usual.minibatch_acceptance_criterion),
        ("minibatch_accept_margin", gepa.minibatch_accept_margin > 0.0),
        ("merge.enabled", gepa.merge.enabled),
        ("deployment_rule", gepa.deployment_rule == DeploymentRule::HeldoutBest),
    ]
    .into_iter()
    .find_map(|(name, is_set)| is_set.then_some(name))
}

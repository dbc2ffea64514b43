//! The choice of the search: sprints or the reference search.

use super::gepa::{DeploymentRule, GepaSection, SearchMode, Sprint};
use super::resolve::search_rollouts;
use super::sections::Config;

/// The reference search is better with at most this many rows, if it has this many rollouts for each of them.
const FEW_ROWS: usize = 20;
const MANY_ROLLOUTS_PER_ROW: u64 = 50;

/// The initial evaluation of a search in sprints uses at most one of this many train rollouts, but at least this many rows, if
/// there are as many.
const INITIAL_SHARE: u64 = 16;
const MIN_INITIAL_ROWS: u64 = 4;

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

/// Returns the number of rows on which a search in sprints with this many train rollouts evaluates the initial candidate.
pub fn initial_rows(sprint: &Sprint, search_rollouts: u64, rows: usize) -> u64 {
    let affordable = (search_rollouts / INITIAL_SHARE).max(MIN_INITIAL_ROWS);
    u64::from(sprint.repeats.max(sprint.min_pairs)).min(affordable).min(rows as u64)
}

/// Returns the train rollouts of the initial candidate before the first proposal, on this many rows of the full evaluation. A
/// search in sprints evaluates fewer rows, and repeats them to learn whether scores are noisy.
pub(super) fn initial_rollouts(config: &Config, rows: usize) -> u64 {
    match choose_search(config, rows).search {
        SearchMode::Sprint => {
            let sprint = &config.gepa.sprint;
            let once = initial_rows(sprint, search_rollouts(config), rows);
            once + once.min(sprint.repeats.into())
        }
        SearchMode::Auto | SearchMode::Reference => rows as u64,
    }
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

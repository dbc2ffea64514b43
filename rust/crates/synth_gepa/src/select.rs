//! Which candidate is the next parent.

use synth_optimizer_core::config::gepa::Selector;
use synth_optimizer_core::model::event_fields::ParentSelection;

use crate::random::{Stream, stream};
use crate::settings::Settings;
use crate::state::State;

/// Chooses a parent for a draw; `None` while nothing has been evaluated.
pub(crate) fn parent(settings: &Settings, state: &State, draw: u64) -> Option<(u32, ParentSelection)> {
    let frontier = &state.frontier;
    // The highest score, and of equal ones the newest.
    let best = *frontier.ranked().last()?;
    let mut random = stream(settings.seed, "parent", draw);
    let rules = &settings.gepa.candidate_selector;
    let (place, total_weight) = match rules.name {
        Selector::ParetoWeighted => by_cells(state, &frontier.undominated(), &mut random),
        Selector::UniformPareto => evenly(&frontier.undominated(), &mut random),
        Selector::Random => evenly(frontier.ranked(), &mut random),
        Selector::CurrentBest => None,
        Selector::TopKPareto => {
            let ranked = frontier.ranked();
            by_cells(state, &ranked[ranked.len().saturating_sub(rules.k as usize)..], &mut random)
        }
        Selector::EpsilonGreedy if random.unit() < rules.epsilon => evenly(frontier.ranked(), &mut random),
        Selector::EpsilonGreedy => None,
    }
    .unwrap_or((best, 1));
    let selection = ParentSelection {
        selector: rules.name,
        cells_won: frontier.cells_won(place),
        total_weight,
        frontier_size: frontier.size(),
    };
    Some((state.pool[place as usize], selection))
}

fn by_cells(state: &State, places: &[u32], random: &mut Stream) -> Option<(u32, u64)> {
    let weights: Vec<u64> = places.iter().map(|place| state.frontier.cells_won(*place)).collect();
    let chosen = random.weighted(&weights)?;
    Some((places[chosen], weights.iter().sum()))
}

fn evenly(places: &[u32], random: &mut Stream) -> Option<(u32, u64)> {
    let chosen = places.get(random.index(places.len()))?;
    Some((*chosen, places.len() as u64))
}

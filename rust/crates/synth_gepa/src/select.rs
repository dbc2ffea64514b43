//! Which candidate is the next parent.

use synth_optimizer_platform::config::gepa::Selector;
use synth_optimizer_platform::model::event_fields::ParentSelection;

use crate::random::{Stream, stream};
use crate::settings::Settings;
use crate::state::State;

/// Chooses a parent for a draw; `None` while nothing has been evaluated.
pub(crate) fn parent(settings: &Settings, state: &State, draw: u64) -> Option<(u32, ParentSelection)> {
    let best = state.candidate(state.best?).place?;
    let mut random = stream(settings.seed, "parent", draw);
    let selector = settings.gepa.candidate_selector.name;
    let everyone = || (0..state.pool.len() as u32).collect();
    let (place, total_weight) = match selector {
        Selector::ParetoWeighted => by_cells(state, undominated(state), &mut random),
        Selector::UniformPareto => evenly(undominated(state), &mut random),
        Selector::Random => evenly(everyone(), &mut random),
        Selector::CurrentBest => None,
        Selector::TopKPareto => {
            let mut ranked = by_score(state, everyone());
            let first = ranked.len().saturating_sub(settings.gepa.candidate_selector.k as usize);
            by_cells(state, ranked.split_off(first), &mut random)
        }
        Selector::EpsilonGreedy if random.unit() < settings.gepa.candidate_selector.epsilon => {
            evenly(everyone(), &mut random)
        }
        Selector::EpsilonGreedy => None,
    }
    .unwrap_or((best, 1));
    let selection = ParentSelection {
        selector,
        cells_won: state.frontier.cells_won(place),
        total_weight,
        frontier_size: state.frontier.size(),
    };
    Some((state.pool[place as usize], selection))
}

/// Pool places that are needed to hold all cells of the frontier; of equal ones the newest stays.
pub(crate) fn undominated(state: &State) -> Vec<u32> {
    state.frontier.undominated(&by_score(state, state.frontier.members().collect()))
}

/// Worst first; of equal ones the oldest first, so that the newest wins where one must be chosen.
pub(crate) fn by_score(state: &State, mut places: Vec<u32>) -> Vec<u32> {
    let score = |place: u32| state.candidate(state.pool[place as usize]).pool_score;
    places.sort_by(|a, b| score(*a).total_cmp(&score(*b)).then(a.cmp(b)));
    places
}

fn by_cells(state: &State, places: Vec<u32>, random: &mut Stream) -> Option<(u32, u64)> {
    let weights: Vec<u64> = places.iter().map(|place| state.frontier.cells_won(*place)).collect();
    let chosen = random.weighted(&weights)?;
    Some((places[chosen], weights.iter().sum()))
}

fn evenly(places: Vec<u32>, random: &mut Stream) -> Option<(u32, u64)> {
    let chosen = places.get(random.index(places.len()))?;
    Some((*chosen, places.len() as u64))
}

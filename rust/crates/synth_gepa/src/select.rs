//! Selects the parent of a generation, and draws its minibatch.

use std::collections::BTreeMap;

use synth_optimizer_core::config::gepa::{Sampler, Selector};
use synth_optimizer_core::model::event_fields::ParentSelection;
use synth_optimizer_core::model::ids::TrainRow;
use synth_optimizer_core::model::program::Row;

use crate::settings::Settings;
use crate::state::State;
use synth_optimizer_core::random::{RandomStream, random_stream};

/// Selects a parent. Returns `None` while the pool is empty.
pub(crate) fn select_parent(settings: &Settings, state: &State, draw: u64) -> Option<(u32, ParentSelection)> {
    let frontier = &state.frontier;
    // The highest score; among equal ones, the newest.
    let best = *frontier.ranked().last()?;
    let mut random = random_stream(settings.seed, "parent", draw);
    let rules = &settings.gepa.candidate_selector;
    let (place, total_weight) = match rules.name {
        Selector::ParetoWeighted => draw_by_cells_won(state, &frontier.undominated(), &mut random),
        Selector::UniformPareto => draw_uniformly(&frontier.undominated(), &mut random),
        Selector::Random => draw_uniformly(frontier.ranked(), &mut random),
        Selector::CurrentBest => None,
        Selector::TopKPareto => {
            let ranked = frontier.ranked();
            draw_by_cells_won(state, &ranked[ranked.len().saturating_sub(rules.k as usize)..], &mut random)
        }
        Selector::EpsilonGreedy if random.unit() < rules.epsilon => draw_uniformly(frontier.ranked(), &mut random),
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

fn draw_by_cells_won(state: &State, places: &[u32], random: &mut RandomStream) -> Option<(u32, u64)> {
    let weights: Vec<u64> = places.iter().map(|place| state.frontier.cells_won(*place)).collect();
    let chosen = random.weighted(&weights)?;
    Some((places[chosen], weights.iter().sum()))
}

fn draw_uniformly(places: &[u32], random: &mut RandomStream) -> Option<(u32, u64)> {
    let chosen = places.get(random.index(places.len()))?;
    Some((*chosen, places.len() as u64))
}

/// How minibatches are drawn from a pool.
#[derive(Debug, Clone, Copy)]
pub struct MinibatchSampler<'a> {
    pub sampler: Sampler,
    pub seed: u64,
    /// The label of the random stream; each pool has its own.
    pub label: &'a str,
    pub size: usize,
    /// New rows per minibatch of an epoch.
    pub width: usize,
}

impl MinibatchSampler<'_> {
    /// Returns the minibatch of a draw: distinct rows, at most the whole pool.
    pub fn rows(&self, pool: &[TrainRow], rows: &[Row], draw: u64) -> Vec<TrainRow> {
        if self.size >= pool.len() {
            return pool.to_vec();
        }
        match self.sampler {
            Sampler::SeededShuffle => random_stream(self.seed, self.label, draw).sample(pool, self.size),
            Sampler::EpochShuffled => {
                let (epoch, start) = self.epoch_slice(pool.len(), draw);
                self.slice(&self.shuffled(pool, epoch), start)
            }
            Sampler::OrderedEpoch => {
                let (_, start) = self.epoch_slice(pool.len(), draw);
                self.slice(pool, start)
            }
            Sampler::Stratified => self.stratified(pool, rows, draw),
        }
    }

    fn shuffled(&self, pool: &[TrainRow], index: u64) -> Vec<TrainRow> {
        let mut order = pool.to_vec();
        random_stream(self.seed, self.label, index).shuffle(&mut order);
        order
    }

    /// Returns the epoch of a draw and the start of its slice. Every row is in at least one slice of every epoch.
    fn epoch_slice(&self, len: usize, draw: u64) -> (u64, usize) {
        let width = self.width.clamp(1, self.size.max(1));
        let slices = len.div_ceil(width) as u64;
        (draw / slices, (draw % slices) as usize * width)
    }

    /// Returns `size` rows from `start`. The last slice of an epoch wraps around to its beginning.
    fn slice(&self, order: &[TrainRow], start: usize) -> Vec<TrainRow> {
        order.iter().cycle().skip(start).take(self.size).copied().collect()
    }

    /// Takes one row of each stratum in turn. Strata and their rows are in random order.
    fn stratified(&self, pool: &[TrainRow], rows: &[Row], draw: u64) -> Vec<TrainRow> {
        let mut strata: BTreeMap<&str, Vec<TrainRow>> = BTreeMap::new();
        for row in self.shuffled(pool, draw) {
            let stratum = rows.get(row.0 as usize).and_then(|row| row.stratum.as_deref()).unwrap_or("default");
            strata.entry(stratum).or_default().push(row);
        }
        let mut strata: Vec<Vec<TrainRow>> = strata.into_values().collect();
        random_stream(self.seed, "strata", draw).shuffle(&mut strata);
        let longest = strata.iter().map(Vec::len).max().unwrap_or(0);
        (0..longest)
            .flat_map(|place| strata.iter().filter_map(move |rows| rows.get(place).copied()))
            .take(self.size)
            .collect()
    }
}

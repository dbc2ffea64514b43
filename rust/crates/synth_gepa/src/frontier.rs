//! The Pareto frontier: per cell the best value and *all* candidates that reach it.
//!
//! Candidates are known here by their place: the order in which they were added. Their order of merit is their score,
//! and of equal scores the newer one stands higher.

use std::collections::BTreeMap;

/// One cell: an example, an objective, or both.
#[derive(Debug, Clone, PartialEq)]
struct Cell {
    /// Larger is better; directions are already applied.
    best: f64,
    winners: Vec<u32>,
    /// The winner that stands highest: it is looked at for every selection.
    top: u32,
}

/// A candidate on the frontier.
#[derive(Debug, Clone, PartialEq)]
struct Entry {
    score: f64,
    /// Cells held, as bits and counted.
    held: Vec<u64>,
    won: u32,
}

/// The frontier over a fixed number of cells.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Frontier {
    cells: Vec<Option<Cell>>,
    entries: Vec<Entry>,
    /// Places by merit, lowest first.
    ranked: Vec<u32>,
    size: u32,
}

/// What a new candidate would do to the frontier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FrontierChange {
    /// Cells that it would hold, and whether alone.
    pub won: Vec<(usize, bool)>,
    pub left: Vec<u32>,
    pub size: u32,
}

impl Frontier {
    pub fn new(cells: usize) -> Self {
        Self { cells: vec![None; cells], ..Self::default() }
    }

    /// Adds a candidate at the next place with its value per cell; a missing value wins and loses nothing.
    pub fn insert(&mut self, score: f64, values: &[Option<f64>]) {
        let (change, place) = (self.preview_insert(values), self.entries.len() as u32);
        let mut held = vec![0; self.cells.len().div_ceil(64)];
        for (index, alone) in &change.won {
            held[index / 64] |= 1u64 << (index % 64);
            let Some(best) = values[*index] else { continue };
            let cell = &mut self.cells[*index];
            if let Some(cell) = cell.as_mut().filter(|_| !alone) {
                cell.winners.push(place);
                // Of equal scores the newer one stands higher.
                if self.entries[cell.top as usize].score.total_cmp(&score).is_le() {
                    cell.top = place;
                }
                continue;
            }
            let lost = cell.replace(Cell { best, winners: vec![place], top: place });
            for loser in lost.map_or_else(Vec::new, |cell| cell.winners) {
                let entry = &mut self.entries[loser as usize];
                entry.held[index / 64] &= !(1u64 << (index % 64));
                entry.won -= 1;
            }
        }
        let below = |other: &u32| self.entries[*other as usize].score.total_cmp(&score).is_le();
        let rank = self.ranked.partition_point(below);
        self.ranked.insert(rank, place);
        self.entries.push(Entry { score, held, won: change.won.len() as u32 });
        self.size = change.size;
    }

    /// What `insert` would do.
    pub fn preview_insert(&self, values: &[Option<f64>]) -> FrontierChange {
        let mut lost: BTreeMap<u32, u32> = BTreeMap::new();
        let mut won = Vec::new();
        for (index, (cell, value)) in self.cells.iter().zip(values).enumerate() {
            let Some(value) = *value else { continue };
            match cell {
                Some(cell) if value < cell.best => {}
                Some(cell) if value == cell.best => won.push((index, false)),
                Some(cell) => {
                    won.push((index, true));
                    for loser in &cell.winners {
                        *lost.entry(*loser).or_default() += 1;
                    }
                }
                None => won.push((index, true)),
            }
        }
        let left: Vec<u32> = lost
            .into_iter()
            .filter(|(place, lost)| self.entries[*place as usize].won == *lost)
            .map(|(place, _)| place)
            .collect();
        let size = self.size + u32::from(!won.is_empty()) - left.len() as u32;
        FrontierChange { won, left, size }
    }

    /// How many candidates hold at least one cell.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Cells that a candidate holds, alone or tied.
    pub fn cells_won(&self, place: u32) -> u64 {
        self.entries.get(place as usize).map_or(0, |entry| entry.won.into())
    }

    /// All places by merit, lowest first.
    pub fn ranked(&self) -> &[u32] {
        &self.ranked
    }

    /// The members that remain when, from the lowest up, each one is dropped all of whose cells are also held by
    /// another that remains.
    ///
    /// Only the highest winner of a cell can remain on account of that cell: any other is still followed by it when it
    /// is looked at. So it is enough to look at the highest winners, and at the cells of which they are that.
    pub fn undominated(&self) -> Vec<u32> {
        let top = |(index, cell): (usize, &Option<Cell>)| {
            let place = cell.as_ref()?.top;
            Some((self.entries[place as usize].score, place, index))
        };
        let mut tops: Vec<(f64, u32, usize)> = self.cells.iter().enumerate().filter_map(top).collect();
        tops.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then((a.1, a.2).cmp(&(b.1, b.2))));
        let mut covered = vec![0u64; self.cells.len().div_ceil(64)];
        let mut kept: Vec<u32> = Vec::new();
        for group in tops.chunk_by(|(_, one, _), (_, other, _)| one == other) {
            let Some((_, place, _)) = group.first() else { continue };
            if group.iter().any(|(_, _, index)| covered[index / 64] >> (index % 64) & 1 == 0) {
                let held = &self.entries[*place as usize].held;
                covered.iter_mut().zip(held).for_each(|(mine, own)| *mine |= own);
                kept.push(*place);
            }
        }
        kept
    }

    /// Winners of every cell that has any.
    pub fn winners(&self) -> impl Iterator<Item = (usize, f64, &[u32])> + '_ {
        let held = |(index, cell)| Option::<&Cell>::map(cell, |cell| (index, cell.best, cell.winners.as_slice()));
        self.cells.iter().map(Option::as_ref).enumerate().filter_map(held)
    }
}

//! The Pareto frontier: for each cell, the best value and *all* candidates that reach it.
//!
//! A candidate is identified by its place, which is the order in which it was added to the pool. Candidates are ranked by
//! score; among equal scores, the newer one ranks higher.

use std::collections::BTreeMap;

/// The best value and the winners of one cell. A cell is a row, an objective, or both.
#[derive(Debug, Clone, PartialEq)]
struct CellWinners {
    /// Larger is better; directions are already applied.
    best: f64,
    winners: Vec<u32>,
    /// The highest-ranked winner, which every selection reads.
    top: u32,
}

/// A candidate on the frontier.
#[derive(Debug, Clone, PartialEq)]
struct RankedCandidate {
    score: f64,
    /// The cells that it holds, as a bit set, and their number.
    held_cells: Vec<u64>,
    won: u32,
}

/// The frontier over a fixed number of cells.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Frontier {
    cells: Vec<Option<CellWinners>>,
    entries: Vec<RankedCandidate>,
    /// Places by rank, lowest first.
    ranked: Vec<u32>,
    size: u32,
}

/// The change of the frontier that a new candidate would cause.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FrontierChange {
    /// Cells that it would hold, and whether it would hold them alone.
    pub won: Vec<(usize, bool)>,
    pub left: Vec<u32>,
    pub size: u32,
}

impl Frontier {
    pub fn new(cells: usize) -> Self {
        Self { cells: vec![None; cells], ..Self::default() }
    }

    /// Adds a candidate at the next place, with its value per cell. A cell without a value does not change.
    pub fn insert(&mut self, score: f64, values: &[Option<f64>]) {
        let (change, place) = (self.preview_insert(values), self.entries.len() as u32);
        let mut held_cells = vec![0; self.cells.len().div_ceil(64)];
        for (index, alone) in &change.won {
            held_cells[index / 64] |= 1u64 << (index % 64);
            let Some(best) = values[*index] else { continue };
            let cell = &mut self.cells[*index];
            if let Some(cell) = cell.as_mut().filter(|_| !alone) {
                cell.winners.push(place);
                // Among equal scores, the newer one ranks higher.
                if self.entries[cell.top as usize].score.total_cmp(&score).is_le() {
                    cell.top = place;
                }
                continue;
            }
            let lost = cell.replace(CellWinners { best, winners: vec![place], top: place });
            for loser in lost.map_or_else(Vec::new, |cell| cell.winners) {
                let entry = &mut self.entries[loser as usize];
                entry.held_cells[index / 64] &= !(1u64 << (index % 64));
                entry.won -= 1;
            }
        }
        let below = |other: &u32| self.entries[*other as usize].score.total_cmp(&score).is_le();
        let rank = self.ranked.partition_point(below);
        self.ranked.insert(rank, place);
        self.entries.push(RankedCandidate { score, held_cells, won: change.won.len() as u32 });
        self.size = change.size;
    }

    /// Returns the change that `insert` would cause.
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

    /// Returns the number of candidates that hold at least one cell.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Returns the number of cells that a candidate holds, alone or tied.
    pub fn cells_won(&self, place: u32) -> u64 {
        self.entries.get(place as usize).map_or(0, |entry| entry.won.into())
    }

    /// Returns all places by rank, lowest first.
    pub fn ranked(&self) -> &[u32] {
        &self.ranked
    }

    /// Returns the undominated members. Starting with the lowest rank, a member is dropped if remaining members also hold
    /// each of its cells.
    ///
    /// Only the highest-ranked winner of a cell can remain because of that cell, since the lower-ranked ones are checked
    /// before it. So it suffices to check the highest-ranked winners, on the cells where they rank highest.
    pub fn undominated(&self) -> Vec<u32> {
        let top = |(index, cell): (usize, &Option<CellWinners>)| {
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
                let held_cells = &self.entries[*place as usize].held_cells;
                covered.iter_mut().zip(held_cells).for_each(|(mine, own)| *mine |= own);
                kept.push(*place);
            }
        }
        kept
    }

    /// Returns the index, best value and winners of every cell that has winners.
    pub fn winners(&self) -> impl Iterator<Item = (usize, f64, &[u32])> + '_ {
        let held_cells =
            |(index, cell)| Option::<&CellWinners>::map(cell, |cell| (index, cell.best, cell.winners.as_slice()));
        self.cells.iter().map(Option::as_ref).enumerate().filter_map(held_cells)
    }
}

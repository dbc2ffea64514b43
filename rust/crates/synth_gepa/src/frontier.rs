//! The Pareto frontier: per cell the best value and *all* candidates that reach it.
//!
//! Candidates are known here by their place: the order in which they were added.

use serde::{Deserialize, Serialize};

/// One cell: an example, an objective, or both.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Cell {
    /// Larger is better; directions are already applied.
    best: f64,
    winners: Vec<u32>,
}

/// The frontier over a fixed number of cells.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Frontier {
    cells: Vec<Option<Cell>>,
    /// Cells held, by place, as bits.
    held: Vec<Vec<u64>>,
}

/// What a new candidate would do to the frontier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Effect {
    pub cells_won: u32,
    pub left: Vec<u32>,
    pub size: u32,
}

impl Frontier {
    pub fn new(cells: usize) -> Self {
        Self { cells: vec![None; cells], held: Vec::new() }
    }

    /// Adds a candidate at the next place with its value per cell; a missing value wins and loses nothing.
    pub fn insert(&mut self, values: &[Option<f64>]) {
        let candidate = self.held.len() as u32;
        self.held.push(vec![0; self.cells.len().div_ceil(64)]);
        for (index, (cell, value)) in self.cells.iter_mut().zip(values).enumerate() {
            let Some(value) = *value else { continue };
            let (word, bit) = (index / 64, 1u64 << (index % 64));
            match cell {
                Some(cell) if value < cell.best => continue,
                Some(cell) if value == cell.best => cell.winners.push(candidate),
                Some(cell) => {
                    for loser in cell.winners.drain(..) {
                        self.held[loser as usize][word] &= !bit;
                    }
                    cell.best = value;
                    cell.winners.push(candidate);
                }
                None => *cell = Some(Cell { best: value, winners: vec![candidate] }),
            }
            self.held[candidate as usize][word] |= bit;
        }
    }

    /// What `insert` would do.
    pub fn effect(&self, values: &[Option<f64>]) -> Effect {
        let mut lost: Vec<u32> = vec![0; self.held.len()];
        let mut cells_won = 0;
        for (cell, value) in self.cells.iter().zip(values) {
            let Some(value) = *value else { continue };
            match cell {
                Some(cell) if value < cell.best => {}
                Some(cell) if value == cell.best => cells_won += 1,
                Some(cell) => {
                    cells_won += 1;
                    for loser in &cell.winners {
                        lost[*loser as usize] += 1;
                    }
                }
                None => cells_won += 1,
            }
        }
        let left: Vec<u32> = (0..self.held.len() as u32)
            .filter(|candidate| {
                let lost = lost[*candidate as usize];
                lost > 0 && u64::from(lost) == self.cells_won(*candidate)
            })
            .collect();
        let size = self.size() + u32::from(cells_won > 0) - left.len() as u32;
        Effect { cells_won, left, size }
    }

    /// How many candidates hold at least one cell.
    pub fn size(&self) -> u32 {
        self.members().count() as u32
    }

    /// Cells that a candidate holds, alone or tied.
    pub fn cells_won(&self, candidate: u32) -> u64 {
        self.held.get(candidate as usize).map_or(0, |bits| ones(bits))
    }

    /// Candidates that hold at least one cell, oldest first.
    pub fn members(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.held.len() as u32).filter(|candidate| self.held[*candidate as usize].iter().any(|word| *word != 0))
    }

    /// The members that remain when those are dropped all of whose cells are also held by another remaining one.
    /// They are looked at in the given order, so that of members with the same cells the last one stays.
    ///
    /// A member stays if it holds a cell that no later member and no earlier one that stayed holds; one backward and
    /// one forward pass over the bits decide that.
    pub fn undominated(&self, order: &[u32]) -> Vec<u32> {
        let words = self.cells.len().div_ceil(64);
        let mut later = vec![0u64; words * (order.len() + 1)];
        for (place, candidate) in order.iter().enumerate().rev() {
            let (head, tail) = later.split_at_mut((place + 1) * words);
            let bits = &self.held[*candidate as usize];
            for ((own, next), held) in head[place * words..].iter_mut().zip(&*tail).zip(bits) {
                *own = next | held;
            }
        }
        let mut stayed = vec![0u64; words];
        let mut kept = Vec::new();
        for (place, candidate) in order.iter().enumerate() {
            let bits = &self.held[*candidate as usize];
            let after = &later[(place + 1) * words..];
            if bits.iter().zip(after).zip(&stayed).any(|((own, after), before)| own & !(after | before) != 0) {
                stayed.iter_mut().zip(bits).for_each(|(mine, own)| *mine |= own);
                kept.push(*candidate);
            }
        }
        kept
    }

    /// Winners of every cell that has any, for reports and tests.
    pub fn winners(&self) -> impl Iterator<Item = (usize, f64, &[u32])> + '_ {
        self.cells
            .iter()
            .enumerate()
            .filter_map(|(index, cell)| cell.as_ref().map(|cell| (index, cell.best, cell.winners.as_slice())))
    }
}

fn ones(bits: &[u64]) -> u64 {
    bits.iter().map(|word| u64::from(word.count_ones())).sum()
}

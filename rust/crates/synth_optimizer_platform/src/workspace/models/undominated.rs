//! The members of the frontier that no other members dominate, folded from the updates of the frontier.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use synth_optimizer_core::model::event_fields::{CellWon, FrontierUpdated};

/// A cell of the frontier: its row, if it has one, and its objective.
type Cell = (Option<String>, String);

/// The holders of every cell, and the rank of every candidate.
#[derive(Debug, Default)]
pub(super) struct FrontierFold {
    cells: HashMap<Cell, usize>,
    /// The holders of each cell, by the number of the cell.
    holders: Vec<Vec<usize>>,
    /// Each candidate with its ranking score, in the order of the updates.
    members: Vec<(String, f64)>,
}

impl FrontierFold {
    /// Applies the next update.
    pub(super) fn apply(&mut self, update: FrontierUpdated) {
        let member = self.members.len();
        for CellWon { row_id, objective, alone, .. } in update.cells {
            let next = self.holders.len();
            let cell = *self.cells.entry((row_id.map(|row| row.to_string()), objective)).or_insert(next);
            if cell == next {
                self.holders.push(Vec::new());
            }
            let holders = &mut self.holders[cell];
            if alone {
                holders.clear();
            }
            holders.push(member);
        }
        self.members.push((update.candidate_id.to_string(), update.ranking_score));
    }

    /// Returns the members that are not dominated. Starting with the lowest rank, a member is dropped if remaining members also
    /// hold each of its cells.
    pub(super) fn undominated(self) -> BTreeSet<String> {
        let mut held: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        let mut left: Vec<usize> = self.holders.iter().map(Vec::len).collect();
        for (cell, holders) in self.holders.iter().enumerate() {
            for holder in holders {
                held.entry(*holder).or_default().push(cell);
            }
        }
        let mut ranked: Vec<(usize, Vec<usize>)> = held.into_iter().collect();
        // The sort is stable: among equal scores, the older one ranks lower.
        ranked.sort_by(|(one, _), (other, _)| self.members[*one].1.total_cmp(&self.members[*other].1));
        let mut kept = BTreeSet::new();
        for (member, cells) in ranked {
            if cells.iter().all(|cell| left[*cell] > 1) {
                cells.iter().for_each(|cell| left[*cell] -= 1);
            } else {
                kept.insert(self.members[member].0.clone());
            }
        }
        kept
    }
}

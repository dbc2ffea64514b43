//! The frontier of a run, folded from its log: who holds which cell, and which candidates are not dominated.

use std::collections::{BTreeMap, BTreeSet};

use super::event_fields::FrontierUpdated;
use super::ids::{CandidateId, RowId};

/// The holders of each cell.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct FrontierView {
    /// Holders by objective and row, as places in `members`. A cell without a row is an objective over all rows.
    cells: BTreeMap<String, BTreeMap<Option<RowId>, Vec<usize>>>,
    /// Every candidate that was compared with the frontier, with its ranking score.
    members: Vec<(CandidateId, f64)>,
}

impl FrontierView {
    /// Returns the frontier of members, with their ranking scores, that hold these cells. Holders are places in `members`.
    pub fn of_holders(
        members: Vec<(CandidateId, f64)>,
        cells: impl IntoIterator<Item = ((String, Option<RowId>), Vec<usize>)>,
    ) -> Self {
        let mut view = Self { members, ..Self::default() };
        for ((objective, row), holders) in cells {
            view.cells.entry(objective).or_default().insert(row, holders);
        }
        view
    }

    /// Applies the comparison of a candidate with the frontier.
    pub fn apply(&mut self, update: &FrontierUpdated) {
        let place = self.members.len();
        self.members.push((update.candidate_id.clone(), update.ranking_score));
        for cell in &update.cells {
            let rows = self.cells.entry(cell.objective.clone()).or_default();
            let holders = rows.entry(cell.row_id.clone()).or_default();
            if cell.alone {
                holders.clear();
            }
            holders.push(place);
        }
    }

    /// Returns the candidates that are not dominated. Starting with the lowest rank, a candidate is dominated if remaining
    /// ones also hold each of its cells.
    ///
    /// So only the highest-ranked holder of a cell can remain because of that cell, and it remains unless a lower-ranked
    /// one that remains holds the cell as well.
    pub fn undominated(&self) -> BTreeSet<&CandidateId> {
        let rank = |place: &usize| self.members.get(*place).map_or(f64::NEG_INFINITY, |(_, score)| *score);
        let by_rank = |a: &usize, b: &usize| rank(a).total_cmp(&rank(b)).then(a.cmp(b));
        let cells: Vec<&Vec<usize>> = self.cells.values().flat_map(BTreeMap::values).collect();
        let mut held: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        let mut tops: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (index, holders) in cells.iter().enumerate() {
            holders.iter().for_each(|place| held.entry(*place).or_default().push(index));
            if let Some(top) = holders.iter().max_by(|a, b| by_rank(a, b)) {
                tops.entry(*top).or_default().push(index);
            }
        }
        let mut order: Vec<usize> = tops.keys().copied().collect();
        order.sort_by(by_rank);
        let mut covered = vec![false; cells.len()];
        let mut kept = BTreeSet::new();
        for place in order {
            if tops[&place].iter().any(|cell| !covered[*cell]) {
                held.get(&place).into_iter().flatten().for_each(|cell| covered[*cell] = true);
                kept.extend(self.members.get(place).map(|(id, _)| id));
            }
        }
        kept
    }
}

#[cfg(test)]
mod tests {
    use super::FrontierView;
    use crate::model::event_fields::{CellWon, FrontierUpdated};
    use crate::model::ids::{CandidateId, RowId};

    /// Builds the update of a candidate that holds these rows, alone where the flag says so.
    fn update(id: &str, ranking_score: f64, rows: &[(&str, bool)]) -> FrontierUpdated {
        let cell = |(row, alone): &(&str, bool)| CellWon {
            row_id: Some(RowId::new(row)),
            objective: "reward".to_owned(),
            value: 1.0,
            alone: *alone,
        };
        FrontierUpdated {
            candidate_id: CandidateId::new(id),
            ranking_score,
            cells_won: rows.len() as u32,
            joined: !rows.is_empty(),
            cells: rows.iter().map(cell).collect(),
            removed: Vec::new(),
            size: 1,
        }
    }

    #[test]
    fn dominated_candidates_are_left_out() {
        let mut frontier = FrontierView::default();
        assert!(frontier.undominated().is_empty());
        frontier.apply(&update("a", 0.2, &[("1", true), ("2", true)]));
        frontier.apply(&update("b", 0.4, &[("2", false), ("3", true)]));
        let names = |frontier: &FrontierView| -> Vec<String> {
            frontier.undominated().into_iter().map(ToString::to_string).collect()
        };
        assert_eq!(names(&frontier), ["a", "b"], "each alone holds a row");
        frontier.apply(&update("c", 0.6, &[("1", false), ("2", false)]));
        assert_eq!(names(&frontier), ["b", "c"], "b and c hold both rows of a");
        frontier.apply(&update("d", 0.9, &[("1", true), ("2", true), ("3", true)]));
        assert_eq!(names(&frontier), ["d"]);
    }
}

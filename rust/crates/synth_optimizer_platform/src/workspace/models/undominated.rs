//! Which candidates of an ended run are not dominated, by the latest scores on the rows of the search.
//!
//! The log says who holds a cell when a candidate was compared with the frontier. A search in sprints measures its result on the
//! rest of the rows after that, and it may hold cells that it was not yet measured on.

use std::collections::{BTreeMap, BTreeSet};

use rusqlite::Connection;

use super::super::query::list;
use super::row_values::{LATEST, Rows, values};
use synth_optimizer_core::model::error::OptimizerError;
use synth_optimizer_core::model::event_fields::{FrontierType, Objective, ObjectiveSetDeclared};
use synth_optimizer_core::model::frontier_view::FrontierView;
use synth_optimizer_core::model::ids::{CandidateId, RowId};

/// A cell: the place of its objective, and its row unless it stands for all rows.
type CellKey = (usize, Option<RowId>);

/// Returns the members of the frontier, and the best candidate, that are not dominated.
pub(super) fn undominated(
    db: &Connection,
    set: &ObjectiveSetDeclared,
    best: Option<&CandidateId>,
) -> Result<BTreeSet<CandidateId>, OptimizerError> {
    let objectives = match set.frontier_type {
        FrontierType::PerExample => set.objectives.get(..1).unwrap_or_default(),
        FrontierType::PerObjective | FrontierType::PerExampleObjective => &set.objectives,
    };
    let sql = "SELECT candidate_id FROM candidates WHERE on_frontier OR candidate_id = ?1 ORDER BY registered_sequence";
    let best = best.map(CandidateId::as_str);
    let ids: Vec<String> = list(db, "read the frontier", sql, [best], |row| row.get(0))?;
    let (mut members, mut cells) = (Vec::new(), BTreeMap::<CellKey, Vec<(usize, f64)>>::new());
    for (place, id) in ids.iter().enumerate() {
        let found = oriented(values(db, id, objectives, Rows::Pool, LATEST)?, objectives);
        members.push((CandidateId::new(id), mean(found.iter().filter(|(at, ..)| *at == 0).map(|(.., value)| *value))));
        for (key, value) in of_cells(found, set.frontier_type, objectives.len()) {
            cells.entry(key).or_default().push((place, value));
        }
    }
    let holders = cells.into_iter().map(|((objective, row), values)| {
        let most = values.iter().map(|(_, value)| *value).fold(f64::NEG_INFINITY, f64::max);
        let holders = values.iter().filter(|(_, value)| *value == most).map(|(place, _)| *place).collect();
        ((objectives[objective].name.clone(), row), holders)
    });
    Ok(FrontierView::of_holders(members, holders).undominated().into_iter().cloned().collect())
}

/// Returns the values by objective and row, so that a higher one is better.
fn oriented(rows: Vec<(String, Vec<Option<f64>>)>, objectives: &[Objective]) -> Vec<(usize, RowId, f64)> {
    let of_row = |(row, values): (String, Vec<Option<f64>>)| {
        let row = RowId::new(&row);
        let known = values.into_iter().enumerate().filter_map(|(at, value)| Some((at, value?)));
        known.map(|(at, value)| (at, row.clone(), objectives[at].direction.oriented(value))).collect::<Vec<_>>()
    };
    rows.into_iter().flat_map(of_row).collect()
}

/// Returns the values of a candidate in the cells of the frontier.
fn of_cells(found: Vec<(usize, RowId, f64)>, kind: FrontierType, objectives: usize) -> Vec<(CellKey, f64)> {
    match kind {
        FrontierType::PerExample | FrontierType::PerExampleObjective => {
            found.into_iter().map(|(at, row, value)| ((at, Some(row)), value)).collect()
        }
        FrontierType::PerObjective => {
            let of = |objective: usize| {
                let values = found.iter().filter(move |(at, ..)| *at == objective).map(|(.., value)| *value);
                ((objective, None), mean(values))
            };
            (0..objectives).map(of).filter(|(_, value)| value.is_finite()).collect()
        }
    }
}

/// Returns the mean; without values the least number.
fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0_u32), |(sum, count), value| (sum + value, count + 1));
    if count == 0 { f64::NEG_INFINITY } else { sum / f64::from(count) }
}

//! The frontier: who is best where.

use std::collections::{BTreeMap, BTreeSet};

use rusqlite::Connection;
use schemars::JsonSchema;
use serde::Serialize;

use super::super::error::{invariant, sqlite};
use super::super::reader::Reader;
use super::query::{MILESTONES, at_one_moment, first, list, maybe_parsed, objectives, parsed, stored_at, whole};
use super::refusal::ReadError;
use crate::config::gepa::FrontierType;
use crate::model::error::OptimizerError;
use crate::model::event_fields::Operation;
use crate::model::score::Score;

/// The most cells of one candidate that are listed.
const MOST_CELLS: usize = 200;

/// The candidates that are best somewhere.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
pub struct RunFrontier {
    /// By id.
    pub items: Vec<FrontierMember>,
    /// How many candidates are on it.
    pub size: u64,
    /// What one cell is; null before the task is loaded.
    pub frontier_type: Option<FrontierType>,
    /// The event that changed it last; null while it is empty.
    pub sequence: Option<u64>,
    /// When that event was stored.
    pub at: Option<String>,
}

/// A candidate on the frontier. The names are those of `frontier.json`.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct FrontierMember {
    /// The candidate.
    pub candidate_id: String,
    /// Its first parent.
    pub parent_id: Option<String>,
    /// How it came to be.
    pub source: Operation,
    /// Mean of `train_score`.
    pub train_reward: Option<f64>,
    /// Mean of `heldout_score`.
    pub heldout_reward: Option<f64>,
    /// Score on all train rows.
    pub train_score: Option<Score>,
    /// Score on held-out rows; null where they are not measured.
    pub heldout_score: Option<Score>,
    /// How many cells it holds, alone or tied.
    pub cell_count: u64,
    /// These cells; the first 200 of them.
    pub cells: Vec<FrontierCell>,
}

/// A cell that a candidate holds.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct FrontierCell {
    /// The row; null where a cell is an objective over all rows.
    pub example_id: Option<String>,
    /// The objective.
    pub objective: String,
    /// The value with which it is held.
    pub value: f64,
    /// The event in which it was won.
    pub sequence: u64,
}

/// Who is on the frontier, and the event that changed it last.
#[derive(Debug, Default)]
pub(super) struct Members {
    pub(super) ids: BTreeSet<String>,
    sequence: Option<u64>,
}

impl Reader {
    /// The frontier as it is now. Reads every event that changed it, one for each candidate with a full evaluation.
    pub fn frontier(&self) -> Result<RunFrontier, ReadError> {
        at_one_moment(self, |db| {
            let Members { ids, sequence } = members(db)?;
            let mut held = held_cells(db)?;
            let mut items = Vec::with_capacity(ids.len());
            for id in ids {
                let (cell_count, cells) = held.remove(&id).unwrap_or_default();
                items.push(member(db, id, cell_count, cells)?);
            }
            Ok(RunFrontier {
                size: items.len() as u64,
                items,
                frontier_type: objectives(db)?.map(|set| set.frontier_type),
                at: sequence.map(|sequence| stored_at(db, sequence)).transpose()?.flatten(),
                sequence,
            })
        })
    }
}

/// Who is on the frontier: read from the last change back, until as many are found as there are.
pub(super) fn members(db: &Connection) -> Result<Members, OptimizerError> {
    let doing = "read the frontier";
    let sql = format!(
        "SELECT sequence, fields ->> 'candidate_id', fields ->> 'joined', fields -> 'left', fields ->> 'size'
         FROM {MILESTONES} AND type = 'frontier.updated' ORDER BY sequence DESC"
    );
    let mut statement = db.prepare_cached(&sql).map_err(sqlite(doing))?;
    let mut rows = statement.query([]).map_err(sqlite(doing))?;
    let (mut members, mut gone, mut size) = (Members::default(), BTreeSet::new(), 0);
    while let Some(row) = rows.next().map_err(sqlite(doing))? {
        let read = || -> rusqlite::Result<(u64, String, bool, String, u64)> {
            Ok((whole(row, 0)?, row.get(1)?, row.get(2)?, row.get(3)?, whole(row, 4)?))
        };
        let (sequence, id, joined, left, size_then) = read().map_err(sqlite(doing))?;
        if members.sequence.is_none() {
            (members.sequence, size) = (Some(sequence), size_then);
        }
        if joined && !gone.contains(&id) {
            members.ids.insert(id);
        }
        if members.ids.len() as u64 >= size {
            break;
        }
        gone.extend(parsed::<Vec<String>>(doing, &left)?);
    }
    Ok(members)
}

type Held = (u64, Vec<FrontierCell>);

fn held_cells(db: &Connection) -> Result<BTreeMap<String, Held>, OptimizerError> {
    let sql = "SELECT candidate_id, example_id, objective, score, won FROM frontier_cells
               ORDER BY candidate_id, objective, example_id";
    let cells = list(db, "read the frontier", sql, [], |row| {
        let example: String = row.get(1)?;
        let cell = FrontierCell {
            example_id: (!example.is_empty()).then_some(example),
            objective: row.get(2)?,
            value: row.get(3)?,
            sequence: whole(row, 4)?,
        };
        Ok((row.get::<_, String>(0)?, cell))
    })?;
    let mut held: BTreeMap<String, Held> = BTreeMap::new();
    for (candidate, cell) in cells {
        let (count, listed) = held.entry(candidate).or_default();
        *count += 1;
        if listed.len() < MOST_CELLS {
            listed.push(cell);
        }
    }
    Ok(held)
}

fn member(
    db: &Connection,
    id: String,
    cell_count: u64,
    cells: Vec<FrontierCell>,
) -> Result<FrontierMember, OptimizerError> {
    let doing = "read a candidate";
    let sql = "SELECT parent_id, operation, train_score, heldout_score FROM candidates WHERE candidate_id = ?1";
    let found = first(db, doing, sql, [&id], |row| {
        let texts: [Option<String>; 2] = [row.get(2)?, row.get(3)?];
        Ok((row.get::<_, Option<String>>(0)?, row.get::<_, String>(1)?, texts))
    })?;
    let missing = || invariant(format!("candidate {id} is on the frontier and is not registered"));
    let (parent_id, operation, [train, heldout]) = found.ok_or_else(missing)?;
    let source = Operation::from_word(&operation).ok_or_else(missing)?;
    let train_score: Option<Score> = maybe_parsed(doing, train.as_deref())?;
    let heldout_score: Option<Score> = maybe_parsed(doing, heldout.as_deref())?;
    Ok(FrontierMember {
        candidate_id: id,
        parent_id,
        source,
        train_reward: train_score.map(|score| score.mean),
        heldout_reward: heldout_score.map(|score| score.mean),
        train_score,
        heldout_score,
        cell_count,
        cells,
    })
}

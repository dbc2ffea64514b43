//! The frontier: who is best where.

use std::collections::BTreeMap;

use rusqlite::Connection;
use schemars::JsonSchema;
use serde::Serialize;

use super::super::projector::totals;
use super::super::reader::Reader;
use super::query::{at_one_moment, list, objectives, parsed, stored_at, whole};
use super::refusal::ReadError;
use synth_optimizer_core::model::candidate_view::Candidate;
use synth_optimizer_core::model::error::OptimizerError;
use synth_optimizer_core::model::event_fields::FrontierType;
use synth_optimizer_core::model::event_fields::Operation;
use synth_optimizer_core::model::score::Score;

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

impl Reader {
    /// The frontier as it is now.
    pub fn frontier(&self) -> Result<RunFrontier, ReadError> {
        at_one_moment(self, |db| {
            let doing = "read the frontier";
            let sql = "SELECT record FROM candidates WHERE on_frontier ORDER BY candidate_id";
            let members: Vec<String> = list(db, doing, sql, [], |row| row.get(0))?;
            let mut held = held_cells(db)?;
            let member = |text: String| -> Result<FrontierMember, OptimizerError> {
                let member: Candidate = parsed(doing, &text)?;
                let (cell_count, cells) = held.remove(member.candidate_id.as_str()).unwrap_or_default();
                Ok(FrontierMember {
                    candidate_id: member.candidate_id.to_string(),
                    parent_id: member.parent_id.map(|parent| parent.to_string()),
                    source: member.source,
                    train_reward: member.train_reward,
                    heldout_reward: member.heldout_reward,
                    train_score: member.train_score,
                    heldout_score: member.heldout_score,
                    cell_count,
                    cells,
                })
            };
            let items = members.into_iter().map(member).collect::<Result<Vec<_>, _>>()?;
            let sequence = totals(db)?.frontier_sequence;
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

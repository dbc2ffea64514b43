//! One candidate: what it changed, whom it comes from, who comes from it, and what it gained.

use rusqlite::{Connection, params};
use schemars::JsonSchema;
use serde::Serialize;

use super::super::projector::read_candidate;
use super::super::reader::Reader;
use super::super::store::int;
use super::candidates::{CandidateEntry, candidate};
use super::query::{at_one_moment, list, objectives};
use super::refusal::{ReadError, quoted};
use super::row_values::{Rows, gain};
use synth_optimizer_core::model::error::OptimizerError;
use synth_optimizer_core::model::ids::Payload;
use synth_optimizer_core::model::score::Gain;

/// The most ancestors and children that are listed.
const MOST_RELATIVES: u32 = 1000;

/// A text before and after.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct FieldChange {
    /// The field.
    pub field: String,
    /// The first parent's text; null where it has none.
    pub before: Option<String>,
    /// The candidate's text.
    pub after: Option<String>,
}

/// A candidate with everything about it.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct CandidateDetail {
    /// The candidate.
    #[serde(flatten)]
    pub candidate: CandidateEntry,
    /// Candidates that have it as a parent, in the order in which they were registered; at most 1000.
    pub children: Vec<String>,
    /// How much better it is than its first parent, on the train rows that both have scores for.
    pub train_gain: Option<Gain>,
    /// The same on held-out rows.
    pub heldout_gain: Option<Gain>,
}

impl Reader {
    /// One candidate.
    pub fn candidate(&self, candidate_id: &str) -> Result<CandidateDetail, ReadError> {
        at_one_moment(self, |db| {
            let found = candidate(db, candidate_id)?.ok_or_else(|| no_candidate(candidate_id))?;
            let deciding = objectives(db)?.and_then(|set| set.objectives.into_iter().next());
            let against_parent = |rows: Rows| match (&found.candidate.parent_id, &deciding) {
                (Some(parent), Some(objective)) => gain(db, candidate_id, parent.as_str(), objective, rows),
                (None, _) | (_, None) => Ok(None),
            };
            let (train_gain, heldout_gain) = (against_parent(Rows::Train)?, against_parent(Rows::Heldout)?);
            Ok(CandidateDetail { children: children(db, &found)?, candidate: found, train_gain, heldout_gain })
        })
    }
}

pub(super) fn no_candidate(id: &str) -> ReadError {
    let message = format!("the run has no candidate {}", quoted(id));
    ReadError::not_found("candidate_not_found", "candidate_id", message, "List the candidates of the run.")
}

/// What became of the fields that changed.
pub(super) fn changes(
    db: &Connection,
    parent: Option<&str>,
    fields: &[String],
    payload: &Payload,
) -> Result<Vec<FieldChange>, OptimizerError> {
    let Some(parent) = parent else { return Ok(Vec::new()) };
    let before = read_candidate(db, parent)?.map(|parent| parent.payload).unwrap_or_default();
    let change = |field: &String| FieldChange {
        field: field.clone(),
        before: before.get(field).cloned(),
        after: payload.get(field).cloned(),
    };
    Ok(fields.iter().map(change).collect())
}

/// The first parents from this one back to the seed.
pub(super) fn lineage(db: &Connection, parent: Option<&str>) -> Result<Vec<String>, OptimizerError> {
    let Some(parent) = parent else { return Ok(Vec::new()) };
    let sql = "WITH RECURSIVE line (candidate_id, depth) AS (
                 SELECT ?1, 0
                 UNION ALL
                 SELECT c.parent_id, depth + 1 FROM line JOIN candidates c ON c.candidate_id = line.candidate_id
                 WHERE c.parent_id IS NOT NULL LIMIT ?2)
               SELECT candidate_id FROM line ORDER BY depth";
    list(db, "read the ancestors", sql, params![parent, MOST_RELATIVES], |row| row.get(0))
}

fn children(db: &Connection, of: &CandidateEntry) -> Result<Vec<String>, OptimizerError> {
    // A child is registered after its parents.
    let sql = "SELECT candidate_id FROM candidates
               WHERE registered > ?1 AND EXISTS (SELECT 1 FROM json_each(parent_ids_json) WHERE value = ?2)
               ORDER BY registered LIMIT ?3";
    let (registered, id) = (int(of.candidate.registered_sequence), of.candidate.candidate_id.as_str());
    let values = params![registered, id, MOST_RELATIVES];
    list(db, "read the children", sql, values, |row| row.get(0))
}

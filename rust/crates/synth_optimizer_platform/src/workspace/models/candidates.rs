//! The candidates of a run: pages of them, one in detail, the best one, and the frontier.

use std::collections::BTreeMap;

use rusqlite::{Connection, params};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::projector::{read_candidate, totals};
use super::super::query::{documents, first, list};
use super::super::reader::Reader;
use super::read_error::{ReadError, after_cursor, page_size, quoted, word};
use super::row_values::{Rows, gain};
use super::scores::objectives;
use synth_optimizer_core::model::candidate_view::Candidate;
use synth_optimizer_core::model::envelope::rfc3339;
use synth_optimizer_core::model::error::OptimizerError;
use synth_optimizer_core::model::event_fields::{Direction, FrontierType};
use synth_optimizer_core::model::event_fields::{Objective, Operation};
use synth_optimizer_core::model::ids::CandidateId;
use synth_optimizer_core::model::lifecycle::CandidateStatus;
use synth_optimizer_core::model::run_totals::BestMark;
use synth_optimizer_core::model::score::{Gain, Score};

/// The most ancestors or children that are listed.
const MAX_RELATIVES: u32 = 1000;
/// The most frontier cells of one candidate that are listed.
const MAX_CELLS: usize = 200;

/// Selects candidates.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CandidateQuery {
    /// Number of items, 1 to 200. Default: 50.
    #[schemars(range(min = 1, max = 200))]
    pub limit: Option<i64>,
    /// `next_cursor` of the previous page.
    pub cursor: Option<String>,
    /// Only candidates in this status, such as `accepted` or `rejected_minibatch`.
    pub status: Option<String>,
    /// Only accepted candidates (true), or only the others (false).
    pub accepted: Option<bool>,
    /// Only candidates of this generation. The initial candidate belongs to none.
    pub generation: Option<u32>,
}

impl CandidateQuery {
    /// Checks the parameters without reading.
    pub fn check(&self) -> Result<(), ReadError> {
        self.parts().map(drop)
    }

    fn parts(&self) -> Result<(i64, usize, Option<CandidateStatus>), ReadError> {
        let status = word("status", self.status.as_deref(), CandidateStatus::parse, CandidateStatus::NAMES)?;
        Ok((after_cursor(self.cursor.as_deref())?, page_size(self.limit, 50, 200)?, status))
    }
}

/// A page of candidates, in the order of their registration.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
pub struct CandidatePage {
    /// The candidates.
    pub items: Vec<CandidateEntry>,
    /// Pass it as `cursor` to get the next page. Null on the last page; a live run may register more candidates later.
    pub next_cursor: Option<String>,
}

/// A candidate with its ancestors and changes.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct CandidateEntry {
    #[serde(flatten)]
    pub candidate: Candidate,
    /// Its ancestors by first parent, from its own parent back to the initial candidate.
    pub lineage: Vec<String>,
    /// The changed fields, with their texts before and after.
    pub delta: Vec<FieldChange>,
    /// Whether it is the best candidate so far.
    pub is_best: bool,
}

/// A changed field.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct FieldChange {
    /// The field.
    pub field: String,
    /// The text of the first parent. Null if it has none.
    pub before: Option<String>,
    /// The text of the candidate.
    pub after: Option<String>,
}

/// A candidate in detail.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct CandidateDetail {
    /// The candidate.
    #[serde(flatten)]
    pub candidate: CandidateEntry,
    /// Candidates that have it as a parent, in the order of their registration. At most 1000.
    pub children: Vec<String>,
    /// Gain over its first parent, on the train rows for which both have scores.
    pub train_gain: Option<Gain>,
    /// Gain over its first parent on held-out rows.
    pub heldout_gain: Option<Gain>,
}

/// The best candidate so far. After the run, it is the result.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct BestCandidate {
    #[serde(flatten)]
    pub candidate: Candidate,
    /// The deciding objective.
    pub metric: String,
    /// Whether a higher or a lower value is better.
    pub direction: Direction,
    /// Sequence number of the event that made it the best or changed it last.
    pub sequence: u64,
    /// When that event was stored.
    pub at: Option<String>,
    /// Score of the initial candidate on all train rows.
    pub seed_train_score: Option<Score>,
    /// Gain over the initial candidate on the train rows for which both have scores. Null for the initial candidate. The
    /// search selects by these rows, so this gain is biased upwards.
    pub train_gain: Option<Gain>,
    /// Gain over the initial candidate on held-out rows, which the search does not select by.
    pub heldout_gain: Option<Gain>,
}

/// The frontier: every candidate that is the best in at least one cell.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
pub struct RunFrontier {
    /// Its candidates, ordered by id.
    pub items: Vec<FrontierMember>,
    /// Number of candidates on it.
    pub size: u64,
    /// What a cell stands for. Null before the task is loaded.
    pub frontier_type: Option<FrontierType>,
    /// Sequence number of the event that changed it last. Null while it is empty.
    pub sequence: Option<u64>,
    /// When that event was stored.
    pub at: Option<String>,
}

/// A candidate on the frontier, with its cells. The field names are those of `frontier.json`.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct FrontierMember {
    #[serde(flatten)]
    pub entry: FrontierEntry,
    /// Number of cells that it holds, alone or tied.
    pub cell_count: u64,
    /// The first 200 of these cells.
    pub cells: Vec<FrontierCell>,
}

/// A candidate on the frontier: an entry of `frontier.json`.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct FrontierEntry {
    /// The candidate.
    pub candidate_id: String,
    /// Its first parent.
    pub parent_id: Option<String>,
    /// How it was created.
    pub source: Operation,
    /// Mean of `train_score`.
    pub train_reward: Option<f64>,
    /// Mean of `heldout_score`.
    pub heldout_reward: Option<f64>,
    /// Score on all train rows.
    pub train_score: Option<Score>,
    /// Score on held-out rows. Null if it was not evaluated on them.
    pub heldout_score: Option<Score>,
}

impl From<&Candidate> for FrontierEntry {
    fn from(candidate: &Candidate) -> Self {
        Self {
            candidate_id: candidate.candidate_id.to_string(),
            parent_id: candidate.parent_id.as_ref().map(ToString::to_string),
            source: candidate.source,
            train_reward: candidate.train_reward,
            heldout_reward: candidate.heldout_reward,
            train_score: candidate.train_score,
            heldout_score: candidate.heldout_score,
        }
    }
}

/// A frontier cell that a candidate holds.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct FrontierCell {
    /// The row. Null if the cell is an objective over all rows.
    pub example_id: Option<String>,
    /// The objective.
    pub objective: String,
    /// The candidate's value in this cell.
    pub value: f64,
    /// Sequence number of the event in which the candidate won the cell.
    pub sequence: u64,
}

impl Reader {
    /// Returns a page of candidates, in the order of their registration.
    pub fn candidate_page(&self, query: &CandidateQuery) -> Result<CandidatePage, ReadError> {
        let (after, limit, status) = query.parts()?;
        let sql = "SELECT record FROM candidates
             WHERE registered_sequence > ?1 AND (?2 IS NULL OR status = ?2) AND (?3 IS NULL OR (status = 'accepted') = ?3)
               AND (?4 IS NULL OR generation = ?4)
             ORDER BY registered_sequence LIMIT ?5";
        let values = params![after, status.map(CandidateStatus::as_str), query.accepted, query.generation, limit + 1];
        self.in_snapshot(|db| {
            let mut found: Vec<Candidate> = documents(db, "read the candidates", sql, values)?;
            let more = found.len() > limit;
            found.truncate(limit);
            let best = totals(db)?.best;
            let entry = |candidate| entry(db, candidate, best.as_ref());
            let items = found.into_iter().map(entry).collect::<Result<Vec<_>, _>>()?;
            let next_cursor = items.last().filter(|_| more).map(|last| last.candidate.registered_sequence.to_string());
            Ok(CandidatePage { items, next_cursor })
        })
    }

    /// Returns the records of all candidates, in the order of their registration. Reads the table once.
    pub fn candidate_records(&self) -> Result<Vec<Candidate>, ReadError> {
        let sql = "SELECT record FROM candidates ORDER BY registered_sequence";
        self.in_snapshot(|db| Ok(documents(db, "read the candidates", sql, [])?))
    }

    /// Returns one candidate in detail.
    pub fn candidate(&self, candidate_id: &str) -> Result<CandidateDetail, ReadError> {
        self.in_snapshot(|db| {
            let found = read_candidate(db, candidate_id)?.ok_or_else(|| no_candidate(candidate_id))?;
            let deciding = deciding_objective(db)?;
            let against_parent = |rows: Rows| match (&found.parent_id, &deciding) {
                (Some(parent), Some(objective)) => gain(db, candidate_id, parent.as_str(), objective, rows),
                (None, _) | (_, None) => Ok(None),
            };
            Ok(CandidateDetail {
                children: children(db, &found)?,
                train_gain: against_parent(Rows::Train)?,
                heldout_gain: against_parent(Rows::Heldout)?,
                candidate: entry(db, found, totals(db)?.best.as_ref())?,
            })
        })
    }

    /// Returns the best candidate so far, or `None` before the initial candidate is evaluated.
    pub fn best_candidate(&self) -> Result<Option<BestCandidate>, OptimizerError> {
        self.in_snapshot(best)
    }

    /// Returns which candidate is the best, and the event that made it so.
    pub fn best_mark(&self) -> Result<Option<BestMark>, ReadError> {
        Ok(self.totals()?.best)
    }

    /// Returns the current frontier.
    pub fn frontier(&self) -> Result<RunFrontier, ReadError> {
        self.in_snapshot(|db| {
            let sql = "SELECT record FROM candidates WHERE on_frontier ORDER BY candidate_id";
            let members: Vec<Candidate> = documents(db, "read the frontier", sql, [])?;
            let mut held = cells_by_candidate(db)?;
            let member = |member: Candidate| {
                let mut cells = held.remove(member.candidate_id.as_str()).unwrap_or_default();
                let cell_count = cells.len() as u64;
                cells.truncate(MAX_CELLS);
                FrontierMember { entry: FrontierEntry::from(&member), cell_count, cells }
            };
            let items: Vec<FrontierMember> = members.into_iter().map(member).collect();
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

pub(super) fn no_candidate(id: &str) -> ReadError {
    let message = format!("the run has no candidate {}", quoted(id));
    ReadError::not_found("candidate_not_found", "candidate_id", message, "List the candidates of the run.")
}

fn entry(db: &Connection, candidate: Candidate, best: Option<&BestMark>) -> Result<CandidateEntry, OptimizerError> {
    let parent = candidate.parent_id.as_ref().map(CandidateId::as_str);
    Ok(CandidateEntry {
        lineage: lineage(db, parent)?,
        delta: changes(db, &candidate)?,
        is_best: best.is_some_and(|best| best.candidate_id == candidate.candidate_id),
        candidate,
    })
}

/// Returns the changed fields of a candidate.
fn changes(db: &Connection, candidate: &Candidate) -> Result<Vec<FieldChange>, OptimizerError> {
    let Some(parent) = &candidate.parent_id else { return Ok(Vec::new()) };
    let before = read_candidate(db, parent.as_str())?.map(|parent| parent.payload).unwrap_or_default();
    let change = |field: &String| FieldChange {
        field: field.clone(),
        before: before.get(field).cloned(),
        after: candidate.payload.get(field).cloned(),
    };
    Ok(candidate.changed_fields.iter().map(change).collect())
}

/// Returns the ancestors by first parent, from this one back to the initial candidate.
fn lineage(db: &Connection, parent: Option<&str>) -> Result<Vec<String>, OptimizerError> {
    let Some(parent) = parent else { return Ok(Vec::new()) };
    let sql = "WITH RECURSIVE line (candidate_id, depth) AS (
                 SELECT ?1, 0
                 UNION ALL
                 SELECT c.parent_id, depth + 1 FROM line JOIN candidates c ON c.candidate_id = line.candidate_id
                 WHERE c.parent_id IS NOT NULL LIMIT ?2)
               SELECT candidate_id FROM line ORDER BY depth";
    list(db, "read the ancestors", sql, params![parent, MAX_RELATIVES], |row| row.get(0))
}

fn children(db: &Connection, of: &Candidate) -> Result<Vec<String>, OptimizerError> {
    // A child is always registered after its parents.
    let sql = "SELECT candidate_id FROM candidates
               WHERE registered_sequence > ?1 AND EXISTS (SELECT 1 FROM json_each(parent_ids_json) WHERE value = ?2)
               ORDER BY registered_sequence LIMIT ?3";
    let values = params![of.registered_sequence, of.candidate_id.as_str(), MAX_RELATIVES];
    list(db, "read the children", sql, values, |row| row.get(0))
}

fn best(db: &Connection) -> Result<Option<BestCandidate>, OptimizerError> {
    let totals = totals(db)?;
    let Some(BestMark { sequence, candidate_id }) = totals.best else { return Ok(None) };
    let Some(objective) = deciding_objective(db)? else { return Ok(None) };
    let Some(candidate) = read_candidate(db, candidate_id.as_str())? else { return Ok(None) };
    let seed = match &totals.seed_candidate_id {
        Some(seed) => read_candidate(db, seed.as_str())?,
        None => None,
    };
    let over_seed = |rows: Rows| match &totals.seed_candidate_id {
        Some(seed) if *seed != candidate_id => gain(db, candidate_id.as_str(), seed.as_str(), &objective, rows),
        Some(_) | None => Ok(None),
    };
    Ok(Some(BestCandidate {
        train_gain: over_seed(Rows::Pool)?,
        heldout_gain: over_seed(Rows::Heldout)?,
        candidate,
        direction: objective.direction,
        metric: objective.name,
        sequence,
        at: stored_at(db, sequence)?,
        seed_train_score: seed.and_then(|seed| seed.train_score),
    }))
}

/// Returns the objective that decides, or `None` before the task is loaded.
pub(super) fn deciding_objective(db: &Connection) -> Result<Option<Objective>, OptimizerError> {
    Ok(objectives(db)?.and_then(|set| set.objectives.into_iter().next()))
}

/// Returns when an event was stored.
fn stored_at(db: &Connection, sequence: u64) -> Result<Option<String>, OptimizerError> {
    let sql = "SELECT unix_millis FROM events WHERE sequence = ?1";
    first(db, "read the log", sql, [sequence], |row| row.get(0).map(rfc3339))
}

/// Returns the cells of the frontier by candidate.
fn cells_by_candidate(db: &Connection) -> Result<BTreeMap<String, Vec<FrontierCell>>, OptimizerError> {
    let sql = "SELECT candidate_id, nullif(example_id, ''), objective, score, won_sequence FROM frontier_cells
               ORDER BY candidate_id, objective, example_id";
    let mut held: BTreeMap<String, Vec<FrontierCell>> = BTreeMap::new();
    let cells: Vec<(String, FrontierCell)> = list(db, "read the frontier", sql, [], |row| {
        let cell =
            FrontierCell { example_id: row.get(1)?, objective: row.get(2)?, value: row.get(3)?, sequence: row.get(4)? };
        Ok((row.get(0)?, cell))
    })?;
    for (candidate, cell) in cells {
        held.entry(candidate).or_default().push(cell);
    }
    Ok(held)
}

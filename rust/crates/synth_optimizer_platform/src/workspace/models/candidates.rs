//! The candidates of a run: page by page, one with everything about it, the best one, and those on the frontier.

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

/// The most ancestors and children that are listed.
const MAX_RELATIVES: u32 = 1000;
/// The most cells of one candidate on the frontier that are listed.
const MAX_CELLS: usize = 200;

/// Which candidates are wanted.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CandidateQuery {
    /// How many, 1 to 200; 50 if it is not set.
    #[schemars(range(min = 1, max = 200))]
    pub limit: Option<i64>,
    /// `next_cursor` of the page before.
    pub cursor: Option<String>,
    /// Only those in this status, such as `accepted` or `rejected_minibatch`.
    pub status: Option<String>,
    /// Only those that are accepted, or only those that are not.
    pub accepted: Option<bool>,
    /// Only those of this generation; the seed belongs to none.
    pub generation: Option<u32>,
}

impl CandidateQuery {
    /// Whether it can be answered, if there is something to read.
    pub fn check(&self) -> Result<(), ReadError> {
        self.parts().map(drop)
    }

    fn parts(&self) -> Result<(i64, usize, Option<CandidateStatus>), ReadError> {
        let status = word("status", self.status.as_deref(), CandidateStatus::parse, CandidateStatus::NAMES)?;
        Ok((after_cursor(self.cursor.as_deref())?, page_size(self.limit, 50, 200)?, status))
    }
}

/// Candidates in the order in which they were registered.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
pub struct CandidatePage {
    /// The candidates.
    pub items: Vec<CandidateEntry>,
    /// Where the next page begins; null after the last one. A run that goes on may register more later.
    pub next_cursor: Option<String>,
}

/// A candidate, whom it comes from, and whether it is the best.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct CandidateEntry {
    #[serde(flatten)]
    pub candidate: Candidate,
    /// First parents from its own parent back to the seed.
    pub lineage: Vec<String>,
    /// The texts of the changed fields before and after.
    pub delta: Vec<FieldChange>,
    /// Whether it is the best candidate so far.
    pub is_best: bool,
}

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

/// The best candidate so far; after the run, the one that it returns.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct BestCandidate {
    #[serde(flatten)]
    pub candidate: Candidate,
    /// The deciding objective.
    pub metric: String,
    /// Which way is better.
    pub direction: Direction,
    /// The event that made it the best, or changed its scores since.
    pub sequence: u64,
    /// When that event was stored.
    pub at: Option<String>,
    /// The seed's score on all train rows.
    pub seed_score: Option<Score>,
    /// How much better it is than the seed on the train rows that both have scores for; null for the seed itself. The
    /// search has chosen by these rows, so it flatters.
    pub gain: Option<Gain>,
    /// How much better it is than the seed on held-out rows, which chose nothing.
    pub heldout_gain: Option<Gain>,
}

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
    #[serde(flatten)]
    pub entry: FrontierEntry,
    /// How many cells it holds, alone or tied.
    pub cell_count: u64,
    /// These cells; the first 200 of them.
    pub cells: Vec<FrontierCell>,
}

/// A candidate on the frontier: an entry of `frontier.json`.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct FrontierEntry {
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
    /// The candidates of the run, in the order in which they were registered.
    pub fn candidate_page(&self, query: &CandidateQuery) -> Result<CandidatePage, ReadError> {
        let (after, limit, status) = query.parts()?;
        let sql = "SELECT record FROM candidates
             WHERE registered > ?1 AND (?2 IS NULL OR status = ?2) AND (?3 IS NULL OR (status = 'accepted') = ?3)
               AND (?4 IS NULL OR generation = ?4)
             ORDER BY registered LIMIT ?5";
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

    /// One candidate.
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

    /// The best candidate so far; none before the seed is measured.
    pub fn best_candidate(&self) -> Result<Option<BestCandidate>, ReadError> {
        self.in_snapshot(|db| Ok(best(db)?))
    }

    /// Which candidate is the best and since when.
    pub fn best_mark(&self) -> Result<Option<BestMark>, ReadError> {
        Ok(self.totals()?.best)
    }

    /// The frontier as it is now.
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

fn no_candidate(id: &str) -> ReadError {
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

/// What became of the fields that changed.
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

/// The first parents from this one back to the seed.
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
    // A child is registered after its parents.
    let sql = "SELECT candidate_id FROM candidates
               WHERE registered > ?1 AND EXISTS (SELECT 1 FROM json_each(parent_ids_json) WHERE value = ?2)
               ORDER BY registered LIMIT ?3";
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
        gain: over_seed(Rows::Pool)?,
        heldout_gain: over_seed(Rows::Heldout)?,
        candidate,
        direction: objective.direction,
        metric: objective.name,
        sequence,
        at: stored_at(db, sequence)?,
        seed_score: seed.and_then(|seed| seed.train_score),
    }))
}

fn deciding_objective(db: &Connection) -> Result<Option<Objective>, OptimizerError> {
    Ok(objectives(db)?.and_then(|set| set.objectives.into_iter().next()))
}

/// When an event was stored.
fn stored_at(db: &Connection, sequence: u64) -> Result<Option<String>, OptimizerError> {
    let sql = "SELECT unix_millis FROM events WHERE sequence = ?1";
    first(db, "read the log", sql, [sequence], |row| row.get(0).map(rfc3339))
}

/// The cells of the frontier by who holds them.
fn cells_by_candidate(db: &Connection) -> Result<BTreeMap<String, Vec<FrontierCell>>, OptimizerError> {
    let sql = "SELECT candidate_id, nullif(example_id, ''), objective, score, won FROM frontier_cells
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

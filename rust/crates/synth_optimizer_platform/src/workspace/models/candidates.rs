//! The candidates of a run, page by page, in the order in which they were registered.

use std::collections::BTreeSet;

use rusqlite::{Connection, Row, params};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::error::invariant;
use super::super::reader::Reader;
use super::super::store::int;
use super::candidate_detail::{FieldChange, changes, lineage};
use super::decisions::{CandidateDecision, decisions};
use super::frontier::members;
use super::query::{at_one_moment, first, list, maybe_parsed, maybe_whole, moment, parsed, whole};
use super::refusal::{ReadError, after_cursor, page_size, word};
use crate::model::error::OptimizerError;
use crate::model::event_fields::Operation;
use crate::model::ids::Payload;
use crate::model::lifecycle::CandidateStatus;
use crate::model::score::{Comparison, Score};

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
        let status = word("status", self.status.as_deref(), CandidateStatus::from_word, CandidateStatus::WORDS)?;
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

/// A candidate: its texts, where it comes from, its scores and how it was judged. The names are those of
/// `candidate_registry.json`.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct CandidateEntry {
    /// The id, made from the texts: equal texts have equal ids in every run.
    pub candidate_id: String,
    /// The first of `parent_ids`.
    pub parent_id: Option<String>,
    /// Its parents; none for the seed, two for a merge.
    pub parent_ids: Vec<String>,
    /// First parents from its own parent back to the seed.
    pub lineage: Vec<String>,
    /// How it came to be.
    pub source: Operation,
    /// The generation that made it; null for the seed.
    pub generation: Option<u32>,
    /// Where it is.
    pub status: CandidateStatus,
    /// Its texts by field.
    pub payload: Payload,
    /// Fields whose text differs from the first parent's.
    pub changed_fields: Vec<String>,
    /// The texts of these fields before and after.
    pub delta: Vec<FieldChange>,
    /// Why, in the words of the proposer.
    pub rationale: String,
    /// Mean of `minibatch_score`.
    pub minibatch_reward: Option<f64>,
    /// Mean of `train_score`.
    pub train_reward: Option<f64>,
    /// Mean of `heldout_score`.
    pub heldout_reward: Option<f64>,
    /// Score of its screening; null before it.
    pub minibatch_score: Option<Score>,
    /// Score on all train rows; null before they are measured.
    pub train_score: Option<Score>,
    /// Score on held-out rows; null where they are not measured.
    pub heldout_score: Option<Score>,
    /// The last comparison that it was judged by.
    pub acceptance_score: Option<Comparison>,
    /// Every step of how it was judged.
    pub acceptance_metadata: Vec<CandidateDecision>,
    /// Whether it is the best candidate so far.
    pub is_best: bool,
    /// Whether it holds a cell of the frontier.
    pub on_frontier: bool,
    /// The event that registered it.
    pub registered_sequence: u64,
    /// When it was registered.
    pub registered_at: Option<String>,
    /// The last event about it.
    pub updated_sequence: u64,
    /// When that event was stored.
    pub updated_at: Option<String>,
}

const COLUMNS: &str = "candidate_id, operation, parent_ids_json, generation, status, payload_json, changed_fields_json,
    rationale, minibatch_score, train_score, heldout_score, registered, updated,
    (SELECT unix_millis FROM events WHERE sequence = registered),
    (SELECT unix_millis FROM events WHERE sequence = updated)";

/// What is read once for all candidates of a page.
#[derive(Debug)]
pub(super) struct Standing {
    best: Option<String>,
    frontier: BTreeSet<String>,
}

impl Reader {
    /// The candidates of the run, in the order in which they were registered.
    pub fn candidate_page(&self, query: &CandidateQuery) -> Result<CandidatePage, ReadError> {
        let (after, limit, status) = query.parts()?;
        let sql = format!(
            "SELECT {COLUMNS} FROM candidates
             WHERE registered > ?1 AND (?2 IS NULL OR status = ?2) AND (?3 IS NULL OR (status = 'accepted') = ?3)
               AND (?4 IS NULL OR generation = ?4)
             ORDER BY registered LIMIT ?5"
        );
        let values =
            params![after, status.map(CandidateStatus::word), query.accepted, query.generation, int(limit as u64 + 1)];
        at_one_moment(self, |db| {
            let mut found = list(db, "read the candidates", &sql, values, Columns::read)?;
            let more = found.len() > limit;
            found.truncate(limit);
            let next_cursor = found.last().filter(|_| more).map(|last| last.registered.to_string());
            let standing = Standing::read(db)?;
            let items = found.into_iter().map(|columns| columns.entry(db, &standing)).collect::<Result<_, _>>()?;
            Ok(CandidatePage { items, next_cursor })
        })
    }
}

/// One candidate, or that there is none.
pub(super) fn candidate(db: &Connection, id: &str) -> Result<Option<CandidateEntry>, OptimizerError> {
    let sql = format!("SELECT {COLUMNS} FROM candidates WHERE candidate_id = ?1");
    match first(db, "read a candidate", &sql, [id], Columns::read)? {
        Some(columns) => columns.entry(db, &Standing::read(db)?).map(Some),
        None => Ok(None),
    }
}

/// The best candidate so far.
pub(super) fn best_id(db: &Connection) -> Result<Option<String>, OptimizerError> {
    let sql = "SELECT best_candidate_id FROM run_state";
    Ok(first(db, "read the best candidate", sql, [], |row| row.get::<_, Option<String>>(0))?.flatten())
}

impl Standing {
    fn read(db: &Connection) -> Result<Self, OptimizerError> {
        Ok(Self { best: best_id(db)?, frontier: members(db)?.ids })
    }
}

/// A row of `candidates` as it is stored.
struct Columns {
    candidate_id: String,
    operation: String,
    parent_ids: String,
    generation: Option<u64>,
    status: String,
    payload: String,
    changed_fields: String,
    rationale: String,
    scores: [Option<String>; 3],
    registered: u64,
    updated: u64,
    registered_at: Option<String>,
    updated_at: Option<String>,
}

impl Columns {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            candidate_id: row.get(0)?,
            operation: row.get(1)?,
            parent_ids: row.get(2)?,
            generation: maybe_whole(row, 3)?,
            status: row.get(4)?,
            payload: row.get(5)?,
            changed_fields: row.get(6)?,
            rationale: row.get(7)?,
            scores: [row.get(8)?, row.get(9)?, row.get(10)?],
            registered: whole(row, 11)?,
            updated: whole(row, 12)?,
            registered_at: moment(row, 13)?,
            updated_at: moment(row, 14)?,
        })
    }

    fn entry(self, db: &Connection, standing: &Standing) -> Result<CandidateEntry, OptimizerError> {
        let doing = "read a candidate";
        let unknown = |word: &str| invariant(format!("candidate {} has the unknown word {word:?}", self.candidate_id));
        let [minibatch, train, heldout] = &self.scores;
        let score = |text: &Option<String>| maybe_parsed::<Score>(doing, text.as_deref());
        let (minibatch_score, train_score, heldout_score) = (score(minibatch)?, score(train)?, score(heldout)?);
        let parent_ids: Vec<String> = parsed(doing, &self.parent_ids)?;
        let payload: Payload = parsed(doing, &self.payload)?;
        let changed_fields: Vec<String> = parsed(doing, &self.changed_fields)?;
        let acceptance_metadata = decisions(db, &self.candidate_id, self.registered, self.updated)?;
        let judged = acceptance_metadata.iter().rev().find(|step| step.decision != "deferred");
        let parent_id = parent_ids.first().cloned();
        Ok(CandidateEntry {
            lineage: lineage(db, parent_id.as_deref())?,
            source: Operation::from_word(&self.operation).ok_or_else(|| unknown(&self.operation))?,
            generation: self.generation.and_then(|number| u32::try_from(number).ok()),
            status: CandidateStatus::from_word(&self.status).ok_or_else(|| unknown(&self.status))?,
            delta: changes(db, parent_id.as_deref(), &changed_fields, &payload)?,
            minibatch_reward: minibatch_score.map(|score| score.mean),
            train_reward: train_score.map(|score| score.mean),
            heldout_reward: heldout_score.map(|score| score.mean),
            acceptance_score: judged.and_then(|step| step.comparison.clone()),
            is_best: standing.best.as_ref() == Some(&self.candidate_id),
            on_frontier: standing.frontier.contains(&self.candidate_id),
            candidate_id: self.candidate_id,
            parent_id,
            parent_ids,
            payload,
            changed_fields,
            rationale: self.rationale,
            minibatch_score,
            train_score,
            heldout_score,
            acceptance_metadata,
            registered_sequence: self.registered,
            registered_at: self.registered_at,
            updated_sequence: self.updated,
            updated_at: self.updated_at,
        })
    }
}

//! The best candidate so far, and since when it is.

use rusqlite::{Connection, params};
use schemars::JsonSchema;
use serde::Serialize;

use super::super::reader::Reader;
use super::candidates::best_id;
use super::query::{MILESTONES, at_one_moment, first, maybe_parsed, objectives, parsed, seed, stored_at, whole};
use super::refusal::ReadError;
use super::rollouts::RowSplit;
use super::row_values::{Rows, gain};
use crate::config::gepa::Direction;
use crate::model::error::OptimizerError;
use crate::model::ids::Payload;
use crate::model::score::{Gain, Score};

/// The best candidate so far; after the run, the one that it returns.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct BestCandidate {
    /// The candidate.
    pub candidate_id: String,
    /// Its texts by field.
    pub payload: Payload,
    /// Its score on all train rows.
    pub score: Option<Score>,
    /// The rows of `score`: `train`.
    pub split: RowSplit,
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
    /// Its score on held-out rows; null where they are not measured.
    pub heldout_score: Option<Score>,
    /// How much better it is than the seed on held-out rows, which chose nothing.
    pub heldout_gain: Option<Gain>,
}

/// Which candidate is the best, and the event that made it so or changed its scores. Any change changes the sequence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct BestMark {
    /// The event.
    pub sequence: u64,
    /// The candidate.
    pub candidate_id: String,
}

impl Reader {
    /// The best candidate so far; none before the seed is measured.
    pub fn best_candidate(&self) -> Result<Option<BestCandidate>, ReadError> {
        at_one_moment(self, |db| Ok(best(db)?))
    }

    /// Which candidate is the best and since when, from a few rows.
    pub fn best_mark(&self) -> Result<Option<BestMark>, ReadError> {
        at_one_moment(self, |db| Ok(mark(db)?))
    }
}

fn best(db: &Connection) -> Result<Option<BestCandidate>, OptimizerError> {
    let doing = "read the best candidate";
    let Some(BestMark { sequence, candidate_id }) = mark(db)? else { return Ok(None) };
    let Some(objective) = objectives(db)?.and_then(|set| set.objectives.into_iter().next()) else { return Ok(None) };
    let sql = "SELECT payload_json, train_score, heldout_score FROM candidates WHERE candidate_id = ?1";
    type Texts = (String, Option<String>, Option<String>);
    let read = |id: &str| first(db, doing, sql, [id], |row| Ok::<Texts, _>((row.get(0)?, row.get(1)?, row.get(2)?)));
    let Some((payload, train, heldout)) = read(&candidate_id)? else { return Ok(None) };
    let payload: Payload = parsed(doing, &payload)?;
    let seed = seed(db)?;
    let seed_texts = match &seed {
        Some(seed) => read(seed)?,
        None => None,
    };
    let seed_score = seed_texts.and_then(|(_, train, _)| train);
    let over_seed = |rows: Rows| match &seed {
        Some(seed) if *seed != candidate_id => gain(db, &candidate_id, seed, &objective, rows),
        Some(_) | None => Ok(None),
    };
    Ok(Some(BestCandidate {
        gain: over_seed(Rows::Pool)?,
        heldout_gain: over_seed(Rows::Heldout)?,
        candidate_id,
        payload,
        score: maybe_parsed(doing, train.as_deref())?,
        split: RowSplit::Train,
        direction: objective.direction,
        metric: objective.name,
        sequence,
        at: stored_at(db, sequence)?,
        seed_score: maybe_parsed(doing, seed_score.as_deref())?,
        heldout_score: maybe_parsed(doing, heldout.as_deref())?,
    }))
}

/// Events that name the best candidate: their types, which candidate they name, and when they do. The rule is that of the
/// projection that writes `run_state`.
const NAMING: &[(&str, &str)] = &[
    (
        "type = 'candidate.accepted' AND coalesce(fields ->> '$.comparison.primary_delta', 0) >= 0",
        "fields ->> 'candidate_id'",
    ),
    ("type = 'generation.completed'", "fields ->> 'best_candidate_id'"),
    (
        "type IN ('gepa.run.finished', 'gepa.run.failed', 'gepa.run.cancelled')
           AND fields ->> 'best_candidate_id' IS NOT NULL",
        "fields ->> 'best_candidate_id'",
    ),
];

fn mark(db: &Connection) -> Result<Option<BestMark>, OptimizerError> {
    let doing = "read the best candidate";
    let Some(candidate_id) = best_id(db)? else { return Ok(None) };
    let mut other = -1;
    for (naming, named) in NAMING {
        let sql =
            format!("SELECT sequence FROM {MILESTONES} AND {naming} AND {named} <> ?1 ORDER BY sequence DESC LIMIT 1");
        let found: Option<i64> = first(db, doing, &sql, [&candidate_id], |row| row.get(0))?;
        other = other.max(found.unwrap_or(-1));
    }
    let sql = "SELECT updated FROM candidates WHERE candidate_id = ?1";
    let mut updated = first(db, doing, sql, [&candidate_id], |row| whole(row, 0))?.unwrap_or(0);
    // The held-out score of the seed is part of the gain.
    let sql = "SELECT updated FROM candidates WHERE candidate_id = ?1 AND heldout_score IS NOT NULL";
    if let Some(seed) = seed(db)? {
        updated = first(db, doing, sql, [&seed], |row| whole(row, 0))?.unwrap_or(0).max(updated);
    }
    let mut made: Option<u64> = None;
    for (naming, _) in NAMING {
        let sql = format!("SELECT sequence FROM {MILESTONES} AND {naming} AND sequence > ?1 ORDER BY sequence LIMIT 1");
        let found = first(db, doing, &sql, params![other], |row| whole(row, 0))?;
        made = made.into_iter().chain(found).min();
    }
    Ok(Some(BestMark { sequence: updated.max(made.unwrap_or(0)), candidate_id }))
}

//! The rollouts of a run, page by page, in the order in which they were requested.

use std::collections::BTreeMap;

use rusqlite::types::Value as Sql;
use rusqlite::{Connection, Row, params_from_iter};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::error::invariant;
use super::super::reader::Reader;
use super::query::{at_one_moment, first, list, maybe_parsed, maybe_whole, moment, whole};
use super::refusal::{ReadError, after_cursor, page_size, word};
use crate::config::words::words;
use crate::model::answer::FailureClass;
use crate::model::error::OptimizerError;
use crate::model::event_fields::Stage;

words! {
    /// Where a rollout is.
    RolloutStatus {
        /// It is wanted and not sent yet.
        Requested = "requested",
        /// It was sent and has no answer yet.
        Running = "running",
        /// Its answer has come and waits for its turn to become an event.
        Answered = "answered",
        /// It gave a score.
        Finished = "finished",
        /// It gave no score for good.
        Failed = "failed",
        /// It gave no score and was asked for again, as another rollout.
        Retried = "retried",
    }
}

words! {
    /// Which rows: those that the search learns from, or those that only measure.
    RowSplit {
        /// Train rows.
        Train = "train",
        /// Held-out rows.
        Heldout = "heldout",
    }
}

/// Which rollouts are wanted.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RolloutQuery {
    /// How many, 1 to 200; 50 if it is not set.
    #[schemars(range(min = 1, max = 200))]
    pub limit: Option<i64>,
    /// `next_cursor` of the page before.
    pub cursor: Option<String>,
    /// Only those of this candidate.
    pub candidate_id: Option<String>,
    /// Only those of this stage, such as `candidate_minibatch`.
    pub stage: Option<String>,
    /// Only those in this status, such as `finished`.
    pub status: Option<String>,
    /// Only those on `train` or on `heldout` rows.
    pub split: Option<String>,
}

/// What a query comes to.
struct Parts {
    after: i64,
    limit: usize,
    stage: Option<Stage>,
    status: Option<RolloutStatus>,
    split: Option<RowSplit>,
}

impl RolloutQuery {
    /// Whether it can be answered, if there is something to read.
    pub fn check(&self) -> Result<(), ReadError> {
        self.parts().map(drop)
    }

    fn parts(&self) -> Result<Parts, ReadError> {
        Ok(Parts {
            after: after_cursor(self.cursor.as_deref())?,
            limit: page_size(self.limit, 50, 200)?,
            stage: word("stage", self.stage.as_deref(), Stage::from_word, Stage::WORDS)?,
            status: word("status", self.status.as_deref(), RolloutStatus::from_word, RolloutStatus::WORDS)?,
            split: word("split", self.split.as_deref(), RowSplit::from_word, RowSplit::WORDS)?,
        })
    }
}

/// Rollouts in the order in which they were requested.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
pub struct RolloutPage {
    /// The rollouts. With a filter there may be fewer than asked for, even none, on a page that is not the last.
    pub items: Vec<RolloutEntry>,
    /// Where the next page begins; null after the last one. A run that goes on may request more later.
    pub next_cursor: Option<String>,
}

/// A rollout: one row, run with the texts of one candidate.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct RolloutEntry {
    /// Its number in the run.
    pub request: u64,
    /// The id under which the container knows it; null where nothing was sent.
    pub rollout_id: Option<String>,
    /// Whose texts were run.
    pub candidate_id: String,
    /// The row, as the container names it.
    pub example_id: String,
    /// What the rollout was for.
    pub evaluation_stage: Stage,
    /// `train` or `heldout`.
    pub split: RowSplit,
    /// The generation that it belongs to, if any.
    pub generation: Option<u32>,
    /// 1 for the first try of the row.
    pub attempt: u32,
    /// Which repetition of the same measurement.
    pub replicate: u32,
    /// Where it is.
    pub status: RolloutStatus,
    /// The reward of the container; null without a score.
    pub reward: Option<f64>,
    /// Scores by objective, where the container gives any.
    pub objectives: BTreeMap<String, f64>,
    /// What it used, as the container told; null until it is settled.
    pub usage: Option<RolloutUsage>,
    /// What this run paid for it: 0 for an answer from the cache, null where it is unknown.
    pub cost_usd: Option<f64>,
    /// Whether the answer came from the cache; null until it is settled.
    pub cached: Option<bool>,
    /// Why it gave no score.
    pub failure: Option<RolloutFailure>,
    /// When it was sent; null where nothing was.
    pub sent_at: Option<String>,
    /// When the answer came.
    pub answered_at: Option<String>,
    /// How long the answer took.
    pub latency_ms: Option<u64>,
    /// The event that settled it.
    pub settled_sequence: Option<u64>,
    /// When that event was stored.
    pub settled_at: Option<String>,
    /// SHA-256 of the stored reply.
    pub trace_sha256: Option<String>,
}

/// Tokens and money of one rollout; null is unknown.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct RolloutUsage {
    /// Prompt tokens.
    pub prompt_tokens: Option<u64>,
    /// Completion tokens.
    pub completion_tokens: Option<u64>,
    /// All tokens.
    pub total_tokens: Option<u64>,
    /// What it cost whoever ran it first, in dollars.
    pub cost_usd: Option<f64>,
}

/// Why a rollout gave no score.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct RolloutFailure {
    /// What kind of failure it was.
    pub class: FailureClass,
    /// What happened, in words.
    pub message: String,
}

/// Requests that one page looks at when it looks for few among many.
const WINDOW: i64 = 20_000;

const STATUS: &str = "CASE WHEN r.status = 'requested' AND c.answered_at IS NOT NULL THEN 'answered'
    WHEN r.status = 'requested' AND c.sent_at IS NOT NULL THEN 'running' ELSE r.status END";

const COLUMNS: &str =
    "r.request, c.rollout_id, r.candidate_id, r.example_id, r.evaluation_stage, r.split, r.generation,
    r.attempt, r.replicate, r.reward, r.objectives_json, r.prompt_tokens, r.completion_tokens, r.total_tokens,
    r.cost_nano_usd, r.cached, r.failure_class, r.failure_message, lower(hex(r.trace)), c.sent_at, c.answered_at,
    r.settled, (SELECT unix_millis FROM events WHERE sequence = r.settled)";

impl Reader {
    /// The rollouts of the run, in the order in which they were requested.
    pub fn rollout_page(&self, query: &RolloutQuery) -> Result<RolloutPage, ReadError> {
        let Parts { after, limit, stage, status, split } = query.parts()?;
        let (rows, mut values) = match &query.candidate_id {
            // The rollouts of one candidate are few, and an index finds them.
            Some(id) => (
                "rollouts r INDEXED BY rollouts_by_candidate LEFT JOIN calls c ON c.request = r.request
                 WHERE r.request > ?1 AND r.candidate_id = ?2",
                vec![Sql::from(after), Sql::from(id.clone())],
            ),
            None => (
                "rollouts r LEFT JOIN calls c ON c.request = r.request WHERE r.request > ?1 AND r.request <= ?2",
                vec![Sql::from(after), Sql::from(end_of_window(after))],
            ),
        };
        let text = |word: Option<&'static str>| word.map_or(Sql::Null, |word| Sql::from(word.to_owned()));
        values.push(text(stage.map(Stage::word)));
        values.push(text(status.map(RolloutStatus::word)));
        values.push(text(split.map(RowSplit::word)));
        values.push(Sql::from(limit as i64 + 1));
        let sql = format!(
            "SELECT {COLUMNS}, {STATUS} FROM {rows}
               AND (?3 IS NULL OR r.evaluation_stage = ?3) AND (?4 IS NULL OR {STATUS} = ?4)
               AND (?5 IS NULL OR r.split = ?5)
             ORDER BY r.request LIMIT ?6"
        );
        at_one_moment(self, |db| {
            let mut found = list(db, "read the rollouts", &sql, params_from_iter(values), Columns::read)?;
            let next_cursor = if found.len() > limit {
                found.truncate(limit);
                found.last().map(|last| last.request.to_string())
            } else {
                let end = end_of_window(after);
                let more = query.candidate_id.is_none() && goes_on_after(db, end)?;
                more.then(|| end.to_string())
            };
            let items = found.into_iter().map(Columns::entry).collect::<Result<_, _>>()?;
            Ok(RolloutPage { items, next_cursor })
        })
    }
}

/// The last request that a page looks at.
fn end_of_window(after: i64) -> i64 {
    after.saturating_add(WINDOW)
}

fn goes_on_after(db: &Connection, request: i64) -> Result<bool, OptimizerError> {
    let sql = "SELECT 1 FROM rollouts WHERE request > ?1 LIMIT 1";
    Ok(first(db, "read the rollouts", sql, [request], |_| Ok(()))?.is_some())
}

/// One rollout, by its number.
pub(super) fn rollout(db: &Connection, request: i64) -> Result<Option<RolloutEntry>, OptimizerError> {
    let sql = format!(
        "SELECT {COLUMNS}, {STATUS} FROM rollouts r LEFT JOIN calls c ON c.request = r.request WHERE r.request = ?1"
    );
    first(db, "read a rollout", &sql, [request], Columns::read)?.map(Columns::entry).transpose()
}

/// A row of `rollouts` with its call, as they are stored.
struct Columns {
    request: u64,
    rollout_id: Option<String>,
    candidate_id: String,
    example_id: String,
    stage: String,
    split: String,
    generation: Option<u32>,
    attempt: u32,
    replicate: u32,
    reward: Option<f64>,
    objectives: Option<String>,
    usage: RolloutUsage,
    cached: Option<bool>,
    failure: Option<(String, String)>,
    trace: Option<String>,
    sent: Option<u64>,
    sent_at: Option<String>,
    answered: Option<u64>,
    answered_at: Option<String>,
    settled: Option<u64>,
    settled_at: Option<String>,
    status: String,
}

impl Columns {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        let failure_class: Option<String> = row.get(16)?;
        let failure_message: Option<String> = row.get(17)?;
        let trace: Option<String> = row.get(18)?;
        Ok(Self {
            request: whole(row, 0)?,
            rollout_id: row.get(1)?,
            candidate_id: row.get(2)?,
            example_id: row.get(3)?,
            stage: row.get(4)?,
            split: row.get(5)?,
            generation: row.get(6)?,
            attempt: row.get(7)?,
            replicate: row.get(8)?,
            reward: row.get(9)?,
            objectives: row.get(10)?,
            usage: RolloutUsage {
                prompt_tokens: maybe_whole(row, 11)?,
                completion_tokens: maybe_whole(row, 12)?,
                total_tokens: maybe_whole(row, 13)?,
                cost_usd: maybe_whole(row, 14)?.map(|nano| nano as f64 / 1e9),
            },
            cached: row.get(15)?,
            failure: failure_class.zip(failure_message),
            trace: trace.filter(|digest| !digest.is_empty()),
            sent: maybe_whole(row, 19)?,
            sent_at: moment(row, 19)?,
            answered: maybe_whole(row, 20)?,
            answered_at: moment(row, 20)?,
            settled: maybe_whole(row, 21)?,
            settled_at: moment(row, 22)?,
            status: row.get(23)?,
        })
    }

    fn entry(self) -> Result<RolloutEntry, OptimizerError> {
        let unknown = |word: &str| invariant(format!("rollout {} has the unknown word {word:?}", self.request));
        let class =
            self.failure.as_ref().map(|(class, _)| FailureClass::from_word(class).ok_or_else(|| unknown(class)));
        let class = class.transpose()?;
        let settled = self.settled.is_some();
        let latency_ms = self.sent.zip(self.answered).map(|(sent, answered)| answered.saturating_sub(sent));
        Ok(RolloutEntry {
            evaluation_stage: Stage::from_word(&self.stage).ok_or_else(|| unknown(&self.stage))?,
            split: RowSplit::from_word(&self.split).ok_or_else(|| unknown(&self.split))?,
            status: RolloutStatus::from_word(&self.status).ok_or_else(|| unknown(&self.status))?,
            objectives: maybe_parsed("read a rollout", self.objectives.as_deref())?.unwrap_or_default(),
            cost_usd: if settled { paid(class, self.cached, self.usage.cost_usd) } else { None },
            usage: settled.then_some(self.usage),
            failure: class.zip(self.failure).map(|(class, (_, message))| RolloutFailure { class, message }),
            request: self.request,
            rollout_id: self.rollout_id,
            candidate_id: self.candidate_id,
            example_id: self.example_id,
            generation: self.generation,
            attempt: self.attempt,
            replicate: self.replicate,
            reward: self.reward,
            cached: self.cached,
            sent_at: self.sent_at,
            answered_at: self.answered_at,
            latency_ms,
            settled_sequence: self.settled,
            settled_at: self.settled_at,
            trace_sha256: self.trace,
        })
    }
}

/// What was paid, by the rule of the view `usage_ledger`.
fn paid(class: Option<FailureClass>, cached: Option<bool>, cost: Option<f64>) -> Option<f64> {
    match class {
        _ if cached == Some(true) => Some(0.0),
        Some(FailureClass::NotSent | FailureClass::Withdrawn) => Some(0.0),
        Some(FailureClass::UnknownOutcome | FailureClass::Abandoned) => None,
        Some(FailureClass::Failed | FailureClass::Timeout | FailureClass::Contract | FailureClass::InvalidScore)
        | None => cost,
    }
}

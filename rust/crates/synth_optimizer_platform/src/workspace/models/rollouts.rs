//! The rollouts of a run: pages of them, and one in detail.

use std::collections::BTreeMap;

use rusqlite::{Connection, params};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::query::{document, documents, first};
use super::super::reader::Reader;
use super::read_error::{ReadError, after_cursor, page_size, quoted, word};
use synth_optimizer_core::model::answer::FailureClass;
use synth_optimizer_core::model::error::OptimizerError;
use synth_optimizer_core::model::event_fields::Stage;
use synth_optimizer_core::model::usage::Usage;
use synth_optimizer_core::string_enum;

string_enum! {
    /// The status of a rollout.
    RolloutStatus {
        /// Requested by the search and not sent yet.
        Requested = "requested",
        /// Sent, without an answer yet.
        Running = "running",
        /// Answered. The answer waits for its turn to become an event.
        Answered = "answered",
        /// Completed with a score.
        Finished = "finished",
        /// Failed without a score, and not retried.
        Failed = "failed",
        /// Failed without a score, and requested again as another rollout.
        Retried = "retried",
    }
}

string_enum! {
    /// The split of a row.
    RowSplit {
        /// Rows that the search learns from.
        Train = "train",
        /// Rows that only measure the result.
        Heldout = "heldout",
    }
}

/// Selects rollouts.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RolloutQuery {
    /// Number of items, 1 to 200. Default: 50.
    #[schemars(range(min = 1, max = 200))]
    pub limit: Option<i64>,
    /// `next_cursor` of the previous page.
    pub cursor: Option<String>,
    /// Only rollouts of this candidate.
    pub candidate_id: Option<String>,
    /// Only rollouts on this row, by the container's id of the row.
    pub example_id: Option<String>,
    /// Only rollouts of this stage, such as `candidate_minibatch`.
    pub stage: Option<String>,
    /// Only rollouts in this status, such as `finished`.
    pub status: Option<String>,
    /// Only rollouts on `train` or on `heldout` rows.
    pub split: Option<String>,
}

/// A parsed query: the call number after which to begin, the page size, stage, status and split.
type RolloutFilter = (i64, usize, Option<Stage>, Option<RolloutStatus>, Option<RowSplit>);

impl RolloutQuery {
    /// Checks the parameters without reading.
    pub fn check(&self) -> Result<(), ReadError> {
        self.parts().map(drop)
    }

    fn parts(&self) -> Result<RolloutFilter, ReadError> {
        Ok((
            after_cursor(self.cursor.as_deref())?,
            page_size(self.limit, 50, 200)?,
            word("stage", self.stage.as_deref(), Stage::parse, Stage::NAMES)?,
            word("status", self.status.as_deref(), RolloutStatus::parse, RolloutStatus::NAMES)?,
            word("split", self.split.as_deref(), RowSplit::parse, RowSplit::NAMES)?,
        ))
    }
}

/// A page of rollouts, in the order in which they were requested.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
pub struct RolloutPage {
    /// The rollouts. With a filter, a page that is not the last one can have fewer items than `limit`, even none.
    pub items: Vec<RolloutEntry>,
    /// Pass it as `cursor` to get the next page. Null on the last page; a live run may request more rollouts later.
    pub next_cursor: Option<String>,
}

/// A rollout: one row with one candidate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RolloutEntry {
    /// Its call number in the run.
    pub call_id: u64,
    /// The id under which the container knows it. Null if it was not sent.
    pub rollout_id: Option<String>,
    /// The candidate.
    pub candidate_id: String,
    /// The container's id of the row.
    pub example_id: String,
    /// The evaluation stage that requested it.
    pub evaluation_stage: Stage,
    /// `train` or `heldout`.
    pub split: RowSplit,
    /// The generation, if it belongs to one.
    pub generation: Option<u32>,
    /// 1 for the first attempt.
    pub attempt: u32,
    /// Number of the repetition of the same measurement.
    pub replicate: u32,
    /// Its status.
    pub status: RolloutStatus,
    /// The container's reward. Null without a score.
    pub reward: Option<f64>,
    /// Scores by objective, if the container returns any.
    pub objectives: BTreeMap<String, f64>,
    /// Usage that the container reported. Null until the rollout is settled.
    pub usage: Option<Usage>,
    /// Cost to this run: 0 for a cached answer, null if it is unknown.
    pub cost_usd: Option<f64>,
    /// Whether the answer is from the cache. Null until the rollout is settled.
    pub cached: Option<bool>,
    /// Why it has no score.
    pub failure: Option<RolloutFailure>,
    /// When it was sent. Null if it was not sent.
    pub sent_at: Option<String>,
    /// When the answer arrived.
    pub answered_at: Option<String>,
    /// Milliseconds between sending and the answer.
    pub latency_ms: Option<u64>,
    /// Sequence number of the event that settled it.
    pub settled_sequence: Option<u64>,
    /// When that event was stored.
    pub settled_at: Option<String>,
    /// SHA-256 of the stored reply.
    pub trace_sha256: Option<String>,
}

/// Why a rollout has no score.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RolloutFailure {
    /// The class of the failure.
    pub class: FailureClass,
    /// A description of the failure.
    pub message: String,
}

/// The most calls that one page scans if it has to filter.
const MAX_SCANNED_CALLS: i64 = 20_000;

const STATUS: &str = "CASE WHEN r.status = 'requested' AND c.answered_at IS NOT NULL THEN 'answered'
    WHEN r.status = 'requested' AND c.sent_at IS NOT NULL THEN 'running' ELSE r.status END";

/// Selects a rollout as the JSON that `RolloutEntry` deserializes.
const ENTRY: &str = "json_object('call_id', r.call_id, 'rollout_id', c.rollout_id, 'candidate_id', r.candidate_id,
    'example_id', r.example_id, 'evaluation_stage', r.evaluation_stage, 'split', r.split, 'generation', r.generation,
    'attempt', r.attempt, 'replicate', r.replicate, 'reward', r.reward, 'objectives', json(coalesce(r.objectives_json, '{}')),
    'usage', CASE WHEN r.settled_sequence IS NOT NULL THEN json_object('prompt_tokens', r.prompt_tokens, 'completion_tokens',
      r.completion_tokens, 'total_tokens', r.total_tokens, 'cost_usd', r.cost_nano_usd / 1e9) END,
    'cost_usd', CASE r.billing WHEN 'sent' THEN r.cost_nano_usd / 1e9 WHEN 'cached' THEN 0.0 WHEN 'unsent' THEN 0.0 END,
    'cached', json(CASE r.billing = 'cached' WHEN 1 THEN 'true' WHEN 0 THEN 'false' END),
    'failure', CASE WHEN r.failure_class IS NOT NULL
      THEN json_object('class', r.failure_class, 'message', r.failure_message) END,
    'sent_at', strftime('%Y-%m-%dT%H:%M:%fZ', c.sent_at / 1000.0, 'unixepoch'),
    'answered_at', strftime('%Y-%m-%dT%H:%M:%fZ', c.answered_at / 1000.0, 'unixepoch'),
    'latency_ms', max(c.answered_at - c.sent_at, 0), 'settled_sequence', r.settled_sequence,
    'settled_at', (SELECT strftime('%Y-%m-%dT%H:%M:%fZ', unix_millis / 1000.0, 'unixepoch') FROM events
      WHERE sequence = r.settled_sequence),
    'trace_sha256', CASE WHEN r.trace_digest IS NOT NULL THEN lower(hex(r.trace_digest)) END,
    'status', ";

impl Reader {
    /// Returns a page of rollouts, in the order in which they were requested.
    pub fn rollout_page(&self, query: &RolloutQuery) -> Result<RolloutPage, ReadError> {
        let (after, limit, stage, status, split) = query.parts()?;
        // The last call that the page scans. A candidate has few rollouts, and an index finds them.
        let end = if query.candidate_id.is_some() { i64::MAX } else { after.saturating_add(MAX_SCANNED_CALLS) };
        let index = if query.candidate_id.is_some() { "INDEXED BY rollouts_by_candidate" } else { "" };
        let values = params![
            after,
            end,
            query.candidate_id,
            stage.map(Stage::as_str),
            status.map(RolloutStatus::as_str),
            split.map(RowSplit::as_str),
            limit + 1,
            query.example_id.as_deref()
        ];
        let sql = format!(
            "SELECT {ENTRY} {STATUS}) FROM rollouts r {index} LEFT JOIN calls c ON c.call_id = r.call_id
             WHERE r.call_id > ?1 AND r.call_id <= ?2 AND {}
               AND (?4 IS NULL OR r.evaluation_stage = ?4) AND (?5 IS NULL OR {STATUS} = ?5)
               AND (?6 IS NULL OR r.split = ?6) AND (?8 IS NULL OR r.example_id = ?8)
             ORDER BY r.call_id LIMIT ?7",
            if query.candidate_id.is_some() { "r.candidate_id = ?3" } else { "?3 IS NULL" }
        );
        self.in_snapshot(|db| {
            let mut items: Vec<RolloutEntry> = documents(db, "read the rollouts", &sql, values)?;
            let more = items.len() > limit;
            items.truncate(limit);
            let after_end = "SELECT 1 FROM rollouts WHERE call_id > ?1 LIMIT 1";
            let next = match items.last() {
                Some(last) if more => Some(last.call_id.to_string()),
                _ => first(db, "read the rollouts", after_end, [end], |_| Ok(end.to_string()))?,
            };
            Ok(RolloutPage { items, next_cursor: next })
        })
    }

    /// Returns all attempts at a rollout, in order. A failed rollout that is retried has another call number.
    pub fn rollout_attempts(&self, call_id: u64) -> Result<Vec<RolloutEntry>, ReadError> {
        let sql = format!(
            "SELECT {ENTRY} {STATUS}) FROM rollouts o
               JOIN rollouts r INDEXED BY rollouts_by_candidate ON r.candidate_id = o.candidate_id
                 AND r.example_id = o.example_id AND r.evaluation = o.evaluation AND r.replicate = o.replicate
               LEFT JOIN calls c ON c.call_id = r.call_id
             WHERE o.call_id = ?1 ORDER BY r.call_id"
        );
        self.in_snapshot(|db| Ok(documents(db, "read the attempts", &sql, [call_id])?))
    }

    /// Returns one rollout by its call number or by its `rollout_id`. The latter scans all calls of the run.
    pub fn rollout_entry(&self, name: &str) -> Result<RolloutEntry, ReadError> {
        let sql = format!(
            "SELECT {ENTRY} {STATUS}) FROM rollouts r LEFT JOIN calls c ON c.call_id = r.call_id WHERE r.call_id = ?1"
        );
        self.in_snapshot(|db| {
            let found = match call_id_of(db, name)? {
                Some(call_id) => document(db, "read a rollout", &sql, [call_id])?,
                None => None,
            };
            found.ok_or_else(|| {
                let message = format!("the run has no rollout {}", quoted(name));
                let hint =
                    "Name a rollout by its call_id or by its rollout_id; list the rollouts of the run to see both.";
                ReadError::not_found("rollout_not_found", "rollout_id", message, hint)
            })
        })
    }
}

/// Returns the call number of a rollout that is named by this number or by its `rollout_id`.
fn call_id_of(db: &Connection, name: &str) -> Result<Option<i64>, OptimizerError> {
    if !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit()) {
        return Ok(name.parse().ok());
    }
    // There is no index, because it would slow down every rollout for a rare lookup.
    let sql = "SELECT call_id FROM calls WHERE rollout_id = ?1 ORDER BY call_id LIMIT 1";
    first(db, "look for a rollout", sql, [name], |row| row.get(0))
}

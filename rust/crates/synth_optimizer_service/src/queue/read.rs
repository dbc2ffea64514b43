//! Reading the queue. Nothing here writes.

use std::collections::BTreeMap;

use rusqlite::{Connection, OptionalExtension, Row};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use super::Queue;
use super::entry::{RequestEntry, entries, json, moment, shown, unreadable};
use super::error::{QueueCode, QueueError, not_found, sql};
use super::lane::container_lane;
use super::transitions::{first, int};
use synth_optimizer_core::model::lifecycle::RequestState;

/// One page of requests.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Page {
    pub items: Vec<RequestEntry>,
    /// Where the next page begins; `None` after the last.
    pub next_cursor: Option<String>,
}

/// Something that happened to a request: a move, or a control request for its holder, which moves nothing.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct HistoryEntry {
    pub sequence: i64,
    pub request_id: String,
    pub at: String,
    pub from: Option<String>,
    pub to: String,
    pub trigger: String,
    pub worker_id: Option<String>,
    pub fencing_token: i64,
    pub detail: Value,
}

/// A lease that holds something now.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct LeaseEntry {
    pub lease_id: String,
    pub request_id: String,
    pub run_id: String,
    pub worker_id: Option<String>,
    pub holder: String,
    pub fencing_token: i64,
    pub container: String,
    pub cache_namespace: Option<String>,
    pub leased_at: Option<String>,
    pub lease_expires_at: Option<String>,
    pub progress_at: Option<String>,
}

/// Whether the queue gets on.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Liveness {
    pub running_count: i64,
    pub oldest_queued_age_seconds: Option<f64>,
    pub last_progress_at: Option<String>,
}

const HISTORY: &str =
    "SELECT h.*, r.request_id FROM request_history AS h JOIN run_requests AS r ON r.seq = h.request_seq";

impl Queue {
    /// The latest request of a run.
    pub fn get(&self, run_id: &str) -> Result<RequestEntry, QueueError> {
        self.one("WHERE r.run_id = ?1 ORDER BY r.seq DESC LIMIT 1", "run", run_id)
    }

    pub fn get_request(&self, request_id: &str) -> Result<RequestEntry, QueueError> {
        self.one("WHERE r.request_id = ?1", "request", request_id)
    }

    /// Requests in any of the states, or in any at all if none is named; the newest first.
    pub fn list(&self, states: &[RequestState], limit: usize, cursor: Option<&str>) -> Result<Page, QueueError> {
        let before = cursor.map(seq_of).transpose()?.unwrap_or(i64::MAX);
        let one_more = int(limit as u64).saturating_add(1);
        self.read(|db, _| {
            let rest = format!("WHERE r.seq < ?1 AND {} ORDER BY r.seq DESC LIMIT ?2", is_in("r.status", states));
            let mut items = entries(db, &rest, (before, one_more))?;
            let has_more = items.len() > limit;
            items.truncate(limit);
            let last = items.last().filter(|_| has_more).map(|entry| seq(db, &entry.request_id)).transpose()?;
            Ok(Page { items, next_cursor: last.map(cursor_of) })
        })
    }

    /// Everything that happened to a request, in order.
    pub fn history(&self, request_id: &str) -> Result<Vec<HistoryEntry>, QueueError> {
        self.read(|db, _| {
            let seq = seq(db, request_id)?;
            db.prepare_cached(&format!("{HISTORY} WHERE h.request_seq = ?1 ORDER BY h.sequence"))
                .and_then(|mut statement| statement.query_map([seq], history_entry)?.collect())
                .map_err(sql("read the history of a request"))
        })
    }

    /// Everything that happened to all requests of a run, in order.
    pub fn run_history(&self, run_id: &str) -> Result<Vec<HistoryEntry>, QueueError> {
        self.read(|db, _| {
            db.prepare_cached(&format!("{HISTORY} WHERE r.run_id = ?1 ORDER BY h.sequence"))
                .and_then(|mut statement| statement.query_map([run_id], history_entry)?.collect())
                .map_err(sql("read the history of a run"))
        })
    }

    /// The resolved configuration, and every field with its origin.
    pub fn config(&self, request_id: &str) -> Result<(Value, Value), QueueError> {
        self.read(|db, _| {
            let documents = |row: &Row<'_>| {
                let read = |column: &str| json(row, column).map(Option::unwrap_or_default);
                Ok((read("config_json")?, read("values_json")?))
            };
            db.prepare_cached("SELECT config_json, values_json FROM run_requests WHERE request_id = ?1")
                .and_then(|mut statement| statement.query_row([request_id], documents).optional())
                .map_err(sql("read a configuration"))?
                .ok_or_else(|| not_found("request", request_id))
        })
    }

    /// How many requests are in each state that has any.
    pub fn counts(&self) -> Result<BTreeMap<String, i64>, QueueError> {
        self.read(|db, _| counted(db, "SELECT status, count(*) FROM run_requests GROUP BY status"))
    }

    pub fn liveness(&self) -> Result<Liveness, QueueError> {
        self.read(|db, now| {
            let number = |text: &str| optional(db, text);
            let oldest = number("SELECT min(submitted_at) FROM run_requests WHERE status = 'queued'")?;
            let progress = number("SELECT max(progress_at) FROM run_requests WHERE status IN ('leased', 'running')")?;
            let running = number("SELECT count(*) FROM run_requests WHERE status = 'running'")?;
            let age = |since: i64| int(now.wall).saturating_sub(since).max(0) as f64 / 1000.0;
            Ok(Liveness {
                running_count: running.unwrap_or(0),
                oldest_queued_age_seconds: oldest.map(age),
                last_progress_at: progress.map(shown),
            })
        })
    }

    /// What is held at this moment.
    pub fn leases(&self) -> Result<Vec<LeaseEntry>, QueueError> {
        self.read(|db, _| {
            db.prepare_cached("SELECT * FROM run_requests WHERE status IN ('leased', 'running') ORDER BY seq")
                .and_then(|mut statement| statement.query_map([], lease_entry)?.collect())
                .map_err(sql("read the leases"))
        })
    }

    /// Whether a request that runs holds this container.
    pub fn is_container_held(&self, url: &str) -> Result<bool, QueueError> {
        let text = "SELECT 1 FROM run_requests WHERE status IN ('leased', 'running') AND container_lane = ?1";
        self.read(|db, _| Ok(first(db, text, [container_lane(url)])?.is_some()))
    }

    fn one(&self, rest: &str, what: &str, id: &str) -> Result<RequestEntry, QueueError> {
        self.read(|db, _| entries(db, rest, [id])?.into_iter().next().ok_or_else(|| not_found(what, id)))
    }
}

/// `column IN (…)`; always true if nothing is named. The words are ours.
pub(super) fn is_in(column: &str, states: &[RequestState]) -> String {
    let words: Vec<String> = states.iter().map(|state| format!("'{}'", state.word())).collect();
    if words.is_empty() { "1".to_owned() } else { format!("{column} IN ({})", words.join(", ")) }
}

/// Counts by word.
pub(super) fn counted(db: &Connection, text: &str) -> Result<BTreeMap<String, i64>, QueueError> {
    db.prepare_cached(text)
        .and_then(|mut statement| statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect())
        .map_err(sql("count"))
}

fn optional(db: &Connection, text: &str) -> Result<Option<i64>, QueueError> {
    db.prepare_cached(text)
        .and_then(|mut statement| statement.query_row([], |row| row.get(0)))
        .map_err(sql("read the queue"))
}

fn seq(db: &Connection, request_id: &str) -> Result<i64, QueueError> {
    first(db, "SELECT seq FROM run_requests WHERE request_id = ?1", [request_id])?
        .ok_or_else(|| not_found("request", request_id))
}

fn cursor_of(seq: i64) -> String {
    format!("c{seq:x}")
}

fn seq_of(cursor: &str) -> Result<i64, QueueError> {
    let known = cursor.strip_prefix('c').and_then(|digits| i64::from_str_radix(digits, 16).ok());
    // Only what a page gives as its cursor: no sign, no capitals, no leading zero.
    known.filter(|seq| *seq > 0 && cursor_of(*seq) == cursor).ok_or_else(|| {
        let message = format!("{cursor:?} is not a cursor of this list");
        let hint = "Use next_cursor of the page before, or none for the first page.";
        QueueError::new(QueueCode::CursorInvalid, message, hint)
    })
}

fn history_entry(row: &Row<'_>) -> rusqlite::Result<HistoryEntry> {
    Ok(HistoryEntry {
        sequence: row.get("sequence")?,
        request_id: row.get("request_id")?,
        at: shown(row.get("at")?),
        from: row.get("from_state")?,
        to: row.get("to_state")?,
        trigger: row.get("trigger")?,
        worker_id: row.get("worker_id")?,
        fencing_token: row.get("fencing_token")?,
        detail: json(row, "detail_json")?.ok_or_else(|| unreadable("no detail".to_owned()))?,
    })
}

fn lease_entry(row: &Row<'_>) -> rusqlite::Result<LeaseEntry> {
    Ok(LeaseEntry {
        lease_id: row.get("lease_id")?,
        request_id: row.get("request_id")?,
        run_id: row.get("run_id")?,
        worker_id: row.get("worker_id")?,
        holder: row.get("holder_kind")?,
        fencing_token: row.get("fencing_token")?,
        container: row.get("container_lane")?,
        cache_namespace: row.get("cache_lane")?,
        leased_at: moment(row, "leased_at")?,
        lease_expires_at: moment(row, "lease_expires_at")?,
        progress_at: moment(row, "progress_at")?,
    })
}

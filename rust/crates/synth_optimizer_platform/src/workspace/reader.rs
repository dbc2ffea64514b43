//! Reads a workspace, also while its writer is active: the log, the inbox and replies.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use parking_lot::{Mutex, ReentrantMutex};
use rusqlite::{Connection, params};
use serde_json::Value;

use super::error::{damaged, invariant, json, sqlite};
use super::models::EffortSums;
use super::open;
use super::projector;
use super::query::{document, first, list};
use super::records::{RunRow, SnapshotKind, StoredEvent};
use crate::packing::{unpack, unpack_whole};
use synth_optimizer_core::model::answer::Answer;
use synth_optimizer_core::model::candidate_view::Candidate;
use synth_optimizer_core::model::error::OptimizerError;
use synth_optimizer_core::model::event::{EVENT_TYPES, Event};
use synth_optimizer_core::model::ids::{CallId, CandidateId, RowId};
use synth_optimizer_core::model::run_totals::RunTotals;
use synth_optimizer_core::model::usage::RunUsage;

/// Reads a workspace. Each read sees everything that was committed before it.
#[derive(Debug)]
pub struct Reader {
    path: PathBuf,
    /// Opened by the first read. Reentrant, because a read may call another one.
    connection: ReentrantMutex<OnceCell<Connection>>,
    /// What the chart has summed.
    efforts: Mutex<EffortSums>,
}

/// A call that was sent and has no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnansweredCall {
    pub call_id: CallId,
    /// Milliseconds since 1970.
    pub sent_at: u64,
    /// How often it was sent.
    pub sends: u32,
}

/// The size of a reply in bytes, and the reply unless it is too large.
type SizedReply = (u64, Option<Vec<u8>>);

impl Reader {
    /// Opens the workspace of a run in any state.
    pub fn open(path: &Path) -> Result<Self, OptimizerError> {
        let reader = Self::lazy(path);
        reader.with_connection(|_| Ok(()))?;
        Ok(reader)
    }

    pub(super) fn lazy(path: &Path) -> Self {
        Self { path: path.to_owned(), connection: ReentrantMutex::default(), efforts: Mutex::default() }
    }

    pub(super) fn efforts(&self) -> &Mutex<EffortSums> {
        &self.efforts
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Calls `each` with the events from `from_sequence` on, in order, until it returns an error. `each` may use this
    /// reader; other threads wait.
    pub fn log(
        &self,
        from_sequence: u64,
        each: impl FnMut(StoredEvent) -> Result<(), OptimizerError>,
    ) -> Result<(), OptimizerError> {
        self.with_connection(|db| for_each_event(db, from_sequence, each))
    }

    /// Returns the latest document of this kind that the container returned.
    pub(crate) fn snapshot(&self, kind: SnapshotKind) -> Result<Option<Value>, OptimizerError> {
        let doing = "read the container's snapshots";
        let sql = "SELECT document, data FROM snapshots WHERE kind = ?1 ORDER BY taken_at DESC LIMIT 1";
        let found: Option<(Option<String>, Option<Vec<u8>>)> =
            self.with_connection(|db| first(db, doing, sql, [kind.as_str()], |row| row.try_into()))?;
        let Some((document, data)) = found else { return Ok(None) };
        let bytes = match document {
            Some(text) => text.into_bytes(),
            None => unpack_whole(&data.unwrap_or_default()).ok_or_else(|| damaged("a snapshot of the container"))?,
        };
        serde_json::from_slice(&bytes).map(Some).map_err(json(doing))
    }

    /// Returns at most `limit` events from `from_sequence` on.
    pub fn events(&self, from_sequence: u64, limit: usize) -> Result<Vec<StoredEvent>, OptimizerError> {
        let sql =
            "SELECT sequence, type, unix_millis, fields FROM events WHERE sequence >= ?1 ORDER BY sequence LIMIT ?2";
        let found = self
            .with_connection(|db| list(db, "read the log", sql, params![from_sequence, limit], |row| row.try_into()))?;
        found.into_iter().map(event).collect()
    }

    /// Returns the answers that wait in the inbox for their turn.
    pub fn inbox(&self) -> Result<Vec<(CallId, Answer)>, OptimizerError> {
        let sql = "SELECT call_id, answer FROM inbox ORDER BY call_id";
        let found: Vec<(u64, String)> =
            self.with_connection(|db| list(db, "read the inbox", sql, [], |row| row.try_into()))?;
        let answer = |(call_id, answer): (u64, String)| {
            let answer =
                serde_json::from_str(&answer).map_err(json(format_args!("read the answer to call {call_id}")))?;
            Ok((CallId(call_id), answer))
        };
        found.into_iter().map(answer).collect()
    }

    /// Returns the calls that were sent, have no answer, and are still outstanding.
    pub fn unanswered(&self) -> Result<Vec<UnansweredCall>, OptimizerError> {
        let sql = "SELECT call_id, sent_at, sends FROM calls WHERE sent_at IS NOT NULL AND answered_at IS NULL AND (
                     EXISTS (SELECT 1 FROM rollouts WHERE rollouts.call_id = calls.call_id AND status = 'requested') OR
                     EXISTS (SELECT 1 FROM proposer_calls WHERE proposer_calls.call_id = calls.call_id AND status = 'started'))
                   ORDER BY call_id";
        let call = |row: &rusqlite::Row<'_>| {
            Ok(UnansweredCall { call_id: CallId(row.get(0)?), sent_at: row.get(1)?, sends: row.get(2)? })
        };
        self.with_connection(|db| list(db, "read the calls", sql, [], call))
    }

    /// Returns the container's id of the last rollout that was sent and returned a score, and the longest duration of a
    /// rollout in milliseconds.
    pub fn earlier_rollouts(&self) -> Result<(Option<String>, u64), OptimizerError> {
        let sql = "SELECT rollout_id FROM calls JOIN rollouts USING (call_id)
                   WHERE rollout_id IS NOT NULL AND answered_at IS NOT NULL AND status = 'finished'
                   ORDER BY call_id DESC LIMIT 1";
        let longest = "SELECT coalesce(max(answered_at - sent_at), 0) FROM calls
                       WHERE kind = 'rollout' AND sends = 1 AND answered_at >= sent_at";
        let doing = "read the rollouts of earlier processes";
        self.with_connection(|db| {
            let ended = first(db, doing, sql, [], |row| row.get(0))?;
            Ok((ended, first(db, doing, longest, [], |row| row.get(0))?.unwrap_or(0)))
        })
    }

    /// Returns the ids under which rollouts were sent that have no answer, by call.
    pub fn unanswered_rollout_ids(&self) -> Result<BTreeMap<CallId, String>, OptimizerError> {
        let sql = "SELECT call_id, rollout_id FROM calls
                   WHERE sent_at IS NOT NULL AND answered_at IS NULL AND rollout_id IS NOT NULL";
        let id = |row: &rusqlite::Row<'_>| Ok((CallId(row.get(0)?), row.get(1)?));
        self.with_connection(|db| list(db, "read the calls", sql, [], id)).map(BTreeMap::from_iter)
    }

    /// Returns the sequence number of the last event.
    pub fn last_sequence(&self) -> Result<Option<u64>, OptimizerError> {
        self.number("read the log", "SELECT max(sequence) FROM events")
    }

    /// Returns the sequence number of the last event that belongs to the search itself, not to its execution.
    pub fn last_milestone(&self) -> Result<Option<u64>, OptimizerError> {
        let asides: Vec<String> =
            EVENT_TYPES.iter().filter(|known| known.is_operational).map(|known| format!("'{}'", known.name)).collect();
        let asides = asides.join(", ");
        let sql = format!("SELECT sequence FROM events WHERE type NOT IN ({asides}) ORDER BY sequence DESC LIMIT 1");
        self.number("read the log", &sql)
    }

    /// Returns the model with which the first process of the run started its proposer.
    pub(crate) fn proposer_model(&self) -> Result<Option<String>, OptimizerError> {
        let sql = "SELECT fields ->> '$.model' FROM events WHERE type = 'proposer.ready' ORDER BY sequence LIMIT 1";
        self.with_connection(|db| first(db, "read the model of the proposer", sql, [], |row| row.get(0)))
    }

    /// Returns the description of the run.
    pub fn run_row(&self) -> Result<RunRow, OptimizerError> {
        self.with_connection(run_row)
    }

    /// Returns the state of the run and its totals.
    pub fn totals(&self) -> Result<RunTotals, OptimizerError> {
        self.with_connection(projector::totals)
    }

    /// Returns the usage of the run so far.
    pub fn run_usage(&self) -> Result<RunUsage, OptimizerError> {
        Ok(self.totals()?.counts.usage())
    }

    /// Returns a candidate, or `None` if it is not registered.
    pub fn candidate_record(&self, id: &str) -> Result<Option<Candidate>, OptimizerError> {
        self.with_connection(|db| projector::read_candidate(db, id))
    }

    /// Returns the best candidate so far, or `None` before the initial candidate is evaluated.
    pub fn best(&self) -> Result<Option<Candidate>, OptimizerError> {
        match self.totals()?.best_candidate_id() {
            Some(best) => self.candidate_record(best.as_str()),
            None => Ok(None),
        }
    }

    /// Returns the number of answers that wait in the inbox.
    pub fn inbox_len(&self) -> Result<u64, OptimizerError> {
        self.number("count the inbox", "SELECT count(*) FROM inbox").map(Option::unwrap_or_default)
    }

    /// Returns the reply to a call.
    pub fn reply(&self, call_id: CallId) -> Result<Option<Vec<u8>>, OptimizerError> {
        self.reply_up_to(call_id, u64::MAX >> 1).map(|found| found.and_then(|(_, reply)| reply))
    }

    /// Returns the size of the reply to a call, and the reply if it is not larger than `most`.
    pub(crate) fn reply_up_to(&self, CallId(request): CallId, most: u64) -> Result<Option<SizedReply>, OptimizerError> {
        let sql = "SELECT size, CASE WHEN size <= ?2 THEN data END FROM replies WHERE call_id = ?1";
        let doing = format_args!("read the reply to call {request}");
        let found: Option<SizedReply> =
            self.with_connection(|db| first(db, doing, sql, [request, most], |row| row.try_into()))?;
        let Some((size, Some(data))) = found else { return Ok(found) };
        let reply = unpack(&data, size)
            .ok_or_else(|| damaged(format_args!("the reply to call {request} in {}", self.path.display())))?;
        Ok(Some((size, Some(reply))))
    }

    /// Returns the recorded digest of an artifact. `None` if the file now has another size, because it was changed since.
    pub(crate) fn recorded_digest(&self, name: &str, bytes: u64) -> Result<Option<String>, OptimizerError> {
        let sql = "SELECT sha256 FROM artifacts WHERE path = ?1 AND bytes = ?2";
        self.with_connection(|db| first(db, "read the artifacts", sql, params![name, bytes], |row| row.get(0)))
    }

    /// Returns the latest finished train rollout of a candidate on a row, among the calls before `before`.
    pub fn evidence(
        &self,
        candidate: &CandidateId,
        row: &RowId,
        before: CallId,
    ) -> Result<Option<CallId>, OptimizerError> {
        let sql = "SELECT call_id FROM rollouts
                   WHERE candidate_id = ?1 AND example_id = ?2 AND call_id < ?3 AND status = 'finished'
                     AND evaluation_stage <> 'heldout'
                   ORDER BY call_id DESC LIMIT 1";
        let values = params![candidate.as_str(), row.as_str(), before.0];
        self.with_connection(|db| first(db, "look for evidence", sql, values, |row| row.get(0).map(CallId)))
    }

    /// Calls `read` inside one read transaction, so that all of its reads see the same snapshot. Other threads wait. A nested
    /// call joins the outer transaction.
    pub fn in_snapshot<T, E: From<OptimizerError>>(
        &self,
        read: impl FnOnce(&Connection) -> Result<T, E>,
    ) -> Result<T, E> {
        self.with_connection(|db| {
            if !db.is_autocommit() {
                return read(db);
            }
            let moment = db.unchecked_transaction().map_err(sqlite("read the workspace"))?;
            let found = read(&moment);
            moment.finish().map_err(sqlite("read the workspace"))?;
            found
        })
    }

    pub(super) fn with_connection<T, E: From<OptimizerError>>(
        &self,
        read: impl FnOnce(&Connection) -> Result<T, E>,
    ) -> Result<T, E> {
        let held = self.connection.lock();
        let db = match held.get() {
            Some(db) => db,
            None => {
                let opened = open::open_to_read(&self.path)?;
                held.get_or_init(|| opened)
            }
        };
        read(db)
    }

    fn number(&self, doing: &str, sql: &str) -> Result<Option<u64>, OptimizerError> {
        self.with_connection(|db| first(db, doing, sql, [], |row| row.get(0)).map(Option::flatten))
    }

    /// Closes the connection. The next read opens another one.
    pub(super) fn close_connection(&mut self) {
        drop(self.connection.get_mut().take());
    }
}

pub(super) fn for_each_event(
    db: &Connection,
    from_sequence: u64,
    mut each: impl FnMut(StoredEvent) -> Result<(), OptimizerError>,
) -> Result<(), OptimizerError> {
    let sql = "SELECT sequence, type, unix_millis, fields FROM events WHERE sequence >= ?1 ORDER BY sequence";
    let mut statement = db.prepare_cached(sql).map_err(sqlite("read the log"))?;
    let rows = statement.query_map([from_sequence], |row| row.try_into()).map_err(sqlite("read the log"))?;
    for row in rows {
        each(event(row.map_err(sqlite("read the log"))?)?)?;
    }
    Ok(())
}

pub(super) fn run_row(db: &Connection) -> Result<RunRow, OptimizerError> {
    let found = document(db, "read what the run is", "SELECT record FROM run", [])?;
    found.ok_or_else(|| invariant("the workspace has no description of the run"))
}

pub(super) fn event(
    (sequence, wire, unix_millis, fields): (u64, String, u64, String),
) -> Result<StoredEvent, OptimizerError> {
    // Event types are fixed names and need no escaping.
    let text = format!("{{\"type\":\"{wire}\",\"fields\":{fields}}}");
    let event: Event = serde_json::from_str(&text).map_err(|error| {
        invariant(format!("event {sequence} of type {wire} cannot be read: {error}")).caused_by(error)
    })?;
    Ok(StoredEvent::new(sequence, unix_millis, event))
}

//! Reads a workspace while its writer goes on: the log, the inbox and replies.

use std::cell::OnceCell;
use std::path::{Path, PathBuf};

use parking_lot::ReentrantMutex;
use rusqlite::{Connection, params};
use serde_json::Value;

use super::error::{damaged, invariant, json, sqlite};
use super::open;
use super::projector;
use super::query::{document, first, list};
use super::records::{RunRow, SnapshotKind, Stored};
use crate::unpack::{unpack, unpack_whole};
use synth_optimizer_core::model::answer::Answer;
use synth_optimizer_core::model::candidate_view::Candidate;
use synth_optimizer_core::model::error::OptimizerError;
use synth_optimizer_core::model::event::{EVENT_TYPES, Event};
use synth_optimizer_core::model::ids::{CandidateId, RequestId, RowId};
use synth_optimizer_core::model::run_totals::RunTotals;
use synth_optimizer_core::model::usage::RunUsage;

/// A workspace to read from. It sees what was committed before each read.
#[derive(Debug)]
pub struct Reader {
    path: PathBuf,
    /// Opened by the first read. A read may read other things on its way.
    connection: ReentrantMutex<OnceCell<Connection>>,
}

/// The size of a reply, and the reply unless it is too large.
type SizedReply = (u64, Option<Vec<u8>>);

impl Reader {
    /// Opens the workspace of a run, live or over.
    pub fn open(path: &Path) -> Result<Self, OptimizerError> {
        let reader = Self::later(path);
        reader.with(|_| Ok(()))?;
        Ok(reader)
    }

    pub(super) fn later(path: &Path) -> Self {
        Self { path: path.to_owned(), connection: ReentrantMutex::default() }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Shows the events from `from_sequence` on to `each`, in order, until it returns an error. `each` may read other
    /// things: nobody else uses the connection meanwhile.
    pub fn log(
        &self,
        from_sequence: u64,
        each: impl FnMut(Stored) -> Result<(), OptimizerError>,
    ) -> Result<(), OptimizerError> {
        self.with(|db| for_each_event(db, from_sequence, each))
    }

    /// What the container told last of this kind.
    pub(crate) fn snapshot(&self, kind: SnapshotKind) -> Result<Option<Value>, OptimizerError> {
        let doing = "read what the container told";
        let sql = "SELECT document, data FROM snapshots WHERE kind = ?1 ORDER BY taken_at DESC LIMIT 1";
        let found: Option<(Option<String>, Option<Vec<u8>>)> =
            self.with(|db| first(db, doing, sql, [kind.word()], |row| row.try_into()))?;
        let Some((document, data)) = found else { return Ok(None) };
        let bytes = match document {
            Some(text) => text.into_bytes(),
            None => unpack_whole(&data.unwrap_or_default()).ok_or_else(|| damaged("what the container told"))?,
        };
        serde_json::from_slice(&bytes).map(Some).map_err(json(doing))
    }

    /// At most `limit` events from `from_sequence` on.
    pub fn events(&self, from_sequence: u64, limit: usize) -> Result<Vec<Stored>, OptimizerError> {
        let sql =
            "SELECT sequence, type, unix_millis, fields FROM events WHERE sequence >= ?1 ORDER BY sequence LIMIT ?2";
        let found =
            self.with(|db| list(db, "read the log", sql, params![from_sequence, limit], |row| row.try_into()))?;
        found.into_iter().map(event).collect()
    }

    /// Bytes that the compressed replies take in the file.
    pub fn reply_bytes(&self) -> Result<u64, OptimizerError> {
        let sql = "SELECT coalesce(sum(pgsize), 0) FROM dbstat WHERE name = 'replies'";
        self.number("measure the replies", sql).map(Option::unwrap_or_default)
    }

    /// Answers that have come and wait for their turn.
    pub fn inbox(&self) -> Result<Vec<(RequestId, Answer)>, OptimizerError> {
        let sql = "SELECT request, answer FROM inbox ORDER BY request";
        let found: Vec<(u64, String)> = self.with(|db| list(db, "read the inbox", sql, [], |row| row.try_into()))?;
        let answer = |(request, answer): (u64, String)| {
            let answer = serde_json::from_str(&answer).map_err(json(format_args!("read the answer to {request}")))?;
            Ok((RequestId(request), answer))
        };
        found.into_iter().map(answer).collect()
    }

    /// Requests that were sent, have no answer, and are still wanted.
    pub fn unanswered(&self) -> Result<Vec<RequestId>, OptimizerError> {
        let sql = "SELECT request FROM calls WHERE sent_at IS NOT NULL AND answered_at IS NULL AND (
                     EXISTS (SELECT 1 FROM rollouts WHERE rollouts.request = calls.request AND status = 'requested') OR
                     EXISTS (SELECT 1 FROM proposer_calls WHERE proposer_calls.request = calls.request AND status = 'started'))
                   ORDER BY request";
        self.with(|db| list(db, "read the calls", sql, [], |row| row.get(0).map(RequestId)))
    }

    /// The last event of the log.
    pub fn last_sequence(&self) -> Result<Option<u64>, OptimizerError> {
        self.number("read the log", "SELECT max(sequence) FROM events")
    }

    /// The last event that tells more than how the run was carried out.
    pub fn last_milestone(&self) -> Result<Option<u64>, OptimizerError> {
        let asides: Vec<String> =
            EVENT_TYPES.iter().filter(|known| known.aside).map(|known| format!("'{}'", known.wire)).collect();
        let asides = asides.join(", ");
        let sql = format!("SELECT sequence FROM events WHERE type NOT IN ({asides}) ORDER BY sequence DESC LIMIT 1");
        self.number("read the log", &sql)
    }

    /// What the run is.
    pub fn run_row(&self) -> Result<RunRow, OptimizerError> {
        self.with(run_row)
    }

    /// Where the run is and what it has used.
    pub fn totals(&self) -> Result<RunTotals, OptimizerError> {
        self.with(projector::totals)
    }

    /// What the run has used so far.
    pub fn run_usage(&self) -> Result<RunUsage, OptimizerError> {
        Ok(self.totals()?.counts.usage())
    }

    /// A candidate; none if it is not registered.
    pub fn candidate_record(&self, id: &str) -> Result<Option<Candidate>, OptimizerError> {
        self.with(|db| projector::read_candidate(db, id))
    }

    /// The best candidate so far; none before the initial one is measured.
    pub fn best(&self) -> Result<Option<Candidate>, OptimizerError> {
        match self.totals()?.best_candidate_id() {
            Some(best) => self.candidate_record(best.as_str()),
            None => Ok(None),
        }
    }

    /// Answers that have come and wait for their turn.
    pub fn waiting(&self) -> Result<u64, OptimizerError> {
        self.number("count the inbox", "SELECT count(*) FROM inbox").map(Option::unwrap_or_default)
    }

    /// The reply to a request.
    pub fn reply(&self, request: RequestId) -> Result<Option<Vec<u8>>, OptimizerError> {
        self.reply_up_to(request, u64::MAX >> 1).map(|found| found.and_then(|(_, reply)| reply))
    }

    /// The size of the reply to a request, and the reply where it is not larger than `most`.
    pub(crate) fn reply_up_to(
        &self,
        RequestId(request): RequestId,
        most: u64,
    ) -> Result<Option<SizedReply>, OptimizerError> {
        let sql = "SELECT size, CASE WHEN size <= ?2 THEN data END FROM replies WHERE request = ?1";
        let doing = format_args!("read the reply to request {request}");
        let found: Option<SizedReply> = self.with(|db| first(db, doing, sql, [request, most], |row| row.try_into()))?;
        let Some((size, Some(data))) = found else { return Ok(found) };
        let reply = unpack(&data, size)
            .ok_or_else(|| damaged(format_args!("the reply to request {request} in {}", self.path.display())))?;
        Ok(Some((size, Some(reply))))
    }

    /// The digest of a file that was written down when the file was; one of another size has been written to since.
    pub(crate) fn recorded_digest(&self, name: &str, bytes: u64) -> Result<Option<String>, OptimizerError> {
        let sql = "SELECT sha256 FROM artifacts WHERE path = ?1 AND bytes = ?2";
        self.with(|db| first(db, "read the artifacts", sql, params![name, bytes], |row| row.get(0)))
    }

    /// The latest finished train rollout of a candidate on a row, among the requests before one.
    pub fn evidence(
        &self,
        candidate: &CandidateId,
        row: &RowId,
        before: RequestId,
    ) -> Result<Option<RequestId>, OptimizerError> {
        let sql = "SELECT request FROM rollouts
                   WHERE candidate_id = ?1 AND example_id = ?2 AND request < ?3 AND status = 'finished'
                     AND evaluation_stage <> 'heldout'
                   ORDER BY request DESC LIMIT 1";
        let values = params![candidate.as_str(), row.as_str(), before.0];
        self.with(|db| first(db, "look for evidence", sql, values, |row| row.get(0).map(RequestId)))
    }

    /// Reads several things as they are at one moment, which is also cheaper than one by one. Within another such
    /// read it belongs to that one's moment.
    pub fn at_once<T, E: From<OptimizerError>>(&self, read: impl FnOnce(&Connection) -> Result<T, E>) -> Result<T, E> {
        self.with(|db| {
            if !db.is_autocommit() {
                return read(db);
            }
            let moment = db.unchecked_transaction().map_err(sqlite("read the workspace"))?;
            let found = read(&moment);
            moment.finish().map_err(sqlite("read the workspace"))?;
            found
        })
    }

    pub(super) fn with<T, E: From<OptimizerError>>(
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
        self.with(|db| first(db, doing, sql, [], |row| row.get(0)).map(Option::flatten))
    }

    /// Lets go of the connection; the next read opens another.
    pub(super) fn release(&mut self) {
        drop(self.connection.get_mut().take());
    }
}

pub(super) fn for_each_event(
    db: &Connection,
    from_sequence: u64,
    mut each: impl FnMut(Stored) -> Result<(), OptimizerError>,
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
    found.ok_or_else(|| invariant("the workspace does not say what the run is"))
}

fn event((sequence, wire, unix_millis, fields): (u64, String, u64, String)) -> Result<Stored, OptimizerError> {
    // Types are our own words and need no escaping.
    let text = format!("{{\"type\":\"{wire}\",\"fields\":{fields}}}");
    let event: Event = serde_json::from_str(&text)
        .map_err(|error| invariant(format!("event {sequence} of type {wire} cannot be read: {error}")))?;
    Ok(Stored::new(sequence, unix_millis, event))
}

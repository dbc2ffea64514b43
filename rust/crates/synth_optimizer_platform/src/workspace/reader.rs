//! Reads a workspace while its writer goes on: the log, the inbox and replies.

use std::path::{Path, PathBuf};

use parking_lot::{Mutex, MutexGuard};
use rusqlite::{Connection, OptionalExtension, Row, params};
use serde_json::Value;

use super::batch::Stored;
use super::error::{DAMAGED, invariant, json, sqlite};
use super::open;
use super::projector;
use super::records::{RunRow, SnapshotKind};
use super::store::int;
use crate::unpack::{unpack, unpack_whole};
use synth_optimizer_core::model::answer::Answer;
use synth_optimizer_core::model::candidate_view::Candidate;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::event::{EVENT_TYPES, Event};
use synth_optimizer_core::model::ids::{CandidateId, RequestId, RowId};
use synth_optimizer_core::model::run_totals::RunTotals;
use synth_optimizer_core::model::usage::RunUsage;

/// A workspace to read from. It sees what was committed before each read.
#[derive(Debug)]
pub struct Reader {
    path: PathBuf,
    /// Opened by the first read.
    connection: Mutex<Option<Connection>>,
}

impl Reader {
    /// Opens the workspace of a run, live or over.
    pub fn open(path: &Path) -> Result<Self, OptimizerError> {
        let reader = Self::later(path);
        reader.with(|_| Ok(()))?;
        Ok(reader)
    }

    pub(super) fn later(path: &Path) -> Self {
        Self { path: path.to_owned(), connection: Mutex::new(None) }
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
        let db = match self.held().take() {
            Some(db) => db,
            None => open::open_to_read(&self.path)?,
        };
        let shown = for_each_event(&db, from_sequence, each);
        self.held().get_or_insert(db);
        shown
    }

    /// What the container told last of this kind.
    pub(crate) fn snapshot(&self, kind: SnapshotKind) -> Result<Option<Value>, OptimizerError> {
        let sql = "SELECT document, data FROM snapshots WHERE kind = ?1 ORDER BY taken_at DESC LIMIT 1";
        let found: Option<(Option<String>, Option<Vec<u8>>)> = self.with(|db| {
            db.query_row(sql, [kind.word()], |row| Ok((row.get(0)?, row.get(1)?)))
                .optional()
                .map_err(sqlite("read what the container told"))
        })?;
        let Some((document, data)) = found else { return Ok(None) };
        let bytes = match (document, data) {
            (Some(text), _) => text.into_bytes(),
            (None, data) => unpack_whole(&data.unwrap_or_default()).ok_or_else(|| {
                OptimizerError::new(ErrorCode::Sqlite, "what the container told is damaged").with_hint(DAMAGED)
            })?,
        };
        serde_json::from_slice(&bytes).map(Some).map_err(json("read what the container told"))
    }

    fn held(&self) -> MutexGuard<'_, Option<Connection>> {
        self.connection.lock()
    }

    /// At most `limit` events from `from_sequence` on.
    pub fn events(&self, from_sequence: u64, limit: usize) -> Result<Vec<Stored>, OptimizerError> {
        let sql =
            "SELECT sequence, type, unix_millis, fields FROM events WHERE sequence >= ?1 ORDER BY sequence LIMIT ?2";
        let found = self.list("read the log", sql, params![int(from_sequence), int(limit as u64)], event_columns)?;
        found.into_iter().map(event).collect()
    }

    /// Bytes that the compressed replies take in the file.
    pub fn reply_bytes(&self) -> Result<u64, OptimizerError> {
        let sql = "SELECT coalesce(sum(pgsize), 0) FROM dbstat WHERE name = 'replies'";
        let found = self.list("measure the replies", sql, [], |row| row.get::<_, i64>(0))?;
        Ok(found.into_iter().map(i64::unsigned_abs).sum())
    }

    /// Answers that have come and wait for their turn.
    pub fn inbox(&self) -> Result<Vec<(RequestId, Answer)>, OptimizerError> {
        let sql = "SELECT request, answer FROM inbox ORDER BY request";
        let found = self.list("read the inbox", sql, [], |row| Ok((request(row, 0)?, row.get::<_, String>(1)?)))?;
        let answer = |(request, answer): (RequestId, String)| {
            let answer =
                serde_json::from_str(&answer).map_err(json(format_args!("read the answer to {}", request.0)))?;
            Ok((request, answer))
        };
        found.into_iter().map(answer).collect()
    }

    /// Requests that were sent, have no answer, and are still wanted.
    pub fn unanswered(&self) -> Result<Vec<RequestId>, OptimizerError> {
        let sql = "SELECT request FROM calls WHERE sent_at IS NOT NULL AND answered_at IS NULL AND (
                     EXISTS (SELECT 1 FROM rollouts WHERE rollouts.request = calls.request AND status = 'requested') OR
                     EXISTS (SELECT 1 FROM proposer_calls WHERE proposer_calls.request = calls.request AND status = 'started'))
                   ORDER BY request";
        self.list("read the calls", sql, [], |row| request(row, 0))
    }

    /// The last event of the log.
    pub fn last_sequence(&self) -> Result<Option<u64>, OptimizerError> {
        self.with(|db| {
            db.query_row("SELECT max(sequence) FROM events", [], |row| row.get::<_, Option<i64>>(0))
                .map(|last| last.map(i64::unsigned_abs))
                .map_err(sqlite("read the log"))
        })
    }

    /// The last event that tells more than how the run was carried out.
    pub fn last_milestone(&self) -> Result<Option<u64>, OptimizerError> {
        let asides: Vec<String> =
            EVENT_TYPES.iter().filter(|known| known.aside).map(|known| format!("'{}'", known.wire)).collect();
        let sql = format!(
            "SELECT sequence FROM events WHERE type NOT IN ({}) ORDER BY sequence DESC LIMIT 1",
            asides.join(", ")
        );
        self.with(|db| {
            db.query_row(&sql, [], |row| row.get::<_, i64>(0).map(i64::unsigned_abs))
                .optional()
                .map_err(sqlite("read the log"))
        })
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
        let found = self.list("count the inbox", "SELECT count(*) FROM inbox", [], |row| row.get::<_, i64>(0))?;
        Ok(found.into_iter().map(i64::unsigned_abs).sum())
    }

    /// The reply to a request.
    pub fn reply(&self, request: RequestId) -> Result<Option<Vec<u8>>, OptimizerError> {
        let found: Option<(i64, Vec<u8>)> = self.with(|db| {
            db.prepare_cached("SELECT size, data FROM replies WHERE request = ?1")
                .and_then(|mut statement| {
                    statement.query_row([int(request.0)], |row| Ok((row.get(0)?, row.get(1)?))).optional()
                })
                .map_err(sqlite(format_args!("read the reply to request {}", request.0)))
        })?;
        let Some((size, data)) = found else { return Ok(None) };
        unpack(&data, size.unsigned_abs()).map(Some).ok_or_else(|| {
            OptimizerError::new(
                ErrorCode::Sqlite,
                format!("the reply to request {} in {} is damaged", request.0, self.path.display()),
            )
            .with_hint(DAMAGED)
        })
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
        let values = params![candidate.as_str(), row.as_str(), int(before.0)];
        Ok(self.list("look for evidence", sql, values, |row| request(row, 0))?.pop())
    }

    /// Reads several things as they are at one moment, which is also cheaper than one by one.
    pub fn at_once<T>(&self, read: impl FnOnce(&Self) -> Result<T, OptimizerError>) -> Result<T, OptimizerError> {
        let moment = |doing: &str| self.with(|db| db.execute_batch(doing).map_err(sqlite("read the workspace")));
        moment("BEGIN")?;
        let found = read(self);
        moment("COMMIT")?;
        found
    }

    /// Runs a query on the connection for reads.
    pub(super) fn list<T>(
        &self,
        doing: &str,
        sql: &str,
        values: impl rusqlite::Params,
        each: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Vec<T>, OptimizerError> {
        self.with(|db| {
            db.prepare_cached(sql)
                .and_then(|mut statement| statement.query_map(values, each)?.collect())
                .map_err(sqlite(doing))
        })
    }

    pub(super) fn with<T>(
        &self,
        read: impl FnOnce(&Connection) -> Result<T, OptimizerError>,
    ) -> Result<T, OptimizerError> {
        let mut held = self.held();
        let db = match held.take() {
            Some(db) => db,
            None => open::open_to_read(&self.path)?,
        };
        let result = read(&db);
        *held = Some(db);
        result
    }

    /// Lets go of the connection; the next read opens another.
    pub(super) fn release(&self) {
        drop(self.held().take());
    }
}

pub(super) fn for_each_event(
    db: &Connection,
    from_sequence: u64,
    mut each: impl FnMut(Stored) -> Result<(), OptimizerError>,
) -> Result<(), OptimizerError> {
    let sql = "SELECT sequence, type, unix_millis, fields FROM events WHERE sequence >= ?1 ORDER BY sequence";
    let mut statement = db.prepare_cached(sql).map_err(sqlite("read the log"))?;
    let rows = statement.query_map(params![int(from_sequence)], event_columns).map_err(sqlite("read the log"))?;
    for row in rows {
        each(event(row.map_err(sqlite("read the log"))?)?)?;
    }
    Ok(())
}

pub(super) fn run_row(db: &Connection) -> Result<RunRow, OptimizerError> {
    let sql = "SELECT run_id, algorithm, config_json, config_digest, container_url, cache_mode, cache_namespace,
                 cache_path, output_dir, run_dir, created_at FROM run";
    let (config, row): (String, RunRow) = db
        .query_row(sql, [], |row| {
            let run = RunRow {
                run_id: row.get(0)?,
                algorithm: row.get(1)?,
                config: serde_json::Value::Null,
                config_digest: row.get(3)?,
                container_url: row.get(4)?,
                cache_mode: row.get(5)?,
                cache_namespace: row.get(6)?,
                cache_path: row.get(7)?,
                output_dir: row.get(8)?,
                run_dir: row.get(9)?,
                created_at: row.get::<_, i64>(10)?.unsigned_abs(),
            };
            Ok((row.get(2)?, run))
        })
        .map_err(sqlite("read what the run is"))?;
    let config = serde_json::from_str(&config).map_err(json("read the config of the run"))?;
    Ok(RunRow { config, ..row })
}

type EventColumns = (i64, String, i64, String);

fn event_columns(row: &Row<'_>) -> rusqlite::Result<EventColumns> {
    Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
}

fn event((sequence, wire, unix_millis, fields): EventColumns) -> Result<Stored, OptimizerError> {
    // Types are our own words and need no escaping.
    let text = format!("{{\"type\":\"{wire}\",\"fields\":{fields}}}");
    let event: Event = serde_json::from_str(&text)
        .map_err(|error| invariant(format!("event {sequence} of type {wire} cannot be read: {error}")))?;
    Ok(Stored::new(sequence.unsigned_abs(), unix_millis.unsigned_abs(), event))
}

fn request(row: &Row<'_>, index: usize) -> rusqlite::Result<RequestId> {
    Ok(RequestId(row.get::<_, i64>(index)?.unsigned_abs()))
}

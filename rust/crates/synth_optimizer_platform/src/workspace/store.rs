//! Stores batches and records inside the writer's transaction.

use rusqlite::{Connection, params};

use super::error::{invariant, json, sqlite};
use super::projector::{Projector, write_totals};
use super::query::run;
use super::records::{Batch, CacheUse, Record, RunRow, StoredEvent};
use crate::digest::sha256;
use crate::packing::pack;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::run_totals::RunTotals;

/// Documents of at least this size are compressed.
const COMPRESS_FROM_BYTES: usize = 64 * 1024;

const INSERT_EVENT: &str = "INSERT INTO events (sequence, type, unix_millis, fields) VALUES (?1, ?2, ?3, ?4)";
const INSERT_SENT: &str = "INSERT INTO calls (call_id, kind, rollout_id, sent_at, sends) VALUES (?1, ?2, ?3, ?4, 1)
    ON CONFLICT (call_id) DO UPDATE SET sent_at = excluded.sent_at, sends = sends + 1, rollout_id = excluded.rollout_id";
/// A call that was sent more than once stays a sent call.
const UNDO_REPEATED_SEND: &str =
    "UPDATE calls SET sends = sends - 1 WHERE call_id = ?1 AND sends > 1 AND answered_at IS NULL";
const UNDO_SEND: &str = "DELETE FROM calls WHERE call_id = ?1 AND answered_at IS NULL";
const INSERT_REPLY: &str = "INSERT OR REPLACE INTO replies (call_id, size, data) VALUES (?1, ?2, ?3)";
const UPDATE_ANSWERED: &str = "UPDATE calls SET answered_at = ?2, cache_action = ?3, cache_key = ?4 WHERE call_id = ?1";
const INSERT_ANSWERED: &str =
    "INSERT INTO calls (call_id, answered_at, cache_action, cache_key, kind) VALUES (?1, ?2, ?3, ?4, ?5)";
const INSERT_WAITING: &str = "INSERT INTO inbox (call_id, answer) VALUES (?1, ?2)";
const DELETE_WAITING: &str = "DELETE FROM inbox WHERE call_id = ?1";

/// The state that the writer keeps between transactions.
pub(super) struct Store {
    projector: Projector,
}

impl Store {
    pub(super) fn new(connection: &Connection) -> Result<Self, OptimizerError> {
        Ok(Self { projector: Projector::load(connection)? })
    }

    /// Checks that a batch continues the log without a gap. Called before anything of the batch is written.
    pub(super) fn check(&self, batch: &Batch) -> Result<(), OptimizerError> {
        let mut last = self.projector.last_sequence();
        for stored in &batch.events {
            let follows = last.map_or(stored.sequence <= 1, |last| stored.sequence == last + 1);
            if !follows {
                let place = last.map_or("nothing".to_owned(), |last| format!("event {last}"));
                return Err(invariant(format!("event {} cannot follow {place} in the log", stored.sequence)));
            }
            last = Some(stored.sequence);
        }
        Ok(())
    }

    pub(super) fn batch(&mut self, db: &Connection, batch: &Batch) -> Result<(), OptimizerError> {
        self.events(db, &batch.events)?;
        for call in &batch.unsent {
            let doing = "store that a call was not sent";
            if run(db, doing, UNDO_REPEATED_SEND, [call.0])? == 0 {
                run(db, doing, UNDO_SEND, [call.0])?;
            }
        }
        // Statements are prepared once per batch.
        let mut insert = db.prepare_cached(INSERT_SENT).map_err(sqlite("store that a call is sent"))?;
        for sent in &batch.sent {
            let values = params![sent.call_id.0, sent.kind.as_str(), sent.rollout_id, sent.unix_millis];
            insert.execute(values).map_err(sqlite("store that a call is sent"))?;
        }
        let doing = "store an answer";
        let mut reply = db.prepare_cached(INSERT_REPLY).map_err(sqlite("store a reply"))?;
        let mut answer = db.prepare_cached(UPDATE_ANSWERED).map_err(sqlite(doing))?;
        for answered in &batch.answered {
            let (action, key) = cache_columns(answered.cache.as_ref())?;
            let (request, at) = (answered.call_id.0, answered.unix_millis);
            if let Some(received) = &answered.reply {
                let packed = received.packed().map_err(compression_error)?;
                reply.execute(params![request, received.len(), packed]).map_err(sqlite("store a reply"))?;
            }
            if answer.execute(params![request, at, action, key]).map_err(sqlite(doing))? == 0 {
                run(db, doing, INSERT_ANSWERED, params![request, at, action, key, answered.kind.as_str()])?;
            }
            if !answered.retired {
                let text = serde_json::to_string(&answered.answer).map_err(json(doing))?;
                run(db, "put an answer into the inbox", INSERT_WAITING, params![request, text])?;
            }
        }
        for request in &batch.retired {
            run(db, "take an answer from the inbox", DELETE_WAITING, [request.0])?;
        }
        Ok(())
    }

    fn events(&mut self, db: &Connection, events: &[StoredEvent]) -> Result<(), OptimizerError> {
        let mut insert = db.prepare_cached(INSERT_EVENT).map_err(sqlite("store an event"))?;
        for stored in events {
            let fields = stored.fields_json().map_err(json(format_args!("store event {}", stored.sequence)))?;
            let values = params![stored.sequence, stored.event.type_name(), stored.unix_millis, fields];
            insert.execute(values).map_err(sqlite("store an event"))?;
        }
        self.projector.apply(db, events)
    }

    /// Stores the totals. Must be called once, after the batches of a transaction.
    pub(super) fn finish(&mut self, db: &Connection) -> Result<(), OptimizerError> {
        self.projector.finish(db)
    }

    pub(super) fn record(&mut self, db: &Connection, record: &Record) -> Result<(), OptimizerError> {
        match record {
            Record::SetupCall { boundary, unix_millis, cache } => {
                let (action, key) = cache_columns(cache.as_ref())?;
                let sql =
                    "INSERT INTO setup_calls (boundary, called_at, cache_action, cache_key) VALUES (?1, ?2, ?3, ?4)";
                run(db, "store a call of the setup", sql, params![boundary, unix_millis, action, key])?;
            }
            Record::Snapshot { kind, unix_millis, document } => {
                let text = document.to_string();
                let digest = sha256(text.as_bytes());
                let is_large = text.len() >= COMPRESS_FROM_BYTES;
                let data = is_large.then(|| pack(text.as_bytes())).transpose().map_err(compression_error)?;
                let inline = (!is_large).then_some(&text);
                let sql = "INSERT OR IGNORE INTO snapshots (kind, digest, document, data, taken_at)
                           VALUES (?1, ?2, ?3, ?4, ?5)";
                let values = params![kind.as_str(), digest, inline, data, unix_millis];
                run(db, "store a snapshot of the container", sql, values)?;
            }
            Record::Artifact { file, unix_millis } => {
                let sql = "INSERT OR REPLACE INTO artifacts (path, kind, sha256, bytes, retention, written_at)
                           VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
                let values = params![file.path, file.kind, file.sha256, file.bytes, file.retention, unix_millis];
                run(db, "store an artifact", sql, values)?;
            }
            Record::Manifest { path, document, unix_millis } => {
                run(db, "replace the manifest", "DELETE FROM manifests", [])?;
                let sql = "INSERT INTO manifests (manifest_path, manifest_json, updated_at) VALUES (?1, ?2, ?3)";
                run(db, "store the manifest", sql, params![path, document.to_string(), unix_millis])?;
            }
            Record::Operation { operation_type, subject, unix_millis } => {
                let sql = "INSERT INTO operations (operation_type, subject_id, status, updated_at, metadata_json)
                           VALUES (?1, ?2, 'completed', ?3, 'null')";
                run(db, "store an operation", sql, params![operation_type, subject, unix_millis])?;
            }
        }
        Ok(())
    }
}

pub(super) fn insert_run(db: &Connection, row: &RunRow) -> Result<(), OptimizerError> {
    let doing = "store the description of the run";
    let record = serde_json::to_string(row).map_err(json(doing))?;
    run(db, doing, "INSERT INTO run (one, record) VALUES (1, ?1)", [record])?;
    write_totals(db, &RunTotals::default())
}

/// Decodes a SHA-256 digest from 64 hex digits.
pub(super) fn digest_from_hex(hex: &str) -> Result<[u8; 32], OptimizerError> {
    let wrong = || invariant(format!("{hex:?} is not a SHA-256 of 64 hex digits"));
    let digit = |digit: u8| char::from(digit).to_digit(16).ok_or_else(wrong);
    let mut bytes = [0; 32];
    let (pairs, rest) = hex.as_bytes().as_chunks::<2>();
    if pairs.len() != bytes.len() || !rest.is_empty() {
        return Err(wrong());
    }
    for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
        *byte = (digit(*high)? << 4 | digit(*low)?) as u8;
    }
    Ok(bytes)
}

fn compression_error(error: std::io::Error) -> OptimizerError {
    OptimizerError::from_cause(ErrorCode::Io, "cannot compress a reply", error)
}

type CacheColumns = (Option<&'static str>, Option<[u8; 32]>);

fn cache_columns(used: Option<&CacheUse>) -> Result<CacheColumns, OptimizerError> {
    let Some(used) = used else { return Ok((None, None)) };
    Ok((Some(used.action.as_str()), Some(digest_from_hex(&used.key)?)))
}

//! Writes batches and records inside the writer's transaction.

use rusqlite::{CachedStatement, Connection, params};
use sha2::{Digest as _, Sha256};
use zstd::bulk::Compressor;

use super::batch::{Batch, CacheAction, CacheUse, Stored};
use super::error::{invariant, json, sqlite};
use super::projector::{Projector, write_totals};
use super::records::{Lease, Record, RunRow, Snapshot};
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::run_totals::RunTotals;

/// Fast: replies are written while a run goes on, and read rarely.
const LEVEL: i32 = -1;
/// Documents of this size and more are compressed.
const LARGE: usize = 64 * 1024;

const INSERT_EVENT: &str = "INSERT INTO events (sequence, type, unix_millis, fields) VALUES (?1, ?2, ?3, ?4)";
const INSERT_SENT: &str = "INSERT INTO calls (request, kind, rollout_id, sent_at, sends) VALUES (?1, ?2, ?3, ?4, 1)
    ON CONFLICT (request) DO UPDATE SET sent_at = excluded.sent_at, sends = sends + 1, rollout_id = excluded.rollout_id";
const INSERT_REPLY: &str = "INSERT OR REPLACE INTO replies (request, size, data) VALUES (?1, ?2, ?3)";
const UPDATE_ANSWERED: &str = "UPDATE calls SET answered_at = ?2, cache_action = ?3, cache_key = ?4 WHERE request = ?1";
const INSERT_WAITING: &str = "INSERT INTO inbox (request, answer) VALUES (?1, ?2)";
const DELETE_WAITING: &str = "DELETE FROM inbox WHERE request = ?1";

/// What the writer keeps between transactions.
pub(super) struct Store {
    projector: Projector,
    compressor: Compressor<'static>,
    compressed: Vec<u8>,
}

impl Store {
    pub(super) fn new(connection: &Connection) -> Result<Self, OptimizerError> {
        let mut compressor = Compressor::new(LEVEL).map_err(no_zstd)?;
        compressor.set_parameter(zstd::zstd_safe::CParameter::ChecksumFlag(true)).map_err(no_zstd)?;
        Ok(Self { projector: Projector::load(connection)?, compressor, compressed: Vec::new() })
    }

    pub(super) fn last_sequence(&self) -> Option<u64> {
        self.projector.last_sequence()
    }

    /// Says whether a batch continues the log. Nothing has been written before this is known.
    pub(super) fn check(&self, batch: &Batch) -> Result<(), OptimizerError> {
        let mut last = self.last_sequence();
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
        let mut insert = Reused::new(db, INSERT_SENT);
        for sent in &batch.sent {
            let (request, at) = (int(sent.request.0), int(sent.unix_millis));
            insert.run("store that a call is sent", params![request, sent.kind.word(), sent.rollout_id, at])?;
        }
        let (mut reply, mut answer) = (Reused::new(db, INSERT_REPLY), Reused::new(db, UPDATE_ANSWERED));
        let (mut wait, mut retire) = (Reused::new(db, INSERT_WAITING), Reused::new(db, DELETE_WAITING));
        for answered in &batch.answered {
            let (action, key) = cache_columns(answered.cache.as_ref())?;
            let (request, at) = (int(answered.request.0), int(answered.unix_millis));
            if let Some(bytes) = &answered.reply {
                self.compress(bytes)?;
                reply.run("store a reply", params![request, int(bytes.len() as u64), self.compressed])?;
            }
            let sent = answer.run("store an answer", params![request, at, action, key])?;
            if sent == 0 {
                let sql = "INSERT INTO calls (request, answered_at, cache_action, cache_key, kind)
                           VALUES (?1, ?2, ?3, ?4, ?5)";
                run(db, "store an answer", sql, params![request, at, action, key, answered.kind.word()])?;
            }
            if !answered.retired {
                let text = serde_json::to_string(&answered.answer).map_err(json("store an answer"))?;
                wait.run("put an answer into the inbox", params![request, text])?;
            }
        }
        for request in &batch.retired {
            retire.run("take an answer from the inbox", params![int(request.0)])?;
        }
        Ok(())
    }

    fn events(&mut self, db: &Connection, events: &[Stored]) -> Result<(), OptimizerError> {
        let mut insert = Reused::new(db, INSERT_EVENT);
        for stored in events {
            let fields = stored.fields_json().map_err(json(format_args!("store event {}", stored.sequence)))?;
            let (sequence, at) = (int(stored.sequence), int(stored.unix_millis));
            insert.run("store an event", params![sequence, stored.event.wire(), at, fields])?;
        }
        self.projector.apply(db, events)
    }

    /// To be called once after the batches of a transaction.
    pub(super) fn finish(&mut self, db: &Connection) -> Result<(), OptimizerError> {
        self.projector.finish(db)
    }

    /// Writes a record and gives the number of its row.
    pub(super) fn record(&mut self, db: &Connection, record: &Record) -> Result<i64, OptimizerError> {
        match record {
            Record::SetupCall(call) => {
                let (action, key) = cache_columns(call.cache.as_ref())?;
                let sql =
                    "INSERT INTO setup_calls (boundary, called_at, cache_action, cache_key) VALUES (?1, ?2, ?3, ?4)";
                run(db, "store a call of the setup", sql, params![call.boundary, int(call.unix_millis), action, key])?;
            }
            Record::Snapshot(snapshot) => self.snapshot(db, snapshot)?,
            Record::Artifact(file) => {
                let sql = "INSERT OR REPLACE INTO artifacts (path, kind, sha256, bytes, retention, written_at)
                           VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
                let (bytes, written) = (int(file.bytes), int(file.unix_millis));
                run(
                    db,
                    "store an artifact",
                    sql,
                    params![file.path, file.kind, file.sha256, bytes, file.retention, written],
                )?;
            }
            Record::Manifest(manifest) => {
                run(db, "replace the manifest", "DELETE FROM manifests", [])?;
                let sql = "INSERT INTO manifests (manifest_path, manifest_json, updated_at) VALUES (?1, ?2, ?3)";
                let values = params![manifest.path, manifest.document.to_string(), int(manifest.unix_millis)];
                run(db, "store the manifest", sql, values)?;
            }
            Record::Operation(asked) => {
                let sql = "INSERT INTO operations (operation_type, subject_id, status, updated_at, metadata_json)
                           VALUES (?1, ?2, ?3, ?4, ?5)";
                let (status, detail) = (asked.status.word(), asked.detail.to_string());
                let values = params![asked.operation_type, asked.subject, status, int(asked.unix_millis), detail];
                run(db, "store an operation", sql, values)?;
            }
            Record::Lease(lease) => acquire(db, lease)?,
            Record::Release { lease, unix_millis } => {
                let sql = "UPDATE resource_leases SET status = 'released', released_at = ?2
                           WHERE resource_lease_id = ?1 AND status = 'active'";
                run(db, "release a lease", sql, params![lease.0, int(*unix_millis)])?;
            }
        }
        Ok(db.last_insert_rowid())
    }

    fn compress(&mut self, bytes: &[u8]) -> Result<(), OptimizerError> {
        self.compressed.clear();
        self.compressed.reserve(zstd::zstd_safe::compress_bound(bytes.len()));
        self.compressor.compress_to_buffer(bytes, &mut self.compressed).map(|_| ()).map_err(no_zstd)
    }

    fn snapshot(&mut self, db: &Connection, snapshot: &Snapshot) -> Result<(), OptimizerError> {
        let text = snapshot.document.to_string();
        let digest: [u8; 32] = Sha256::digest(text.as_bytes()).into();
        let inline = (text.len() < LARGE).then_some(text.as_str());
        let mut data = None;
        if inline.is_none() {
            self.compress(text.as_bytes())?;
            data = Some(&self.compressed);
        }
        let sql =
            "INSERT OR IGNORE INTO snapshots (kind, digest, document, data, taken_at) VALUES (?1, ?2, ?3, ?4, ?5)";
        let values = params![snapshot.kind.word(), digest.as_slice(), inline, data, int(snapshot.unix_millis)];
        run(db, "store what the container told", sql, values)
    }
}

pub(super) fn insert_run(db: &Connection, row: &RunRow) -> Result<(), OptimizerError> {
    let sql = "INSERT INTO run (one, run_id, algorithm, config_json, config_digest, container_url, cache_mode,
                 cache_namespace, cache_path, output_dir, run_dir, created_at)
               VALUES (1, ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)";
    let (config, created) = (row.config.to_string(), int(row.created_at));
    let values = params![
        row.run_id,
        row.algorithm,
        config,
        row.config_digest,
        row.container_url,
        row.cache_mode,
        row.cache_namespace,
        row.cache_path,
        row.output_dir,
        row.run_dir,
        created
    ];
    run(db, "store what the run is", sql, values)?;
    write_totals(db, &RunTotals::default())
}

/// Runs a statement that stays prepared.
pub(super) fn run(
    db: &Connection,
    doing: &str,
    sql: &str,
    values: impl rusqlite::Params,
) -> Result<(), OptimizerError> {
    db.prepare_cached(sql).and_then(|mut statement| statement.execute(values)).map(|_| ()).map_err(sqlite(doing))
}

/// A statement that is looked up once for all rows of a batch.
pub(super) struct Reused<'db> {
    db: &'db Connection,
    sql: &'static str,
    statement: Option<CachedStatement<'db>>,
}

impl<'db> Reused<'db> {
    pub(super) fn new(db: &'db Connection, sql: &'static str) -> Self {
        Self { db, sql, statement: None }
    }

    /// Runs it and tells how many rows were changed.
    pub(super) fn run(&mut self, doing: &str, values: impl rusqlite::Params) -> Result<usize, OptimizerError> {
        let statement = match &mut self.statement {
            Some(statement) => statement,
            None => self.statement.insert(self.db.prepare_cached(self.sql).map_err(sqlite(doing))?),
        };
        statement.execute(values).map_err(sqlite(doing))
    }
}

/// SQLite's whole numbers are signed; nothing that is counted here comes near the end of them.
pub(super) fn int(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// The bytes of 64 hex digits.
pub(super) fn digest_bytes(hex: &str) -> Result<[u8; 32], OptimizerError> {
    let mut bytes = [0; 32];
    let (pairs, rest) = hex.as_bytes().as_chunks::<2>();
    let digits = |pair: &[u8; 2]| {
        let digit = |byte: u8| char::from(byte).to_digit(16);
        Some((digit(pair[0])? * 16 + digit(pair[1])?) as u8)
    };
    if pairs.len() == bytes.len() && rest.is_empty() {
        for (byte, pair) in bytes.iter_mut().zip(pairs) {
            *byte = digits(pair).ok_or_else(|| no_digest(hex))?;
        }
        return Ok(bytes);
    }
    Err(no_digest(hex))
}

fn no_digest(text: &str) -> OptimizerError {
    invariant(format!("{text:?} is not a SHA-256 of 64 hex digits"))
}

fn no_zstd(error: std::io::Error) -> OptimizerError {
    OptimizerError::from_cause(ErrorCode::Io, "cannot compress a reply", error)
}

fn acquire(db: &Connection, lease: &Lease) -> Result<(), OptimizerError> {
    let (kind, resource, at) = (&lease.resource_kind, &lease.resource_id, int(lease.unix_millis));
    let sql = "UPDATE resource_leases SET status = 'expired', released_at = ?3
               WHERE resource_kind = ?1 AND resource_id = ?2 AND status = 'active'";
    run(db, "expire a lease", sql, params![kind, resource, at])?;
    let sql = "INSERT INTO resource_leases (resource_kind, resource_id, subject_id, status, acquired_at)
               VALUES (?1, ?2, ?3, 'active', ?4)";
    run(db, "store a lease", sql, params![kind, resource, lease.subject, at])
}

type CacheColumns = (Option<&'static str>, Option<[u8; 32]>);

fn cache_columns(used: Option<&CacheUse>) -> Result<CacheColumns, OptimizerError> {
    let Some(used) = used else { return Ok((None, None)) };
    let action = match used.action {
        CacheAction::Hit => "hit",
        CacheAction::Miss => "miss",
        CacheAction::Write => "write",
    };
    Ok((Some(action), Some(digest_bytes(&used.key)?)))
}

//! The writer thread of a workspace: it commits all queued writes in one transaction.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use rusqlite::{Connection, Transaction, TransactionBehavior, params};

use super::error::{ownership_lost, sqlite};
use super::query::{first, run};
use super::records::{Batch, Record};
use super::store::Store;
use crate::clock::unix_millis;
use crate::logs::in_current_span;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};

/// The most writes in one transaction, so that the first write is not delayed by a continuous stream.
const MAX_WRITES_PER_TRANSACTION: usize = 256;

pub(super) type WriteResult = Result<(), OptimizerError>;

/// A write that is stored completely or not at all.
pub(super) enum Write {
    Batch(Arc<Batch>),
    Records(Vec<Record>),
    /// Acquires the lease on the run for the named process. Every later write requires this lease.
    AcquireLease(String),
}

/// A write, and the function that the writer thread calls once the write is durable or has failed.
pub(super) struct WriteJob {
    pub(super) write: Write,
    pub(super) answer: Box<dyn FnOnce(WriteResult) + Send>,
}

/// Starts the writer thread. When the queue is dropped, it finishes the queued writes, releases the lease, checkpoints the
/// WAL and ends. `transactions` counts its commits.
pub(super) fn start(
    connection: Connection,
    transactions: Arc<AtomicU64>,
) -> Result<(Sender<WriteJob>, JoinHandle<WriteResult>), OptimizerError> {
    let store = Store::new(&connection)?;
    let (queue, jobs) = channel();
    let writer = WriterLoop { connection, store, transactions, lease: None, first_error: None };
    let thread = std::thread::Builder::new()
        .name("workspace-writer".into())
        .spawn(in_current_span(move || writer.run(&jobs)))
        .map_err(|error| OptimizerError::from_cause(ErrorCode::Io, "cannot start the writer's thread", error))?;
    Ok((queue, thread))
}

/// Returns the error for a write after the writer thread has ended.
pub(super) fn writer_ended_error() -> OptimizerError {
    OptimizerError::new(ErrorCode::Sqlite, "the writer of the workspace has ended")
        .with_hint("Open the workspace again; every acknowledged write is stored.")
}

struct WriterLoop {
    connection: Connection,
    store: Store,
    transactions: Arc<AtomicU64>,
    /// The lease of this process. Once it is acquired, every transaction requires it to be active.
    lease: Option<i64>,
    /// The error of the first failed transaction. It is unknown what the file system stored then, so every later write
    /// fails with the same error. A full disk is no such error: SQLite has rolled the transaction back.
    first_error: Option<OptimizerError>,
}

impl WriterLoop {
    fn run(mut self, jobs: &Receiver<WriteJob>) -> WriteResult {
        let mut group = Vec::new();
        while let Ok(first) = jobs.recv() {
            group.push(first);
            while group.len() < MAX_WRITES_PER_TRANSACTION
                && let Ok(next) = jobs.try_recv()
            {
                group.push(next);
            }
            self.write(&mut group);
        }
        let released = self.release();
        if self.first_error.is_none() && released.is_ok() {
            self.connection
                .execute_batch("PRAGMA wal_checkpoint(TRUNCATE)")
                .map_err(sqlite("move the WAL into the workspace"))?;
        }
        let closed = self.connection.close().map_err(|(_, error)| sqlite("close the workspace")(error));
        released.and(closed)
    }

    fn write(&mut self, group: &mut Vec<WriteJob>) {
        let outcomes = match &self.first_error {
            Some(error) => Err(error.clone()),
            None => self.transact(group),
        };
        match outcomes {
            Ok(outcomes) => {
                for (job, outcome) in group.drain(..).zip(outcomes) {
                    (job.answer)(outcome);
                }
            }
            Err(error) => {
                for job in group.drain(..) {
                    (job.answer)(Err(error.clone()));
                }
                let is_rolled_back = error.code == ErrorCode::StorageFull;
                // What the store knows must match the database again.
                let restored = if is_rolled_back { Store::new(&self.connection) } else { Err(error) };
                match restored {
                    Ok(store) => self.store = store,
                    Err(error) => self.first_error = Some(error),
                }
            }
        }
    }

    /// Commits a group of writes in one transaction. An outer error rolls all of them back. An inner error is of one write
    /// that was rejected before it changed anything.
    fn transact(&mut self, group: &[WriteJob]) -> Result<Vec<WriteResult>, OptimizerError> {
        let transaction = begin(&mut self.connection, self.lease)?;
        let mut lease = self.lease;
        let mut outcomes = Vec::with_capacity(group.len());
        for job in group {
            outcomes.push(match &job.write {
                Write::Records(records) => {
                    records.iter().try_for_each(|record| self.store.record(&transaction, record))?;
                    Ok(())
                }
                Write::AcquireLease(subject) => {
                    // The previous holder may have written since the workspace was opened. From here on it cannot.
                    self.store = Store::new(&transaction)?;
                    lease = Some(acquire(&transaction, subject)?);
                    Ok(())
                }
                Write::Batch(batch) => match self.store.check(batch) {
                    Ok(()) => {
                        self.store.batch(&transaction, batch)?;
                        Ok(())
                    }
                    Err(refused) => Err(refused),
                },
            });
        }
        self.store.finish(&transaction)?;
        transaction.commit().map_err(sqlite("commit to the workspace"))?;
        self.lease = lease;
        self.transactions.fetch_add(1, Ordering::Relaxed);
        Ok(outcomes)
    }

    /// Releases the lease on the run, if this process has it.
    fn release(&mut self) -> WriteResult {
        let Some(lease) = self.lease else { return Ok(()) };
        if let Some(error) = &self.first_error {
            return Err(error.clone());
        }
        let transaction = begin(&mut self.connection, self.lease)?;
        let sql = "UPDATE resource_leases SET status = 'released', released_at = ?2
                   WHERE resource_lease_id = ?1 AND status = 'active'";
        run(&transaction, "release a lease", sql, params![lease, unix_millis()])?;
        transaction.commit().map_err(sqlite("commit to the workspace"))
    }
}

/// Begins a transaction. Fails if this process has a lease and it is no longer the active one.
fn begin(connection: &mut Connection, lease: Option<i64>) -> Result<Transaction<'_>, OptimizerError> {
    const HOLDS: &str = "SELECT 1 FROM resource_leases WHERE resource_lease_id = ?1 AND status = 'active'";
    const HOLDER: &str = "SELECT now.subject_id FROM resource_leases AS now JOIN resource_leases AS ours
        ON ours.resource_kind = now.resource_kind AND ours.resource_id = now.resource_id
        WHERE ours.resource_lease_id = ?1 AND now.status = 'active'";
    let transaction =
        connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(sqlite("begin a transaction"))?;
    let Some(lease) = lease else { return Ok(transaction) };
    if first(&transaction, "look up the lease of the run", HOLDS, [lease], |_| Ok(()))?.is_some() {
        return Ok(transaction);
    }
    let holder: Option<String> = first(&transaction, "look up who holds the run", HOLDER, [lease], |row| row.get(0))?;
    let detail = match holder {
        Some(holder) => format!("{holder} holds the run"),
        None => "the process that took it over has released it".to_owned(),
    };
    Err(ownership_lost("another process has taken over the run; nothing was written").with_detail(detail))
}

/// Acquires the lease on the run and returns its number. Marks the lease of an earlier holder as expired.
fn acquire(db: &Connection, subject: &str) -> Result<i64, OptimizerError> {
    let at = unix_millis();
    let sql = "UPDATE resource_leases SET status = 'expired', released_at = ?1
               WHERE resource_kind = 'run_directory' AND resource_id = 'run.lock' AND status = 'active'";
    run(db, "expire a lease", sql, [at])?;
    let sql = "INSERT INTO resource_leases (resource_kind, resource_id, subject_id, status, acquired_at)
               VALUES ('run_directory', 'run.lock', ?1, 'active', ?2)";
    run(db, "store a lease", sql, params![subject, at])?;
    Ok(db.last_insert_rowid())
}

//! The one writer of a workspace: a thread that turns everything that waits into one transaction.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use rusqlite::{Connection, Transaction, TransactionBehavior, params};

use super::error::{fenced, sqlite};
use super::query::{first, run};
use super::records::{Batch, Record};
use super::store::Store;
use crate::clock::unix_millis;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};

/// Most writes of one transaction, so that the first of them does not wait for an endless stream.
const LARGEST_GROUP: usize = 256;

pub(super) type Outcome = Result<(), OptimizerError>;

/// Something to be written, all or nothing.
pub(super) enum Write {
    Batch(Arc<Batch>),
    Records(Vec<Record>),
    /// Takes the run for the named process, in whose name everything after it is written.
    Hold(String),
}

/// A write, and what is called on the writer's thread once it is durable, or has failed.
pub(super) struct Job {
    pub(super) write: Write,
    pub(super) answer: Box<dyn FnOnce(Outcome) + Send>,
}

/// Starts the writer. It ends when the queue is dropped: then it writes what waits, lets go of the run and empties the WAL
/// into the database. `transactions` counts what it commits.
pub(super) fn start(
    connection: Connection,
    transactions: Arc<AtomicU64>,
) -> Result<(Sender<Job>, JoinHandle<Outcome>), OptimizerError> {
    let store = Store::new(&connection)?;
    let (queue, jobs) = channel();
    let thread = std::thread::Builder::new()
        .name("workspace-writer".into())
        .spawn(move || Loop { connection, store, transactions, lease: None, poison: None }.run(&jobs))
        .map_err(|error| OptimizerError::from_cause(ErrorCode::Io, "cannot start the writer's thread", error))?;
    Ok((queue, thread))
}

/// The error of a write whose writer is not there any more.
pub(super) fn gone() -> OptimizerError {
    OptimizerError::new(ErrorCode::Sqlite, "the writer of the workspace has ended")
        .with_hint("Open the workspace again; what was acknowledged is stored.")
}

struct Loop {
    connection: Connection,
    store: Store,
    transactions: Arc<AtomicU64>,
    /// The lease of this process; without it nothing is written.
    lease: Option<i64>,
    /// After a failed transaction nobody knows what the file system kept: nothing more is written.
    poison: Option<OptimizerError>,
}

impl Loop {
    fn run(mut self, jobs: &Receiver<Job>) -> Outcome {
        let mut group = Vec::new();
        while let Ok(first) = jobs.recv() {
            group.push(first);
            while group.len() < LARGEST_GROUP
                && let Ok(next) = jobs.try_recv()
            {
                group.push(next);
            }
            self.write(&mut group);
        }
        let released = self.release();
        if self.poison.is_none() && released.is_ok() {
            self.connection
                .execute_batch("PRAGMA wal_checkpoint(TRUNCATE)")
                .map_err(sqlite("move the WAL into the workspace"))?;
        }
        let closed = self.connection.close().map_err(|(_, error)| sqlite("close the workspace")(error));
        released.and(closed)
    }

    fn write(&mut self, group: &mut Vec<Job>) {
        let outcomes = match &self.poison {
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
                self.poison = Some(error);
            }
        }
    }

    /// One transaction. An outer error undid all of it; an inner one is of a write that was refused before it began.
    fn transact(&mut self, group: &[Job]) -> Result<Vec<Outcome>, OptimizerError> {
        let transaction = begin(&mut self.connection, self.lease)?;
        let mut lease = self.lease;
        let mut outcomes = Vec::with_capacity(group.len());
        for job in group {
            outcomes.push(match &job.write {
                Write::Records(records) => {
                    records.iter().try_for_each(|record| self.store.record(&transaction, record))?;
                    Ok(())
                }
                Write::Hold(subject) => {
                    // The holder before may have written since the workspace was opened; from here on it cannot.
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

    /// Lets go of the run, if this process has it.
    fn release(&mut self) -> Outcome {
        let Some(lease) = self.lease else { return Ok(()) };
        if let Some(error) = &self.poison {
            return Err(error.clone());
        }
        let transaction = begin(&mut self.connection, self.lease)?;
        let sql = "UPDATE resource_leases SET status = 'released', released_at = ?2
                   WHERE resource_lease_id = ?1 AND status = 'active'";
        run(&transaction, "release a lease", sql, params![lease, unix_millis()])?;
        transaction.commit().map_err(sqlite("commit to the workspace"))
    }
}

/// Begins a transaction, and fails unless the lease is the active one: a process that was superseded writes nothing.
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
        Some(holder) => format!("the run is held by {holder}"),
        None => "the one that had taken it over has let go of it".to_owned(),
    };
    Err(fenced("another process has taken the run over; nothing was written").with_detail(detail))
}

/// Takes the run and gives the number of the lease; an earlier holder that never let go counts as expired.
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

//! The one writer of a workspace: a thread that turns everything that waits into one transaction.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use rusqlite::{Connection, TransactionBehavior};

use super::batch::Batch;
use super::error::sqlite;
use super::fence;
use super::records::{Lease, LeaseId, Record};
use super::store::Store;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};

/// Most writes of one transaction, so that the first of them does not wait for an endless stream.
const LARGEST_GROUP: usize = 256;

/// What a write left behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Committed {
    /// The last event of the log.
    pub last_sequence: Option<u64>,
    /// The row that a record was given.
    pub row: i64,
    /// How many transactions the writer has committed.
    pub transaction: u64,
}

pub(super) type Outcome = Result<Committed, OptimizerError>;

/// Something to be written, all or nothing.
pub(super) enum Write {
    Batch(Arc<Batch>),
    Records(Vec<Record>),
    /// The lease that everything after it is written under.
    Hold(Lease),
}

struct Job {
    write: Write,
    answer: Box<dyn FnOnce(Outcome) + Send>,
}

#[derive(Debug)]
pub(super) struct Writer {
    queue: Option<Sender<Job>>,
    thread: Option<JoinHandle<Result<(), OptimizerError>>>,
    transactions: Arc<AtomicU64>,
}

impl Writer {
    pub(super) fn start(connection: Connection) -> Result<Self, OptimizerError> {
        let store = Store::new(&connection)?;
        let (queue, jobs) = channel();
        let transactions = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&transactions);
        let thread = std::thread::Builder::new()
            .name("workspace-writer".into())
            .spawn(move || Loop { connection, store, counted, fence: None, poison: None }.run(&jobs))
            .map_err(|error| OptimizerError::from_cause(ErrorCode::Io, "cannot start the writer's thread", error))?;
        Ok(Self { queue: Some(queue), thread: Some(thread), transactions })
    }

    pub(super) fn transactions(&self) -> u64 {
        self.transactions.load(Ordering::Relaxed)
    }

    /// Hands over a write; `answer` is called on the writer's thread once it is durable, or has failed.
    pub(super) fn submit(
        &self,
        write: Write,
        answer: impl FnOnce(Outcome) + Send + 'static,
    ) -> Result<(), OptimizerError> {
        let job = Job { write, answer: Box::new(answer) };
        self.queue.as_ref().and_then(|queue| queue.send(job).ok()).ok_or_else(gone)
    }

    /// Writes what waits, empties the WAL into the database and ends the thread.
    pub(super) fn close(&mut self) -> Result<(), OptimizerError> {
        drop(self.queue.take());
        let Some(thread) = self.thread.take() else { return Ok(()) };
        thread.join().unwrap_or_else(|_| Err(gone()))
    }
}

/// The error of a write whose writer is not there any more.
pub(super) fn gone() -> OptimizerError {
    OptimizerError::new(ErrorCode::Sqlite, "the writer of the workspace has ended")
        .with_hint("Open the workspace again; what was acknowledged is stored.")
}

struct Loop {
    connection: Connection,
    store: Store,
    counted: Arc<AtomicU64>,
    /// The lease of this process; without it nothing is written.
    fence: Option<LeaseId>,
    /// After a failed transaction nobody knows what the file system kept: nothing more is written.
    poison: Option<OptimizerError>,
}

impl Loop {
    fn run(mut self, jobs: &Receiver<Job>) -> Result<(), OptimizerError> {
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
        if self.poison.is_none() {
            self.connection
                .execute_batch("PRAGMA wal_checkpoint(TRUNCATE)")
                .map_err(sqlite("move the WAL into the workspace"))?;
        }
        self.connection.close().map_err(|(_, error)| sqlite("close the workspace")(error))
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
        let transaction = self
            .connection
            .transaction_with_behavior(TransactionBehavior::Immediate)
            .map_err(sqlite("begin a transaction"))?;
        if let Some(lease) = self.fence {
            fence::check(&transaction, lease)?;
        }
        let mut held = self.fence;
        let mut rows: Vec<Result<i64, OptimizerError>> = Vec::with_capacity(group.len());
        for job in group {
            rows.push(match &job.write {
                Write::Records(records) => {
                    let mut row = 0;
                    for record in records {
                        row = self.store.record(&transaction, record)?;
                    }
                    Ok(row)
                }
                Write::Hold(lease) => {
                    // The holder before may have written since the workspace was opened; from here on it cannot.
                    self.store = Store::new(&transaction)?;
                    let row = self.store.record(&transaction, &Record::Lease(lease.clone()))?;
                    held = Some(LeaseId(row));
                    Ok(row)
                }
                Write::Batch(batch) => match self.store.check(batch) {
                    Ok(()) => {
                        self.store.batch(&transaction, batch)?;
                        Ok(0)
                    }
                    Err(refused) => Err(refused),
                },
            });
        }
        self.store.finish(&transaction)?;
        transaction.commit().map_err(sqlite("commit to the workspace"))?;
        self.fence = held;
        let last_sequence = self.store.last_sequence();
        let transaction = self.counted.fetch_add(1, Ordering::Relaxed) + 1;
        let committed = |row| Committed { last_sequence, row, transaction };
        Ok(rows.into_iter().map(|row| row.map(committed)).collect())
    }
}

//! `workspace.sqlite`: the event log of a run, its calls and their answers, and the tables that users query.
//!
//! [`Workspace`] is the one writer of a run's database; [`Reader`] reads it from any process.

mod counts;
pub mod error;
mod health;
mod maintenance;
pub mod models;
mod open;
mod projector;
mod query;
mod reader;
mod records;
pub mod schema;
mod status;
mod store;
mod writer;

use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, sync_channel};
use std::thread::JoinHandle;

use rusqlite::Connection;
use tokio::sync::oneshot;

pub use error::is_ownership_lost;
pub(crate) use error::{is_storage_full, ownership_lost};
pub use maintenance::{Difference, RebuildMode, RebuildReport, VacuumReport, rebuild, vacuum};
pub use open::SCHEMA_VERSION;
pub use reader::{Reader, UnansweredCall};
pub use records::{
    AnsweredCall, ArtifactRef, Batch, CacheAction, CacheUse, Record, RunRow, SentCall, SnapshotKind, StoredEvent,
};
pub(crate) use status::limits;
pub(crate) use status::workspace_report;
pub use status::workspace_status;

use crate::warn_if_err;
use synth_optimizer_core::config::sections::Durability;
use synth_optimizer_core::model::error::OptimizerError;
use writer::{Write, WriteJob, WriteResult, writer_ended_error};

/// The workspace of a run in the process that executes it. It dereferences to `Reader` for reads.
///
/// An acknowledged write is stored. After a failed transaction, every later write fails with the same error.
#[derive(Debug)]
pub struct Workspace {
    /// The queue of the writer thread. `None` once the workspace is closed.
    queue: Option<Sender<WriteJob>>,
    thread: Option<JoinHandle<WriteResult>>,
    transactions: Arc<AtomicU64>,
    reader: Reader,
}

impl Workspace {
    /// Creates the workspace of a new run. Fails if the file exists.
    pub fn create(path: &Path, run: &RunRow, durability: Durability) -> Result<Self, OptimizerError> {
        open::create(path, run)?;
        Self::start(path, open::open_new(path, durability)?)
    }

    /// Opens the workspace of an existing run for writing.
    pub fn open(path: &Path, durability: Durability) -> Result<Self, OptimizerError> {
        Self::start(path, open::open(path, durability)?)
    }

    fn start(path: &Path, connection: Connection) -> Result<Self, OptimizerError> {
        let transactions = Arc::default();
        let (queue, thread) = writer::start(connection, Arc::clone(&transactions))?;
        Ok(Self { queue: Some(queue), thread: Some(thread), transactions, reader: Reader::lazy(path) })
    }

    /// Stores a batch. Batches that are queued at the same time share one transaction.
    pub async fn commit(&self, batch: impl Into<Arc<Batch>>) -> WriteResult {
        self.write(Write::Batch(batch.into())).await
    }

    /// Stores a batch and blocks the thread until it is stored.
    pub fn commit_blocking(&self, batch: impl Into<Arc<Batch>>) -> WriteResult {
        self.write_blocking(Write::Batch(batch.into()))
    }

    /// Stores records beside the log in one transaction and blocks the thread until they are stored.
    pub fn record_all(&self, records: Vec<Record>) -> WriteResult {
        self.write_blocking(Write::Records(records))
    }

    /// Acquires the lease on the run for this process, which `subject` names. Once another process acquires the lease,
    /// every transaction of this process fails and writes nothing. Everything that an earlier holder wrote is visible.
    /// Closing the workspace releases the lease.
    pub fn acquire_lease(&self, subject: String) -> WriteResult {
        self.write_blocking(Write::AcquireLease(subject))
    }

    /// Returns the number of transactions since the workspace was opened.
    pub fn transactions(&self) -> u64 {
        self.transactions.load(Ordering::Relaxed)
    }

    /// Finishes the queued writes and closes the database.
    pub fn close(mut self) -> WriteResult {
        self.end()
    }

    fn end(&mut self) -> WriteResult {
        // The last connection that closes removes the WAL, and only a writer can do that.
        self.reader.close_connection();
        drop(self.queue.take());
        let Some(thread) = self.thread.take() else { return Ok(()) };
        thread.join().unwrap_or_else(|_panic| Err(writer_ended_error()))
    }

    async fn write(&self, write: Write) -> WriteResult {
        let (answer, answered) = oneshot::channel();
        // The caller may have been dropped meanwhile; the write happens anyway.
        self.submit(write, |outcome| drop(answer.send(outcome)))?;
        answered.await.unwrap_or_else(|_closed| Err(writer_ended_error()))
    }

    fn write_blocking(&self, write: Write) -> WriteResult {
        let (answer, answered) = sync_channel(1);
        self.submit(write, move |outcome| drop(answer.send(outcome)))?;
        answered.recv().unwrap_or_else(|_closed| Err(writer_ended_error()))
    }

    fn submit(&self, write: Write, answer: impl FnOnce(WriteResult) + Send + 'static) -> WriteResult {
        let job = WriteJob { write, answer: Box::new(answer) };
        self.queue.as_ref().and_then(|queue| queue.send(job).ok()).ok_or_else(writer_ended_error)
    }
}

impl Deref for Workspace {
    type Target = Reader;

    fn deref(&self) -> &Reader {
        &self.reader
    }
}

impl Drop for Workspace {
    fn drop(&mut self) {
        // Callers that need the error call `close`. Acknowledged writes are stored in any case.
        warn_if_err!(self.end(), "closing the workspace failed");
    }
}

//! `workspace.sqlite`: the log of a run, what was sent and what came, and the tables that people query.

mod census;
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

pub(crate) use error::fenced;
pub use error::is_fenced;
pub use maintenance::{Difference, RebuildMode, RebuildReport, Vacuumed, rebuild, vacuum};
pub use open::SCHEMA_VERSION;
pub use reader::Reader;
pub use records::{Answered, ArtifactRef, Batch, CacheAction, CacheUse, Record, RunRow, Sent, SnapshotKind, Stored};
pub(crate) use status::limits;
pub use status::workspace_status;

use crate::warn_if_err;
use synth_optimizer_core::config::sections::Durability;
use synth_optimizer_core::model::error::OptimizerError;
use writer::{Job, Outcome, Write, gone};

/// The workspace of a run in the process that runs it. Reads go through `Reader`, which it dereferences to.
///
/// What was acknowledged is stored. After one failed transaction every later write fails with the same error.
#[derive(Debug)]
pub struct Workspace {
    /// To the writer; none once it was closed.
    queue: Option<Sender<Job>>,
    thread: Option<JoinHandle<Outcome>>,
    transactions: Arc<AtomicU64>,
    reader: Reader,
}

impl Workspace {
    /// Creates the workspace of a new run; there must be none.
    pub fn create(path: &Path, run: &RunRow, durability: Durability) -> Result<Self, OptimizerError> {
        open::create(path, run)?;
        Self::start(path, open::open_new(path, durability)?)
    }

    /// Opens the workspace of a run that goes on.
    pub fn open(path: &Path, durability: Durability) -> Result<Self, OptimizerError> {
        Self::start(path, open::open(path, durability)?)
    }

    fn start(path: &Path, connection: Connection) -> Result<Self, OptimizerError> {
        let transactions = Arc::default();
        let (queue, thread) = writer::start(connection, Arc::clone(&transactions))?;
        Ok(Self { queue: Some(queue), thread: Some(thread), transactions, reader: Reader::later(path) })
    }

    /// Stores a batch. Batches that wait together share a transaction.
    pub async fn commit(&self, batch: impl Into<Arc<Batch>>) -> Outcome {
        self.write(Write::Batch(batch.into())).await
    }

    /// Stores a batch, from a thread that may wait.
    pub fn commit_blocking(&self, batch: impl Into<Arc<Batch>>) -> Outcome {
        self.write_blocking(Write::Batch(batch.into()))
    }

    /// Stores records beside the log in one transaction, from a thread that may wait.
    pub fn record_all(&self, records: Vec<Record>) -> Outcome {
        self.write_blocking(Write::Records(records))
    }

    /// Takes the run for this process, which `subject` names: from here on every transaction fails, and writes nothing, once
    /// another process has taken it over. What an earlier holder wrote until now is seen. It is let go of when the workspace
    /// is closed.
    pub fn hold(&self, subject: String) -> Outcome {
        self.write_blocking(Write::Hold(subject))
    }

    /// Transactions since the workspace was opened.
    pub fn transactions(&self) -> u64 {
        self.transactions.load(Ordering::Relaxed)
    }

    /// Writes what waits and closes the files.
    pub fn close(mut self) -> Outcome {
        self.end()
    }

    fn end(&mut self) -> Outcome {
        // The last connection to close removes the WAL, and only a writer can.
        self.reader.release();
        drop(self.queue.take());
        let Some(thread) = self.thread.take() else { return Ok(()) };
        thread.join().unwrap_or_else(|_| Err(gone()))
    }

    async fn write(&self, write: Write) -> Outcome {
        let (answer, answered) = oneshot::channel();
        // Nobody may wait any more; the write happens all the same.
        self.submit(write, |outcome| drop(answer.send(outcome)))?;
        answered.await.unwrap_or_else(|_| Err(gone()))
    }

    fn write_blocking(&self, write: Write) -> Outcome {
        let (answer, answered) = sync_channel(1);
        self.submit(write, move |outcome| drop(answer.send(outcome)))?;
        answered.recv().unwrap_or_else(|_| Err(gone()))
    }

    fn submit(&self, write: Write, answer: impl FnOnce(Outcome) + Send + 'static) -> Outcome {
        let job = Job { write, answer: Box::new(answer) };
        self.queue.as_ref().and_then(|queue| queue.send(job).ok()).ok_or_else(gone)
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
        // Whoever wants to know calls `close`; what was acknowledged is stored in any case.
        warn_if_err!(self.end(), "the workspace was not closed");
    }
}

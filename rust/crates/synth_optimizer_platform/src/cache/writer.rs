//! The one thread that writes: rows that come within a moment share a transaction.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;
use rusqlite::{Connection, TransactionBehavior};
use tokio::sync::watch;

use super::database::{self, Record, RowName};
use super::{CacheSettings, Counters};
use crate::artifacts::fault;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};

/// How long a batch waits for more rows, and how many it takes.
const LINGER: Duration = Duration::from_millis(2);
const MOST_ROWS: usize = 1024;
const MOST_BYTES: usize = 32 << 20;

/// Queues rows for the thread that stores them.
#[derive(Debug)]
pub(super) struct Writer {
    rows: Option<Sender<(RowName, Bytes)>>,
    queued: AtomicU64,
    /// How many of the queued rows the thread is done with.
    done: watch::Receiver<u64>,
    thread: Option<JoinHandle<()>>,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    settings: CacheSettings,
    counters: Arc<Counters>,
    /// Rows that are queued and not committed yet.
    pending: Mutex<HashMap<RowName, Bytes>>,
    /// The first failure. Nothing is written after it.
    fault: Mutex<Option<OptimizerError>>,
}

impl Writer {
    pub(super) fn start(settings: &CacheSettings, counters: Arc<Counters>) -> Result<Self, OptimizerError> {
        let connection = database::open_writer(&settings.path)?;
        let (settings, pending, fault) = (settings.clone(), Mutex::default(), Mutex::default());
        let shared = Arc::new(Shared { settings, counters, pending, fault });
        let ((rows, queue), (of_done, done)) = (channel(), watch::channel(0));
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("cache-writer".to_owned())
            .spawn(move || of_thread.work(connection, &queue, &of_done))
            .map_err(|error| OptimizerError::from_cause(ErrorCode::Io, "no thread for the cache", error))?;
        Ok(Self { rows: Some(rows), queued: AtomicU64::new(0), done, thread: Some(thread), shared })
    }

    /// Queues a row. The first of its name wins.
    pub(super) fn put(&self, name: RowName, response: Bytes) -> Result<(), OptimizerError> {
        self.shared.intact()?;
        {
            let mut pending = self.shared.pending.lock();
            if pending.contains_key(&name) {
                return Ok(());
            }
            pending.insert(name.clone(), response.clone());
        }
        self.queued.fetch_add(1, Ordering::Relaxed);
        self.rows.as_ref().and_then(|rows| rows.send((name, response)).ok()).ok_or_else(gone)
    }

    /// A row that is queued and not committed yet.
    pub(super) fn pending(&self, name: &RowName) -> Option<Bytes> {
        self.shared.pending.lock().get(name).cloned()
    }

    /// Waits until everything that was queued before is committed.
    pub(super) async fn flush(&self) -> Result<(), OptimizerError> {
        let queued = self.queued.load(Ordering::Relaxed);
        self.done.clone().wait_for(|done| *done >= queued).await.map_err(|_| gone())?;
        self.shared.intact()
    }
}

impl Drop for Writer {
    /// What is queued is stored first.
    fn drop(&mut self) {
        self.rows = None;
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread that writes the cache broke off");
        }
    }
}

impl Shared {
    fn intact(&self) -> Result<(), OptimizerError> {
        self.fault.lock().clone().map_or(Ok(()), Err)
    }

    fn work(&self, mut connection: Connection, queue: &Receiver<(RowName, Bytes)>, done: &watch::Sender<u64>) {
        while let Ok(first) = queue.recv() {
            let until = Instant::now() + LINGER;
            let (mut bytes, mut rows) = (first.1.len(), vec![first]);
            while rows.len() < MOST_ROWS
                && bytes < MOST_BYTES
                && let Ok(next) = queue.recv_timeout(until.saturating_duration_since(Instant::now()))
            {
                bytes += next.1.len();
                rows.push(next);
            }
            let stored = self.intact().and_then(|()| self.store(&mut connection, &rows));
            if let Err(error) = stored {
                tracing::warn!(%error, "the cache stores nothing more");
                self.fault.lock().get_or_insert(error);
            }
            let mut pending = self.pending.lock();
            rows.iter().for_each(|(name, _)| drop(pending.remove(name)));
            done.send_modify(|done| *done += rows.len() as u64);
        }
    }

    fn store(&self, connection: &mut Connection, rows: &[(RowName, Bytes)]) -> Result<(), OptimizerError> {
        let (path, namespace) = (&self.settings.path, self.settings.namespace.as_str());
        // Compressed before the lock is taken, which other processes wait for.
        let mut sealed = Vec::with_capacity(rows.len());
        for (name, response) in rows {
            let record = Record::seal(namespace, name, response);
            sealed.push((name, record.map_err(fault::io(path, "compressing for"))?));
        }
        let refused = self.admit(connection, &mut sealed);
        if !sealed.is_empty() {
            let written = commit(connection, namespace, &sealed);
            for name in written.map_err(|error| database::sqlite_fault(path, "writing", error))? {
                self.counters.count(name, |of_boundary| of_boundary.writes += 1);
            }
            self.counters.transactions.fetch_add(1, Ordering::Relaxed);
        }
        refused.map_or(Ok(()), Err)
    }

    /// Keeps the rows that the limit has room for, and says what the first of the others ran into.
    fn admit(&self, connection: &Connection, rows: &mut Vec<(&RowName, Record)>) -> Option<OptimizerError> {
        let CacheSettings { path, namespace, max_bytes, .. } = &self.settings;
        let footprint = |(name, record): &(&RowName, Record)| record.footprint(namespace, name);
        let mut size = database::size_on_disk(path);
        if size.saturating_add(rows.iter().map(footprint).sum()) > *max_bytes {
            // The log holds pages twice; without it the size is that of the rows. Others may be reading: then it stays.
            if let Err(error) = database::checkpoint(connection) {
                tracing::debug!(%error, "the log of the cache stays");
            }
            size = database::size_on_disk(path);
        }
        for place in 0..rows.len() {
            let bytes = footprint(&rows[place]);
            if size.saturating_add(bytes) > *max_bytes {
                rows.truncate(place);
                return Some(database::full(path, size, bytes, *max_bytes));
            }
            size += bytes;
        }
        None
    }
}

/// One transaction. Returns the rows that were written: new ones, those of what the container tells about itself, and
/// those that took the place of a damaged one.
fn commit<'a>(
    connection: &mut Connection,
    namespace: &str,
    rows: &[(&'a RowName, Record)],
) -> rusqlite::Result<Vec<&'a RowName>> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let mut written = Vec::with_capacity(rows.len());
    for (name, record) in rows {
        let is_damaged = |known: Record| known.open(namespace, name).is_none();
        if database::write(&transaction, namespace, name, record, name.latest_wins())?
            || (database::select(&transaction, namespace, name)?.is_some_and(is_damaged)
                && database::write(&transaction, namespace, name, record, true)?)
        {
            written.push(*name);
        }
    }
    transaction.commit()?;
    Ok(written)
}

fn gone() -> OptimizerError {
    OptimizerError::new(ErrorCode::Invariant, "the thread that writes the cache has ended")
}

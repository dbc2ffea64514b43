//! The writer thread of the cache. Entries that arrive within a short window share a transaction.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rusqlite::{Connection, TransactionBehavior};
use tokio::sync::watch;

use super::database::{self, EntryKey, StoredEntry};
use super::{CacheSettings, Counters};
use crate::file_error;
use crate::logs::in_current_span;
use crate::reply::Reply;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};

/// How long a batch waits for more entries, and how many entries and bytes it may have.
const BATCH_WINDOW: Duration = Duration::from_millis(2);
const MAX_BATCH_ROWS: usize = 1024;
const MAX_BATCH_BYTES: usize = 32 << 20;

/// How often entries are written again while the disk is full, and how many bytes of entries wait for that in memory.
const FULL_DISK_RETRY_INTERVAL: Duration = Duration::from_secs(1);
const MAX_WAITING_BYTES: u64 = 64 << 20;

/// Queues entries for the writer thread.
#[derive(Debug)]
pub(super) struct Writer {
    rows: Option<Sender<(EntryKey, Reply)>>,
    queued: AtomicU64,
    /// Number of queued entries that the thread has processed.
    done: watch::Receiver<u64>,
    thread: Option<JoinHandle<()>>,
    shared: Arc<WriterShared>,
}

#[derive(Debug)]
struct WriterShared {
    settings: CacheSettings,
    counters: Arc<Counters>,
    /// Entries that are queued and not committed yet.
    pending: Mutex<HashMap<EntryKey, Reply>>,
    /// Keys whose stored entries are replaced, because they cannot be used.
    replaced: Mutex<HashSet<EntryKey>>,
    /// Bytes of the pending entries.
    pending_bytes: AtomicU64,
    /// Whether entries wait for room on a full disk.
    is_waiting: AtomicBool,
    /// Whether the run has ended, so that the writer no longer waits for room on a full disk.
    is_closing: Mutex<bool>,
    closing: Condvar,
    /// The first failure. The writer stores nothing after it.
    fault: Mutex<Option<OptimizerError>>,
}

impl Writer {
    pub(super) fn start(settings: &CacheSettings, counters: Arc<Counters>) -> Result<Self, OptimizerError> {
        let connection = database::open_writer(&settings.path)?;
        let shared = Arc::new(WriterShared {
            settings: settings.clone(),
            counters,
            pending: Mutex::default(),
            replaced: Mutex::default(),
            pending_bytes: AtomicU64::new(0),
            is_waiting: AtomicBool::new(false),
            is_closing: Mutex::new(false),
            closing: Condvar::new(),
            fault: Mutex::default(),
        });
        let ((rows, queue), (of_done, done)) = (channel(), watch::channel(0));
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("cache-writer".to_owned())
            .spawn(in_current_span(move || of_thread.run(connection, &queue, &of_done)))
            .map_err(|error| OptimizerError::from_cause(ErrorCode::Io, "cannot start the cache thread", error))?;
        Ok(Self { rows: Some(rows), queued: AtomicU64::new(0), done, thread: Some(thread), shared })
    }

    /// Queues an entry. Ignores it if an entry with the same key is already queued. Fails if too many entries wait for room
    /// on a full disk.
    pub(super) fn put(&self, name: EntryKey, response: Reply) -> Result<(), OptimizerError> {
        self.shared.check_fault()?;
        let length = response.len() as u64;
        {
            let mut pending = self.shared.pending.lock();
            if pending.contains_key(&name) {
                return Ok(());
            }
            let is_waiting = self.shared.is_waiting.load(Ordering::Relaxed);
            if is_waiting && self.shared.pending_bytes.load(Ordering::Relaxed) > MAX_WAITING_BYTES {
                let path = &self.shared.settings.path;
                let message = format!("more than 64 MB of answers wait for room on the disk of {path}");
                return Err(OptimizerError::new(ErrorCode::StorageFull, message));
            }
            pending.insert(name.clone(), response.clone());
            self.shared.pending_bytes.fetch_add(length, Ordering::Relaxed);
        }
        self.queued.fetch_add(1, Ordering::Relaxed);
        self.rows.as_ref().and_then(|rows| rows.send((name, response)).ok()).ok_or_else(writer_ended)
    }

    /// Makes the next entry with this key replace the stored one.
    pub(super) fn replace_later(&self, name: EntryKey) {
        self.shared.replaced.lock().insert(name);
    }

    /// Returns an entry that is queued and not committed yet.
    pub(super) fn pending(&self, name: &EntryKey) -> Option<Reply> {
        self.shared.pending.lock().get(name).cloned()
    }

    /// Waits until every entry that was queued before is committed. From here on, a full disk is an error.
    pub(super) async fn flush(&self) -> Result<(), OptimizerError> {
        self.shared.close();
        let queued = self.queued.load(Ordering::Relaxed);
        self.done.clone().wait_for(|done| *done >= queued).await.map_err(|_closed| writer_ended())?;
        self.shared.check_fault()
    }
}

impl Drop for Writer {
    /// Stores all queued entries first.
    fn drop(&mut self) {
        self.shared.close();
        self.rows = None;
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the writer thread of the cache panicked");
        }
    }
}

impl WriterShared {
    fn check_fault(&self) -> Result<(), OptimizerError> {
        self.fault.lock().clone().map_or(Ok(()), Err)
    }

    fn run(&self, mut connection: Connection, queue: &Receiver<(EntryKey, Reply)>, done: &watch::Sender<u64>) {
        while let Ok(first) = queue.recv() {
            let until = Instant::now() + BATCH_WINDOW;
            let (mut bytes, mut rows) = (first.1.len(), vec![first]);
            while rows.len() < MAX_BATCH_ROWS
                && bytes < MAX_BATCH_BYTES
                && let Ok(next) = queue.recv_timeout(until.saturating_duration_since(Instant::now()))
            {
                bytes += next.1.len();
                rows.push(next);
            }
            let stored = self.check_fault().and_then(|()| self.store_when_possible(&mut connection, &rows));
            if let Err(error) = stored {
                tracing::warn!(%error, "the cache stores no further answers");
                self.fault.lock().get_or_insert(error);
            }
            let mut pending = self.pending.lock();
            rows.iter().for_each(|(name, _)| drop(pending.remove(name)));
            self.pending_bytes.fetch_sub(bytes as u64, Ordering::Relaxed);
            done.send_modify(|done| *done += rows.len() as u64);
        }
    }

    /// Ends the waiting for room on a full disk.
    fn close(&self) {
        *self.is_closing.lock() = true;
        self.closing.notify_all();
    }

    /// Stores entries. Tries again while the disk is full, until the run closes the cache.
    fn store_when_possible(
        &self,
        connection: &mut Connection,
        rows: &[(EntryKey, Reply)],
    ) -> Result<(), OptimizerError> {
        loop {
            match self.store(connection, rows) {
                Err(error) if error.code == ErrorCode::StorageFull => {
                    tracing::warn!(%error, "the cache waits for room on the disk");
                    self.is_waiting.store(true, Ordering::Relaxed);
                    let mut is_closing = self.is_closing.lock();
                    if *is_closing {
                        return Err(error);
                    }
                    self.closing.wait_for(&mut is_closing, FULL_DISK_RETRY_INTERVAL);
                }
                stored => {
                    self.is_waiting.store(false, Ordering::Relaxed);
                    return stored;
                }
            }
        }
    }

    fn store(&self, connection: &mut Connection, rows: &[(EntryKey, Reply)]) -> Result<(), OptimizerError> {
        let (path, namespace) = (&self.settings.path, self.settings.namespace.as_str());
        // Compress before taking the write lock, for which other processes wait.
        let mut sealed = Vec::with_capacity(rows.len());
        for (name, response) in rows {
            let record = StoredEntry::new(namespace, name, response);
            sealed.push((name, record.map_err(file_error::io(path, "compressing for"))?));
        }
        let refused = self.admit(connection, &mut sealed);
        if !sealed.is_empty() {
            let written = commit(connection, namespace, &sealed, |name| self.replaced.lock().contains(name));
            for name in written.map_err(|error| database::sqlite_error(path, "writing", error))? {
                self.replaced.lock().remove(name);
                self.counters.count(name, |of_boundary| of_boundary.writes += 1);
            }
            self.counters.transactions.fetch_add(1, Ordering::Relaxed);
        }
        refused.map_or(Ok(()), Err)
    }

    /// Keeps the entries that fit below the size limit. Returns the error of the first entry that does not fit.
    fn admit(&self, connection: &Connection, rows: &mut Vec<(&EntryKey, StoredEntry<'_>)>) -> Option<OptimizerError> {
        let CacheSettings { path, namespace, max_bytes, .. } = &self.settings;
        let footprint = |(name, record): &(&EntryKey, StoredEntry<'_>)| record.footprint(namespace, name);
        let mut size = database::size_on_disk(path);
        if size.saturating_add(rows.iter().map(footprint).sum()) > *max_bytes {
            // The write-ahead log holds pages twice, so a checkpoint gives the true size. It fails if others are
            // reading.
            if let Err(error) = database::checkpoint(connection) {
                tracing::debug!(%error, "the WAL of the cache was not checkpointed");
            }
            size = database::size_on_disk(path);
        }
        for place in 0..rows.len() {
            let bytes = footprint(&rows[place]);
            if size.saturating_add(bytes) > *max_bytes {
                rows.truncate(place);
                return Some(database::full_error(path, size, bytes, *max_bytes));
            }
            size += bytes;
        }
        None
    }
}

/// Writes entries in one transaction. Returns the keys that were written: new entries, replaceable ones, replacements of
/// damaged ones, and those for which `is_replaced` is true.
fn commit<'a>(
    connection: &mut Connection,
    namespace: &str,
    rows: &[(&'a EntryKey, StoredEntry<'_>)],
    is_replaced: impl Fn(&EntryKey) -> bool,
) -> rusqlite::Result<Vec<&'a EntryKey>> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let mut written = Vec::with_capacity(rows.len());
    for (name, record) in rows {
        let is_damaged = |known: StoredEntry<'_>| known.open(namespace, name).is_none();
        if database::write(&transaction, namespace, name, record, name.replaces_older() || is_replaced(name))?
            || (database::select(&transaction, namespace, name)?.is_some_and(is_damaged)
                && database::write(&transaction, namespace, name, record, true)?)
        {
            written.push(*name);
        }
    }
    transaction.commit()?;
    Ok(written)
}

fn writer_ended() -> OptimizerError {
    OptimizerError::new(ErrorCode::Invariant, "the writer thread of the cache has ended")
}

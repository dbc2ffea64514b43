//! `service.sqlite`: the durable queue of run requests.
//!
//! Every change is one `BEGIN IMMEDIATE` transaction. It moves the request along the lifecycle table and adds a row to its
//! history. When a call returns, the change is on disk. A worker holds a request by a lease with a fencing token; the queue
//! rejects every write that carries an older token. Leases are measured with the boot clock, so changes of the wall clock do
//! not affect them.

mod claim;
mod entry;
mod error;
mod lease;
mod lock;
mod open;
mod read;
mod submit;
mod transitions;

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use rusqlite::{Connection, TransactionBehavior};

pub(crate) use claim::container_lane;
pub use claim::{Claim, ClaimFilter};
pub use entry::{RequestEntry, Waiting, WaitingReason};
pub use error::QueueError;
pub use lease::{ActiveRequest, Completion, ControlOutcome, LeaseProof};
pub use lock::{LeaseHolder, ServiceLock};
pub use open::{APPLICATION_ID, SCHEMA_VERSION};
pub use read::{HistoryEntry, LeaseEntry, Liveness, RequestPage, workspace_status};
pub use submit::{Submission, SubmitOutcome};

use error::sql;
use open::ConnectionPool;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
pub use synth_optimizer_platform::clock::{Clock, Moment, SystemClock};
pub use synth_optimizer_platform::runtime::Acknowledgement;
use synth_optimizer_platform::runtime::Monitor;
use synth_optimizer_platform::workspace::error::io;
use synth_optimizer_platform::workspace::schema::BUSY_TIMEOUT;

/// Number of connections that read concurrently.
const READER_COUNT: usize = 4;

/// The queue, as one process has it open.
#[derive(Debug)]
pub struct Queue {
    pub path: PathBuf,
    clock: Arc<dyn Clock>,
    /// The only connection that writes.
    writer: ConnectionPool,
    /// Connections that read. Reads do not wait for writes.
    readers: ConnectionPool,
    /// Device and inode of the opened file, to notice when the file is replaced.
    inode: (u64, u64),
    /// Grows with every change that this process makes or notices. Threads and tasks wait for it.
    pub changes: Monitor<u64>,
    /// SQLite's `data_version`, which changes when another connection writes.
    data_version: AtomicI64,
}

/// One transaction on the queue, with its time.
struct Tx<'a> {
    db: &'a Connection,
    now: Moment,
}

impl Queue {
    /// Opens the queue and creates the file if it does not exist.
    pub fn open(path: &Path) -> Result<Self, QueueError> {
        Self::open_with(path, Arc::new(SystemClock), BUSY_TIMEOUT)
    }

    /// Opens the queue with another clock, and with another time to wait for other writers before it fails with `database_busy`.
    pub fn open_with(path: &Path, clock: Arc<dyn Clock>, busy_timeout: Duration) -> Result<Self, QueueError> {
        let writer = open::open(path, busy_timeout)?;
        let readers = (0..READER_COUNT).map(|_| open::open_read_only(path, busy_timeout));
        let readers = readers.collect::<Result<Vec<_>, _>>()?;
        Self::of_connections(path, clock, busy_timeout, vec![writer], readers)
    }

    /// Opens an existing queue without changing its file. Every write fails.
    pub fn open_to_read(path: &Path) -> Result<Self, QueueError> {
        let connections = |count: usize| -> Result<Vec<Connection>, QueueError> {
            (0..count).map(|_| open::open_read_only(path, BUSY_TIMEOUT)).collect()
        };
        Self::of_connections(path, Arc::new(SystemClock), BUSY_TIMEOUT, connections(1)?, connections(READER_COUNT)?)
    }

    fn of_connections(
        path: &Path,
        clock: Arc<dyn Clock>,
        busy_timeout: Duration,
        writer: Vec<Connection>,
        readers: Vec<Connection>,
    ) -> Result<Self, QueueError> {
        Ok(Self {
            path: path.to_owned(),
            clock,
            writer: ConnectionPool::new(writer, busy_timeout),
            readers: ConnectionPool::new(readers, busy_timeout),
            inode: inode(path).map_err(io("open", path))?,
            changes: Monitor::default(),
            data_version: AtomicI64::new(0),
        })
    }

    /// Runs `act` in a write transaction: all of its changes are stored, or none.
    fn write<T>(&self, act: impl FnOnce(&Tx<'_>) -> Result<T, QueueError>) -> Result<T, QueueError> {
        let (done, has_changed) = self.writer.with(|db| {
            let transaction =
                db.transaction_with_behavior(TransactionBehavior::Immediate).map_err(sql("begin a transaction"))?;
            let before = transaction.total_changes();
            // Reading the clock within the transaction keeps the times in transaction order.
            let done = act(&Tx { db: &transaction, now: self.clock.now() })?;
            let has_changed = transaction.total_changes() != before;
            transaction.commit().map_err(sql("commit"))?;
            Ok((done, has_changed))
        })?;
        self.check_file()?;
        if has_changed {
            self.wake();
        }
        Ok(done)
    }

    /// Runs `look` in a read transaction: it sees one consistent state.
    fn read<T>(&self, look: impl FnOnce(&Tx<'_>) -> Result<T, QueueError>) -> Result<T, QueueError> {
        self.check_file()?;
        self.readers.with(|db| {
            let transaction = db.transaction().map_err(sql("begin to read"))?;
            look(&Tx { db: &transaction, now: self.clock.now() })
        })
    }

    /// Wakes every thread and task that waits for a change of the queue.
    pub fn wake(&self) {
        self.changes.update(|changes| *changes += 1);
    }

    /// Checks whether another process has written since the last check, and wakes the waiters if so.
    pub fn poll_external_changes(&self) -> Result<(), QueueError> {
        self.check_file()?;
        let look = |db: &mut Connection| db.query_row("PRAGMA data_version", [], |row| row.get(0));
        let version = self.writer.with(|db| look(db).map_err(sql("look for changes")))?;
        if self.data_version.swap(version, Ordering::Relaxed) != version {
            self.wake();
        }
        Ok(())
    }

    /// Moves the write-ahead log into the database file, so that the file can be copied alone.
    pub fn checkpoint(&self) -> Result<(), QueueError> {
        let text = "PRAGMA wal_checkpoint(TRUNCATE)";
        self.writer.with(|db| db.query_row(text, [], |_| Ok(())).map_err(sql("bring the file to rest")))
    }

    /// Fails when the file was removed or replaced, because later writes would be lost.
    fn check_file(&self) -> Result<(), QueueError> {
        let path = &self.path;
        if inode(path).is_ok_and(|found| found == self.inode) {
            return Ok(());
        }
        let message = format!("the queue {} was removed or replaced while it was in use", path.display());
        let hint = "Put the file back and restart the service. Rows stored since its removal are lost.";
        Err(QueueError::transient(OptimizerError::new(ErrorCode::Sqlite, message).with_hint(hint)))
    }
}

fn inode(path: &Path) -> std::io::Result<(u64, u64)> {
    std::fs::metadata(path).map(|found| (found.dev(), found.ino()))
}

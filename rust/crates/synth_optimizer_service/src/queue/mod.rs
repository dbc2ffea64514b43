//! `service.sqlite`: the durable queue of requests to run something.
//!
//! Every change is one `BEGIN IMMEDIATE` transaction that moves the request along the lifecycle table and adds to its
//! history; when a call returns, it is on the disk. Whoever works on a request holds a lease with a fencing token, and
//! every write of a holder is refused once the token is old. Leases end by the boot clock, never by the clock on the wall.

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
pub use claim::{Claim, Which};
pub use entry::{RequestEntry, Waiting, WaitingReason};
pub use error::QueueError;
pub use lease::{Ack, Completion, HeldRequest, Hold};
pub use lock::{Holder, ServiceLock};
pub use open::{APPLICATION_ID, SCHEMA_VERSION, random as random_id};
pub use read::{HistoryEntry, LeaseEntry, Liveness, Page, workspace_status};
pub use submit::{Submission, Submitted};

use error::sql;
use open::Pool;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
pub use synth_optimizer_platform::clock::{Clock, Moment, SystemClock};
pub use synth_optimizer_platform::runtime::Acknowledgement;
use synth_optimizer_platform::runtime::Monitor;
use synth_optimizer_platform::workspace::error::io;
use synth_optimizer_platform::workspace::schema::BUSY;

/// How long a pause lasts when nothing else is said. Then the request is cancelled.
pub const DEFAULT_PAUSE: Duration = Duration::from_secs(1800);

/// Connections that read at once.
const READERS: usize = 4;

/// The queue in one process.
#[derive(Debug)]
pub struct Queue {
    pub path: PathBuf,
    clock: Arc<dyn Clock>,
    /// One connection writes.
    writer: Pool,
    /// Reads do not wait for writes.
    readers: Pool,
    /// Which file was opened: another one under the same name is not the queue.
    inode: (u64, u64),
    /// Grows with every change that this process makes or notices; threads and tasks wait for that.
    pub changes: Monitor<u64>,
    /// SQLite's count of what other connections have written.
    data_version: AtomicI64,
}

/// The queue within one transaction, at one moment.
struct Tx<'a> {
    db: &'a Connection,
    now: Moment,
}

impl Queue {
    /// Opens the queue, and makes it if there is none.
    pub fn open(path: &Path) -> Result<Self, QueueError> {
        Self::open_with(path, Arc::new(SystemClock), BUSY)
    }

    /// The same with another clock, or with another patience for processes that write before it is `store_busy`.
    pub fn open_with(path: &Path, clock: Arc<dyn Clock>, busy_timeout: Duration) -> Result<Self, QueueError> {
        let writer = open::open(path, busy_timeout)?;
        let readers = (0..READERS).map(|_| open::open_to_read(path, busy_timeout));
        Ok(Self {
            path: path.to_owned(),
            clock,
            writer: Pool::new(vec![writer], busy_timeout),
            readers: Pool::new(readers.collect::<Result<_, _>>()?, busy_timeout),
            inode: inode(path).map_err(io("open", path))?,
            changes: Monitor::default(),
            data_version: AtomicI64::new(0),
        })
    }

    /// Changes something, whole or not at all.
    fn write<T>(&self, act: impl FnOnce(&Tx<'_>) -> Result<T, QueueError>) -> Result<T, QueueError> {
        let (done, has_changed) = self.writer.with(|db| {
            let transaction =
                db.transaction_with_behavior(TransactionBehavior::Immediate).map_err(sql("begin a transaction"))?;
            let before = transaction.total_changes();
            // Read within the transaction: no later one can have an earlier moment.
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

    /// Looks at one moment of the queue.
    fn read<T>(&self, look: impl FnOnce(&Tx<'_>) -> Result<T, QueueError>) -> Result<T, QueueError> {
        self.check_file()?;
        self.readers.with(|db| {
            let transaction = db.transaction().map_err(sql("begin to read"))?;
            look(&Tx { db: &transaction, now: self.clock.now() })
        })
    }

    /// Wakes everything that waits for a change of the queue.
    pub fn wake(&self) {
        self.changes.update(|changes| *changes += 1);
    }

    /// Notices what other processes have written since the last look.
    pub fn notice_others(&self) -> Result<(), QueueError> {
        self.check_file()?;
        let look = |db: &mut Connection| db.query_row("PRAGMA data_version", [], |row| row.get(0));
        let version = self.writer.with(|db| look(db).map_err(sql("look for changes")))?;
        if self.data_version.swap(version, Ordering::Relaxed) != version {
            self.wake();
        }
        Ok(())
    }

    /// Brings everything into the file itself, so that it can be copied.
    pub fn checkpoint(&self) -> Result<(), QueueError> {
        let text = "PRAGMA wal_checkpoint(TRUNCATE)";
        self.writer.with(|db| db.query_row(text, [], |_| Ok(())).map_err(sql("bring the file to rest")))
    }

    /// Fails when the file was removed or replaced: what is written to it then is found by nobody.
    fn check_file(&self) -> Result<(), QueueError> {
        let path = &self.path;
        if inode(path).is_ok_and(|found| found == self.inode) {
            return Ok(());
        }
        let message = format!("the queue {} was removed or replaced while it was in use", path.display());
        let hint = "What was stored since is lost. Put the file back if you can, and start the service again.";
        Err(QueueError::unwell(OptimizerError::new(ErrorCode::Sqlite, message).with_hint(hint)))
    }
}

fn inode(path: &Path) -> std::io::Result<(u64, u64)> {
    std::fs::metadata(path).map(|found| (found.dev(), found.ino()))
}

//! `service.sqlite`: the durable queue of requests to run something.
//!
//! Every change is one `BEGIN IMMEDIATE` transaction that moves the request along the lifecycle table and adds to its
//! history; when a call returns, it is on the disk. Whoever works on a request holds a lease with a fencing token, and
//! every write of a holder is refused once the token is old. Leases end by the boot clock, never by the clock on the wall.

mod claim;
mod door;
mod entry;
mod error;
mod holder;
mod lane;
mod lend;
mod lock;
mod moves;
mod open;
mod outcome;
mod read;
mod recover;
mod status;
mod submit;
mod tidy;
mod tie;
mod waiting;
mod wish;

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rusqlite::{Connection, TransactionBehavior};

pub use claim::{Claim, Which};
pub use entry::RequestEntry;
pub use error::{QueueCode, QueueError};
pub use holder::{Holder, ServiceIdentity};
pub(crate) use lane::container_lane;
pub use lock::ServiceLock;
pub use open::{APPLICATION_ID, SCHEMA_VERSION, random as random_id};
pub use outcome::{Beat, Completion, Heard, Hold};
pub use read::{HistoryEntry, LeaseEntry, Liveness, Page};
pub use recover::Evidence;
pub use status::status;
pub use submit::{Submission, Submitted};
pub use waiting::{Waiting, WaitingReason};
pub use wish::{Ack, Wish, WishKind};

pub use crate::clock::{Clock, Moment, SystemClock};
use crate::model::error::{ErrorCode, OptimizerError};
pub use crate::runtime::Acknowledgement;
use crate::workspace::error::io;
use crate::workspace::schema::BUSY;
use error::{sql, unwell};
use lend::Lender;

/// How long a pause lasts when nothing else is said. Then the request is cancelled.
pub const DEFAULT_PAUSE: Duration = Duration::from_secs(1800);

/// Connections that read at once.
const READERS: usize = 4;

/// The queue in one process. Clones share its connections.
#[derive(Debug, Clone)]
pub struct Queue {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    path: PathBuf,
    clock: Arc<dyn Clock>,
    /// One connection writes.
    writer: Lender,
    /// Reads do not wait for writes.
    readers: Lender,
    /// Which file was opened: another one under the same name is not the queue.
    inode: (u64, u64),
}

/// What is the same for all of a queue's life.
#[derive(Debug, Clone)]
pub struct QueueSettings {
    pub clock: Arc<dyn Clock>,
    /// How long to wait for another process that writes, before `store_busy`.
    pub busy_timeout: Duration,
}

impl Default for QueueSettings {
    fn default() -> Self {
        Self { clock: Arc::new(SystemClock), busy_timeout: BUSY }
    }
}

impl Queue {
    /// Opens the queue, and makes it if there is none.
    pub fn open(path: &Path) -> Result<Self, QueueError> {
        Self::open_with(path, QueueSettings::default())
    }

    /// The same with another clock or another patience.
    pub fn open_with(path: &Path, settings: QueueSettings) -> Result<Self, QueueError> {
        let writer = open::open(path, settings.busy_timeout)?;
        let readers = (0..READERS).map(|_| open::open_to_read(path, settings.busy_timeout));
        let readers = readers.collect::<Result<_, _>>()?;
        let inner = Inner {
            path: path.to_owned(),
            clock: settings.clock,
            writer: Lender::new(vec![writer], settings.busy_timeout),
            readers: Lender::new(readers, settings.busy_timeout),
            inode: inode(path).map_err(io("open", path))?,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// Changes something, whole or not at all.
    fn write<T>(&self, act: impl FnOnce(&Connection, &Moment) -> Result<T, QueueError>) -> Result<T, QueueError> {
        let mut db = self.inner.writer.lend()?;
        let transaction =
            db.transaction_with_behavior(TransactionBehavior::Immediate).map_err(sql("begin a transaction"))?;
        // Read within the transaction: no later one can have an earlier moment.
        let now = self.inner.clock.now();
        let done = act(&transaction, &now)?;
        transaction.commit().map_err(sql("commit"))?;
        self.check_file()?;
        Ok(done)
    }

    /// Looks at one moment of the queue.
    fn read<T>(&self, look: impl FnOnce(&Connection, &Moment) -> Result<T, QueueError>) -> Result<T, QueueError> {
        self.check_file()?;
        let mut db = self.inner.readers.lend()?;
        let moment = db.transaction().map_err(sql("begin to read"))?;
        look(&moment, &self.inner.clock.now())
    }

    /// Fails when the file was removed or replaced: what is written to it then is found by nobody.
    fn check_file(&self) -> Result<(), QueueError> {
        let path = &self.inner.path;
        if inode(path).is_ok_and(|found| found == self.inner.inode) {
            return Ok(());
        }
        let message = format!("the queue {} was removed or replaced while it was in use", path.display());
        let hint = "What was stored since is lost. Put the file back if you can, and start the service again.";
        Err(unwell(OptimizerError::new(ErrorCode::Sqlite, message).with_hint(hint)))
    }
}

fn inode(path: &Path) -> std::io::Result<(u64, u64)> {
    std::fs::metadata(path).map(|found| (found.dev(), found.ino()))
}

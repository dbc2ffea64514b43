//! Creates and opens `service.sqlite`: permissions, schema version, journal and durability. Also its connection pool.

use std::fs::{DirBuilder, File};
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rusqlite::Connection;
use rusqlite_migration::{M, Migrations};

use super::error::{QueueError, sql};
use crate::ServiceErrorCode;
use synth_optimizer_core::model::error::OptimizerError;
use synth_optimizer_platform::clock::random_hex;
use synth_optimizer_platform::workspace::error::{io, sqlite};
use synth_optimizer_platform::workspace::schema::Schema;

/// SQLite application id of a queue file.
pub const APPLICATION_ID: i64 = 1_398_361_713;

const STEPS: &[M<'_>] = &[M::up(include_str!("../../migrations/0001_queue.sql"))];
static MIGRATIONS: Migrations<'_> = Migrations::from_slice(STEPS);

/// The newest schema version that this release supports.
pub const SCHEMA_VERSION: usize = STEPS.len();

static SCHEMA: Schema = Schema {
    application_id: APPLICATION_ID,
    migrations: &MIGRATIONS,
    version: SCHEMA_VERSION,
    noun: "queue",
    whole_noun: "the queue of a service",
    hint: "Name the database of a service, or a file that does not exist yet.",
};

/// Opens the queue for writing and creates the file if it does not exist.
pub(super) fn open(path: &Path, busy: Duration) -> Result<Connection, QueueError> {
    if !path.exists() {
        create(path)?;
    }
    let mut connection = connect(path, busy)?;
    SCHEMA.migrate(&mut connection, path)?;
    // On macOS, only `fullfsync` empties the cache of the drive. Elsewhere it changes nothing.
    connection
        .execute_batch(
            "PRAGMA journal_mode = WAL;
             PRAGMA synchronous = FULL;
             PRAGMA fullfsync = ON;
             PRAGMA foreign_keys = ON;
             PRAGMA temp_store = MEMORY;
             PRAGMA journal_size_limit = 33554432;",
        )
        .map_err(sql("open the file"))?;
    Ok(connection)
}

/// Opens an existing queue with a read-only connection.
pub(super) fn open_read_only(path: &Path, busy: Duration) -> Result<Connection, QueueError> {
    Ok(SCHEMA.connect_to_read(path, busy)?)
}

/// Creates the directory of a database, accessible to its owner only.
pub(super) fn create_directory(path: &Path) -> Result<(), OptimizerError> {
    let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) else { return Ok(()) };
    DirBuilder::new().recursive(true).mode(0o700).create(parent).map_err(io("make", parent))
}

fn connect(path: &Path, busy: Duration) -> Result<Connection, QueueError> {
    let connection = SCHEMA.connect(path, busy)?;
    SCHEMA.check(&connection, path)?;
    Ok(connection)
}

/// Creates the file atomically. If several processes create it at the same time, one of them wins.
fn create(path: &Path) -> Result<(), OptimizerError> {
    create_directory(path)?;
    let unfinished = path.with_added_extension(format!("{}.tmp", random_hex::<16>()?));
    let made = SCHEMA.build(&unfinished, |connection| {
        // The journal mode is stored in the file, so that no process has to switch it while others have the file open.
        connection.execute_batch("PRAGMA journal_mode = WAL").map_err(sqlite("create the queue"))
    });
    let linked = made.and_then(|()| match std::fs::hard_link(&unfinished, path) {
        // The file system does not support hard links.
        Err(error) if error.kind() != ErrorKind::AlreadyExists && !path.exists() => {
            std::fs::rename(&unfinished, path).map_err(io("create", path))
        }
        // Another process may have created the file first.
        Ok(()) | Err(_) => Ok(()),
    });
    // A leftover temporary file does no harm: every process uses a new random name.
    let _ = std::fs::remove_file(&unfinished);
    linked?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(parent).and_then(|directory| directory.sync_all()).map_err(io("create", path))
}

/// A pool of connections to one file. A caller waits for a free connection at most as long as for another process that
/// writes.
#[derive(Debug)]
pub(super) struct ConnectionPool {
    idle: Mutex<Vec<Connection>>,
    returned: Condvar,
    timeout: Duration,
}

impl ConnectionPool {
    pub(super) fn new(connections: Vec<Connection>, timeout: Duration) -> Self {
        Self { idle: Mutex::new(connections), returned: Condvar::new(), timeout }
    }

    /// Runs `act` with a connection, as soon as one is free.
    pub(super) fn with<T>(&self, act: impl FnOnce(&mut Connection) -> Result<T, QueueError>) -> Result<T, QueueError> {
        let mut idle = self.idle.lock();
        self.returned.wait_while_for(&mut idle, |idle| idle.is_empty(), self.timeout);
        let Some(mut connection) = idle.pop() else {
            let message = format!("other threads have used the queue for more than {} s", self.timeout.as_secs_f64());
            let hint = "Retry: a write to the queue takes unusually long.";
            return Err(QueueError::new(ServiceErrorCode::DatabaseBusy, message, hint));
        };
        drop(idle);
        // A panic rolls its transaction back, so the connection can be used again.
        let done = catch_unwind(AssertUnwindSafe(|| act(&mut connection)));
        self.idle.lock().push(connection);
        self.returned.notify_one();
        done.unwrap_or_else(|panic| resume_unwind(panic))
    }
}

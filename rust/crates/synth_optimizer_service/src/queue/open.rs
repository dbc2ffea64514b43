//! Makes and opens `service.sqlite`: permissions, schema version, journal and durability; and lends its connections.

use std::fs::{DirBuilder, File};
use std::os::unix::fs::DirBuilderExt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rusqlite::Connection;
use rusqlite_migration::{M, Migrations};

use super::error::{QueueError, sql};
use crate::Code;
use synth_optimizer_core::model::canonical::hex;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_platform::workspace::error::{io, sqlite};
use synth_optimizer_platform::workspace::schema::Schema;

/// Tells the file of a queue from any other database.
pub const APPLICATION_ID: i64 = 1_398_361_969;

const STEPS: &[M<'_>] = &[M::up(include_str!("../../migrations/0001_queue.sql"))];
static MIGRATIONS: Migrations<'_> = Migrations::from_slice(STEPS);

/// The newest schema that this release knows.
pub const SCHEMA_VERSION: usize = STEPS.len();

static SCHEMA: Schema = Schema {
    application_id: APPLICATION_ID,
    migrations: &MIGRATIONS,
    version: SCHEMA_VERSION,
    noun: "queue",
    whole_noun: "the queue of a service",
    hint: "Name the database of a service, or a file that does not exist yet.",
};

/// Opens the queue to write, and makes it if there is none.
pub(super) fn open(path: &Path, busy: Duration) -> Result<Connection, QueueError> {
    if !path.exists() {
        create(path)?;
    }
    let mut connection = connect(path, busy)?;
    SCHEMA.migrate(&mut connection, path)?;
    connection
        .execute_batch(
            "PRAGMA journal_mode = WAL;
             PRAGMA synchronous = FULL;
             PRAGMA foreign_keys = ON;
             PRAGMA temp_store = MEMORY;
             PRAGMA journal_size_limit = 33554432;",
        )
        .map_err(sql("open the file"))?;
    Ok(connection)
}

/// Opens an existing queue to read; nothing that is done with the connection can write.
pub(super) fn open_to_read(path: &Path, busy: Duration) -> Result<Connection, QueueError> {
    let connection = connect(path, busy)?;
    connection.pragma_update(None, "query_only", true).map_err(sql("open the file"))?;
    Ok(connection)
}

/// Makes the directory of a database, for its owner alone.
pub(super) fn make_directory(path: &Path) -> Result<(), OptimizerError> {
    let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) else { return Ok(()) };
    DirBuilder::new().recursive(true).mode(0o700).create(parent).map_err(io("make", parent))
}

/// Random digits.
pub fn random() -> Result<String, OptimizerError> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)
        .map_err(|error| OptimizerError::from_cause(ErrorCode::Io, "the system gives no random numbers", error))?;
    Ok(hex(&bytes))
}

fn connect(path: &Path, busy: Duration) -> Result<Connection, QueueError> {
    let connection = SCHEMA.connect(path, busy)?;
    SCHEMA.check(&connection, path)?;
    Ok(connection)
}

/// The file appears under its name whole, or not at all. Of several processes that make it, one wins.
fn create(path: &Path) -> Result<(), OptimizerError> {
    make_directory(path)?;
    let unfinished = path.with_added_extension(format!("{}.tmp", random()?));
    let made = SCHEMA.build(&unfinished, |connection| {
        // Part of the file from here on, so that nobody has to switch while others have it open.
        connection.execute_batch("PRAGMA journal_mode = WAL").map_err(sqlite("create the queue"))
    });
    let linked = made.and_then(|()| match std::fs::hard_link(&unfinished, path) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        // A file system without links.
        Err(_) if !path.exists() => std::fs::rename(&unfinished, path).map_err(io("create", path)),
        Ok(()) | Err(_) => Ok(()),
    });
    // A file that stays is made anew by the next process that creates the queue.
    let _ = std::fs::remove_file(&unfinished);
    linked?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(parent).and_then(|directory| directory.sync_all()).map_err(io("create", path))
}

/// Connections to one file that are lent to one caller each. A caller waits for one no longer than for another process that
/// writes.
#[derive(Debug)]
pub(super) struct Pool {
    idle: Mutex<Vec<Connection>>,
    back: Condvar,
    patience: Duration,
}

impl Pool {
    pub(super) fn new(connections: Vec<Connection>, patience: Duration) -> Self {
        Self { idle: Mutex::new(connections), back: Condvar::new(), patience }
    }

    /// Lends a connection, as soon as one is free.
    pub(super) fn with<T>(&self, act: impl FnOnce(&mut Connection) -> Result<T, QueueError>) -> Result<T, QueueError> {
        let mut idle = self.idle.lock();
        self.back.wait_while_for(&mut idle, |idle| idle.is_empty(), self.patience);
        let Some(mut connection) = idle.pop() else {
            let message = format!("others use the queue for more than {} s", self.patience.as_secs_f64());
            let hint = "Something writes to the queue for long: ask again in a moment.";
            return Err(QueueError::new(Code::StoreBusy, message, hint));
        };
        drop(idle);
        // A transaction that a panic interrupts is rolled back: the connection is as good as before.
        let done = catch_unwind(AssertUnwindSafe(|| act(&mut connection)));
        self.idle.lock().push(connection);
        self.back.notify_one();
        done.unwrap_or_else(|panic| resume_unwind(panic))
    }
}

//! Shared by all SQLite databases: application id, schema version, creation and opening.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};
use rusqlite_migration::Migrations;

use super::error::{io, sqlite};
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};

/// How long a connection waits for another process that writes.
pub const BUSY_TIMEOUT: Duration = Duration::from_secs(30);
/// Size of a page of the file. A commit writes the changed pages as a whole, and it changes a little in each of a dozen pages:
/// with SQLite's usual 4096 bytes a run writes a third more.
const PAGE_BYTES: u32 = 2048;
/// Number of prepared statements that are cached: more than any writer uses.
const STATEMENT_CACHE_CAPACITY: usize = 64;

/// The application ids of formats that were never released: workspaces and queues.
const UNRELEASED_IDS: [i64; 4] = [1_398_361_943, 1_398_361_937, 1_398_361_975, 1_398_361_969];

/// A kind of database.
#[derive(Debug)]
pub struct Schema {
    /// Names the kind and its format.
    pub application_id: i64,
    pub migrations: &'static Migrations<'static>,
    /// The newest schema version that this release supports.
    pub version: usize,
    /// The name of the database in messages, such as `workspace`.
    pub noun: &'static str,
    pub whole_noun: &'static str,
    /// The hint for a wrong file: which file to name instead.
    pub hint: &'static str,
}

impl Schema {
    /// Creates a new database file, closes it and syncs it to disk. `fill` adds the first rows.
    ///
    /// No other process may read the file before the caller renames it. It is therefore synced once, as a whole.
    pub fn build(
        &self,
        unfinished: &Path,
        fill: impl FnOnce(&Connection) -> Result<(), OptimizerError>,
    ) -> Result<(), OptimizerError> {
        let new = OpenOptions::new().write(true).create_new(true).mode(0o600).open(unfinished);
        drop(new.map_err(io("create", unfinished))?);
        let mut connection = self.connect(unfinished, BUSY_TIMEOUT)?;
        connection
            .execute_batch(&format!(
                "PRAGMA page_size = {PAGE_BYTES}; PRAGMA journal_mode = MEMORY; PRAGMA synchronous = OFF;"
            ))
            .map_err(sqlite(format_args!("create {}", unfinished.display())))?;
        self.migrate(&mut connection, unfinished)?;
        fill(&connection)?;
        connection.close().map_err(|(_, error)| sqlite(format_args!("close {}", unfinished.display()))(error))?;
        std::fs::File::open(unfinished).and_then(|file| file.sync_all()).map_err(io("create", unfinished))
    }

    /// Opens an existing file without checking its kind.
    pub fn connect(&self, path: &Path, busy: Duration) -> Result<Connection, OptimizerError> {
        if !path.is_file() {
            let message = format!("there is no {} {}", self.noun, path.display());
            return Err(OptimizerError::new(ErrorCode::Io, message).with_hint(self.hint));
        }
        connect(path, busy)
    }

    /// Opens an existing file to read it, while another process may be writing.
    pub fn connect_to_read(&self, path: &Path, busy: Duration) -> Result<Connection, OptimizerError> {
        // In a directory without write permission, SQLite cannot create the shared memory of a WAL. No process can write
        // there either, so the file can be opened as immutable. If that fails too, the first error tells more.
        match self.reading_connection(path, busy) {
            Err(error) if error.code == ErrorCode::Sqlite && path.is_file() && !wal_of(path).exists() => {
                let uri = format!("file:{}?immutable=1", escaped(path));
                let flags =
                    OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
                let Ok(connection) = Connection::open_with_flags(uri, flags) else { return Err(error) };
                self.check(&connection, path).map_err(|_| error)?;
                Ok(connection)
            }
            opened => opened,
        }
    }

    /// Opens a connection that only reads. The file is opened for writing if its permissions allow it, because only then the
    /// last connection that closes can remove the WAL; `query_only` rejects every statement that writes.
    fn reading_connection(&self, path: &Path, busy: Duration) -> Result<Connection, OptimizerError> {
        let connection = self.connect(path, busy)?;
        self.check(&connection, path)?;
        connection.pragma_update(None, "query_only", true).map_err(sqlite(format_args!("open {}", path.display())))?;
        Ok(connection)
    }

    /// Fails if the file has another application id, an unreleased format, or a schema that is newer than this release supports.
    pub fn check(&self, connection: &Connection, path: &Path) -> Result<(), OptimizerError> {
        let id = number(connection, "application_id", path)?;
        if UNRELEASED_IDS.contains(&id) {
            let message = format!("{} has a format that was never released; the file was not changed", path.display());
            return Err(OptimizerError::new(ErrorCode::Sqlite, message)
                .with_hint("Move the file away and start the run again; the cache still has the answers."));
        }
        if id != self.application_id {
            let message = format!("{} is not {}", path.display(), self.whole_noun);
            return Err(OptimizerError::new(ErrorCode::Sqlite, message).with_hint(self.hint));
        }
        let version = number(connection, "user_version", path)?;
        if usize::try_from(version).map_or(true, |version| version > self.version) {
            let newest = self.version;
            return Err(OptimizerError::new(
                ErrorCode::Sqlite,
                format!("{} has schema {version}, newer than {newest}; the file was not changed", path.display()),
            )
            .with_hint("Open it with the release that wrote it, or a newer one."));
        }
        Ok(())
    }

    pub fn migrate(&self, connection: &mut Connection, path: &Path) -> Result<(), OptimizerError> {
        self.migrations.to_latest(connection).map_err(|error| {
            OptimizerError::from_cause(
                ErrorCode::Sqlite,
                format!("migrating the schema of {} failed", path.display()),
                error,
            )
        })
    }
}

/// Returns the application id of an existing file, which identifies its kind. `None` if it cannot be read.
pub fn kind_of(path: &Path) -> Option<i64> {
    if !path.is_file() {
        return None;
    }
    number(&connect(path, BUSY_TIMEOUT).ok()?, "application_id", path).ok()
}

fn connect(path: &Path, busy: Duration) -> Result<Connection, OptimizerError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let opening = || sqlite(format!("open {}", path.display()));
    let connection = Connection::open_with_flags(path, flags).map_err(opening())?;
    connection.busy_timeout(busy).map_err(opening())?;
    connection.set_prepared_statement_cache_capacity(STATEMENT_CACHE_CAPACITY);
    Ok(connection)
}

fn number(connection: &Connection, pragma: &str, path: &Path) -> Result<i64, OptimizerError> {
    connection
        .pragma_query_value(None, pragma, |row| row.get(0))
        .map_err(sqlite(format_args!("read {}", path.display())))
}

fn wal_of(path: &Path) -> PathBuf {
    let mut wal = path.as_os_str().to_owned();
    wal.push("-wal");
    PathBuf::from(wal)
}

fn escaped(path: &Path) -> String {
    path.to_string_lossy().replace('%', "%25").replace('?', "%3f").replace('#', "%23")
}

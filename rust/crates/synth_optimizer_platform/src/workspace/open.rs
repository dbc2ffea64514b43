//! Opens and creates `workspace.sqlite`: permissions, schema version, journal and durability.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};
use rusqlite_migration::{M, Migrations};

use super::error::{DAMAGED, io, sqlite};
use super::records::RunRow;
use crate::config::sections::Durability;
use crate::model::error::{ErrorCode, OptimizerError};

/// Releases before this one can lose committed pages when two connections reset the WAL at once.
const OLDEST_SQLITE: i32 = 3_051_003;
const APPLICATION_ID: i64 = 1_398_361_943;
const BUSY: Duration = Duration::from_secs(30);
/// Statements that stay prepared: more than the writer has.
const PREPARED: usize = 64;

const STEPS: &[M<'_>] =
    &[M::up(include_str!("../../migrations/0001_tables.sql")), M::up(include_str!("../../migrations/0002_views.sql"))];
const MIGRATIONS: Migrations<'_> = Migrations::from_slice(STEPS);

/// The newest schema that this release knows.
pub const SCHEMA_VERSION: usize = STEPS.len();

/// Writes a new, closed workspace. It appears under its name whole, or not at all.
pub(super) fn create(path: &Path, run: &RunRow) -> Result<(), OptimizerError> {
    check_sqlite()?;
    if path.exists() {
        return Err(OptimizerError::new(ErrorCode::Io, format!("{} exists already", path.display()))
            .with_hint("Resume the run, or give the new run another run_id."));
    }
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(".tmp");
    let unfinished = PathBuf::from(unfinished);
    match std::fs::remove_file(&unfinished) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(io("remove", &unfinished)(error)),
        _ => {}
    }
    let new = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&unfinished);
    drop(new.map_err(io("create", path))?);
    let mut connection = connect(&unfinished, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    // Nobody reads the file before it has its name, so that it is made durable once and as a whole.
    connection
        .execute_batch("PRAGMA journal_mode = MEMORY; PRAGMA synchronous = OFF;")
        .map_err(sqlite(format_args!("create {}", path.display())))?;
    migrate(&mut connection, &unfinished)?;
    super::store::insert_run(&connection, run)?;
    connection.close().map_err(|(_, error)| sqlite(format_args!("close {}", path.display()))(error))?;
    std::fs::File::open(&unfinished).and_then(|file| file.sync_all()).map_err(io("create", path))?;
    std::fs::rename(&unfinished, path).map_err(io("create", path))
}

/// Opens an existing workspace for its one writer.
pub(super) fn open(path: &Path, durability: Durability) -> Result<Connection, OptimizerError> {
    let mut connection = connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    check_schema(&connection, path)?;
    quick_check(&connection, path)?;
    migrate(&mut connection, path)?;
    prepare_to_write(connection, path, durability)
}

/// Opens the workspace that was just created.
pub(super) fn open_new(path: &Path, durability: Durability) -> Result<Connection, OptimizerError> {
    prepare_to_write(connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?, path, durability)
}

fn prepare_to_write(connection: Connection, path: &Path, durability: Durability) -> Result<Connection, OptimizerError> {
    let synchronous = match durability {
        Durability::Process => "NORMAL",
        Durability::Power => "FULL",
    };
    // The cache is small: a commit touches the ends of a few tables, and memory that is new to a process is dear.
    connection
        .execute_batch(&format!(
            "PRAGMA journal_mode = WAL;
             PRAGMA synchronous = {synchronous};
             PRAGMA foreign_keys = ON;
             PRAGMA temp_store = MEMORY;
             PRAGMA cache_size = -2000;
             PRAGMA wal_autocheckpoint = 4000;
             PRAGMA journal_size_limit = 33554432;"
        ))
        .map_err(sqlite(format_args!("open {}", path.display())))?;
    Ok(connection)
}

/// Opens an existing workspace for reading, while another process may be writing.
pub(super) fn open_to_read(path: &Path) -> Result<Connection, OptimizerError> {
    let opened = reading_connection(path);
    // A directory without write permission has no place for the shared memory of a WAL; nobody writes there either.
    match opened {
        Err(error) if error.code == ErrorCode::Sqlite && path.is_file() && !wal_of(path).exists() => {
            let uri = format!("file:{}?immutable=1", escaped(path));
            let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
            let Ok(connection) = Connection::open_with_flags(uri, flags) else { return Err(error) };
            check_schema(&connection, path).map_err(|_| error)?;
            Ok(connection)
        }
        opened => opened,
    }
}

/// SQLite opens a protected file for reading only. Any other is opened for writing, without a statement that may write,
/// because only then can the last connection that closes remove the WAL.
fn reading_connection(path: &Path) -> Result<Connection, OptimizerError> {
    let connection = connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    check_schema(&connection, path)?;
    connection.pragma_update(None, "query_only", true).map_err(sqlite(format_args!("open {}", path.display())))?;
    Ok(connection)
}

/// An empty workspace in memory, to replay a log into.
pub(super) fn in_memory() -> Result<Connection, OptimizerError> {
    let mut connection = Connection::open_in_memory().map_err(sqlite("open a database in memory"))?;
    connection.set_prepared_statement_cache_capacity(PREPARED);
    migrate(&mut connection, Path::new(":memory:"))?;
    Ok(connection)
}

fn connect(path: &Path, flags: OpenFlags) -> Result<Connection, OptimizerError> {
    check_sqlite()?;
    if !path.is_file() {
        return Err(OptimizerError::new(ErrorCode::Io, format!("there is no workspace {}", path.display()))
            .with_hint("Name the workspace.sqlite of a run directory."));
    }
    let connection = Connection::open_with_flags(path, flags | OpenFlags::SQLITE_OPEN_NO_MUTEX)
        .map_err(sqlite(format_args!("open {}", path.display())))?;
    connection.busy_timeout(BUSY).map_err(sqlite(format_args!("open {}", path.display())))?;
    connection.set_prepared_statement_cache_capacity(PREPARED);
    Ok(connection)
}

fn check_sqlite() -> Result<(), OptimizerError> {
    if rusqlite::version_number() < OLDEST_SQLITE {
        return Err(OptimizerError::new(ErrorCode::Sqlite, format!("SQLite {} is too old", rusqlite::version()))
            .with_hint("Use a build with SQLite 3.51.3 or newer."));
    }
    Ok(())
}

fn check_schema(connection: &Connection, path: &Path) -> Result<(), OptimizerError> {
    let number = |pragma: &str| -> Result<i64, OptimizerError> {
        connection
            .pragma_query_value(None, pragma, |row| row.get(0))
            .map_err(sqlite(format_args!("read {}", path.display())))
    };
    if number("application_id")? != APPLICATION_ID {
        return Err(OptimizerError::new(
            ErrorCode::Sqlite,
            format!("{} is not the workspace of a run", path.display()),
        )
        .with_hint("Name the workspace.sqlite of a run directory."));
    }
    let version = number("user_version")?;
    if usize::try_from(version).map_or(true, |version| version > SCHEMA_VERSION) {
        return Err(OptimizerError::new(
            ErrorCode::Sqlite,
            format!("{} has schema {version}, newer than {SCHEMA_VERSION}; it was left as it is", path.display()),
        )
        .with_hint("Open it with the release that wrote it, or a newer one."));
    }
    Ok(())
}

fn quick_check(connection: &Connection, path: &Path) -> Result<(), OptimizerError> {
    let found: String = connection
        .query_row("PRAGMA quick_check(1)", [], |row| row.get(0))
        .map_err(sqlite(format_args!("check {}", path.display())))?;
    if found != "ok" {
        let message = format!("{} is damaged: {found}", path.display());
        return Err(OptimizerError::new(ErrorCode::Sqlite, message).with_hint(DAMAGED));
    }
    Ok(())
}

fn migrate(connection: &mut Connection, path: &Path) -> Result<(), OptimizerError> {
    MIGRATIONS.to_latest(connection).map_err(|error| {
        OptimizerError::new(
            ErrorCode::Sqlite,
            format!("cannot bring the schema of {} up to date: {error}", path.display()),
        )
    })
}

fn wal_of(path: &Path) -> PathBuf {
    let mut wal = path.as_os_str().to_owned();
    wal.push("-wal");
    PathBuf::from(wal)
}

fn escaped(path: &Path) -> String {
    path.to_string_lossy().replace('%', "%25").replace('?', "%3f").replace('#', "%23")
}

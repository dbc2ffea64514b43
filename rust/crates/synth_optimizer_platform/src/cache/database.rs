//! The cache file: how it is made and opened, and its few statements.

use std::fs::{DirBuilder, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use rusqlite::{Connection, OpenFlags, OptionalExtension, Row, params};
use rusqlite_migration::{M, Migrations};

use super::fault;
use super::record::{Record, RowName};
use crate::clock::unix_millis;
use synth_optimizer_core::model::canonical::hex;
use synth_optimizer_core::model::envelope::rfc3339;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};

const SCHEMA: &[M<'_>] = &[M::up(include_str!("../../migrations/cache/0001_request_response_cache.sql"))];
/// How long a process waits for another one that writes.
const BUSY: Duration = Duration::from_secs(30);
/// Earlier releases of SQLite can damage a database in WAL mode.
const OLDEST_SQLITE: i32 = 3_051_003;

/// How a file is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    /// Others may write to it at the same time.
    Live,
    /// Nobody writes to it: it is read without locks, and no file appears beside it.
    Frozen,
}

/// Opens the file for writing and makes it if there is none.
pub(super) fn open_writer(path: &Utf8Path) -> Result<Connection, OptimizerError> {
    check_version()?;
    make_file(path)?;
    let failed = |doing: &'static str| move |error: rusqlite::Error| fault::sqlite(path, doing, error);
    let mut connection = connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE, Access::Live).map_err(failed("opening"))?;
    // The switch does not wait for others by itself, and the first process to come makes it for all.
    let mut attempts = 0;
    while let Err(error) = connection.pragma_update(None, "journal_mode", "wal") {
        attempts += 1;
        if attempts == 50 || error.sqlite_error_code() != Some(rusqlite::ErrorCode::DatabaseBusy) {
            return Err(fault::sqlite(path, "opening", error));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    connection.pragma_update(None, "synchronous", "normal").map_err(failed("opening"))?;
    connection.pragma_update(None, "journal_size_limit", 4 << 20).map_err(failed("opening"))?;
    // Another process may be making the table at this moment: then the second look finds it made.
    let migrations = Migrations::from_slice(SCHEMA);
    if migrations.to_latest(&mut connection).is_err() {
        migrations.to_latest(&mut connection).map_err(|error| match error {
            rusqlite_migration::Error::RusqliteError { err, .. } if is_damage(&err) => fault::corrupt(path, err),
            other => fault::foreign(path, other),
        })?;
    }
    check_table(&connection, path)?;
    Ok(connection)
}

/// Opens an existing file for reading.
pub(super) fn open_reader(path: &Utf8Path, access: Access) -> Result<Connection, OptimizerError> {
    check_version()?;
    let opened = connect(path, OpenFlags::SQLITE_OPEN_READ_ONLY, access);
    let connection = opened.map_err(|error| fault::sqlite(path, "opening", error))?;
    check_table(&connection, path)?;
    Ok(connection)
}

/// Bytes of the file and its write-ahead log.
pub(super) fn size_on_disk(path: &Utf8Path) -> u64 {
    let bytes = |path: &Utf8Path| std::fs::metadata(path).map_or(0, |found| found.len());
    bytes(path) + bytes(&wal_path(path))
}

pub(super) fn wal_path(path: &Utf8Path) -> Utf8PathBuf {
    Utf8PathBuf::from(format!("{path}-wal"))
}

pub(super) fn select(connection: &Connection, namespace: &str, name: &RowName) -> rusqlite::Result<Option<Record>> {
    const SELECT: &str = "SELECT size, checksum, response FROM request_response_cache \
                          WHERE namespace = ?1 AND cache_key = ?2";
    connection.prepare_cached(SELECT)?.query_row(params![namespace, name.key], |row| Ok(record(row))).optional()
}

/// Whether the row is new.
pub(super) fn insert(
    connection: &Connection,
    namespace: &str,
    name: &RowName,
    record: &Record,
) -> rusqlite::Result<bool> {
    const INSERT: &str = "INSERT INTO request_response_cache \
                          (namespace, cache_key, boundary, size, created_at, checksum, response) \
                          VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT DO NOTHING";
    write(connection, INSERT, namespace, name, record).map(|rows| rows > 0)
}

pub(super) fn replace(
    connection: &Connection,
    namespace: &str,
    name: &RowName,
    record: &Record,
) -> rusqlite::Result<()> {
    const REPLACE: &str = "INSERT OR REPLACE INTO request_response_cache \
                           (namespace, cache_key, boundary, size, created_at, checksum, response) \
                           VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
    write(connection, REPLACE, namespace, name, record).map(|_| ())
}

/// Entries of a namespace by boundary.
pub(super) fn count(connection: &Connection, namespace: &str) -> rusqlite::Result<Vec<(String, u64)>> {
    const COUNT: &str = "SELECT boundary, count(*) FROM request_response_cache WHERE namespace = ?1 GROUP BY boundary";
    let mut statement = connection.prepare_cached(COUNT)?;
    let rows = statement.query_map([namespace], |row| {
        Ok((row.get::<_, String>(0)?, u64::try_from(row.get::<_, i64>(1)?).unwrap_or_default()))
    })?;
    rows.collect()
}

/// Moves the write-ahead log into the file and empties it, unless others read from it just now.
pub(super) fn checkpoint(connection: &Connection) -> rusqlite::Result<()> {
    connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
}

fn write(
    connection: &Connection,
    sql: &str,
    namespace: &str,
    name: &RowName,
    record: &Record,
) -> rusqlite::Result<usize> {
    connection.prepare_cached(sql)?.execute(params![
        namespace,
        name.key,
        name.boundary,
        record.size,
        rfc3339(unix_millis()),
        record.checksum,
        record.response
    ])
}

/// Values of a wrong type are damage, which the checksum then tells.
fn record(row: &Row<'_>) -> Record {
    Record {
        size: row.get(0).unwrap_or(-1),
        checksum: row.get(1).unwrap_or_default(),
        response: row.get(2).unwrap_or_default(),
    }
}

fn connect(path: &Utf8Path, flags: OpenFlags, access: Access) -> rusqlite::Result<Connection> {
    let suffix = match access {
        Access::Live => "",
        Access::Frozen => "?immutable=1",
    };
    let uri = format!("file:{}{suffix}", escape(path));
    let flags = flags | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(uri, flags)?;
    connection.busy_timeout(BUSY)?;
    Ok(connection)
}

/// A path inside of a URI.
fn escape(path: &Utf8Path) -> String {
    path.as_str().replace('%', "%25").replace('?', "%3f").replace('#', "%23")
}

fn check_version() -> Result<(), OptimizerError> {
    let found = rusqlite::version_number();
    if found >= OLDEST_SQLITE {
        return Ok(());
    }
    Err(OptimizerError::new(ErrorCode::Sqlite, format!("SQLite {} can damage its files", rusqlite::version()))
        .with_hint("Install a release that brings SQLite 3.51.3 or newer."))
}

/// A database that lacks the table is not ours; the statement reads the first page, so that damage shows as well.
fn check_table(connection: &Connection, path: &Utf8Path) -> Result<(), OptimizerError> {
    const COLUMNS: &str = "SELECT namespace, cache_key, boundary, size, created_at, checksum, response \
                           FROM request_response_cache";
    let found: rusqlite::Result<i64> = connection.pragma_query_value(None, "user_version", |row| row.get(0));
    let version = found.map_err(|error| fault::sqlite(path, "opening", error))?;
    if version != SCHEMA.len() as i64 {
        return Err(fault::foreign(path, format!("its schema has version {version}, not {}", SCHEMA.len())));
    }
    connection.prepare(COLUMNS).map(|_| ()).map_err(|error| match error {
        damage if is_damage(&damage) => fault::corrupt(path, damage),
        other => fault::foreign(path, other),
    })
}

fn is_damage(error: &rusqlite::Error) -> bool {
    use rusqlite::ErrorCode as Sqlite;
    matches!(error.sqlite_error_code(), Some(Sqlite::DatabaseCorrupt | Sqlite::NotADatabase))
}

/// The file is made by us and not by SQLite, so that no other user can read it at any moment. It appears under its name
/// with its table: whoever looks at it while it is made finds none.
fn make_file(path: &Utf8Path) -> Result<(), OptimizerError> {
    if path.exists() {
        return Ok(());
    }
    if let Some(parent) = path.parent().filter(|parent| !parent.as_str().is_empty()) {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(parent);
        made.map_err(|error| fault::io(parent, "making", error))?;
    }
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes)
        .map_err(|error| OptimizerError::from_cause(ErrorCode::Io, "the system gives no random numbers", error))?;
    let unfinished = Utf8PathBuf::from(format!("{path}.{}.tmp", hex(&bytes)));
    let linked = fill(&unfinished).and_then(|()| match std::fs::hard_link(&unfinished, path) {
        // A file system without links.
        Err(_) if !path.exists() => {
            std::fs::rename(&unfinished, path).map_err(|error| fault::io(path, "making", error))
        }
        // Another process may have been faster.
        Ok(()) | Err(_) => Ok(()),
    });
    // Lost: after a rename it is not there, and else it is a small file that no process reads.
    let _ = std::fs::remove_file(&unfinished);
    linked
}

/// Makes a cache without entries.
fn fill(path: &Utf8Path) -> Result<(), OptimizerError> {
    let made: std::io::Result<File> = OpenOptions::new().create_new(true).write(true).mode(0o600).open(path);
    made.map_err(|error| fault::io(path, "making", error))?;
    let failed = |error: rusqlite::Error| fault::sqlite(path, "making", error);
    let mut connection = connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE, Access::Live).map_err(failed)?;
    Migrations::from_slice(SCHEMA).to_latest(&mut connection).map_err(|error| fault::foreign(path, error))?;
    connection.close().map_err(|(_, error)| failed(error))
}

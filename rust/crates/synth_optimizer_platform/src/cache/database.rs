//! The cache file: how it is made and opened, its rows and their statements, and what can go wrong with it, in words.

use std::borrow::Cow;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::time::Duration;

use bytes::Bytes;
use camino::{Utf8Path, Utf8PathBuf};
use rusqlite::{Connection, ErrorCode as Sqlite, OpenFlags, OptionalExtension, params};
use rusqlite_migration::{M, Migrations};
use sha2::{Digest, Sha256};

use crate::artifacts::fault;
use crate::clock::unix_millis;
use crate::unpack::unpack;
use crate::workspace::schema::BUSY;
use synth_optimizer_core::model::cache_key::Boundary;
use synth_optimizer_core::model::envelope::rfc3339;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};

const SCHEMA: &[M<'_>] = &[M::up(include_str!("../../migrations/cache/0001_request_response_cache.sql"))];
/// Fast; answers are JSON, which shrinks well at any level.
const LEVEL: i32 = 1;

pub(super) const FAILURE: &str = ".failure";

/// The name of a row. Two names are never the same row.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct RowName {
    /// The boundary's word; with a suffix for failures.
    pub(super) boundary: Cow<'static, str>,
    pub(super) key: String,
}

impl RowName {
    pub(super) fn of_answer(boundary: Boundary, key: &str) -> Self {
        Self { boundary: boundary.word().into(), key: key.to_owned() }
    }

    /// Failures have keys of their own: an attempt is no part of the key of an answer.
    pub(super) fn of_failure(boundary: Boundary, key: &str, attempt: u32) -> Self {
        Self { boundary: format!("{}{FAILURE}", boundary.word()).into(), key: format!("{key}#{attempt}") }
    }

    pub(super) fn is_failure(&self) -> bool {
        self.boundary.ends_with(FAILURE)
    }

    /// What the container tells about itself is as it was told last, and so is how an attempt failed; a measured answer
    /// stays as it was measured.
    pub(super) fn latest_wins(&self) -> bool {
        use Boundary::{Dataset, DatasetRows, Metadata, Program, TaskInfo};
        let told = [Metadata, Program, TaskInfo, Dataset, DatasetRows];
        self.is_failure() || told.iter().any(|told| told.word() == self.boundary)
    }
}

/// What is stored under a name: compressed, with a checksum that covers its place as well.
#[derive(Debug)]
pub(super) struct Record {
    size: i64,
    checksum: Vec<u8>,
    response: Vec<u8>,
}

impl Record {
    pub(super) fn seal(namespace: &str, name: &RowName, response: &[u8]) -> std::io::Result<Self> {
        Ok(Self {
            size: i64::try_from(response.len()).unwrap_or(i64::MAX),
            checksum: checksum(namespace, name, response),
            response: zstd::bulk::compress(response, LEVEL)?,
        })
    }

    /// The response, or nothing where the row is not what was stored under this name.
    pub(super) fn open(&self, namespace: &str, name: &RowName) -> Option<Bytes> {
        let plain = unpack(&self.response, u64::try_from(self.size).ok()?)?;
        (checksum(namespace, name, &plain) == self.checksum).then(|| Bytes::from(plain))
    }

    /// Bytes that the row takes in the file, roughly.
    pub(super) fn footprint(&self, namespace: &str, name: &RowName) -> u64 {
        /// Checksum, time, size and the row's share of the tree; namespace and key stand in the index as well.
        const FIXED: usize = 128;
        (self.response.len() + 2 * (namespace.len() + name.key.len()) + name.boundary.len() + FIXED) as u64
    }
}

fn checksum(namespace: &str, name: &RowName, response: &[u8]) -> Vec<u8> {
    let mut hash = Sha256::new();
    for part in [namespace.as_bytes(), name.key.as_bytes(), name.boundary.as_bytes(), response] {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().to_vec()
}

pub(super) fn select(connection: &Connection, namespace: &str, name: &RowName) -> rusqlite::Result<Option<Record>> {
    const SELECT: &str = "SELECT size, checksum, response FROM request_response_cache \
                          WHERE namespace = ?1 AND cache_key = ?2";
    // Values of a wrong type are damage, which the checksum then tells.
    let record = |row: &rusqlite::Row<'_>| {
        Ok(Record {
            size: row.get(0).unwrap_or(-1),
            checksum: row.get(1).unwrap_or_default(),
            response: row.get(2).unwrap_or_default(),
        })
    };
    connection.prepare_cached(SELECT)?.query_row(params![namespace, name.key], record).optional()
}

/// Whether the row was written: it is if it is new or `replaces` the one of its name.
pub(super) fn write(
    connection: &Connection,
    namespace: &str,
    name: &RowName,
    record: &Record,
    replaces: bool,
) -> rusqlite::Result<bool> {
    const WRITE: &str = "INSERT INTO request_response_cache \
                         (namespace, cache_key, boundary, size, created_at, checksum, response) \
                         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT DO UPDATE SET \
                         boundary = excluded.boundary, size = excluded.size, created_at = excluded.created_at, \
                         checksum = excluded.checksum, response = excluded.response WHERE ?8";
    let (created, Record { size, checksum, response }) = (rfc3339(unix_millis()), record);
    let values = params![namespace, name.key, name.boundary, size, created, checksum, response, replaces];
    connection.prepare_cached(WRITE)?.execute(values).map(|rows| rows > 0)
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

/// Bytes of the file and its write-ahead log.
pub(super) fn size_on_disk(path: &Utf8Path) -> u64 {
    let bytes = |path: &Utf8Path| std::fs::metadata(path).map_or(0, |found| found.len());
    bytes(path) + bytes(&wal_path(path))
}

pub(super) fn wal_path(path: &Utf8Path) -> Utf8PathBuf {
    Utf8PathBuf::from(format!("{path}-wal"))
}

/// Opens the file for writing and makes it if there is none.
pub(super) fn open_writer(path: &Utf8Path) -> Result<Connection, OptimizerError> {
    make_file(path)?;
    let failed = |error: rusqlite::Error| sqlite_fault(path, "opening", error);
    let mut connection = connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE, "").map_err(failed)?;
    // The switch does not wait for others by itself, and the first process to come makes it for all.
    let mut attempts = 0;
    while let Err(error) = connection.pragma_update(None, "journal_mode", "wal") {
        attempts += 1;
        if attempts == 50 || error.sqlite_error_code() != Some(Sqlite::DatabaseBusy) {
            return Err(failed(error));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    connection.pragma_update(None, "synchronous", "normal").map_err(failed)?;
    connection.pragma_update(None, "journal_size_limit", 4 << 20).map_err(failed)?;
    // Another process may be making the table at this moment: then the second look finds it made.
    migrate(&mut connection, path).or_else(|_| migrate(&mut connection, path))?;
    check_table(&connection, path)?;
    Ok(connection)
}

/// Opens an existing file for reading. If it is `frozen`, nobody writes to it: it is read without locks, and no file
/// appears beside it.
pub(super) fn open_reader(path: &Utf8Path, frozen: bool) -> Result<Connection, OptimizerError> {
    let connection = connect(path, OpenFlags::SQLITE_OPEN_READ_ONLY, if frozen { "?immutable=1" } else { "" })
        .map_err(|error| sqlite_fault(path, "opening", error))?;
    check_table(&connection, path)?;
    Ok(connection)
}

fn connect(path: &Utf8Path, flags: OpenFlags, query: &str) -> rusqlite::Result<Connection> {
    let escaped = path.as_str().replace('%', "%25").replace('?', "%3f").replace('#', "%23");
    let flags = flags | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(format!("file:{escaped}{query}"), flags)?;
    connection.busy_timeout(BUSY)?;
    Ok(connection)
}

fn migrate(connection: &mut Connection, path: &Utf8Path) -> Result<(), OptimizerError> {
    Migrations::from_slice(SCHEMA).to_latest(connection).map_err(|error| match error {
        rusqlite_migration::Error::RusqliteError { err, .. } if is_damage(&err) => corrupt(path, err),
        other => foreign(path, other),
    })
}

/// A database that lacks the table is not ours; the statement reads the first page, so that damage shows as well.
fn check_table(connection: &Connection, path: &Utf8Path) -> Result<(), OptimizerError> {
    const COLUMNS: &str = "SELECT namespace, cache_key, boundary, size, created_at, checksum, response \
                           FROM request_response_cache";
    let found: rusqlite::Result<i64> = connection.pragma_query_value(None, "user_version", |row| row.get(0));
    let version = found.map_err(|error| sqlite_fault(path, "opening", error))?;
    if version != SCHEMA.len() as i64 {
        return Err(foreign(path, format!("its schema has version {version}, not {}", SCHEMA.len())));
    }
    connection.prepare(COLUMNS).map(|_| ()).map_err(|error| match error {
        damage if is_damage(&damage) => corrupt(path, damage),
        other => foreign(path, other),
    })
}

/// The file is made by us and not by SQLite, so that no other user can read it at any moment. It appears under its name
/// with its table: whoever looks at it while it is made finds none.
fn make_file(path: &Utf8Path) -> Result<(), OptimizerError> {
    if path.exists() {
        return Ok(());
    }
    let parent = path.parent().filter(|parent| !parent.as_str().is_empty()).unwrap_or(Utf8Path::new("."));
    let made = DirBuilder::new().recursive(true).mode(0o700).create(parent);
    made.map_err(fault::io(parent, "making"))?;
    let failed = fault::io(path, "making");
    let unfinished = tempfile::NamedTempFile::new_in(parent).map_err(failed)?;
    // Never another path: its directory is UTF-8, and so is its name.
    let place = Utf8Path::from_path(unfinished.path()).unwrap_or(path);
    let failed_sqlite = |error: rusqlite::Error| sqlite_fault(path, "making", error);
    let mut connection = connect(place, OpenFlags::SQLITE_OPEN_READ_WRITE, "").map_err(failed_sqlite)?;
    migrate(&mut connection, path)?;
    connection.close().map_err(|(_, error)| failed_sqlite(error))?;
    match unfinished.persist_noclobber(path) {
        // A file system without links.
        Err(error) if !path.exists() => error.file.persist(path).map(|_| ()).map_err(|error| failed(error.error)),
        // Another process may have been faster.
        Ok(_) | Err(_) => Ok(()),
    }
}

fn is_damage(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(Sqlite::DatabaseCorrupt | Sqlite::NotADatabase))
}

/// A failure of SQLite, by its cause.
pub(super) fn sqlite_fault(path: &Utf8Path, doing: &str, error: rusqlite::Error) -> OptimizerError {
    let message = |what: &str| format!("{what} while {doing} the cache {path}: {error}");
    let found = match error.sqlite_error_code() {
        Some(Sqlite::DatabaseCorrupt | Sqlite::NotADatabase) => corrupt(path, &error),
        Some(Sqlite::DiskFull) => OptimizerError::new(ErrorCode::CacheFull, message("the disk is full"))
            .with_hint("Free space, or name a cache.path on another disk."),
        Some(Sqlite::DatabaseBusy | Sqlite::DatabaseLocked) => {
            OptimizerError::new(ErrorCode::Sqlite, message("another process holds the file"))
                .with_hint("End the process that writes to the cache, or name another cache.path.")
        }
        Some(Sqlite::CannotOpen | Sqlite::PermissionDenied | Sqlite::ReadOnly | Sqlite::SystemIoFailure) => {
            OptimizerError::new(ErrorCode::Io, message("no access"))
        }
        _ => OptimizerError::new(ErrorCode::Sqlite, message("failure")),
    };
    found.caused_by(error)
}

/// The file as a whole cannot be read.
fn corrupt(path: &Utf8Path, found: impl std::fmt::Display) -> OptimizerError {
    OptimizerError::new(ErrorCode::CacheCorrupt, format!("the cache {path} is damaged: {found}"))
        .with_hint("Move the file away or name another cache.path; its answers have to be measured again.")
}

/// The file is a database, and not one of ours.
fn foreign(path: &Utf8Path, found: impl std::fmt::Display) -> OptimizerError {
    OptimizerError::new(ErrorCode::CacheCorrupt, format!("{path} is not a cache of this release: {found}"))
        .with_hint("Name another cache.path, or use the release that wrote the file.")
}

pub(super) fn full(path: &Utf8Path, size: u64, wanted: u64, limit: u64) -> OptimizerError {
    let message = format!("the cache {path} has {size} bytes and room for {limit}; {wanted} more do not fit");
    OptimizerError::new(ErrorCode::CacheFull, message).with_hint("Raise cache.max_mb or name another cache.path.")
}

//! The cache file: creation, opening, its entries and SQL statements, and its errors.

use std::borrow::Cow;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use rusqlite::{Connection, ErrorCode as Sqlite, OpenFlags, OptionalExtension, params};
use rusqlite_migration::{M, Migrations};

use crate::clock::unix_millis;
use crate::digest::Sha256;
use crate::file_error;
use crate::reply::Reply;
use crate::workspace::is_storage_full;
use crate::workspace::schema::BUSY_TIMEOUT;
use synth_optimizer_core::model::cache_key::CacheBoundary;
use synth_optimizer_core::model::envelope::rfc3339;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};

const SCHEMA: &[M<'_>] = &[M::up(include_str!("../../migrations/cache/0001_request_response_cache.sql"))];

pub(super) const FAILURE_SUFFIX: &str = ".failure";

/// The key of an entry.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct EntryKey {
    /// Name of the boundary, with a suffix for failures.
    pub(super) boundary: Cow<'static, str>,
    pub(super) key: String,
}

impl EntryKey {
    pub(super) fn of_answer(boundary: CacheBoundary, key: &str) -> Self {
        Self { boundary: boundary.as_str().into(), key: key.to_owned() }
    }

    /// Returns the key of a failure. It includes the attempt, unlike the key of an answer.
    pub(super) fn of_failure(boundary: CacheBoundary, key: &str, attempt: u32) -> Self {
        Self { boundary: format!("{}{FAILURE_SUFFIX}", boundary.as_str()).into(), key: format!("{key}#{attempt}") }
    }

    pub(super) fn is_failure(&self) -> bool {
        self.boundary.ends_with(FAILURE_SUFFIX)
    }

    /// Returns whether a new value replaces the stored one. True for setup replies and failures; a measured answer is
    /// never replaced.
    pub(super) fn replaces_older(&self) -> bool {
        use CacheBoundary::{Dataset, DatasetRows, Metadata, Program, TaskInfo};
        let setup_replies = [Metadata, Program, TaskInfo, Dataset, DatasetRows];
        self.is_failure() || setup_replies.iter().any(|boundary| boundary.as_str() == self.boundary)
    }
}

/// A stored response: packed, with a checksum that also covers its namespace and key.
#[derive(Debug)]
pub(super) struct StoredEntry<'a> {
    size: i64,
    checksum: Vec<u8>,
    response: Cow<'a, [u8]>,
}

impl<'a> StoredEntry<'a> {
    pub(super) fn new(namespace: &str, name: &EntryKey, response: &'a Reply) -> std::io::Result<Self> {
        Ok(Self {
            size: i64::try_from(response.len()).unwrap_or(i64::MAX),
            checksum: checksum(namespace, name, response),
            response: response.packed()?.into(),
        })
    }

    /// Returns the response, or `None` if the entry does not match its checksum.
    pub(super) fn open(self, namespace: &str, name: &EntryKey) -> Option<Reply> {
        let reply = Reply::from_packed(self.response.into_owned(), u64::try_from(self.size).ok()?)?;
        (checksum(namespace, name, &reply) == self.checksum).then_some(reply)
    }

    /// Returns the approximate size of the entry in the file, in bytes.
    pub(super) fn footprint(&self, namespace: &str, name: &EntryKey) -> u64 {
        /// Checksum, time, size and share of the B-tree. Namespace and key count twice, because they are also in the
        /// index.
        const FIXED: usize = 128;
        (self.response.len() + 2 * (namespace.len() + name.key.len()) + name.boundary.len() + FIXED) as u64
    }
}

fn checksum(namespace: &str, name: &EntryKey, response: &[u8]) -> Vec<u8> {
    let mut hash = Sha256::new();
    for part in [namespace.as_bytes(), name.key.as_bytes(), name.boundary.as_bytes(), response] {
        hash.update(&(part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finish().to_vec()
}

pub(super) fn select(
    connection: &Connection,
    namespace: &str,
    name: &EntryKey,
) -> rusqlite::Result<Option<StoredEntry<'static>>> {
    const SELECT: &str = "SELECT size, checksum, response FROM request_response_cache \
                          WHERE namespace = ?1 AND cache_key = ?2";
    // A value of a wrong type is damage; the checksum then does not match.
    let record = |row: &rusqlite::Row<'_>| {
        Ok(StoredEntry {
            size: row.get(0).unwrap_or(-1),
            checksum: row.get(1).unwrap_or_default(),
            response: row.get::<_, Vec<u8>>(2).unwrap_or_default().into(),
        })
    };
    connection.prepare_cached(SELECT)?.query_row(params![namespace, name.key], record).optional()
}

/// Writes an entry if it is new or `replaces` is set. Returns whether it was written.
pub(super) fn write(
    connection: &Connection,
    namespace: &str,
    name: &EntryKey,
    record: &StoredEntry<'_>,
    replaces: bool,
) -> rusqlite::Result<bool> {
    const WRITE: &str = "INSERT INTO request_response_cache \
                         (namespace, cache_key, boundary, size, created_at, checksum, response) \
                         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT DO UPDATE SET \
                         boundary = excluded.boundary, size = excluded.size, created_at = excluded.created_at, \
                         checksum = excluded.checksum, response = excluded.response WHERE ?8";
    let (created, StoredEntry { size, checksum, response }) = (rfc3339(unix_millis()), record);
    let values = params![namespace, name.key, name.boundary, size, created, checksum, response.as_ref(), replaces];
    connection.prepare_cached(WRITE)?.execute(values).map(|rows| rows > 0)
}

/// Counts the entries of a namespace by boundary.
pub(super) fn count(connection: &Connection, namespace: &str) -> rusqlite::Result<Vec<(String, u64)>> {
    const COUNT: &str = "SELECT boundary, count(*) FROM request_response_cache WHERE namespace = ?1 GROUP BY boundary";
    let mut statement = connection.prepare_cached(COUNT)?;
    let rows = statement.query_map([namespace], |row| {
        Ok((row.get::<_, String>(0)?, u64::try_from(row.get::<_, i64>(1)?).unwrap_or_default()))
    })?;
    rows.collect()
}

/// Moves the write-ahead log into the file and truncates it, unless another connection is reading it.
pub(super) fn checkpoint(connection: &Connection) -> rusqlite::Result<()> {
    connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
}

/// Returns the size of the file and its write-ahead log in bytes.
pub(super) fn size_on_disk(path: &Utf8Path) -> u64 {
    let bytes = |path: &Utf8Path| std::fs::metadata(path).map_or(0, |found| found.len());
    bytes(path) + bytes(&wal_path(path))
}

pub(super) fn wal_path(path: &Utf8Path) -> Utf8PathBuf {
    Utf8PathBuf::from(format!("{path}-wal"))
}

/// Opens the file for writing, and creates it if it is missing.
pub(super) fn open_writer(path: &Utf8Path) -> Result<Connection, OptimizerError> {
    create_file(path)?;
    let failed = |error: rusqlite::Error| sqlite_error(path, "opening", error);
    let mut connection = connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE, "").map_err(failed)?;
    // Switching to WAL ignores the busy timeout, so retry here while another process switches.
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
    // Another process may be creating the table at this moment; then the second attempt finds it.
    migrate(&mut connection, path).or_else(|_raced| migrate(&mut connection, path))?;
    check_table(&connection, path)?;
    Ok(connection)
}

/// Opens an existing file for reading. `frozen` promises that no process writes to it: it is read without locks and
/// without creating files next to it.
pub(super) fn open_reader(path: &Utf8Path, frozen: bool) -> Result<Connection, OptimizerError> {
    let connection = connect(path, OpenFlags::SQLITE_OPEN_READ_ONLY, if frozen { "?immutable=1" } else { "" })
        .map_err(|error| sqlite_error(path, "opening", error))?;
    check_table(&connection, path)?;
    Ok(connection)
}

fn connect(path: &Utf8Path, flags: OpenFlags, query: &str) -> rusqlite::Result<Connection> {
    let escaped = path.as_str().replace('%', "%25").replace('?', "%3f").replace('#', "%23");
    let flags = flags | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(format!("file:{escaped}{query}"), flags)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    Ok(connection)
}

fn migrate(connection: &mut Connection, path: &Utf8Path) -> Result<(), OptimizerError> {
    Migrations::from_slice(SCHEMA).to_latest(connection).map_err(|error| match error {
        rusqlite_migration::Error::RusqliteError { err, .. } if is_damage(&err) => corrupt_error(path, err),
        other => foreign_error(path, other),
    })
}

/// Fails if the database does not have our schema. Also detects damage, because it reads the first page.
fn check_table(connection: &Connection, path: &Utf8Path) -> Result<(), OptimizerError> {
    const COLUMNS: &str = "SELECT namespace, cache_key, boundary, size, created_at, checksum, response \
                           FROM request_response_cache";
    let found: rusqlite::Result<i64> = connection.pragma_query_value(None, "user_version", |row| row.get(0));
    let version = found.map_err(|error| sqlite_error(path, "opening", error))?;
    if version != SCHEMA.len() as i64 {
        return Err(foreign_error(path, format!("its schema has version {version}, not {}", SCHEMA.len())));
    }
    connection.prepare(COLUMNS).map(|_| ()).map_err(|error| match error {
        damage if is_damage(&damage) => corrupt_error(path, damage),
        other => foreign_error(path, other),
    })
}

/// Creates the cache file privately under a temporary name and renames it once it has its table. So other users can
/// never read it, and other processes never see an incomplete file.
fn create_file(path: &Utf8Path) -> Result<(), OptimizerError> {
    if path.exists() {
        return Ok(());
    }
    let parent = path.parent().filter(|parent| !parent.as_str().is_empty()).unwrap_or(Utf8Path::new("."));
    let made = DirBuilder::new().recursive(true).mode(0o700).create(parent);
    made.map_err(file_error::io(parent, "making"))?;
    let failed = file_error::io(path, "making");
    let unfinished = tempfile::NamedTempFile::new_in(parent).map_err(failed)?;
    // The fallback is never used: directory and file name are UTF-8.
    let place = Utf8Path::from_path(unfinished.path()).unwrap_or(path);
    let failed_sqlite = |error: rusqlite::Error| sqlite_error(path, "making", error);
    let mut connection = connect(place, OpenFlags::SQLITE_OPEN_READ_WRITE, "").map_err(failed_sqlite)?;
    migrate(&mut connection, path)?;
    connection.close().map_err(|(_, error)| failed_sqlite(error))?;
    match unfinished.persist_noclobber(path) {
        // The file system has no hard links.
        Err(error) if !path.exists() => error.file.persist(path).map(|_| ()).map_err(|error| failed(error.error)),
        // Another process may have created the file first.
        Ok(_) | Err(_) => Ok(()),
    }
}

fn is_damage(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(Sqlite::DatabaseCorrupt | Sqlite::NotADatabase))
}

/// Converts an SQLite error by its cause.
pub(super) fn sqlite_error(path: &Utf8Path, doing: &str, error: rusqlite::Error) -> OptimizerError {
    let message = |what: &str| format!("{what} while {doing} the cache {path}: {error}");
    let found = match error.sqlite_error_code() {
        _ if is_storage_full(&error) => OptimizerError::new(ErrorCode::StorageFull, message("the disk is full"))
            .with_hint("Free space or name a cache.path on another disk, then resume the run."),
        Some(Sqlite::DatabaseCorrupt | Sqlite::NotADatabase) => corrupt_error(path, &error),
        Some(Sqlite::DatabaseBusy | Sqlite::DatabaseLocked) => {
            OptimizerError::new(ErrorCode::Sqlite, message("another process locks the file"))
                .with_hint("Stop the process that writes to the cache, or name another cache.path.")
        }
        Some(Sqlite::CannotOpen | Sqlite::PermissionDenied | Sqlite::ReadOnly | Sqlite::SystemIoFailure) => {
            OptimizerError::new(ErrorCode::Io, message("no access"))
        }
        _ => OptimizerError::new(ErrorCode::Sqlite, message("failure")),
    };
    found.caused_by(error)
}

/// Creates the error for a damaged file.
fn corrupt_error(path: &Utf8Path, found: impl std::fmt::Display) -> OptimizerError {
    OptimizerError::new(ErrorCode::CacheCorrupt, format!("the cache {path} is damaged: {found}"))
        .with_hint("Move the file away, or name another cache.path; the calls are then sent again.")
}

/// Creates the error for a database that is not a cache of this release.
fn foreign_error(path: &Utf8Path, found: impl std::fmt::Display) -> OptimizerError {
    OptimizerError::new(ErrorCode::CacheCorrupt, format!("{path} is not a cache of this release: {found}"))
        .with_hint("Name another cache.path, or use the release that wrote the file.")
}

pub(super) fn full_error(path: &Utf8Path, size: u64, wanted: u64, limit: u64) -> OptimizerError {
    let message = format!("the cache {path} has {size} of {limit} bytes, and {wanted} more do not fit");
    OptimizerError::new(ErrorCode::CacheFull, message).with_hint("Raise cache.max_mb or name another cache.path.")
}

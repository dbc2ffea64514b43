//! Lookups on one read connection. A read-only run never modifies the file or its directory.

use std::os::unix::fs::MetadataExt;

use camino::Utf8PathBuf;
use parking_lot::Mutex;
use rusqlite::Connection;

use super::database::{self, EntryKey, StoredEntry};
use synth_optimizer_core::model::error::OptimizerError;

/// Reads the entries of one namespace.
#[derive(Debug)]
pub(super) struct CacheReader {
    path: Utf8PathBuf,
    namespace: String,
    /// Whether this process has the file open for writing. If not, the file may be missing, at rest, or written by
    /// other processes, and that may change at any time.
    is_own: bool,
    /// Connection of the last lookup, valid for one state of the file.
    connection_cache: Mutex<Option<(FileState, Connection)>>,
}

/// State of the cache file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FileState {
    Missing,
    /// There is no write-ahead log. A change of the file changes one of these values.
    AtRest {
        inode: u64,
        size: u64,
        modified: (i64, i64),
    },
    Live,
}

impl CacheReader {
    /// Opens the file if it exists, so that an unreadable file is reported before the first lookup.
    pub(super) fn open(path: Utf8PathBuf, namespace: String, is_own: bool) -> Result<Self, OptimizerError> {
        let reader = Self { path, namespace, is_own, connection_cache: Mutex::default() };
        reader.with_connection(|_| Ok(()))?;
        Ok(reader)
    }

    pub(super) fn lookup(&self, name: &EntryKey) -> Result<Option<StoredEntry<'static>>, OptimizerError> {
        Ok(self.with_connection(|connection| database::select(connection, &self.namespace, name))?.flatten())
    }

    /// Counts the entries by boundary. Returns none if the file is missing.
    pub(super) fn count(&self) -> Result<Vec<(String, u64)>, OptimizerError> {
        Ok(self.with_connection(|connection| database::count(connection, &self.namespace))?.unwrap_or_default())
    }

    pub(super) fn file_is_missing(&self) -> bool {
        self.file_state() == FileState::Missing
    }

    /// Runs a read on the connection. Returns `None` if the file is missing. Repeats the read if the file changed
    /// during a read without locks.
    fn with_connection<T>(
        &self,
        read: impl Fn(&Connection) -> rusqlite::Result<T>,
    ) -> Result<Option<T>, OptimizerError> {
        const ATTEMPTS: u32 = 5;
        let mut connection_cache = self.connection_cache.lock();
        for attempt in 1..=ATTEMPTS {
            let file_state = self.file_state();
            if file_state == FileState::Missing {
                return Ok(None);
            }
            let connected = match connection_cache.take() {
                Some((known, connection)) if known == file_state => Ok(connection),
                Some(_) | None => self.connect(file_state),
            };
            let result = connected.and_then(|connection| {
                let (_, connection) = connection_cache.insert((file_state, connection));
                read(connection).map_err(|error| database::sqlite_error(&self.path, "reading", error))
            });
            if attempt == ATTEMPTS || self.file_state() == file_state {
                return result.map(Some);
            }
        }
        Ok(None)
    }

    fn connect(&self, file_state: FileState) -> Result<Connection, OptimizerError> {
        match database::open_reader(&self.path, file_state != FileState::Live) {
            // In a read-only directory the write-ahead log may be unreadable; then read the file alone.
            Err(_) if file_state == FileState::Live && !self.is_own => database::open_reader(&self.path, true),
            opened => opened,
        }
    }

    fn file_state(&self) -> FileState {
        if self.is_own || std::fs::metadata(database::wal_path(&self.path)).is_ok_and(|wal| wal.len() > 0) {
            return FileState::Live;
        }
        std::fs::metadata(&self.path).map_or(FileState::Missing, |file| FileState::AtRest {
            inode: file.ino(),
            size: file.len(),
            modified: (file.mtime(), file.mtime_nsec()),
        })
    }
}

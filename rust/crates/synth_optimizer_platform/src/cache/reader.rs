//! Lookups: one connection that reads, and a file that is never touched by a run that may only read it.

use std::os::unix::fs::MetadataExt;

use camino::Utf8PathBuf;
use parking_lot::Mutex;
use rusqlite::Connection;

use super::database::{self, Record, RowName};
use synth_optimizer_core::model::error::OptimizerError;

/// Reads the rows of one namespace.
#[derive(Debug)]
pub(super) struct Reader {
    path: Utf8PathBuf,
    namespace: String,
    /// Whether this process keeps the file open for writing. If not, the file may be missing, at rest, or written by
    /// others, and this may change.
    is_own: bool,
    /// The connection of the last lookup. It is good for one stand of the file.
    kept: Mutex<Option<(Stand, Connection)>>,
}

/// How a file stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stand {
    Missing,
    /// No write-ahead log: everything is in the file, and any change of it shows here.
    Rest {
        inode: u64,
        size: u64,
        modified: (i64, i64),
    },
    Live,
}

impl Reader {
    /// Opens the file now if there is one, so that one that cannot be read is noticed before the first lookup.
    pub(super) fn open(path: Utf8PathBuf, namespace: String, is_own: bool) -> Result<Self, OptimizerError> {
        let reader = Self { path, namespace, is_own, kept: Mutex::default() };
        reader.with(|_| Ok(()))?;
        Ok(reader)
    }

    pub(super) fn look(&self, name: &RowName) -> Result<Option<Record>, OptimizerError> {
        Ok(self.with(|connection| database::select(connection, &self.namespace, name))?.flatten())
    }

    /// Entries by boundary; none without a file.
    pub(super) fn count(&self) -> Result<Vec<(String, u64)>, OptimizerError> {
        Ok(self.with(|connection| database::count(connection, &self.namespace))?.unwrap_or_default())
    }

    pub(super) fn file_is_missing(&self) -> bool {
        self.stand() == Stand::Missing
    }

    /// Reads; nothing without a file. A file that changed under a reading without locks is read again.
    fn with<T>(&self, read: impl Fn(&Connection) -> rusqlite::Result<T>) -> Result<Option<T>, OptimizerError> {
        const ATTEMPTS: u32 = 5;
        let mut kept = self.kept.lock();
        for attempt in 1..=ATTEMPTS {
            let stand = self.stand();
            if stand == Stand::Missing {
                return Ok(None);
            }
            let connected = match kept.take() {
                Some((known, connection)) if known == stand => Ok(connection),
                Some(_) | None => self.connect(stand),
            };
            let result = connected.and_then(|connection| {
                let (_, connection) = kept.insert((stand, connection));
                read(connection).map_err(|error| database::sqlite_fault(&self.path, "reading", error))
            });
            if attempt == ATTEMPTS || self.stand() == stand {
                return result.map(Some);
            }
        }
        Ok(None)
    }

    fn connect(&self, stand: Stand) -> Result<Connection, OptimizerError> {
        match database::open_reader(&self.path, stand != Stand::Live) {
            // The log of a file in a read-only directory may not be readable; the file itself is.
            Err(_) if stand == Stand::Live && !self.is_own => database::open_reader(&self.path, true),
            opened => opened,
        }
    }

    fn stand(&self) -> Stand {
        if self.is_own || std::fs::metadata(database::wal_path(&self.path)).is_ok_and(|wal| wal.len() > 0) {
            return Stand::Live;
        }
        std::fs::metadata(&self.path).map_or(Stand::Missing, |file| Stand::Rest {
            inode: file.ino(),
            size: file.len(),
            modified: (file.mtime(), file.mtime_nsec()),
        })
    }
}

//! Lookups: a few read connections, and a file that is never touched by a run that may only read it.

use std::os::unix::fs::MetadataExt;

use camino::Utf8PathBuf;
use parking_lot::Mutex;
use rusqlite::Connection;

use super::database::{self, Access};
use super::fault;
use super::record::{Record, RowName};
use synth_optimizer_core::model::error::OptimizerError;

/// Read connections that are kept open.
const IDLE: usize = 4;

/// Reads the rows of one namespace.
#[derive(Debug)]
pub(super) struct Reader {
    path: Utf8PathBuf,
    namespace: String,
    watch: Watch,
    pool: Mutex<Pool>,
}

/// Whether this process keeps the file open for writing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Watch {
    /// It does: there is a live file.
    Own,
    /// It does not: the file may be missing, at rest, or written by others, and this may change.
    Foreign,
}

/// What was found under a name.
#[derive(Debug)]
pub(super) enum Found {
    Row(Record),
    Nothing,
    NoFile,
}

/// How a file stands; connections are good for one stand.
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

#[derive(Debug)]
struct Pool {
    stand: Stand,
    idle: Vec<Connection>,
}

impl Reader {
    pub(super) fn new(path: Utf8PathBuf, namespace: String, watch: Watch) -> Self {
        Self { path, namespace, watch, pool: Mutex::new(Pool { stand: Stand::Live, idle: Vec::new() }) }
    }

    pub(super) fn look(&self, name: &RowName) -> Result<Found, OptimizerError> {
        let found = self.with(|connection| {
            let found = database::select(connection, &self.namespace, name)?;
            Ok(found.map_or(Found::Nothing, Found::Row))
        })?;
        Ok(found.unwrap_or(Found::NoFile))
    }

    /// Entries by boundary; none without a file.
    pub(super) fn count(&self) -> Result<Vec<(String, u64)>, OptimizerError> {
        Ok(self.with(|connection| database::count(connection, &self.namespace))?.unwrap_or_default())
    }

    /// Opens one connection now, so that a file that cannot be read is noticed before the first lookup.
    pub(super) fn check(&self) -> Result<(), OptimizerError> {
        self.with(|_| Ok(())).map(|_| ())
    }

    pub(super) fn file_is_missing(&self) -> bool {
        self.stand() == Stand::Missing
    }

    /// Reads; nothing without a file. A file that changed under a reading without locks is read again.
    fn with<T>(&self, read: impl Fn(&Connection) -> rusqlite::Result<T>) -> Result<Option<T>, OptimizerError> {
        const ATTEMPTS: u32 = 5;
        for attempt in 1..=ATTEMPTS {
            let stand = self.stand();
            if stand == Stand::Missing {
                return Ok(None);
            }
            let result = self.connection(stand).and_then(|connection| {
                let read = read(&connection).map_err(|error| fault::sqlite(&self.path, "reading", error));
                self.give_back(stand, connection);
                read
            });
            if attempt == ATTEMPTS || self.stand() == stand {
                return result.map(Some);
            }
        }
        Ok(None)
    }

    fn stand(&self) -> Stand {
        if self.watch == Watch::Own {
            return Stand::Live;
        }
        if std::fs::metadata(database::wal_path(&self.path)).is_ok_and(|wal| wal.len() > 0) {
            return Stand::Live;
        }
        std::fs::metadata(&self.path).map_or(Stand::Missing, |file| Stand::Rest {
            inode: file.ino(),
            size: file.len(),
            modified: (file.mtime(), file.mtime_nsec()),
        })
    }

    fn connection(&self, stand: Stand) -> Result<Connection, OptimizerError> {
        let idle = {
            let mut pool = self.pool.lock();
            if pool.stand != stand {
                pool.idle.clear();
                pool.stand = stand;
            }
            pool.idle.pop()
        };
        match (idle, stand) {
            (Some(connection), _) => Ok(connection),
            (None, Stand::Live) => match database::open_reader(&self.path, Access::Live) {
                // The log of a file in a read-only directory may not be readable; the file itself is.
                Err(_) if self.watch == Watch::Foreign => database::open_reader(&self.path, Access::Frozen),
                opened => opened,
            },
            (None, Stand::Rest { .. } | Stand::Missing) => database::open_reader(&self.path, Access::Frozen),
        }
    }

    fn give_back(&self, stand: Stand, connection: Connection) {
        let mut pool = self.pool.lock();
        if pool.stand == stand && pool.idle.len() < IDLE {
            pool.idle.push(connection);
        }
    }
}

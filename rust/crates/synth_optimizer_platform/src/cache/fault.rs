//! What can go wrong with the cache, in words.

use camino::Utf8Path;
use rusqlite::ErrorCode as Sqlite;

use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};

/// A failure of SQLite, by its cause.
pub(super) fn sqlite(path: &Utf8Path, doing: &str, error: rusqlite::Error) -> OptimizerError {
    let message = |what: &str| format!("{what} while {doing} the cache {path}: {error}");
    let fault = match error.sqlite_error_code() {
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
    fault.caused_by(error)
}

/// The file as a whole cannot be read.
pub(super) fn corrupt(path: &Utf8Path, found: impl std::fmt::Display) -> OptimizerError {
    OptimizerError::new(ErrorCode::CacheCorrupt, format!("the cache {path} is damaged: {found}"))
        .with_hint("Move the file away or name another cache.path; its answers have to be measured again.")
}

/// The file is a database, and not one of ours.
pub(super) fn foreign(path: &Utf8Path, found: impl std::fmt::Display) -> OptimizerError {
    OptimizerError::new(ErrorCode::CacheCorrupt, format!("{path} is not a cache of this release: {found}"))
        .with_hint("Name another cache.path, or use the release that wrote the file.")
}

/// A row that may not be used, where it cannot be replaced.
pub(super) fn damaged_row(path: &Utf8Path, namespace: &str, boundary: &str, key: &str) -> OptimizerError {
    OptimizerError::new(
        ErrorCode::CacheCorrupt,
        format!("the cached answer of {boundary} under {key} does not match its checksum"),
    )
    .with_detail(format!("cache {path}, namespace {namespace:?}"))
}

pub(super) fn full(path: &Utf8Path, size: u64, wanted: u64, limit: u64) -> OptimizerError {
    OptimizerError::new(
        ErrorCode::CacheFull,
        format!("the cache {path} has {size} bytes and room for {limit}; {wanted} more do not fit"),
    )
    .with_hint("Raise cache.max_mb or name another cache.path.")
}

pub(super) fn io(path: &Utf8Path, doing: &str, error: std::io::Error) -> OptimizerError {
    OptimizerError::from_cause(ErrorCode::Io, format!("{doing} {path} failed"), error)
}

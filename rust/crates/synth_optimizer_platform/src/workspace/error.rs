//! Errors of the workspace: the failed operation, the file, and how to fix it.

use std::fmt::Display;
use std::path::Path;

use rusqlite::ErrorCode as Cause;
use rusqlite::ffi::SQLITE_IOERR_SHMSIZE;

use crate::file_error;

use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};

/// Converts an SQLite error. `doing` names the failed operation, such as `read the log`.
pub fn sqlite(doing: impl Display) -> impl FnOnce(rusqlite::Error) -> OptimizerError {
    move |error| {
        if is_storage_full(&error) {
            return OptimizerError::from_cause(
                ErrorCode::StorageFull,
                format!("the disk is full: cannot {doing}"),
                error,
            )
            .with_hint("Free space on the disk of the run directory, then resume the run.");
        }
        let cause = error.sqlite_error_code();
        let found = OptimizerError::from_cause(ErrorCode::Sqlite, format!("cannot {doing}"), error);
        match cause {
            Some(Cause::DatabaseCorrupt | Cause::NotADatabase) => found.with_hint(DAMAGED),
            Some(Cause::DatabaseBusy | Cause::DatabaseLocked) => {
                found.with_hint("Wait for the process that locks the database, or end it.")
            }
            Some(Cause::ReadOnly | Cause::CannotOpen | Cause::PermissionDenied) => {
                found.with_hint("Check that the file exists, and that the file and its directory are writable.")
            }
            Some(Cause::ConstraintViolation) => {
                OptimizerError { cause: found.cause, ..OptimizerError::new(ErrorCode::Invariant, found.message) }
            }
            _ => found,
        }
    }
}

/// Returns whether the disk had no room for a write.
pub(crate) fn is_storage_full(error: &rusqlite::Error) -> bool {
    // SQLite extends its shared memory file to this size before the first write.
    let is_extending = error.sqlite_error().is_some_and(|error| error.extended_code == SQLITE_IOERR_SHMSIZE);
    error.sqlite_error_code() == Some(Cause::DiskFull) || is_extending
}

/// Converts a file system error. `doing` names the failed operation, such as `create`.
pub fn io(doing: impl Display, path: &Path) -> impl FnOnce(std::io::Error) -> OptimizerError {
    move |error| file_error::classified(format!("cannot {doing} {}", path.display()), error)
}

/// Returns the error for a state that only a bug can cause.
pub(super) fn invariant(message: impl Into<String>) -> OptimizerError {
    OptimizerError::new(ErrorCode::Invariant, message)
}

pub fn json(doing: impl Display) -> impl FnOnce(serde_json::Error) -> OptimizerError {
    move |error| OptimizerError::from_cause(ErrorCode::Json, format!("cannot {doing}"), error)
}

pub(super) const DAMAGED: &str = "Restore the file from a copy, or recover its rows \
    with `sqlite3 workspace.sqlite .recover`; events.jsonl holds the log as well.";

/// Returns the error for stored data that can no longer be read.
pub(super) fn damaged(what: impl Display) -> OptimizerError {
    OptimizerError::new(ErrorCode::Sqlite, format!("{what} is damaged")).with_hint(DAMAGED)
}

/// The prefix of the message of every ownership error.
const FENCED: &str = "fenced: ";

/// Returns the error for a process that no longer owns its run.
pub(crate) fn ownership_lost(why: &str) -> OptimizerError {
    OptimizerError::new(ErrorCode::StateTransition, format!("{FENCED}{why}"))
        .with_hint("Nothing to do: the current holder of the run resumes it, and no stored state was lost.")
}

/// Returns whether an error means that this process no longer owns the run.
pub fn is_ownership_lost(error: &OptimizerError) -> bool {
    error.code == ErrorCode::StateTransition && error.message.starts_with(FENCED)
}

//! Errors of file operations.

use std::io::{Error, ErrorKind};

use camino::Utf8Path;
use rustix::io::Errno;

use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};

/// Converts the error of a file operation. `doing` is a word such as `writing`.
pub(crate) fn io<'a>(path: &'a Utf8Path, doing: &'a str) -> impl Fn(Error) -> OptimizerError + Copy + 'a {
    move |error| classified(format!("{doing} {path} failed"), error)
}

/// Converts the error of a file operation by its cause: a full disk, too many open files, or any other. `what` says what
/// failed.
pub(crate) fn classified(what: String, error: Error) -> OptimizerError {
    if matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded) {
        return OptimizerError::from_cause(ErrorCode::StorageFull, format!("the disk is full: {what}"), error);
    }
    let is_out_of_files = is_out_of_files(&error);
    let found = OptimizerError::from_cause(ErrorCode::Io, what, error);
    if is_out_of_files { found.with_hint(OUT_OF_FILES_HINT) } else { found }
}

/// What to do about too many open files.
pub(crate) const OUT_OF_FILES_HINT: &str =
    "Raise the limit of open files (`ulimit -n`) or lower gepa.pipeline.workers, then resume the run.";

/// Returns whether an error was caused by too many open files of this process or machine.
pub(crate) fn is_out_of_files(error: &Error) -> bool {
    let code = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(code, Some(Errno::MFILE | Errno::NFILE))
}

/// Returns `None` instead of the error of a missing file.
pub(crate) fn if_exists<T>(result: Result<T, Error>) -> Result<Option<T>, Error> {
    match result {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        found => found.map(Some),
    }
}

/// Converts the error of a serialization.
pub(crate) fn json(what: &str) -> impl Fn(serde_json::Error) -> OptimizerError {
    move |error| OptimizerError::from_cause(ErrorCode::Json, format!("{what} cannot be written as JSON"), error)
}

#[cfg(test)]
#[path = "file_error_tests.rs"]
mod tests;

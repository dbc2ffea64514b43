//! Errors of file operations.

use std::io::{Error, ErrorKind};

use camino::Utf8Path;

use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};

/// Converts the error of a file operation. `doing` is a word such as `writing`.
pub(crate) fn io<'a>(path: &'a Utf8Path, doing: &'a str) -> impl Fn(Error) -> OptimizerError + Copy + 'a {
    move |error| {
        let is_full = matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded);
        let fault = OptimizerError::from_cause(ErrorCode::Io, format!("{doing} {path} failed"), error);
        if is_full { fault.with_hint("Free space on the disk, then resume the run.") } else { fault }
    }
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

//! What can go wrong with files, in words.

use camino::Utf8Path;

use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};

/// A file operation that failed; `doing` reads as `writing`.
pub(crate) fn io(path: &Utf8Path, doing: &str, error: std::io::Error) -> OptimizerError {
    let kind = error.kind();
    let fault = OptimizerError::from_cause(ErrorCode::Io, format!("{doing} {path} failed"), error);
    match kind {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
            fault.with_hint("Free space on the disk, then resume the run.")
        }
        _ => fault,
    }
}

/// Something that cannot be written as JSON.
pub(super) fn json(what: &str, error: serde_json::Error) -> OptimizerError {
    OptimizerError::from_cause(ErrorCode::Json, format!("{what} cannot be written as JSON"), error)
}

//! The lock of a run directory: one process works on a run, and everybody can see which.

use camino::Utf8Path;

use super::file_lock::{FileLock, LockMark, NotTaken};
use crate::clock::unix_millis;
use synth_optimizer_core::model::envelope::rfc3339;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};

/// The lock, held as long as this lives.
#[derive(Debug)]
pub struct RunLock {
    lock: FileLock,
}

impl RunLock {
    /// Takes the lock for this process and notes who it is; `what` names what is locked, for the message.
    pub fn take(path: &Utf8Path, what: &str) -> Result<Self, OptimizerError> {
        Self::take_from(path, what, None)
    }

    /// The same, also where the named process holds it: `pid N`, or its whole note.
    pub fn take_from(path: &Utf8Path, what: &str, superseded: Option<&str>) -> Result<Self, OptimizerError> {
        let note = format!("pid {} since {}", std::process::id(), rfc3339(unix_millis()));
        FileLock::take(path, &note, superseded).map(|lock| Self { lock }).map_err(|refused| match refused {
            NotTaken::Held(holder) => held(what, &holder),
            NotTaken::Failed(error) => error,
        })
    }

    /// Which file this lock is.
    pub fn mark(&self) -> &LockMark {
        self.lock.mark()
    }

    /// Who holds the lock at this moment.
    pub fn holder(path: &Utf8Path) -> Result<Option<String>, OptimizerError> {
        FileLock::holder(path)
    }
}

pub(super) fn held(what: &str, holder: &str) -> OptimizerError {
    OptimizerError::new(ErrorCode::Io, format!("{what} is held by {holder}")).with_hint(
        "Wait for that process or end it with `synth-optimizers runs cancel`; a new run needs another run.run_id.",
    )
}

//! Why the queue refuses: a code of the service's table, in front of the error that a person reads.

use rusqlite::ErrorCode as Cause;

use crate::Code;
use synth_optimizer_core::model::error::OptimizerError;
use synth_optimizer_core::model::lifecycle::RequestState;
use synth_optimizer_platform::workspace::error::sqlite;

/// A refusal of the queue. Nothing was changed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{error}")]
pub struct QueueError {
    /// `None`: the error says it all.
    pub code: Option<Code>,
    pub error: OptimizerError,
    /// The state of the request that was met, if there is one.
    pub state: Option<RequestState>,
    /// Whether the same may work in a moment: others write to the file, its disk is full or does not answer, or the file is
    /// not there.
    pub may_pass: bool,
}

impl QueueError {
    pub(crate) fn new(code: Code, message: impl Into<String>, hint: &str) -> Self {
        let error = OptimizerError::new(code.row().2, message).with_hint(hint);
        Self { code: Some(code), may_pass: code == Code::StoreBusy, ..error.into() }
    }

    #[must_use]
    pub(super) fn in_state(self, state: RequestState) -> Self {
        Self { state: Some(state), ..self }
    }

    /// Something about the store that may pass.
    pub(super) fn unwell(error: OptimizerError) -> Self {
        Self { may_pass: true, ..error.into() }
    }
}

impl From<QueueError> for OptimizerError {
    fn from(refused: QueueError) -> Self {
        refused.error
    }
}

impl From<OptimizerError> for QueueError {
    fn from(error: OptimizerError) -> Self {
        Self { code: None, error, state: None, may_pass: false }
    }
}

/// Turns an error of SQLite into one that says what was being done.
pub(super) fn sql(doing: &str) -> impl FnOnce(rusqlite::Error) -> QueueError {
    move |error| {
        let cause = error.sqlite_error_code();
        let found = sqlite(format_args!("{doing} in the queue"))(error);
        match cause {
            Some(Cause::DatabaseBusy | Cause::DatabaseLocked) => {
                let hint = "Another process is writing to the queue: ask again in a moment.";
                QueueError::new(Code::StoreBusy, found.message, hint)
            }
            Some(Cause::DiskFull) => {
                QueueError::unwell(found.with_hint("Free space on the disk of the queue, then ask again."))
            }
            Some(Cause::SystemIoFailure | Cause::CannotOpen | Cause::OutOfMemory) => QueueError::unwell(found),
            Some(Cause::DatabaseCorrupt | Cause::NotADatabase) => found.with_hint(DAMAGED).into(),
            _ => found.into(),
        }
    }
}

/// Nobody has heard of it.
pub(super) fn not_found(what: &str, id: &str) -> QueueError {
    let hint = "List what is there with GET /runs or `synth-optimizers runs list`.";
    QueueError::new(Code::RunNotFound, format!("there is no {what} {id:?} in the queue"), hint)
}

const DAMAGED: &str = "The file is damaged or not a queue: restore it from a copy, or save what is left with \
    `sqlite3 FILE .recover`; the runs themselves are in their own directories.";

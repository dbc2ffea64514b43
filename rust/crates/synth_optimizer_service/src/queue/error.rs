//! Errors of the queue: a code of the service's table, and the error that a user reads.

use rusqlite::ErrorCode as Cause;

use crate::ServiceErrorCode;
use synth_optimizer_core::model::error::OptimizerError;
use synth_optimizer_core::model::lifecycle::RequestState;
use synth_optimizer_platform::workspace::error::sqlite;

/// An error of the queue. Nothing was changed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{error}")]
pub struct QueueError {
    /// The code of the service's table, if the error has one.
    pub code: Option<ServiceErrorCode>,
    pub error: OptimizerError,
    /// The current state of the request, if the error is about one.
    pub state: Option<RequestState>,
    /// Whether a retry may succeed: another process writes to the file, the disk is full or does not answer, or the file is
    /// missing.
    pub is_transient: bool,
}

impl QueueError {
    pub(crate) fn new(code: ServiceErrorCode, message: impl Into<String>, hint: &str) -> Self {
        let error = OptimizerError::new(code.row().2, message).with_hint(hint);
        Self { code: Some(code), is_transient: code == ServiceErrorCode::DatabaseBusy, ..error.into() }
    }

    #[must_use]
    pub(super) fn in_state(self, state: RequestState) -> Self {
        Self { state: Some(state), ..self }
    }

    /// Returns an error of the store after which a retry may succeed.
    pub(super) fn transient(error: OptimizerError) -> Self {
        Self { is_transient: true, ..error.into() }
    }
}

impl From<QueueError> for OptimizerError {
    fn from(refused: QueueError) -> Self {
        refused.error
    }
}

impl From<OptimizerError> for QueueError {
    fn from(error: OptimizerError) -> Self {
        Self { code: None, error, state: None, is_transient: false }
    }
}

/// Converts an error of SQLite and adds what the queue was doing.
pub(super) fn sql(doing: &str) -> impl FnOnce(rusqlite::Error) -> QueueError {
    move |error| {
        let cause = error.sqlite_error_code();
        let found = sqlite(format_args!("{doing} in the queue"))(error);
        match cause {
            Some(Cause::DatabaseBusy | Cause::DatabaseLocked) => {
                let hint = "Retry: another process is writing to the queue.";
                let busy = QueueError::new(ServiceErrorCode::DatabaseBusy, found.message.clone(), hint);
                QueueError { error: busy.error.caused_by(found), ..busy }
            }
            Some(Cause::DiskFull) => {
                QueueError::transient(found.with_hint("Free space on the disk of the queue, then retry."))
            }
            Some(Cause::SystemIoFailure | Cause::CannotOpen | Cause::OutOfMemory) => QueueError::transient(found),
            Some(Cause::DatabaseCorrupt | Cause::NotADatabase) => found.with_hint(DAMAGED).into(),
            _ => found.into(),
        }
    }
}

/// Returns the error for an unknown request or run.
pub(super) fn not_found(what: &str, id: &str) -> QueueError {
    let hint = "List the runs with GET /runs or `synth-optimizers runs list`.";
    QueueError::new(ServiceErrorCode::RunNotFound, format!("the queue has no {what} {id:?}"), hint)
}

const DAMAGED: &str = "Restore the file from a copy, or recover its rows with \
    `sqlite3 FILE .recover`. The runs are in their own directories.";

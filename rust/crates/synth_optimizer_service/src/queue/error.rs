//! Why the queue refuses: a code that a door can map, in front of the error that a person reads.

use rusqlite::ErrorCode as Cause;

use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::lifecycle::RequestState;
use synth_optimizer_core::words;
use synth_optimizer_platform::workspace::error::sqlite;

words! {
    /// What the queue refuses, more precisely than the one error table has it.
    QueueCode {
        /// The key was used for another submit.
        IdempotencyKeyConflict = "idempotency_key_conflict",
        /// A request of this run is not over.
        RunIdInUse = "run_id_in_use",
        /// The run is completed.
        RunExists = "run_exists",
        /// The configuration holds a secret, which is never stored.
        InlineSecretRefused = "inline_secret_refused",
        /// As many requests wait as may.
        QueueFull = "queue_full",
        /// Another service has the database.
        ServiceDbInUse = "service_db_in_use",
        RunNotFound = "run_not_found",
        NotTerminal = "not_terminal",
        InvalidTransition = "invalid_transition",
        /// No page has given this cursor.
        CursorInvalid = "cursor_invalid",
        /// The lease is not the writer's any more.
        Fenced = "fenced",
        /// Another process writes for too long. Nothing was changed; asking again helps.
        StoreBusy = "store_busy",
        /// The disk is full or does not answer, or the file is not there. Nothing was changed; asking again helps once
        /// that is mended.
        StoreUnwell = "store_unwell",
        /// Everything else; the wire code of the error says what.
        Other = "other",
    }
}

/// A refusal of the queue. Nothing was changed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{error}")]
pub struct QueueError {
    pub code: QueueCode,
    pub error: OptimizerError,
    /// The state of the request that was met, if there is one.
    pub state: Option<RequestState>,
}

impl QueueError {
    pub(super) fn new(code: QueueCode, message: impl Into<String>, hint: &str) -> Self {
        let wire = match code {
            QueueCode::IdempotencyKeyConflict
            | QueueCode::RunIdInUse
            | QueueCode::RunExists
            | QueueCode::NotTerminal
            | QueueCode::InvalidTransition
            | QueueCode::Fenced => ErrorCode::StateTransition,
            QueueCode::InlineSecretRefused | QueueCode::CursorInvalid | QueueCode::RunNotFound => ErrorCode::Config,
            QueueCode::QueueFull => ErrorCode::Http,
            QueueCode::ServiceDbInUse => ErrorCode::Io,
            QueueCode::StoreBusy | QueueCode::StoreUnwell => ErrorCode::Sqlite,
            QueueCode::Other => ErrorCode::Optimizer,
        };
        Self { code, error: OptimizerError::new(wire, message).with_hint(hint), state: None }
    }

    /// Whether the same may work in a moment: others write to the file, or its disk is full.
    pub fn may_pass(&self) -> bool {
        matches!(self.code, QueueCode::StoreBusy | QueueCode::StoreUnwell)
    }

    #[must_use]
    pub(super) fn in_state(mut self, state: RequestState) -> Self {
        self.state = Some(state);
        self
    }
}

impl From<QueueError> for OptimizerError {
    fn from(refused: QueueError) -> Self {
        refused.error
    }
}

impl From<OptimizerError> for QueueError {
    fn from(error: OptimizerError) -> Self {
        Self { code: QueueCode::Other, error, state: None }
    }
}

/// Turns an error of SQLite into one that says what was being done.
pub(super) fn sql(doing: &str) -> impl FnOnce(rusqlite::Error) -> QueueError {
    move |error| {
        let cause = error.sqlite_error_code();
        let found = sqlite(format_args!("{doing} in the queue"))(error);
        match cause {
            Some(Cause::DatabaseBusy | Cause::DatabaseLocked) => {
                let mut busy = QueueError::new(QueueCode::StoreBusy, found.message, "");
                busy.error.hint = "Another process is writing to the queue: ask again in a moment.".to_owned();
                busy
            }
            Some(Cause::DiskFull) => unwell(found.with_hint("Free space on the disk of the queue, then ask again.")),
            Some(Cause::SystemIoFailure | Cause::CannotOpen | Cause::OutOfMemory) => unwell(found),
            Some(Cause::DatabaseCorrupt | Cause::NotADatabase) => found.with_hint(DAMAGED).into(),
            _ => found.into(),
        }
    }
}

/// Something about the store that may pass.
pub(super) fn unwell(error: OptimizerError) -> QueueError {
    QueueError { code: QueueCode::StoreUnwell, error, state: None }
}

/// Nobody has heard of it.
pub(super) fn not_found(what: &str, id: &str) -> QueueError {
    let message = format!("there is no {what} {id:?} in the queue");
    QueueError::new(
        QueueCode::RunNotFound,
        message,
        "List what is there with GET /runs or `synth-optimizers runs list`.",
    )
}

const DAMAGED: &str = "The file is damaged or not a queue: restore it from a copy, or save what is left with \
    `sqlite3 FILE .recover`; the runs themselves are in their own directories.";

//! The table of all errors: code, exception class, exit code, HTTP status and hint.

use std::error::Error;
use std::fmt::Display;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One row of the error table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ErrorRow {
    pub code: ErrorCode,
    /// The stable code that users match on.
    pub name: &'static str,
    /// The Python exception class.
    pub class: &'static str,
    /// The exit code of the command line.
    pub exit: u8,
    /// The HTTP status of the service.
    pub http: u16,
    /// The default advice, if the error has none of its own.
    pub hint: &'static str,
}

macro_rules! errors {
    ($($code:ident, $wire:literal, $class:literal, $exit:literal, $http:literal, $hint:literal;)*) => {
        /// Every error of the product, by cause.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
        pub enum ErrorCode { $(#[serde(rename = $wire)] $code,)* }

        /// The error table, one row per code.
        pub const ERRORS: &[ErrorRow] = &[
            $(ErrorRow { code: ErrorCode::$code, name: $wire, class: $class, exit: $exit, http: $http, hint: $hint },)*
        ];
    };
}

errors! {
    Optimizer, "synth_optimizer_error", "SynthOptimizerError", 1, 500, "Read the message. The run directory keeps every answer that was received.";
    Config, "synth_optimizer_config_error", "ConfigError", 2, 422, "Correct the named fields; `synth-optimizers gepa check` lists every problem at once.";
    Container, "synth_optimizer_container_error", "ContainerContractError", 3, 502, "Check that the container runs at container.url and answers /health and /metadata.";
    Proposer, "synth_optimizer_proposer_error", "ProposerError", 3, 502, "Check the proposer section: command, base_url, model and the key variable.";
    CacheMiss, "synth_optimizer_cache_miss", "CacheMissError", 4, 409, "Run once with cache.mode = \"readwrite\" under the same cache.path and cache.namespace.";
    CacheFull, "synth_optimizer_cache_full", "CacheFullError", 1, 507, "Raise cache.max_mb, or name another cache.path.";
    CacheCorrupt, "synth_optimizer_cache_corrupt", "CacheCorruptError", 1, 500, "Run with cache.mode = \"readwrite\" to measure the damaged rows again.";
    BudgetExceeded, "synth_optimizer_budget_exceeded", "BudgetExceededError", 5, 409, "Raise the named limit, or reduce the rows or estimates that it covers.";
    Cancelled, "synth_optimizer_cancelled", "CancelledError", 130, 409, "Start another run with the same cache.path and cache.namespace; it reuses the stored answers.";
    EventCompare, "synth_optimizer_event_compare_failed", "EventCompareError", 1, 409, "Compare both runs at the named event. Only normalized feeds can be compared.";
    RunFailed, "synth_optimizer_failed", "RunFailedError", 1, 500, "Fix the cause that gepa.run.failed in events.jsonl names, then start another run.";
    Invariant, "synth_optimizer_invariant_error", "InvariantError", 1, 500, "This is a defect: keep the run directory and report it.";
    StateTransition, "synth_optimizer_state_transition_error", "StateTransitionError", 1, 409, "Check the named state; only the transitions of the lifecycle table are allowed.";
    Io, "synth_optimizer_io_error", "OptimizerIoError", 1, 500, "Check that the path exists and is readable and writable.";
    DiskBudget, "synth_optimizer_disk_budget_exceeded", "OptimizerDiskBudgetError", 1, 507, "Free space under disk_budget.path or raise the limit.";
    StorageFull, "synth_optimizer_storage_full", "StorageFullError", 1, 507, "Free space on the named disk, then run the same command again; it resumes the run.";
    Json, "synth_optimizer_json_error", "OptimizerJsonError", 1, 400, "Correct the document at the named place; it must be valid JSON that fits the schema.";
    TomlDecode, "synth_optimizer_toml_decode_error", "OptimizerTomlDecodeError", 2, 400, "Correct the file at the named line and column; it must be valid TOML.";
    Http, "synth_optimizer_http_error", "OptimizerHttpError", 3, 502, "Check the address, and that a server answers there.";
    Sqlite, "synth_optimizer_sqlite_error", "OptimizerSqliteError", 1, 500, "Check the free space, the permissions of the database file, and that no other process locks it.";
}

impl ErrorCode {
    /// Returns the row of this code.
    pub const fn row(self) -> &'static ErrorRow {
        &ERRORS[self as usize]
    }

    /// Returns the stable code that users match on.
    pub const fn as_str(self) -> &'static str {
        self.row().name
    }

    /// Returns the error with this code.
    pub fn parse(name: &str) -> Option<Self> {
        ERRORS.iter().find(|row| row.name == name).map(|row| row.code)
    }
}

/// The error of a lower layer behind one thin pointer, which keeps `OptimizerError` small.
pub type Cause = Arc<Box<dyn Error + Send + Sync>>;

/// An error as users see it: what happened, and what to do.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{}: {message}", code.as_str())]
pub struct OptimizerError {
    pub code: ErrorCode,
    /// What happened, with the offending value.
    pub message: String,
    /// Additional detail: an excerpt, an inner message or a location.
    pub detail: Option<String>,
    /// What to do.
    pub hint: String,
    /// Whether something that a run needs is unavailable, so that the same run may succeed later.
    pub is_outage: bool,
    /// Every finding, for errors of a configuration.
    pub findings: Vec<ConfigFinding>,
    /// The error of a lower layer that caused this one, for logs and debuggers. Users read `message` and `detail`.
    #[source]
    pub cause: Option<Cause>,
}

/// Compares what users see and ignores the cause.
impl PartialEq for OptimizerError {
    fn eq(&self, other: &Self) -> bool {
        self.code == other.code
            && self.message == other.message
            && self.detail == other.detail
            && self.hint == other.hint
            && self.findings == other.findings
    }
}

impl OptimizerError {
    /// Returns an error with the hint of its table row.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        let hint = code.row().hint.to_owned();
        Self { code, message: message.into(), detail: None, hint, is_outage: false, findings: Vec::new(), cause: None }
    }

    /// Returns an error that a lower layer caused. Its message is `what`, a colon and the message of the cause.
    pub fn from_cause(code: ErrorCode, what: impl Display, cause: impl Error + Send + Sync + 'static) -> Self {
        Self::new(code, format!("{what}: {cause}")).caused_by(cause)
    }

    /// Replaces the hint.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = hint.into();
        self
    }

    /// Sets the detail.
    #[must_use]
    pub fn with_detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = Some(detail.into());
        self
    }

    /// Marks the error as an outage: the same run may succeed later.
    #[must_use]
    pub fn of_outage(mut self) -> Self {
        self.is_outage = true;
        self
    }

    /// Sets the error of a lower layer that caused this one.
    #[must_use]
    pub fn caused_by(mut self, cause: impl Error + Send + Sync + 'static) -> Self {
        self.cause = Some(Arc::new(Box::new(cause)));
        self
    }
}

/// The severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// The configuration cannot be used.
    Error,
    /// The configuration can be used; the message says how it is understood.
    Warning,
}

/// One problem of a configuration: where it is, what is wrong and what to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ConfigFinding {
    pub severity: Severity,
    /// A stable short code, such as `unknown_key`.
    pub code: &'static str,
    /// The dotted path of the field, such as `gepa.minibatch_size`.
    pub field: String,
    /// The file (or `environment`, `--set`) that the value came from.
    pub source: String,
    /// One-based position in the file; absent for values from other sources.
    pub line: Option<usize>,
    pub column: Option<usize>,
    /// What is wrong, with the value.
    pub message: String,
    /// What to do.
    pub hint: String,
    /// The line of the file with a marker below the location. Secrets are masked.
    pub excerpt: Option<String>,
}

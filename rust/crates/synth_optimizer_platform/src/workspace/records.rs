//! What is stored beside the log: the run itself, calls of its setup, files, operations and leases.

use serde_json::Value;

use super::batch::CacheUse;

/// What the run is; written once, when the workspace is created.
#[derive(Debug, Clone, PartialEq)]
pub struct RunRow {
    pub run_id: String,
    pub algorithm: String,
    /// The effective config, without secrets.
    pub config: Value,
    pub config_digest: String,
    pub container_url: String,
    /// `off`, `readwrite` or `readonly`.
    pub cache_mode: String,
    pub cache_namespace: String,
    pub cache_path: Option<String>,
    pub output_dir: String,
    pub run_dir: String,
    pub created_at: u64,
}

/// A call that loads the task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetupCall {
    /// Such as `container.program`.
    pub boundary: String,
    pub unix_millis: u64,
    pub cache: Option<CacheUse>,
}

/// Which document of the container a snapshot is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SnapshotKind {
    /// `/metadata`
    Contract,
    Health,
    Program,
    TaskInfo,
    /// The reply of the dataset or taskset route.
    Dataset,
    /// The train rows, as an array.
    TrainRows,
    HeldoutRows,
}

impl SnapshotKind {
    pub const fn word(self) -> &'static str {
        match self {
            Self::Contract => "contract",
            Self::Health => "health",
            Self::Program => "program",
            Self::TaskInfo => "task_info",
            Self::Dataset => "dataset",
            Self::TrainRows => "train_rows",
            Self::HeldoutRows => "heldout_rows",
        }
    }
}

/// A document that the container gave. The same document twice is stored once.
#[derive(Debug, Clone, PartialEq)]
pub struct Snapshot {
    pub kind: SnapshotKind,
    pub unix_millis: u64,
    pub document: Value,
}

/// A file of the run directory. A path written again replaces its row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Artifact {
    /// Relative to the run directory, or absolute outside it.
    pub path: String,
    pub kind: String,
    /// Hex.
    pub sha256: String,
    pub bytes: u64,
    pub retention: String,
    pub unix_millis: u64,
}

/// The manifest of a run that is over.
#[derive(Debug, Clone, PartialEq)]
pub struct Manifest {
    pub path: String,
    pub document: Value,
    pub unix_millis: u64,
}

/// How an operation went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OperationStatus {
    Accepted,
    Completed,
    Failed,
}

impl OperationStatus {
    pub const fn word(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Completed => "completed",
            Self::Failed => "failed",
        }
    }
}

/// Something that was asked of the run.
#[derive(Debug, Clone, PartialEq)]
pub struct Operation {
    /// `start`, `resume`, `stop`, `cancel`, ...
    pub operation_type: String,
    /// Who asked: a process, a person, a service.
    pub subject: String,
    pub status: OperationStatus,
    pub unix_millis: u64,
    pub detail: Value,
}

/// A resource that the process of the run takes. An earlier holder that never let go counts as expired.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// `run_directory`, `container_process`, ...
    pub resource_kind: String,
    pub resource_id: String,
    /// The process, such as `pid 4711 on host`.
    pub subject: String,
    pub unix_millis: u64,
}

/// The name of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseId(pub i64);

/// Anything that is stored beside the log.
#[derive(Debug, Clone, PartialEq)]
pub enum Record {
    SetupCall(SetupCall),
    Snapshot(Snapshot),
    Artifact(Artifact),
    Manifest(Manifest),
    Operation(Operation),
    Lease(Lease),
    Release { lease: LeaseId, unix_millis: u64 },
}

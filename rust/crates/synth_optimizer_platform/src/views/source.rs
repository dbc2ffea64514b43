//! Where the views find runs: the queue of a service, or a directory.

use std::fmt::Debug;
use std::sync::Arc;

use crate::artifacts::{RunOverview, RunPaths};
use crate::workspace::Reader;
use crate::workspace::models::{ReadError, Refusal};
use synth_optimizer_core::model::error::OptimizerError;

/// A collection of runs.
pub trait RunSource: Debug + Send + Sync {
    /// Lists runs, the newest first.
    fn runs(&self, query: &RunListQuery) -> Result<RunList, ReadError>;

    /// Finds a run by its id.
    fn run(&self, run_id: &str) -> Result<ShownRun, ReadError>;

    /// Returns the state of what executes the runs. `None` if the source is only files.
    fn health(&self) -> Result<Option<ServiceHealth>, ReadError>;

    /// Says in words where the runs are.
    fn place(&self) -> String;
}

/// Selects runs of the list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunListQuery {
    /// Only runs in this state.
    pub state: Option<String>,
    /// Only runs whose id contains this text.
    pub name: Option<String>,
    /// `next_cursor` of the previous page.
    pub cursor: Option<String>,
}

/// A page of runs.
#[derive(Debug, Clone)]
pub struct RunList {
    pub runs: Vec<ListedRun>,
    pub next_cursor: Option<String>,
    /// What can be done with runs here.
    pub controls: RunControls,
}

/// A run of the list.
#[derive(Debug, Clone)]
pub struct ListedRun {
    pub run_id: String,
    pub state: String,
    pub is_terminal: bool,
    pub waiting: Option<WaitingNote>,
    pub submitted_at: Option<String>,
    /// `None` if it has not started.
    pub overview: Option<RunOverview>,
    /// The best train score so far, step by step.
    pub steps: Vec<f64>,
    /// Why its files cannot be read.
    pub problem: Option<String>,
}

/// What a run waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitingNote {
    pub message: String,
    pub since: Option<String>,
    /// When it is tried again or ends.
    pub until: Option<String>,
}

/// Whether runs can be submitted and controlled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunControls {
    /// A service executes the runs.
    Service,
    /// Only files are read.
    ReadOnly,
}

/// One run with its files.
#[derive(Debug, Clone)]
pub struct ShownRun {
    pub paths: RunPaths,
    pub state: String,
    pub is_terminal: bool,
    pub waiting: Option<WaitingNote>,
    pub submitted_at: Option<String>,
    pub controls: RunControls,
    /// `None` if the run has no workspace yet.
    pub reader: Option<Arc<Reader>>,
}

/// The state of a service.
#[derive(Debug, Clone)]
pub struct ServiceHealth {
    pub version: String,
    pub started_at: String,
    /// Runs by state.
    pub counts: Vec<(String, u64)>,
    /// Run, worker, and when the lease began and ends.
    pub leases: Vec<[String; 4]>,
    /// Run, and seconds since it last stored an event.
    pub workers: Vec<(String, f64)>,
    pub worker_limit: usize,
    /// The invariant report of the queue.
    pub invariants: serde_json::Value,
    pub database_bytes: u64,
}

impl ShownRun {
    /// Returns the overview of the run.
    pub(super) fn overview(&self) -> Result<RunOverview, OptimizerError> {
        crate::artifacts::run_overview(&self.paths, self.reader.as_deref())
    }

    /// Returns the workspace. Fails if the run has none.
    pub(super) fn opened(&self) -> Result<&Arc<Reader>, ReadError> {
        self.reader.as_ref().ok_or_else(|| {
            ReadError::NotFound(Refusal {
                code: "run_not_started",
                field: "run_id",
                message: format!("run {} has not started", self.run_id()),
                hint: "Wait until it has stored its first events.".to_owned(),
            })
        })
    }

    pub(super) fn run_id(&self) -> &str {
        self.paths.run_id()
    }
}

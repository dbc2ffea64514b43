//! Where the views find runs: the queue of a service, or a directory.

use std::fmt::Debug;
use std::sync::Arc;

use camino::Utf8Path;
use serde_json::Value;

use crate::artifacts::{RunOverview, RunPaths, run_overview};
use crate::workspace::Reader;
use crate::workspace::models::{ReadError, Refusal, StopRule};
use synth_optimizer_core::model::error::OptimizerError;
use synth_optimizer_core::model::lifecycle::RunState;

/// A collection of runs.
pub trait RunSource: Debug + Send + Sync {
    /// Lists runs, the newest first.
    fn runs(&self, query: &RunListQuery) -> Result<RunList, ReadError>;

    /// Returns the ids of the newest runs.
    fn run_ids(&self) -> Result<Vec<String>, ReadError>;

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
    /// The limits that are set.
    pub limits: Vec<StopRule>,
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
    /// `None` if the run has no workspace that can be read.
    pub reader: Option<Arc<Reader>>,
    /// Why its workspace cannot be read.
    pub problem: Option<OptimizerError>,
    /// Why its request ended without a result, in the form of the manifest's failure.
    pub error: Option<Value>,
}

/// The files of a run, as far as they can be read.
#[derive(Debug)]
pub struct RunFilesRead {
    pub reader: Option<Arc<Reader>>,
    /// The overview; from the manifest if the workspace cannot be read, and `None` if the manifest cannot be read either.
    pub overview: Option<RunOverview>,
    /// Why the workspace cannot be read.
    pub problem: Option<OptimizerError>,
}

impl RunFilesRead {
    /// Reads the overview of a run. `open` opens its workspace, which is called if there is one.
    pub fn read(
        paths: &RunPaths,
        open: impl FnOnce(&Utf8Path) -> Result<Arc<Reader>, OptimizerError>,
    ) -> Result<Self, OptimizerError> {
        let path = paths.workspace_db();
        let opened = if path.is_file() { open(&path).map(Some) } else { Ok(None) };
        let read = opened.and_then(|reader| Ok((run_overview(paths, reader.as_deref())?, reader)));
        match read {
            Ok((overview, reader)) => Ok(Self { reader, overview: Some(overview), problem: None }),
            Err(error) if !path.is_file() => Err(error),
            Err(error) => Ok(Self { reader: None, overview: run_overview(paths, None).ok(), problem: Some(error) }),
        }
    }
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
        let overview = run_overview(&self.paths, self.reader.as_deref())?;
        let is_unknown = self.reader.is_none() && overview.failure.is_none();
        Ok(RunOverview {
            state: if is_unknown { self.state.clone() } else { overview.state },
            failure: overview.failure.or_else(|| self.error.clone()),
            ..overview
        })
    }

    /// Says why the run has no workspace to read from. `None` if it has one.
    pub(super) fn missing(&self) -> Option<&'static str> {
        match (&self.reader, &self.problem) {
            (Some(_), _) => None,
            (None, Some(_)) => Some("The workspace of the run cannot be read."),
            (None, None) if self.state == RunState::Completed.as_str() => Some("The workspace of the run is missing."),
            (None, None) if self.is_terminal => Some("The run ended before it had a workspace."),
            (None, None) => Some("The run has not started."),
        }
    }

    /// Returns the workspace. Fails if the run has none, or if it cannot be read.
    pub(super) fn opened(&self) -> Result<&Arc<Reader>, ReadError> {
        if let Some(problem) = &self.problem {
            return Err(problem.clone().into());
        }
        self.reader.as_ref().ok_or_else(|| {
            let (code, hint) = match self.is_terminal {
                true => ("workspace_missing", "The other files of the run are listed with its settings."),
                false => ("run_not_started", "Wait until it has stored its first events."),
            };
            let message = format!("{}: {}", self.run_id(), self.missing().unwrap_or_default());
            ReadError::NotFound(Refusal { code, field: "run_id", message, hint: hint.to_owned() })
        })
    }

    pub(super) fn run_id(&self) -> &str {
        self.paths.run_id()
    }
}

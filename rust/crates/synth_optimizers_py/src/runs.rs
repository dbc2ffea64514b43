//! Python functions that read run directories, workspaces and feeds.

use std::sync::OnceLock;

use camino::{Utf8Path, Utf8PathBuf};
use pyo3::prelude::*;
use synth_optimizer_core::model::control::ControlRequest;
use synth_optimizer_core::model::envelope::Envelope;
use synth_optimizer_core::model::error::OptimizerError;
use synth_optimizer_platform::artifacts::{self, FileLock, RunPaths, lock_run};
use synth_optimizer_platform::runtime::request_control;
use synth_optimizer_platform::workspace::{self, Reader, RebuildMode, StoredEvent};

use crate::convert::{PathArgument, PyJson};
use crate::errors::IntoPyResult;

/// Returns the state, progress and usage of a run.
#[pyfunction]
pub(crate) fn run_status(py: Python<'_>, run_dir: PathArgument) -> PyResult<PyJson> {
    PyJson::from_detached(py, || artifacts::run_status(&RunPaths::of_dir(&run_dir.0)?))
}

/// Returns the summary of a run, with all candidates.
#[pyfunction]
pub(crate) fn run_summary(py: Python<'_>, run_dir: PathArgument) -> PyResult<PyJson> {
    PyJson::from_detached(py, || artifacts::run_summary(&RunPaths::of_dir(&run_dir.0)?))
}

/// Returns the result of a run that is not completed, as far as there is one.
#[pyfunction]
pub(crate) fn run_result(py: Python<'_>, run_dir: PathArgument) -> PyResult<PyJson> {
    PyJson::from_detached(py, || artifacts::partial_result(&RunPaths::of_dir(&run_dir.0)?))
}

/// The log of a run, read from its workspace, also while a process executes the run.
#[pyclass(frozen, module = "synth_optimizers._synth_optimizers")]
#[derive(Debug)]
pub(crate) struct EventLog {
    workspace: Utf8PathBuf,
    /// Opened once the workspace exists, with the id of its run.
    opened: OnceLock<(Reader, String)>,
}

/// How many events one call reads.
const PAGE_EVENTS: usize = 1000;

#[pymethods]
impl EventLog {
    #[new]
    fn new(run_dir: PathArgument) -> Self {
        // A run that was just started may have no directory yet.
        Self { workspace: run_dir.0.join("workspace.sqlite"), opened: OnceLock::new() }
    }

    /// Returns the next events from a sequence number on; an empty list if there are none yet.
    fn read(&self, py: Python<'_>, from_sequence: i64) -> PyResult<PyJson> {
        PyJson::from_detached(py, || self.page(u64::try_from(from_sequence).unwrap_or(0)))
    }
}

impl EventLog {
    /// Passes the events from a sequence number on to `each`, with the id of the run. Reads at most one page, and returns
    /// the number of events in it.
    pub(crate) fn visit(
        &self,
        from_sequence: u64,
        mut each: impl FnMut(&str, StoredEvent),
    ) -> Result<usize, OptimizerError> {
        let Some((reader, run_id)) = self.reader()? else { return Ok(0) };
        let stored = reader.events(from_sequence, PAGE_EVENTS)?;
        let count = stored.len();
        stored.into_iter().for_each(|stored| each(run_id, stored));
        Ok(count)
    }

    fn page(&self, from_sequence: u64) -> Result<Vec<Envelope>, OptimizerError> {
        let Some((reader, run_id)) = self.reader()? else { return Ok(Vec::new()) };
        let stored = reader.events(from_sequence, PAGE_EVENTS)?.into_iter();
        Ok(stored.map(|stored| Envelope::new(stored.sequence, run_id, stored.unix_millis, stored.event)).collect())
    }

    fn reader(&self) -> Result<Option<&(Reader, String)>, OptimizerError> {
        if let Some(opened) = self.opened.get() {
            return Ok(Some(opened));
        }
        if !self.workspace.exists() {
            return Ok(None);
        }
        let reader = Reader::open(self.workspace.as_std_path())?;
        let run_id = reader.run_row()?.run_id;
        Ok(Some(self.opened.get_or_init(|| (reader, run_id))))
    }
}

/// Returns the best candidate of a run so far.
#[pyfunction]
pub(crate) fn run_best(py: Python<'_>, run_dir: PathArgument) -> PyResult<PyJson> {
    let read = || Reader::open(RunPaths::of_dir(&run_dir.0)?.workspace_db().as_std_path())?.best_candidate();
    PyJson::from_detached(py, read)
}

/// Sends a control request to the process that executes a run.
#[pyfunction]
pub(crate) fn ask_run(py: Python<'_>, run_dir: PathArgument, kind: &str, reason: &str) -> PyResult<PyJson> {
    PyJson::from_detached(py, || request_control(&RunPaths::of_dir(&run_dir.0)?, ControlRequest::parse(kind, reason)?))
}

/// Returns the status of a workspace as one document.
#[pyfunction]
pub(crate) fn workspace_status(py: Python<'_>, path: PathArgument) -> PyResult<PyJson> {
    PyJson::from_detached(py, || synth_optimizer_service::queue::workspace_status(path.0.as_std_path()))
}

/// Rebuilds the projections of a workspace from its log, or with `check` compares them.
#[pyfunction]
#[pyo3(signature = (path, *, check))]
pub(crate) fn workspace_rebuild(py: Python<'_>, path: PathArgument, check: bool) -> PyResult<PyJson> {
    PyJson::from_detached(py, || {
        if check {
            return workspace::rebuild(path.0.as_std_path(), RebuildMode::Compare);
        }
        let _lock = lock_run_of(&path.0)?;
        workspace::rebuild(path.0.as_std_path(), RebuildMode::Replace)
    })
}

/// Compacts the file of a workspace.
#[pyfunction]
pub(crate) fn workspace_vacuum(py: Python<'_>, path: PathArgument) -> PyResult<PyJson> {
    PyJson::from_detached(py, || {
        let _lock = lock_run_of(&path.0)?;
        workspace::vacuum(path.0.as_std_path())
    })
}

/// Returns a feed as readable text.
#[pyfunction]
pub(crate) fn events_replay(py: Python<'_>, path: PathArgument) -> PyResult<String> {
    py.detach(|| artifacts::events_replay(&path.0)).into_py_result()
}

/// Compares two feeds. Raises `EventCompareError` if they describe different searches.
#[pyfunction]
pub(crate) fn events_compare(py: Python<'_>, left: PathArgument, right: PathArgument) -> PyResult<bool> {
    py.detach(|| artifacts::events_compare(&left.0, &right.0)).into_py_result().map(|()| true)
}

/// Locks the run of a workspace while the workspace is rewritten. A copy outside a run directory has no lock.
fn lock_run_of(workspace: &Utf8Path) -> Result<Option<FileLock>, OptimizerError> {
    let paths = workspace.parent().and_then(|dir| RunPaths::of_dir(dir).ok());
    match paths.map(|paths| paths.lock()).filter(|lock| lock.is_file()) {
        Some(lock) => lock_run(&lock, &format!("the run of {workspace}"), None).map(Some),
        None => Ok(None),
    }
}

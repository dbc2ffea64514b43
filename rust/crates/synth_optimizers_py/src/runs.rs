//! Run directories, workspaces and feeds for Python.

use camino::Utf8Path;
use pyo3::prelude::*;
use serde::Serialize;
use synth_optimizer_core::model::control::ControlRequest;
use synth_optimizer_core::model::error::OptimizerError;
use synth_optimizer_platform::artifacts::{self, FileLock, RunPaths, lock_run};
use synth_optimizer_platform::runtime::ask;
use synth_optimizer_platform::workspace::{self, Reader, RebuildMode};

use crate::paths::path_argument;
use crate::{errors, json};

/// Where a run is and what it has used.
#[pyfunction]
pub(crate) fn run_status<'py>(py: Python<'py>, run_dir: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    on_path(py, run_dir, |dir| artifacts::run_status(&RunPaths::of_dir(dir)?))
}

/// Everything about a run, with every candidate.
#[pyfunction]
pub(crate) fn run_summary<'py>(py: Python<'py>, run_dir: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    on_path(py, run_dir, |dir| artifacts::run_summary(&RunPaths::of_dir(dir)?))
}

/// The best candidate of a run so far, from a few rows.
#[pyfunction]
pub(crate) fn run_best<'py>(py: Python<'py>, run_dir: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    on_path(py, run_dir, |dir| Reader::open(RunPaths::of_dir(dir)?.workspace_db().as_std_path())?.best())
}

/// Asks something of the process that carries out a run.
#[pyfunction]
pub(crate) fn ask_run<'py>(
    py: Python<'py>,
    run_dir: &Bound<'py, PyAny>,
    kind: &str,
    reason: &str,
) -> PyResult<Bound<'py, PyAny>> {
    on_path(py, run_dir, |dir| ask(&RunPaths::of_dir(dir)?, ControlRequest::of_word(kind, reason)?))
}

/// Everything about a workspace in one document.
#[pyfunction]
pub(crate) fn workspace_status<'py>(py: Python<'py>, path: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    on_path(py, path, |path| synth_optimizer_service::queue::workspace_status(path.as_std_path()))
}

/// Computes the projections of a workspace from its log again.
#[pyfunction]
#[pyo3(signature = (path, *, check))]
pub(crate) fn workspace_rebuild<'py>(
    py: Python<'py>,
    path: &Bound<'py, PyAny>,
    check: bool,
) -> PyResult<Bound<'py, PyAny>> {
    on_path(py, path, |path| {
        if check {
            return workspace::rebuild(path.as_std_path(), RebuildMode::Compare);
        }
        let _lock = lock_beside(path)?;
        workspace::rebuild(path.as_std_path(), RebuildMode::Replace)
    })
}

/// Gives back the space of a workspace.
#[pyfunction]
pub(crate) fn workspace_vacuum<'py>(py: Python<'py>, path: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    on_path(py, path, |path| {
        let _lock = lock_beside(path)?;
        workspace::vacuum(path.as_std_path())
    })
}

/// A feed as a readable story.
#[pyfunction]
pub(crate) fn events_replay(py: Python<'_>, path: &Bound<'_, PyAny>) -> PyResult<String> {
    let path = path_argument(py, path)?;
    py.detach(|| artifacts::events_replay(&path)).map_err(|error| errors::raise(py, &error))
}

/// Whether two feeds tell of the same search; raises `EventCompareError` where they do not.
#[pyfunction]
pub(crate) fn events_compare(py: Python<'_>, left: &Bound<'_, PyAny>, right: &Bound<'_, PyAny>) -> PyResult<bool> {
    let (left, right) = (path_argument(py, left)?, path_argument(py, right)?);
    py.detach(|| artifacts::events_compare(&left, &right)).map_err(|error| errors::raise(py, &error))?;
    Ok(true)
}

/// Does something with a path while other Python threads go on, and returns what came of it as plain objects.
fn on_path<'py, T: Serialize + Send>(
    py: Python<'py>,
    path: &Bound<'py, PyAny>,
    work: impl FnOnce(&Utf8Path) -> Result<T, OptimizerError> + Send,
) -> PyResult<Bound<'py, PyAny>> {
    let path = path_argument(py, path)?;
    let done = py.detach(|| work(&path)).map_err(|error| errors::raise(py, &error))?;
    json::serialize(py, &done)
}

/// Nobody may work on a run while its workspace is written anew. A copy elsewhere has no lock.
fn lock_beside(workspace: &Utf8Path) -> Result<Option<FileLock>, OptimizerError> {
    let paths = workspace.parent().and_then(|dir| RunPaths::of_dir(dir).ok());
    match paths.map(|paths| paths.lock()).filter(|lock| lock.is_file()) {
        Some(lock) => lock_run(&lock, &format!("the run of {workspace}"), None).map(Some),
        None => Ok(None),
    }
}

//! Python functions that read views of a run: the tree of candidates, the table of rows, proposer turns and comparisons.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_platform::artifacts::RunPaths;
use synth_optimizer_platform::views;
use synth_optimizer_platform::workspace::Reader;
use synth_optimizer_platform::workspace::models::{CompareQuery, ReadError, RowQuery, TurnQuery, compare_runs};

use crate::convert::{PathArgument, PyJson, from_python};
use crate::errors::{IntoPyResult, raise};

fn open(run_dir: &PathArgument) -> Result<Reader, OptimizerError> {
    Reader::open(RunPaths::of_dir(&run_dir.0)?.workspace_db().as_std_path())
}

fn read<T>(run_dir: &PathArgument, view: impl FnOnce(&Reader) -> Result<T, ReadError>) -> Result<T, OptimizerError> {
    view(&open(run_dir)?).map_err(ReadError::into_error)
}

/// Returns the records of all candidates of a run, with their texts.
#[pyfunction]
pub(crate) fn run_candidates(py: Python<'_>, run_dir: PathArgument) -> PyResult<PyJson> {
    PyJson::from_detached(py, || read(&run_dir, Reader::candidate_records))
}

/// Returns all candidates of a run as a tree.
#[pyfunction]
pub(crate) fn run_lineage(py: Python<'_>, run_dir: PathArgument) -> PyResult<PyJson> {
    PyJson::from_detached(py, || read(&run_dir, Reader::lineage))
}

/// Returns a window of the table of rows and candidates. `query` has the parameters of `GET /runs/{run_id}/rows`.
#[pyfunction]
pub(crate) fn run_rows(py: Python<'_>, run_dir: PathArgument, query: &Bound<'_, PyDict>) -> PyResult<PyJson> {
    let query: RowQuery = serde_json::from_value(from_python(query.as_any())?).map_err(|error| {
        let message = format!("the selection of rows is invalid: {error}");
        raise(&OptimizerError::new(ErrorCode::Config, message).with_hint("Correct the named parameter."))
    })?;
    PyJson::from_detached(py, || read(&run_dir, |reader| reader.row_table(&query)))
}

/// Returns a page of proposer turns.
#[pyfunction]
#[pyo3(signature = (run_dir, *, limit = None, cursor = None))]
pub(crate) fn run_turns(
    py: Python<'_>,
    run_dir: PathArgument,
    limit: Option<i64>,
    cursor: Option<String>,
) -> PyResult<PyJson> {
    PyJson::from_detached(py, || read(&run_dir, |reader| reader.turn_page(&TurnQuery { limit, cursor })))
}

/// Returns a proposer turn with its transcript.
#[pyfunction]
pub(crate) fn run_turn(py: Python<'_>, run_dir: PathArgument, turn: &str) -> PyResult<PyJson> {
    PyJson::from_detached(py, || read(&run_dir, |reader| reader.turn(turn)))
}

/// Compares two runs, or two candidates of one run.
#[pyfunction]
#[pyo3(signature = (run_dir, other_run_dir, *, candidate_id = None, other_candidate_id = None))]
pub(crate) fn run_compare(
    py: Python<'_>,
    run_dir: PathArgument,
    other_run_dir: PathArgument,
    candidate_id: Option<String>,
    other_candidate_id: Option<String>,
) -> PyResult<PyJson> {
    let query = CompareQuery { candidate_id, other_candidate_id };
    PyJson::from_detached(py, || {
        let other = open(&other_run_dir)?;
        read(&run_dir, |reader| compare_runs(reader, &other, &query))
    })
}

/// Returns the report of a run in any state, as one HTML file.
#[pyfunction]
pub(crate) fn run_report(py: Python<'_>, run_dir: PathArgument) -> PyResult<String> {
    py.detach(|| views::run_report(&RunPaths::of_dir(&run_dir.0)?)).into_py_result()
}

/// Returns the result of a run as HTML for a cell of a notebook.
#[pyfunction]
pub(crate) fn run_notebook_view(py: Python<'_>, run_dir: PathArgument) -> PyResult<String> {
    py.detach(|| views::run_notebook_view(&RunPaths::of_dir(&run_dir.0)?)).into_py_result()
}

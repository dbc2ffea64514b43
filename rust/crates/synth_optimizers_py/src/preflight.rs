//! What a run would take, told before anything is paid.

use pyo3::prelude::*;

use crate::config::LoadedConfig;
use crate::json;

/// The arithmetic of a run: rows, worst-case rollouts, proposals that the limits buy, and cost where it can be known.
#[pyfunction]
pub(crate) fn plan_run<'py>(py: Python<'py>, config: &LoadedConfig) -> PyResult<Bound<'py, PyAny>> {
    json::serialize(py, &synth_gepa::plan(config.config()))
}

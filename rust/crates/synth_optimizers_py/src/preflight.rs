//! What a run would take and what stands in its way, told before anything is paid.

use camino::Utf8PathBuf;
use pyo3::prelude::*;
use synth_gepa::plan;
use synth_optimizer_platform::runtime::Request;
use synth_optimizer_service::service::Check;

use crate::config::LoadedConfig;
use crate::{errors, json, logs, signals};

/// The arithmetic of a run: rows, worst-case rollouts, proposals that the limits buy, and cost where it can be known.
#[pyfunction]
pub(crate) fn plan_run<'py>(py: Python<'py>, config: &LoadedConfig) -> PyResult<Bound<'py, PyAny>> {
    json::serialize(py, &plan(config.config()))
}

/// Everything that stands in the way of a run, found without paying for anything.
#[pyfunction]
#[pyo3(signature = (config, *, codex_runtime = None))]
pub(crate) fn check_run<'py>(
    py: Python<'py>,
    config: &LoadedConfig,
    codex_runtime: Option<String>,
) -> PyResult<Bound<'py, PyAny>> {
    let _records = logs::listen(py)?;
    let problems = config.findings().to_vec();
    let codex_runtime = codex_runtime.map(Utf8PathBuf::from);
    let request = Request { codex_runtime, ..Request::new(config.config().clone()) };
    let check = Check::start(request, problems, ()).map_err(|error| errors::raise(py, &error))?;
    match signals::wait(py, None, |time| check.wait(time)) {
        Ok(Some(report)) => json::serialize(py, &report.map_err(|error| errors::raise(py, &error))?),
        Ok(None) => Ok(py.None().into_bound(py)),
        Err(signal) => {
            // What the check has started is ended before Python goes on.
            py.detach(|| check.cancel());
            Err(signal)
        }
    }
}

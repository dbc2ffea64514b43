//! What a run would take and what stands in its way, told before anything is paid.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use camino::Utf8PathBuf;
use pyo3::prelude::*;
use synth_gepa::plan;
use synth_optimizer_platform::runtime::Request;
use synth_optimizer_platform::service::Checking;

use crate::config::LoadedConfig;
use crate::gepa::{Gepa, NAME};
use crate::{errors, json, signals};

/// How often the report is looked for.
const GLANCE: Duration = Duration::from_millis(10);

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
    let problems = config.findings().to_vec();
    let codex_runtime = codex_runtime.map(Utf8PathBuf::from);
    let request = Request { codex_runtime, ..Request::new(config.config().clone(), NAME) };
    let checking = Checking::start(Arc::new(Gepa), request, problems, ()).map_err(|error| errors::raise(py, &error))?;
    let checking = Mutex::new(checking);
    let look = |time: Duration| {
        std::thread::sleep(time.min(GLANCE));
        checking.lock().unwrap_or_else(PoisonError::into_inner).look()
    };
    match signals::wait(py, None, look) {
        Ok(Some(report)) => json::serialize(py, &report.map_err(|error| errors::raise(py, &error))?),
        Ok(None) => Ok(py.None().into_bound(py)),
        Err(signal) => {
            // What the check has started is ended before anybody goes on.
            py.detach(|| checking.into_inner().unwrap_or_else(PoisonError::into_inner).leave());
            Err(signal)
        }
    }
}

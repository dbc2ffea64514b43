//! What a run would take and what stands in its way, told before anything is paid.

use std::sync::Mutex;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};

use camino::Utf8PathBuf;
use pyo3::prelude::*;
use synth_gepa::plan;
use synth_optimizer_platform::config::{Config, Diagnostic};
use synth_optimizer_platform::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_platform::runtime::{CheckReport, Request};
use synth_optimizer_platform::service::Algorithm;
use tokio::sync::oneshot;

use crate::config::LoadedConfig;
use crate::gepa::{Gepa, NAME};
use crate::{errors, json, signals};

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
    let (problems, config) = (config.findings().to_vec(), config.config().clone());
    let (tell, told) = sync_channel(1);
    let (leave, left) = oneshot::channel::<()>();
    let work = move || {
        // Nobody hears it after an interrupt.
        let _ = tell.send(checked(config, &problems, codex_runtime.map(Utf8PathBuf::from), left));
    };
    let thread = std::thread::Builder::new().name("synth-optimizers-check".into()).spawn(work);
    let thread = thread.map_err(|error| {
        errors::raise(py, &OptimizerError::new(ErrorCode::Io, format!("no thread for the check: {error}")))
    })?;
    let told = Mutex::new(told);
    let lost = || Err(OptimizerError::new(ErrorCode::Invariant, "the thread of the check ended without a report"));
    let heard = signals::wait(py, None, |time| match told.lock().map(|told| told.recv_timeout(time)) {
        Ok(Ok(report)) => Some(report),
        Ok(Err(RecvTimeoutError::Timeout)) => None,
        Ok(Err(RecvTimeoutError::Disconnected)) | Err(_) => Some(lost()),
    });
    match heard {
        Ok(report) => json::serialize(py, &report.unwrap_or_else(lost).map_err(|error| errors::raise(py, &error))?),
        Err(signal) => {
            // What the check has started is ended before anybody goes on.
            drop(leave);
            let _ = py.detach(|| thread.join());
            Err(signal)
        }
    }
}

fn checked(
    config: Config,
    problems: &[Diagnostic],
    codex_runtime: Option<Utf8PathBuf>,
    left: oneshot::Receiver<()>,
) -> Result<CheckReport, OptimizerError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| OptimizerError::new(ErrorCode::Io, format!("no runtime for the check: {error}")))?;
    let request = Request { codex_runtime, ..Request::new(config, NAME) };
    runtime.block_on(async {
        tokio::select! {
            report = Gepa.check(&request, problems) => Ok(report),
            _ = left => Err(OptimizerError::new(ErrorCode::Cancelled, "the check was interrupted")),
        }
    })
}

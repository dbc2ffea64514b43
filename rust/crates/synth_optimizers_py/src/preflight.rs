//! What a run would take and what stands in its way, told before anything is paid.

use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

use camino::Utf8PathBuf;
use pyo3::prelude::*;
use synth_gepa::{GepaEngine, plan, shortfalls};
use synth_optimizer_platform::config::Config;
use synth_optimizer_platform::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_platform::runtime::{CheckReport, Hooks, Request, check};
use tokio::sync::oneshot;

use crate::config::LoadedConfig;
use crate::{errors, json};

/// How long a wait sleeps before it lets Python look for signals.
const SLICE: Duration = Duration::from_millis(100);

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
    let config = config.config().clone();
    let (tell, told) = sync_channel(1);
    let (leave, left) = oneshot::channel::<()>();
    let work = move || {
        // Nobody hears it after an interrupt.
        let _ = tell.send(checked(config, codex_runtime.map(Utf8PathBuf::from), left));
    };
    let thread = std::thread::Builder::new().name("synth-optimizers-check".into()).spawn(work);
    let thread = thread.map_err(|error| {
        errors::raise(py, &OptimizerError::new(ErrorCode::Io, format!("no thread for the check: {error}")))
    })?;
    let told = std::sync::Mutex::new(told);
    let hear = || told.lock().map_or(Err(RecvTimeoutError::Disconnected), |told| told.recv_timeout(SLICE));
    loop {
        match py.detach(hear) {
            Ok(report) => return json::serialize(py, &report.map_err(|error| errors::raise(py, &error))?),
            Err(RecvTimeoutError::Timeout) => {
                if let Err(signal) = py.check_signals() {
                    // What the check has started is ended before anybody goes on.
                    drop(leave);
                    let _ = py.detach(|| thread.join());
                    return Err(signal);
                }
            }
            Err(RecvTimeoutError::Disconnected) => {
                let error = OptimizerError::new(ErrorCode::Invariant, "the thread of the check ended without a report");
                return Err(errors::raise(py, &error));
            }
        }
    }
}

fn checked(
    config: Config,
    codex_runtime: Option<Utf8PathBuf>,
    left: oneshot::Receiver<()>,
) -> Result<CheckReport, OptimizerError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| OptimizerError::new(ErrorCode::Io, format!("no runtime for the check: {error}")))?;
    let plan = serde_json::to_value(plan(&config))
        .map_err(|error| OptimizerError::new(ErrorCode::Json, format!("the plan cannot be written: {error}")))?;
    let budget = shortfalls(&config);
    let request = Request { config, algorithm: "gepa".into(), proposer: None, codex_runtime, hooks: Hooks::default() };
    runtime.block_on(async {
        tokio::select! {
            report = check(&request, &budget, GepaEngine::new) => Ok(CheckReport { plan: Some(plan), ..report }),
            _ = left => Err(OptimizerError::new(ErrorCode::Cancelled, "the check was interrupted")),
        }
    })
}

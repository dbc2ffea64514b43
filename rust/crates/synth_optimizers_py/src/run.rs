//! Runs for Python: plan, check, start, wait for and control a run that executes on its own thread.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use camino::Utf8PathBuf;
use pyo3::prelude::*;
use serde_json::json;
use synth_gepa::{GepaEngine, plan};
use synth_optimizer_core::config::{Config, ResolvedConfig, Severity, SplitRows, resolve};
use synth_optimizer_core::model::control::{ControlRequest, RunEnd};
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_platform::artifacts::RunPaths;
use synth_optimizer_platform::runtime::{Monitor, RunControl, RunOutcome, RunSpec, execute_watched, new_run_id, spawn};
use synth_optimizer_platform::workspace::StoredEvent;
use synth_optimizer_service::service::Check;

use crate::config::LoadedConfig;
use crate::convert::PyJson;
use crate::errors::{self, IntoPyResult};
use crate::logs;

/// A run that this process executes.
#[pyclass(frozen, module = "synth_optimizers._synth_optimizers")]
#[derive(Debug)]
pub(crate) struct NativeRun {
    paths: RunPaths,
    progress: Arc<Monitor<Progress>>,
    /// The pid of the process that started the run.
    pid: u32,
}

/// The progress of the run.
#[derive(Debug)]
struct Progress {
    last_sequence: Option<u64>,
    /// The control of the active run. Dropped at its end, because it buffers events for subscribers.
    control: Option<RunControl>,
    end: Option<Result<RunOutcome, OptimizerError>>,
}

/// Returns the plan of a run: rows, worst-case rollouts, proposals within the limits, and the cost where it can be estimated.
/// `splits` are the task ids that the container will name; without them, a plan has only the rows of the configuration.
#[pyfunction]
#[pyo3(signature = (config, *, splits = None))]
pub(crate) fn plan_run(config: &LoadedConfig, splits: Option<BTreeMap<String, Vec<String>>>) -> PyResult<PyJson> {
    let config = &config.0.config;
    let Some(splits) = splits else {
        return PyJson::of(&plan(config));
    };
    let splits = splits.into_iter().map(|(name, ids)| (name, SplitRows::Ids(ids))).collect();
    PyJson::of(&plan(&resolve(config, &splits, true).into_py_result()?))
}

/// Checks a run and returns all preflight findings, without sending a paid call.
#[pyfunction]
#[pyo3(signature = (config, *, codex_runtime = None))]
pub(crate) fn check_run(
    py: Python<'_>,
    config: &LoadedConfig,
    codex_runtime: Option<String>,
) -> PyResult<Option<PyJson>> {
    let _records = logs::forward_logs(py)?;
    let codex_runtime = codex_runtime.map(Utf8PathBuf::from);
    let request = RunSpec { codex_runtime, ..RunSpec::new(config.0.config.clone()) };
    let check = Check::start(request, config.0.warnings.clone(), ()).into_py_result()?;
    match wait_for(py, None, |time| check.wait(time)) {
        Ok(report) => report.map(|report| PyJson::of(&report.into_py_result()?)).transpose(),
        Err(signal) => {
            // The processes of the check are ended before Python continues.
            py.detach(|| check.cancel());
            Err(signal)
        }
    }
}

/// Starts or resumes a run in the background.
#[pyfunction]
#[pyo3(signature = (config, *, codex_runtime = None))]
pub(crate) fn start_run(py: Python<'_>, config: &LoadedConfig, codex_runtime: Option<String>) -> PyResult<NativeRun> {
    let _records = logs::forward_logs(py)?;
    let ResolvedConfig { config, warnings: findings, .. } = &config.0;
    if findings.iter().any(|found| found.severity == Severity::Error) {
        let message = "a configuration that was loaded for a check cannot be executed";
        let mut error = OptimizerError::new(ErrorCode::Config, message);
        error.findings = findings.clone();
        return Err(errors::raise(&error));
    }
    start(config.clone(), codex_runtime.map(Utf8PathBuf::from)).into_py_result()
}

fn start(mut config: Config, codex_runtime: Option<Utf8PathBuf>) -> Result<NativeRun, OptimizerError> {
    let run_id = match config.run.run_id.take() {
        Some(run_id) => run_id,
        None => new_run_id::<GepaEngine>()?,
    };
    let paths = RunPaths::new(&config.run.output_dir, &run_id)?;
    config.run.run_id = Some(run_id);
    let (control, receiver) = RunControl::new(config.run.feed_buffer);
    let request = RunSpec { codex_runtime, ..RunSpec::new(config) };
    let (running, running_paths) = (control.clone(), paths.clone());
    let progress = Arc::new(Monitor::new(Progress { last_sequence: None, control: Some(control), end: None }));
    let (reporting, ending) = (Arc::clone(&progress), Arc::clone(&progress));
    let work = move || async move {
        let on_event =
            |stored: &StoredEvent| reporting.update(|progress| progress.last_sequence = Some(stored.sequence));
        let on_control = |control_request| _ = running.send(control_request);
        let ends = (&running, receiver);
        execute_watched::<GepaEngine>(request, ends, &running_paths, on_event, on_control).await
    };
    spawn("run", work, move |end| {
        ending.update(|progress| {
            progress.end = Some(end);
            progress.control = None;
        });
    })?;
    Ok(NativeRun { paths, progress, pid: std::process::id() })
}

#[pymethods]
impl NativeRun {
    #[getter]
    fn run_id(&self) -> &str {
        self.paths.run_id()
    }

    #[getter]
    fn run_dir(&self) -> &str {
        self.paths.dir().as_str()
    }

    /// Whether the run has ended or was interrupted.
    #[getter]
    fn is_done(&self) -> PyResult<bool> {
        self.check_process()?;
        Ok(self.progress.get().end.is_some())
    }

    /// Waits until the run has ended. Returns `None` if the time passes first.
    #[pyo3(signature = (timeout = None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<PyJson>> {
        if !self.wait_until(py, timeout, |progress| progress.end.is_some())? {
            return Ok(None);
        }
        logs::flush(py);
        let end = self.progress.get().end.clone();
        let outcome = end.map(completed_outcome).transpose().into_py_result()?;
        Ok(outcome.map(|RunOutcome { run_id, run_dir, end, .. }| {
            PyJson(json!({"run_id": run_id, "run_dir": run_dir, "status": end.as_str()}))
        }))
    }

    /// Waits until the feed has an event after this one, or the run has ended. Returns `False` if the time passes first.
    #[pyo3(signature = (after, timeout = None))]
    fn wait_for_event(&self, py: Python<'_>, after: i64, timeout: Option<f64>) -> PyResult<bool> {
        let is_new = |last: u64| i64::try_from(last).is_ok_and(|last| last > after);
        self.wait_until(py, timeout, |progress| progress.end.is_some() || progress.last_sequence.is_some_and(is_new))
    }

    /// Sends a control request to the run. Returns whether the run was still active.
    fn signal(&self, kind: &str, reason: &str) -> PyResult<bool> {
        self.check_process()?;
        let control_request = ControlRequest::parse(kind, reason).into_py_result()?;
        Ok(self.progress.get().control.as_ref().is_some_and(|control| control.send(control_request)))
    }
}

impl NativeRun {
    /// Waits with the GIL released, and lets Python handle its signals.
    fn wait_until(
        &self,
        py: Python<'_>,
        timeout: Option<f64>,
        condition: impl Fn(&Progress) -> bool + Sync,
    ) -> PyResult<bool> {
        self.check_process()?;
        // A time beyond the range of the clock means no limit.
        let deadline = timeout
            .and_then(|seconds| Duration::try_from_secs_f64(seconds.max(0.0)).ok())
            .and_then(|time| Instant::now().checked_add(time));
        let condition = |time: Duration| self.progress.wait_blocking(time, &condition).then_some(());
        Ok(wait_for(py, deadline, condition)?.is_some())
    }

    fn check_process(&self) -> PyResult<()> {
        let here = std::process::id();
        if here == self.pid {
            return Ok(());
        }
        let message = format!(
            "run {} belongs to process {}, and process {here} was forked from it",
            self.paths.run_id(),
            self.pid
        );
        let error = OptimizerError::new(ErrorCode::StateTransition, message)
            .with_hint("Use the run in the process that started it, or start runs after the fork.");
        Err(errors::raise(&error))
    }
}

/// Returns the outcome of a completed run, or the error to raise.
fn completed_outcome(end: Result<RunOutcome, OptimizerError>) -> Result<RunOutcome, OptimizerError> {
    let outcome = end?;
    match outcome.end {
        RunEnd::Completed => Ok(outcome),
        RunEnd::Failed(error) | RunEnd::Cancelled(error) => Err(error),
        RunEnd::Interrupted | RunEnd::Paused => {
            let message = format!("run {} was interrupted; its state is saved", outcome.run_id);
            Err(OptimizerError::new(ErrorCode::Cancelled, message)
                .with_hint(format!("Resume it with `synth-optimizers gepa resume {}`.", outcome.run_dir)))
        }
    }
}

/// How often a wait lets Python check for signals and log levels, of which it tells native code in no other way.
const SIGNAL_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Calls `poll` until it returns a value or the deadline passes. `poll` blocks for the given time with the GIL released; between
/// two calls, Python checks for signals.
pub(crate) fn wait_for<T: Send>(
    py: Python<'_>,
    deadline: Option<Instant>,
    poll: impl Fn(Duration) -> Option<T> + Sync,
) -> PyResult<Option<T>> {
    loop {
        let left =
            deadline.map_or(SIGNAL_CHECK_INTERVAL, |deadline| deadline.saturating_duration_since(Instant::now()));
        if let Some(found) = py.detach(|| poll(left.min(SIGNAL_CHECK_INTERVAL))) {
            return Ok(Some(found));
        }
        py.check_signals()?;
        logs::refresh(py)?;
        if left.is_zero() {
            return Ok(None);
        }
    }
}

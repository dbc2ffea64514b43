//! A run in a thread of its own, and what Python may do with it: plan it, check it, start it, wait for it and end it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use camino::Utf8PathBuf;
use pyo3::prelude::*;
use serde_json::json;
use synth_gepa::{GepaEngine, plan};
use synth_optimizer_core::config::{Config, ResolvedConfig, Severity};
use synth_optimizer_core::model::control::{ControlRequest, RunEnd};
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_platform::artifacts::RunPaths;
use synth_optimizer_platform::runtime::{RunControl, Monitor, RunOutcome, RunSpec, execute_watched, new_run_id, spawn};
use synth_optimizer_platform::workspace::StoredEvent;
use synth_optimizer_service::service::Check;

use crate::config::LoadedConfig;
use crate::convert::PyJson;
use crate::errors::{self, IntoPyResult};
use crate::logs;

/// A run that this process carries out.
#[pyclass(frozen, module = "synth_optimizers._synth_optimizers")]
#[derive(Debug)]
pub(crate) struct NativeRun {
    paths: RunPaths,
    control: RunControl,
    progress: Arc<Monitor<Progress>>,
    /// The process that the thread of the run lives in.
    pid: u32,
}

/// How far the run is.
#[derive(Debug, Default)]
struct Progress {
    last_sequence: Option<u64>,
    end: Option<Result<RunOutcome, OptimizerError>>,
}

/// The arithmetic of a run: rows, worst-case rollouts, proposals that the limits buy, and cost where it can be known.
#[pyfunction]
pub(crate) fn plan_run(config: &LoadedConfig) -> PyResult<PyJson> {
    PyJson::of(&plan(&config.0.config))
}

/// Everything that stands in the way of a run, found without paying for anything.
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
            // What the check has started is ended before Python goes on.
            py.detach(|| check.cancel());
            Err(signal)
        }
    }
}

/// Starts a run, or goes on with one, in the background.
#[pyfunction]
#[pyo3(signature = (config, *, codex_runtime = None))]
pub(crate) fn start_run(py: Python<'_>, config: &LoadedConfig, codex_runtime: Option<String>) -> PyResult<NativeRun> {
    let _records = logs::forward_logs(py)?;
    let ResolvedConfig { config, warnings: findings, .. } = &config.0;
    if findings.iter().any(|found| found.severity == Severity::Error) {
        let message = "a configuration that was read to be checked cannot be run";
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
    let progress = Arc::new(Monitor::<Progress>::default());
    let (running, running_paths) = (control.clone(), paths.clone());
    let (reporting, ending) = (Arc::clone(&progress), Arc::clone(&progress));
    let work = move || async move {
        let on_event = |stored: &StoredEvent| reporting.update(|progress| progress.last_sequence = Some(stored.sequence));
        let on_control = |control_request| _ = running.send(control_request);
        let ends = (&running, receiver);
        execute_watched::<GepaEngine>(request, ends, &running_paths, on_event, on_control).await
    };
    spawn("run", work, move |end| ending.update(|progress| progress.end = Some(end)))?;
    Ok(NativeRun { paths, control, progress, pid: std::process::id() })
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

    /// Whether the run has ended or was let go.
    #[getter]
    fn is_over(&self) -> PyResult<bool> {
        self.check_process()?;
        Ok(self.progress.get().end.is_some())
    }

    /// Waits for the end; nothing when the time is over before.
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

    /// Waits until an event after this one is in the feed, or the run is over; whether it is so.
    #[pyo3(signature = (after, timeout = None))]
    fn wait_for_event(&self, py: Python<'_>, after: i64, timeout: Option<f64>) -> PyResult<bool> {
        let is_new = |last: u64| i64::try_from(last).is_ok_and(|last| last > after);
        self.wait_until(py, timeout, |progress| progress.end.is_some() || progress.last_sequence.is_some_and(is_new))
    }

    /// Asks something of the run; whether it was still there to hear it.
    fn signal(&self, kind: &str, reason: &str) -> PyResult<bool> {
        self.check_process()?;
        let control_request = ControlRequest::parse(kind, reason).into_py_result()?;
        Ok(self.progress.get().end.is_none() && self.control.send(control_request))
    }
}

impl NativeRun {
    /// Waits without holding up other Python threads, and lets Python handle its signals.
    fn wait_until(
        &self,
        py: Python<'_>,
        timeout: Option<f64>,
        condition: impl Fn(&Progress) -> bool + Sync,
    ) -> PyResult<bool> {
        self.check_process()?;
        // A time that no clock can show is no limit.
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
            "run {} belongs to process {}, and this is process {here}, which was forked from it",
            self.paths.run_id(),
            self.pid
        );
        let error = OptimizerError::new(ErrorCode::StateTransition, message)
            .with_hint("Use the run in the process that started it, or start runs after the fork.");
        Err(errors::raise(&error))
    }
}

/// The outcome of a completed run, or the error that Python raises.
fn completed_outcome(end: Result<RunOutcome, OptimizerError>) -> Result<RunOutcome, OptimizerError> {
    let outcome = end?;
    match outcome.end {
        RunEnd::Completed => Ok(outcome),
        RunEnd::Failed(error) | RunEnd::Cancelled(error) => Err(error),
        RunEnd::Interrupted | RunEnd::Paused => {
            let message = format!("run {} was interrupted; what was paid for is saved", outcome.run_id);
            Err(OptimizerError::new(ErrorCode::Cancelled, message)
                .with_hint(format!("Go on with `synth-optimizers gepa resume {}`.", outcome.run_dir)))
        }
    }
}

/// How long a wait sleeps before it lets Python look for signals.
const SIGNAL_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Waits for something while other Python threads go on and Python looks at its signals, until the time is over. `look`
/// waits as long as it is told, without holding Python up.
pub(crate) fn wait_for<T: Send>(
    py: Python<'_>,
    deadline: Option<Instant>,
    poll: impl Fn(Duration) -> Option<T> + Sync,
) -> PyResult<Option<T>> {
    loop {
        let left = deadline.map_or(SIGNAL_CHECK_INTERVAL, |deadline| deadline.saturating_duration_since(Instant::now()));
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

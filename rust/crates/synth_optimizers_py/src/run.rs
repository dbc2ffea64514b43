//! A run in a thread of its own, and what Python may do with it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use camino::Utf8PathBuf;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use synth_gepa::GepaEngine;
use synth_optimizer_core::config::Config;
use synth_optimizer_core::model::control::{ControlRequest, RunEnd};
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_platform::artifacts::RunPaths;
use synth_optimizer_platform::runtime::{Control, Monitor, Outcome, Request, execute_watched, new_run_id, spawn};
use synth_optimizer_platform::workspace::Stored;

use crate::config::LoadedConfig;
use crate::{errors, logs, signals};

/// A run that this process carries out.
#[pyclass(frozen, module = "synth_optimizers._synth_optimizers")]
#[derive(Debug)]
pub(crate) struct NativeRun {
    paths: RunPaths,
    control: Control,
    progress: Arc<Monitor<Progress>>,
    /// The process that the thread of the run lives in.
    pid: u32,
}

/// How far the run is.
#[derive(Debug, Default)]
struct Progress {
    last_sequence: Option<u64>,
    end: Option<Result<Outcome, OptimizerError>>,
}

/// Starts a run, or goes on with one, in the background.
#[pyfunction]
#[pyo3(signature = (config, *, codex_runtime = None))]
pub(crate) fn start_run(py: Python<'_>, config: &LoadedConfig, codex_runtime: Option<String>) -> PyResult<NativeRun> {
    let _records = logs::listen(py)?;
    if !config.is_sound() {
        let message = "a configuration that was read to be checked cannot be run";
        let mut error = OptimizerError::new(ErrorCode::Config, message);
        error.findings = config.findings().to_vec();
        return Err(errors::raise(py, &error));
    }
    start(config.config().clone(), codex_runtime.map(Utf8PathBuf::from)).map_err(|error| errors::raise(py, &error))
}

fn start(mut config: Config, codex_runtime: Option<Utf8PathBuf>) -> Result<NativeRun, OptimizerError> {
    let run_id = match config.run.run_id.take() {
        Some(run_id) => run_id,
        None => new_run_id::<GepaEngine>()?,
    };
    let paths = RunPaths::new(&config.run.output_dir, &run_id)?;
    config.run.run_id = Some(run_id);
    let (control, controlled) = Control::new(config.run.feed_buffer);
    let request = Request { codex_runtime, ..Request::new(config) };
    let progress = Arc::new(Monitor::<Progress>::default());
    let (running, running_paths) = (control.clone(), paths.clone());
    let (reporting, ending) = (Arc::clone(&progress), Arc::clone(&progress));
    let work = move || async move {
        let on_event = |stored: &Stored| reporting.update(|progress| progress.last_sequence = Some(stored.sequence));
        let on_control = |asked| _ = running.send(asked);
        let ends = (&running, controlled);
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
    fn is_over(&self, py: Python<'_>) -> PyResult<bool> {
        self.check_process(py)?;
        Ok(self.progress.get().end.is_some())
    }

    /// Waits for the end; nothing when the time is over before.
    #[pyo3(signature = (timeout = None))]
    fn wait<'py>(&self, py: Python<'py>, timeout: Option<f64>) -> PyResult<Option<Bound<'py, PyDict>>> {
        if !self.wait_until(py, timeout, |progress| progress.end.is_some())? {
            return Ok(None);
        }
        logs::flush(py);
        let end = self.progress.get().end.clone();
        match end.map(ended) {
            None => Ok(None),
            Some(Err(error)) => Err(errors::raise(py, &error)),
            Some(Ok(outcome)) => {
                let answer = PyDict::new(py);
                answer.set_item("run_id", outcome.run_id)?;
                answer.set_item("run_dir", outcome.run_dir.as_str())?;
                answer.set_item("status", outcome.end.word())?;
                Ok(Some(answer))
            }
        }
    }

    /// Waits until an event after this one is in the feed, or the run is over; whether it is so.
    #[pyo3(signature = (after, timeout = None))]
    fn wait_for_event(&self, py: Python<'_>, after: i64, timeout: Option<f64>) -> PyResult<bool> {
        let is_new = |last: u64| i64::try_from(last).is_ok_and(|last| last > after);
        self.wait_until(py, timeout, |progress| progress.end.is_some() || progress.last_sequence.is_some_and(is_new))
    }

    /// Asks something of the run; whether it was still there to hear it.
    fn signal(&self, py: Python<'_>, kind: &str, reason: &str) -> PyResult<bool> {
        self.check_process(py)?;
        let asked = ControlRequest::of_word(kind, reason).map_err(|error| errors::raise(py, &error))?;
        Ok(self.progress.get().end.is_none() && self.control.send(asked))
    }
}

impl NativeRun {
    /// Waits without holding up other Python threads, and lets Python handle its signals.
    fn wait_until(
        &self,
        py: Python<'_>,
        timeout: Option<f64>,
        is_so: impl Fn(&Progress) -> bool + Sync,
    ) -> PyResult<bool> {
        self.check_process(py)?;
        // A time that no clock can show is no limit.
        let deadline = timeout
            .and_then(|seconds| Duration::try_from_secs_f64(seconds.max(0.0)).ok())
            .and_then(|time| Instant::now().checked_add(time));
        let is_so = |time: Duration| self.progress.wait_blocking(time, &is_so).then_some(());
        Ok(signals::wait(py, deadline, is_so)?.is_some())
    }

    fn check_process(&self, py: Python<'_>) -> PyResult<()> {
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
        Err(errors::raise(py, &error))
    }
}

/// The outcome of a completed run, or the error that Python raises.
fn ended(end: Result<Outcome, OptimizerError>) -> Result<Outcome, OptimizerError> {
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

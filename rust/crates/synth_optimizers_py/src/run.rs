//! A run in a thread of its own, and what Python may do with it.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use camino::Utf8PathBuf;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use synth_gepa::GepaEngine;
use synth_optimizer_platform::artifacts::RunPaths;
use synth_optimizer_platform::config::Config;
use synth_optimizer_platform::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_platform::runtime::{
    Control, Controlled, Outcome, Request, RunStatus, execute, new_run_id, next_wish, wish_kind,
};
use tokio::sync::broadcast::error::RecvError;

use crate::config::LoadedConfig;
use crate::gepa::NAME;
use crate::{errors, signals};

/// A run that this process carries out.
#[pyclass(frozen, module = "synth_optimizers._synth_optimizers")]
#[derive(Debug)]
pub(crate) struct NativeRun {
    paths: RunPaths,
    control: Control,
    shared: Arc<Shared>,
    /// The process that the thread of the run lives in.
    pid: u32,
}

/// What the thread of the run tells.
#[derive(Debug, Default)]
struct Shared {
    progress: Mutex<Progress>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Progress {
    last_sequence: Option<u64>,
    end: Option<Result<Outcome, OptimizerError>>,
}

/// Starts a run, or goes on with one, in the background.
#[pyfunction]
#[pyo3(signature = (config, *, codex_runtime = None))]
pub(crate) fn start_run(py: Python<'_>, config: &LoadedConfig, codex_runtime: Option<String>) -> PyResult<NativeRun> {
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
        None => new_run_id()?,
    };
    let paths = RunPaths::new(&config.run.output_dir, &run_id)?;
    config.run.run_id = Some(run_id);
    let (control, controlled) = Control::new(config.run.feed_buffer);
    let request = Request { codex_runtime, ..Request::new(config, NAME) };
    let shared = Arc::new(Shared::default());
    let thread = Thread { paths: paths.clone(), control: control.clone(), shared: Arc::clone(&shared) };
    std::thread::Builder::new()
        .name("synth-optimizers-run".into())
        .spawn(move || thread.carry_out(request, controlled))
        .map_err(|error| OptimizerError::new(ErrorCode::Io, format!("no thread for the run: {error}")))?;
    Ok(NativeRun { paths, control, shared, pid: std::process::id() })
}

/// The thread's side of a run.
struct Thread {
    paths: RunPaths,
    control: Control,
    shared: Arc<Shared>,
}

impl Thread {
    fn carry_out(self, request: Request, controlled: Controlled) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let end = match runtime {
            Ok(runtime) => runtime.block_on(self.run(request, controlled)),
            Err(error) => Err(OptimizerError::new(ErrorCode::Io, format!("no runtime for the run: {error}"))),
        };
        self.shared.tell(|progress| progress.end = Some(end));
    }

    async fn run(&self, request: Request, controlled: Controlled) -> Result<Outcome, OptimizerError> {
        let mut live = self.control.subscribe();
        let news = async {
            loop {
                match live.recv().await {
                    Ok(stored) => self.shared.tell(|progress| progress.last_sequence = Some(stored.sequence)),
                    // The sequence of the next one makes up for those that were missed.
                    Err(RecvError::Lagged(_)) => {}
                    Err(RecvError::Closed) => std::future::pending().await,
                }
            }
        };
        let wishes = async {
            loop {
                let (kind, reason) = next_wish(&self.paths).await;
                self.control.send(kind.signal(reason));
            }
        };
        tokio::select! {
            end = execute(request, GepaEngine::new, controlled) => end,
            never = wishes => never,
            never = news => never,
        }
    }
}

impl Drop for Thread {
    /// A thread that ends in any other way than by telling its end must not leave anybody waiting.
    fn drop(&mut self) {
        self.shared.tell(|progress| {
            progress.end.get_or_insert_with(|| {
                Err(OptimizerError::new(ErrorCode::Invariant, "the thread of the run ended without a result"))
            });
        });
    }
}

impl Shared {
    fn held(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, change: impl FnOnce(&mut Progress)) {
        change(&mut self.held());
        self.changed.notify_all();
    }

    /// Waits until it is so, or the time is over; whether it is so.
    fn wait(&self, time: Duration, is_so: impl Fn(&Progress) -> bool) -> bool {
        let waited = self.changed.wait_timeout_while(self.held(), time, |progress| !is_so(progress));
        let (progress, _) = waited.unwrap_or_else(PoisonError::into_inner);
        is_so(&progress)
    }
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
        Ok(self.shared.held().end.is_some())
    }

    /// Waits for the end; nothing when the time is over before.
    #[pyo3(signature = (timeout = None))]
    fn wait<'py>(&self, py: Python<'py>, timeout: Option<f64>) -> PyResult<Option<Bound<'py, PyDict>>> {
        if !self.wait_until(py, timeout, |progress| progress.end.is_some())? {
            return Ok(None);
        }
        let end = self.shared.held().end.clone();
        match end.map(ended) {
            None => Ok(None),
            Some(Err(error)) => Err(errors::raise(py, &error)),
            Some(Ok(outcome)) => {
                let answer = PyDict::new(py);
                answer.set_item("run_id", outcome.run_id)?;
                answer.set_item("run_dir", outcome.run_dir.as_str())?;
                answer.set_item("status", outcome.status.word())?;
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
    fn signal(&self, py: Python<'_>, kind: &str, reason: String) -> PyResult<bool> {
        self.check_process(py)?;
        let kind = wish_kind(kind).map_err(|error| errors::raise(py, &error))?;
        Ok(self.shared.held().end.is_none() && self.control.send(kind.signal(reason)))
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
        let is_so = |time: Duration| self.shared.wait(time, &is_so).then_some(());
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

/// What an outcome means for whoever waited for it.
fn ended(end: Result<Outcome, OptimizerError>) -> Result<Outcome, OptimizerError> {
    let outcome = end?;
    match outcome.status {
        RunStatus::Completed => Ok(outcome),
        RunStatus::Failed => Err(outcome
            .error
            .unwrap_or_else(|| OptimizerError::new(ErrorCode::RunFailed, format!("run {} failed", outcome.run_id)))),
        RunStatus::Cancelled => Err(outcome.error.unwrap_or_else(|| {
            OptimizerError::new(ErrorCode::Cancelled, format!("run {} was cancelled", outcome.run_id))
        })),
        RunStatus::Interrupted => {
            let message = format!("run {} was interrupted; what was paid for is saved", outcome.run_id);
            Err(OptimizerError::new(ErrorCode::Cancelled, message)
                .with_hint(format!("Go on with `synth-optimizers gepa resume {}`.", outcome.run_dir)))
        }
    }
}

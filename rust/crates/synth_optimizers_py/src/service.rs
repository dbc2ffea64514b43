//! The standing service for Python: serving a queue, and working off one request of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use camino::Utf8PathBuf;
use pyo3::prelude::*;
use synth_optimizer_platform::container::Reach;
use synth_optimizer_platform::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_platform::queue::Queue;
use synth_optimizer_platform::service::{Crew, Service, Settings, run_next};

use crate::gepa::Gepa;
use crate::paths::{path_argument, working_directory};
use crate::queue::seconds;
use crate::{errors, json, signals};

/// Serves a queue until Python is interrupted; then lets runs finish what is under way, saves them and returns.
#[pyfunction]
#[pyo3(signature = (db_path, *, bind_addr, worker_id, lease_seconds, workers, config_root, token_file, allow_hosts,
    allow_containers, pause_timeout_seconds, shutdown_grace_seconds, silence_seconds, max_connections, max_body_mb,
    codex_runtime, on_listening))]
#[expect(clippy::too_many_arguments, reason = "every setting of the service is named")]
pub(crate) fn serve(
    py: Python<'_>,
    db_path: &Bound<'_, PyAny>,
    bind_addr: String,
    worker_id: Option<String>,
    lease_seconds: f64,
    workers: usize,
    config_root: Option<String>,
    token_file: Option<String>,
    allow_hosts: Vec<String>,
    allow_containers: Vec<String>,
    pause_timeout_seconds: f64,
    shutdown_grace_seconds: f64,
    silence_seconds: f64,
    max_connections: usize,
    max_body_mb: usize,
    codex_runtime: Option<String>,
    on_listening: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let db = path_argument(py, db_path)?;
    let root = config_root.map_or_else(|| working_directory(py), |root| Ok(Utf8PathBuf::from(root)))?;
    let settings = || {
        let mut settings = Settings::new(db, root);
        settings.bind = bind_addr;
        settings.worker_id = worker_id.unwrap_or(settings.worker_id);
        settings.lease = seconds("lease_seconds", lease_seconds)?;
        settings.workers = workers;
        settings.token_file = token_file.map(Utf8PathBuf::from);
        settings.allow_hosts = allow_hosts;
        settings.reach = allow_containers.iter().try_fold(Reach::loopback(), |reach, entry| reach.allow(entry))?;
        settings.pause_timeout = seconds("pause_timeout_seconds", pause_timeout_seconds)?;
        settings.shutdown_grace = Duration::try_from_secs_f64(shutdown_grace_seconds).map_err(|_| {
            OptimizerError::new(
                ErrorCode::Config,
                format!("shutdown_grace_seconds {shutdown_grace_seconds} is not a time"),
            )
        })?;
        settings.silence = seconds("silence_seconds", silence_seconds)?;
        settings.max_connections = max_connections;
        settings.max_body_bytes = max_body_mb.saturating_mul(1024 * 1024);
        settings.codex_runtime = codex_runtime.map(Utf8PathBuf::from);
        Ok(settings)
    };
    let settings: Settings = settings().map_err(|error: OptimizerError| errors::raise(py, &error))?;
    let service = py.detach(|| Service::start(settings, Arc::new(Gepa)));
    let service = service.map_err(|error| errors::raise(py, &error))?;
    let told = on_listening.call1((format!("http://{}", service.address()),)).map(drop);
    let ended = told.and_then(|()| signals::wait(py, None, |time| service.wait(time)));
    let Err(interrupt) = ended else {
        return ended?.unwrap_or(Ok(())).map_err(|error| errors::raise(py, &error));
    };
    service.shut_down();
    loop {
        match signals::wait(py, None, |time| service.wait(time)) {
            Ok(ended) => {
                ended.unwrap_or(Ok(())).map_err(|error| errors::raise(py, &error))?;
                return Err(interrupt);
            }
            // Whoever is in a hurry does not wait for the runs.
            Err(_) => service.shut_down(),
        }
    }
}

/// Claims the next request and carries its run out.
#[pyfunction]
#[pyo3(signature = (db_path, *, worker_id, lease_seconds, codex_runtime))]
pub(crate) fn gepa_service_run_next<'py>(
    py: Python<'py>,
    db_path: &Bound<'py, PyAny>,
    worker_id: String,
    lease_seconds: f64,
    codex_runtime: Option<String>,
) -> PyResult<Bound<'py, PyAny>> {
    let path = path_argument(py, db_path)?;
    let opened = py.detach(|| {
        let lease = seconds("lease_seconds", lease_seconds)?;
        let queue = Queue::open(path.as_std_path())?;
        let crew = Crew::alone(queue, Arc::new(Gepa), &worker_id, lease);
        Ok(Arc::new(crew.with_codex(codex_runtime.map(Utf8PathBuf::from))))
    });
    let crew: Arc<Crew> = opened.map_err(|error: OptimizerError| errors::raise(py, &error))?;
    let (is_left, is_done) = (Arc::new(AtomicBool::new(false)), std::sync::mpsc::sync_channel(1));
    let (tell, told) = is_done;
    let leaving = Arc::clone(&is_left);
    let thread = std::thread::Builder::new().name("synth-optimizers-worker".into()).spawn(move || {
        let _ = tell.send(run_next(&crew, || leaving.load(Ordering::Relaxed)));
    });
    thread.map_err(|error| {
        errors::raise(py, &OptimizerError::new(ErrorCode::Io, format!("no thread for the worker: {error}")))
    })?;
    let told = std::sync::Mutex::new(told);
    let hear = |time: Duration| told.lock().ok().and_then(|told| told.recv_timeout(time).ok());
    let ended = match signals::wait(py, None, hear) {
        Ok(ended) => ended,
        Err(interrupt) => {
            // The run is saved and the request given back before anybody goes on.
            is_left.store(true, Ordering::Relaxed);
            py.detach(|| while hear(Duration::from_secs(1)).is_none() {});
            return Err(interrupt);
        }
    };
    let ended = ended.transpose().map_err(|error| errors::raise(py, &error.into()))?.flatten();
    let answer = match ended {
        Some(ended) => {
            serde_json::json!({"request": ended.entry, "result": ended.entry.result, "message": ended.message})
        }
        None => serde_json::json!({"request": null, "result": null, "message": "no queued run requests"}),
    };
    json::to_python(py, &answer)
}

//! The service for Python: serve a queue, or execute one of its requests.

use std::sync::Arc;
use std::time::Duration;

use camino::Utf8PathBuf;
use pyo3::prelude::*;
use serde_json::json;
use synth_optimizer_core::model::control::ControlRequest;
use synth_optimizer_core::model::error::OptimizerError;
use synth_optimizer_service::queue::{LeaseHolder, Queue};
use synth_optimizer_service::service::{Service, Settings, Viewer, ViewerSource, Workers, openapi};

use crate::convert::{PathArgument, PyJson};
use crate::errors::IntoPyResult;
use crate::logs;
use crate::queue::seconds;
use crate::run::wait_for;

/// Grace period for calls in flight when Python is interrupted during `gepa_service_run_next`.
const INTERRUPT_GRACE: Duration = Duration::from_secs(1);

/// Returns the default settings of a service by name.
#[pyfunction]
pub(crate) fn service_defaults() -> PyResult<PyJson> {
    PyJson::of(&Settings::default())
}

/// Returns the OpenAPI document of the service.
#[pyfunction]
pub(crate) fn service_openapi() -> PyJson {
    PyJson(openapi())
}

/// Serves a queue until Python is interrupted. Then runs finish their calls in flight and are saved. `settings` is a JSON
/// object.
#[pyfunction]
#[pyo3(signature = (db_path, settings, on_listening))]
pub(crate) fn serve(
    py: Python<'_>,
    db_path: PathArgument,
    settings: &str,
    on_listening: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let _records = logs::forward_logs(py)?;
    let settings = Settings { db: db_path.0, ..Settings::from_json(settings).into_py_result()? };
    let service = py.detach(|| Service::start(settings)).into_py_result()?;
    let notified = on_listening.call1((format!("http://{}", service.address()),)).map(drop);
    let ended = notified.and_then(|()| wait_for(py, None, |time| service.wait(time)));
    let Err(interrupt) = ended else {
        return ended?.unwrap_or(Ok(())).into_py_result();
    };
    service.shut_down();
    loop {
        match wait_for(py, None, |time| service.wait(time)) {
            Ok(ended) => {
                ended.unwrap_or(Ok(())).into_py_result()?;
                return Err(interrupt);
            }
            // A second interrupt ends the grace period of the runs.
            Err(_) => service.shut_down(),
        }
    }
}

/// Serves the page of runs in a directory or in the database of a service, until Python is interrupted.
#[pyfunction]
#[pyo3(signature = (path, *, bind_addr, on_listening))]
pub(crate) fn serve_page(
    py: Python<'_>,
    path: PathArgument,
    bind_addr: &str,
    on_listening: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let _records = logs::forward_logs(py)?;
    let viewer = py.detach(|| Viewer::start(ViewerSource::open(&path.0)?, bind_addr)).into_py_result()?;
    on_listening.call1((format!("http://{}/ui/", viewer.address()),))?;
    wait_for(py, None, |time| {
        std::thread::sleep(time);
        None::<()>
    })
    .map(drop)
}

/// Claims the next request and executes its run.
#[pyfunction]
#[pyo3(signature = (db_path, *, worker_id, lease_seconds, codex_runtime))]
pub(crate) fn gepa_service_run_next(
    py: Python<'_>,
    db_path: PathArgument,
    worker_id: String,
    lease_seconds: f64,
    codex_runtime: Option<String>,
) -> PyResult<PyJson> {
    let _records = logs::forward_logs(py)?;
    let started = py.detach(|| {
        let lease = seconds("lease_seconds", lease_seconds)?;
        let queue = Queue::open(db_path.0.as_std_path())?;
        let codex_runtime = codex_runtime.map(Utf8PathBuf::from);
        let settings = Settings { worker_id, lease, codex_runtime, ..Settings::default() };
        Ok::<_, OptimizerError>(Arc::new(Workers::new(queue, settings, LeaseHolder::Worker)).start_next()?)
    });
    let Some(job) = started.into_py_result()? else {
        return Ok(PyJson(json!({"request": null, "result": null, "message": "no queued run requests"})));
    };
    let mut interrupt = None;
    let ended = loop {
        match wait_for(py, None, |time| job.wait(time)) {
            Ok(ended) => break ended,
            // The run is saved and its request released before Python continues. A second signal ends the grace period.
            Err(signal) => {
                let grace = if interrupt.is_none() { INTERRUPT_GRACE } else { Duration::ZERO };
                job.send_control(ControlRequest::shutdown("the worker was interrupted").with_grace(grace));
                interrupt.get_or_insert(signal);
            }
        }
    };
    match interrupt {
        Some(interrupt) => Err(interrupt),
        None => Ok(PyJson(json!({
            "request": ended.as_ref().map(|ended| &ended.entry),
            "result": ended.as_ref().and_then(|ended| ended.entry.result.as_ref()),
            "message": ended.as_ref().map(|ended| &ended.message),
        }))),
    }
}

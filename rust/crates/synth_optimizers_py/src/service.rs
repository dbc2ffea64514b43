//! The service for Python: serve a queue, or execute one of its requests.

use std::sync::Arc;
use std::time::Duration;

use camino::Utf8PathBuf;
use pyo3::prelude::*;
use serde_json::json;
use synth_optimizer_core::model::control::ControlRequest;
use synth_optimizer_core::model::error::OptimizerError;
use synth_optimizer_platform::container::EgressPolicy;
use synth_optimizer_service::queue::{LeaseHolder, Queue};
use synth_optimizer_service::service::{Service, Settings, Workers, openapi};

use crate::convert::{PathArgument, PyJson, working_directory};
use crate::errors::IntoPyResult;
use crate::logs;
use crate::queue::seconds;
use crate::run::wait_for;

/// The options of a service as Python passes them. `None` selects the default.
#[derive(Debug, FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct ServiceOptions {
    bind_addr: Option<String>,
    worker_id: Option<String>,
    workers: Option<usize>,
    lease_seconds: Option<f64>,
    config_root: Option<String>,
    token_file: Option<String>,
    allow_hosts: Vec<String>,
    allow_containers: Vec<String>,
    pause_timeout_seconds: Option<f64>,
    shutdown_grace_seconds: Option<f64>,
    stall_timeout_seconds: Option<f64>,
    max_queued: Option<u32>,
    busy_timeout_seconds: Option<f64>,
    max_connections: Option<usize>,
    max_body_mb: Option<usize>,
    header_timeout_seconds: Option<f64>,
    body_timeout_seconds: Option<f64>,
    write_timeout_seconds: Option<f64>,
    codex_runtime: Option<String>,
}

const MEGABYTE: usize = 1024 * 1024;
/// Grace period for calls in flight when Python is interrupted during `gepa_service_run_next`.
const INTERRUPT_GRACE: Duration = Duration::from_secs(1);

impl ServiceOptions {
    fn settings(self, db: Utf8PathBuf, working_directory: Utf8PathBuf) -> Result<Settings, OptimizerError> {
        let defaults = Settings::new(db, self.config_root.map_or(working_directory, Utf8PathBuf::from));
        let time =
            |name: &str, given: Option<f64>, defaults: Duration| given.map_or(Ok(defaults), |it| seconds(name, it));
        let egress_policy = self
            .allow_containers
            .iter()
            .try_fold(EgressPolicy::loopback(), |egress_policy, entry| egress_policy.allow(entry))?;
        Ok(Settings {
            bind: self.bind_addr.unwrap_or(defaults.bind),
            worker_id: self.worker_id.unwrap_or(defaults.worker_id),
            workers: self.workers.unwrap_or(defaults.workers),
            lease: time("lease_seconds", self.lease_seconds, defaults.lease)?,
            token_file: self.token_file.map(Utf8PathBuf::from),
            allow_hosts: self.allow_hosts,
            egress_policy,
            pause_timeout: time("pause_timeout_seconds", self.pause_timeout_seconds, defaults.pause_timeout)?,
            shutdown_grace: time("shutdown_grace_seconds", self.shutdown_grace_seconds, defaults.shutdown_grace)?,
            stall_timeout: time("stall_timeout_seconds", self.stall_timeout_seconds, defaults.stall_timeout)?,
            max_queued: self.max_queued.unwrap_or(defaults.max_queued),
            busy_timeout: time("busy_timeout_seconds", self.busy_timeout_seconds, defaults.busy_timeout)?,
            max_connections: self.max_connections.unwrap_or(defaults.max_connections),
            max_body_bytes: self.max_body_mb.map_or(defaults.max_body_bytes, |most| most.saturating_mul(MEGABYTE)),
            header_timeout: time("header_timeout_seconds", self.header_timeout_seconds, defaults.header_timeout)?,
            body_timeout: time("body_timeout_seconds", self.body_timeout_seconds, defaults.body_timeout)?,
            write_timeout: time("write_timeout_seconds", self.write_timeout_seconds, defaults.write_timeout)?,
            codex_runtime: self.codex_runtime.map(Utf8PathBuf::from),
            ..defaults
        })
    }
}

/// Returns the default settings of a service by name.
#[pyfunction]
pub(crate) fn service_defaults() -> PyJson {
    let defaults = Settings::new("", "");
    PyJson(json!({
        "bind_addr": defaults.bind,
        "worker_id": defaults.worker_id,
        "workers": defaults.workers,
        "lease_seconds": defaults.lease.as_secs_f64(),
        "pause_timeout_seconds": defaults.pause_timeout.as_secs_f64(),
        "shutdown_grace_seconds": defaults.shutdown_grace.as_secs_f64(),
        "stall_timeout_seconds": defaults.stall_timeout.as_secs_f64(),
        "max_queued": defaults.max_queued,
        "busy_timeout_seconds": defaults.busy_timeout.as_secs_f64(),
        "max_connections": defaults.max_connections,
        "max_body_mb": defaults.max_body_bytes / MEGABYTE,
        "header_timeout_seconds": defaults.header_timeout.as_secs_f64(),
        "body_timeout_seconds": defaults.body_timeout.as_secs_f64(),
        "write_timeout_seconds": defaults.write_timeout.as_secs_f64(),
    }))
}

/// Returns the OpenAPI document of the service.
#[pyfunction]
pub(crate) fn service_openapi() -> PyJson {
    PyJson(openapi())
}

/// Serves a queue until Python is interrupted. Then runs finish their calls in flight and are saved.
#[pyfunction]
#[pyo3(signature = (db_path, settings, on_listening))]
pub(crate) fn serve(
    py: Python<'_>,
    db_path: PathArgument,
    settings: ServiceOptions,
    on_listening: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let _records = logs::forward_logs(py)?;
    let settings = settings.settings(db_path.0, working_directory(py)?).into_py_result()?;
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
        let egress_policy = EgressPolicy::default();
        let settings = Settings { worker_id, lease, egress_policy, codex_runtime, ..Settings::new("", "") };
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

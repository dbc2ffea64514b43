//! Python functions that work on the queue directly, with the same code as the service.

use std::collections::BTreeMap;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use parking_lot::Mutex;
use pyo3::prelude::*;
use synth_optimizer_core::model::control::ControlRequest;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::lifecycle::{RequestState, RunState};
use synth_optimizer_platform::artifacts::RunPaths;
use synth_optimizer_service::queue::{
    Claim, ClaimFilter, Completion, LeaseHolder, LeaseProof, Queue, QueueError, RequestEntry, Submission,
};
use synth_optimizer_service::service::{completion, time_of_seconds};

use crate::config::load_config;
use crate::convert::{PathArgument, PyJson};

/// The latest claim of this process for each request: fencing token and lease id. With the token, this process cannot act for
/// a lease that another worker holds by now.
static CLAIMS: Mutex<BTreeMap<(Utf8PathBuf, String), (i64, String)>> = Mutex::new(BTreeMap::new());

/// Submits a run to the queue, with the current content of the configuration file.
#[pyfunction]
#[pyo3(signature = (db_path, config_path, priority = 0))]
pub(crate) fn workspace_submit_run_request(
    py: Python<'_>,
    db_path: PathArgument,
    config_path: &Bound<'_, PyAny>,
    priority: i64,
) -> PyResult<PyJson> {
    let config = load_config(py, config_path, Vec::new(), None)?;
    let PathArgument(path) = config_path.extract()?;
    on_queue(py, db_path, move |queue, _| {
        let submission = Submission {
            config: &config.0,
            config_path: Some(path.as_str()),
            priority,
            auto_start: true,
            manual_step: false,
            idempotency_key: None,
            body_digest: "",
            max_queued: None,
        };
        queue.submit(&submission).map(|submitted| submitted.entry)
    })
}

/// Claims the next request whose container and cache are free.
#[pyfunction]
#[pyo3(signature = (db_path, lease_id, worker_id = None, lease_seconds = 3600.0))]
pub(crate) fn workspace_claim_next_run_request(
    py: Python<'_>,
    db_path: PathArgument,
    lease_id: &str,
    worker_id: Option<&str>,
    lease_seconds: f64,
) -> PyResult<PyJson> {
    on_queue(py, db_path, |queue, db| {
        if lease_id.is_empty() {
            return Err(OptimizerError::new(ErrorCode::Config, "lease_id is empty")
                .with_hint("Pass a name for the lease; the same name renews and ends it.")
                .into());
        }
        let lease = seconds("lease_seconds", lease_seconds)?;
        let claim = Claim { lease_id, worker_id, lease, holder: LeaseHolder::Caller, filter: ClaimFilter::Any };
        let claimed = queue.claim(&claim)?;
        if let Some(entry) = &claimed {
            let request = (db.to_owned(), entry.request_id.clone());
            CLAIMS.lock().insert(request, (entry.fencing_token, lease_id.to_owned()));
        }
        Ok(claimed)
    })
}

/// Marks a claimed request as running.
#[pyfunction]
#[pyo3(signature = (db_path, request_id, *, lease_id = None))]
pub(crate) fn workspace_start_run_request(
    py: Python<'_>,
    db_path: PathArgument,
    request_id: &str,
    lease_id: Option<&str>,
) -> PyResult<PyJson> {
    on_queue(py, db_path, |queue, db| queue.start(request_id, lease_proof(db, request_id, lease_id)))
}

/// Extends a lease. Returns `None` if the caller no longer holds it.
#[pyfunction]
#[pyo3(signature = (db_path, request_id, lease_id, lease_seconds = 3600.0))]
pub(crate) fn workspace_heartbeat_run_request(
    py: Python<'_>,
    db_path: PathArgument,
    request_id: &str,
    lease_id: &str,
    lease_seconds: f64,
) -> PyResult<PyJson> {
    on_queue(py, db_path, |queue, db| {
        let lease = seconds("lease_seconds", lease_seconds)?;
        queue.heartbeat(request_id, lease_proof(db, request_id, Some(lease_id)), lease, None)
    })
}

/// Marks a request as completed.
#[pyfunction]
#[pyo3(signature = (db_path, request_id, *, lease_id = None))]
pub(crate) fn workspace_complete_run_request(
    py: Python<'_>,
    db_path: PathArgument,
    request_id: &str,
    lease_id: Option<&str>,
) -> PyResult<PyJson> {
    on_queue(py, db_path, |queue, db| {
        let entry = queue.get_request(request_id)?;
        queue.complete(request_id, lease_proof(db, request_id, lease_id), &completion_of(&entry)?)
    })
}

/// Marks a request as failed, with the reason.
#[pyfunction]
#[pyo3(signature = (db_path, request_id, error_message, reason_code = None, *, lease_id = None))]
pub(crate) fn workspace_fail_run_request(
    py: Python<'_>,
    db_path: PathArgument,
    request_id: &str,
    error_message: &str,
    reason_code: Option<&str>,
    lease_id: Option<&str>,
) -> PyResult<PyJson> {
    let error = OptimizerError::new(ErrorCode::RunFailed, error_message);
    let reason_code = Some(reason_code.unwrap_or("failed"));
    on_queue(py, db_path, |queue, db| {
        queue.fail(request_id, lease_proof(db, request_id, lease_id), &error, reason_code, None)
    })
}

/// Cancels a request: immediately if the caller holds it or no worker does, and otherwise through its holder.
#[pyfunction]
#[pyo3(signature = (db_path, request_id, reason = "cancelled", *, lease_id = None))]
pub(crate) fn workspace_cancel_run_request(
    py: Python<'_>,
    db_path: PathArgument,
    request_id: &str,
    reason: &str,
    lease_id: Option<&str>,
) -> PyResult<PyJson> {
    on_queue(py, db_path, |queue, db| {
        let entry = queue.get_request(request_id)?;
        let is_held = matches!(entry.status, RequestState::Leased | RequestState::Running);
        let lease_proof = lease_proof(db, request_id, lease_id);
        if lease_id.is_some() || (is_held && lease_proof == LeaseProof::Token(entry.fencing_token)) {
            queue.mark_cancelled(request_id, lease_proof, reason, None, false)
        } else {
            queue.control(request_id, &ControlRequest::cancel(reason)).map(|ack| ack.entry)
        }
    })
}

/// Requeues the requests whose lease has expired.
#[pyfunction]
pub(crate) fn workspace_recover_expired_run_requests(py: Python<'_>, db_path: PathArgument) -> PyResult<PyJson> {
    on_queue(py, db_path, |queue, _| queue.recover(None))
}

/// Reads the results of a run from its directory, if it exists.
fn completion_of(entry: &RequestEntry) -> Result<Completion, OptimizerError> {
    let paths = RunPaths::new(Utf8Path::new(&entry.output_dir), &entry.run_id)?;
    if !paths.workspace_db().is_file() {
        return Ok(Completion::default());
    }
    let done = completion(&paths)?;
    let state = done.result.as_ref().and_then(|result| result["state"].as_str()).unwrap_or_default();
    if state != RunState::Completed.as_str() {
        let message = format!("run {} is {state}, so its run request cannot be completed", entry.run_id);
        return Err(OptimizerError::new(ErrorCode::StateTransition, message).with_hint(
            "Execute the run to its end first, or record another end with workspace_fail_run_request or \
             workspace_cancel_run_request.",
        ));
    }
    Ok(done)
}

/// Returns the proof that the caller holds the lease: the token of this process's claim, or else the lease id that the caller
/// names. A token is preferred, because a later lease can have the same id.
fn lease_proof<'a>(db: &Utf8Path, request_id: &str, lease_id: Option<&'a str>) -> LeaseProof<'a> {
    let claimed = CLAIMS.lock();
    match (lease_id, claimed.get(&(db.to_owned(), request_id.to_owned()))) {
        (Some(lease_id), Some((token, named))) if named == lease_id => LeaseProof::Token(*token),
        (Some(lease_id), _) => LeaseProof::Lease(lease_id),
        (None, Some((token, _))) => LeaseProof::Token(*token),
        (None, None) => LeaseProof::Current,
    }
}

/// Converts seconds from Python to a duration.
pub(crate) fn seconds(name: &str, given: f64) -> Result<Duration, OptimizerError> {
    time_of_seconds(given).ok_or_else(|| {
        OptimizerError::new(ErrorCode::Config, format!("{name} {given} is not a time"))
            .with_hint("Pass a positive number of seconds, at most a billion.")
    })
}

/// Runs `work` on a queue with the GIL released.
fn on_queue<T: serde::Serialize + Send>(
    py: Python<'_>,
    PathArgument(path): PathArgument,
    work: impl FnOnce(&Queue, &Utf8Path) -> Result<T, QueueError> + Send,
) -> PyResult<PyJson> {
    PyJson::from_detached(py, || work(&Queue::open(path.as_std_path())?, &path))
}

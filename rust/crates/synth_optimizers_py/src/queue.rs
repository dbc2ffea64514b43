//! The queue of a service for Python: requests by hand, on the same code as the service.

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
    Claim, Completion, Hold, Holder, Queue, QueueError, RequestEntry, Submission, Which,
};
use synth_optimizer_service::service::completion;

use crate::config::load_config;
use crate::convert::{PathArgument, Plain};

/// What this process has claimed last of each request, so that it cannot speak for a lease that is somebody else's by now.
static CLAIMED: Mutex<BTreeMap<(Utf8PathBuf, String), (i64, String)>> = Mutex::new(BTreeMap::new());

/// Puts a run into the queue, with the configuration as it is now.
#[pyfunction]
#[pyo3(signature = (db_path, config_path, priority = 0))]
pub(crate) fn workspace_submit_run_request(
    py: Python<'_>,
    db_path: PathArgument,
    config_path: &Bound<'_, PyAny>,
    priority: i64,
) -> PyResult<Plain> {
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
            most_queued: None,
        };
        queue.submit(&submission).map(|submitted| submitted.entry)
    })
}

/// Claims the next request whose container and cache nobody uses.
#[pyfunction]
#[pyo3(signature = (db_path, lease_id, worker_id = None, lease_seconds = 3600.0))]
pub(crate) fn workspace_claim_next_run_request(
    py: Python<'_>,
    db_path: PathArgument,
    lease_id: &str,
    worker_id: Option<&str>,
    lease_seconds: f64,
) -> PyResult<Plain> {
    on_queue(py, db_path, |queue, db| {
        if lease_id.is_empty() {
            return Err(OptimizerError::new(ErrorCode::Config, "lease_id is empty")
                .with_hint("Name the lease: the same name renews and ends it.")
                .into());
        }
        let lease = seconds("lease_seconds", lease_seconds)?;
        let claim = Claim { lease_id, worker_id, lease, holder: Holder::Caller, which: Which::Any };
        let claimed = queue.claim(&claim)?;
        if let Some(entry) = &claimed {
            let request = (db.to_owned(), entry.request_id.clone());
            CLAIMED.lock().insert(request, (entry.fencing_token, lease_id.to_owned()));
        }
        Ok(claimed)
    })
}

/// Says that the run of a request begins.
#[pyfunction]
#[pyo3(signature = (db_path, request_id, *, lease_id = None))]
pub(crate) fn workspace_start_run_request(
    py: Python<'_>,
    db_path: PathArgument,
    request_id: &str,
    lease_id: Option<&str>,
) -> PyResult<Plain> {
    on_queue(py, db_path, |queue, db| queue.start(request_id, hold(db, request_id, lease_id)))
}

/// Keeps a claim; nothing when it is not held any more.
#[pyfunction]
#[pyo3(signature = (db_path, request_id, lease_id, lease_seconds = 3600.0))]
pub(crate) fn workspace_heartbeat_run_request(
    py: Python<'_>,
    db_path: PathArgument,
    request_id: &str,
    lease_id: &str,
    lease_seconds: f64,
) -> PyResult<Plain> {
    on_queue(py, db_path, |queue, db| {
        let lease = seconds("lease_seconds", lease_seconds)?;
        queue.heartbeat(request_id, hold(db, request_id, Some(lease_id)), lease, None)
    })
}

/// Says that the run of a request has ended well.
#[pyfunction]
#[pyo3(signature = (db_path, request_id, *, lease_id = None))]
pub(crate) fn workspace_complete_run_request(
    py: Python<'_>,
    db_path: PathArgument,
    request_id: &str,
    lease_id: Option<&str>,
) -> PyResult<Plain> {
    on_queue(py, db_path, |queue, db| {
        let entry = queue.get_request(request_id)?;
        queue.complete(request_id, hold(db, request_id, lease_id), &left_behind(&entry)?)
    })
}

/// Says that the run of a request has failed, and why.
#[pyfunction]
#[pyo3(signature = (db_path, request_id, error_message, reason_code = None, *, lease_id = None))]
pub(crate) fn workspace_fail_run_request(
    py: Python<'_>,
    db_path: PathArgument,
    request_id: &str,
    error_message: &str,
    reason_code: Option<&str>,
    lease_id: Option<&str>,
) -> PyResult<Plain> {
    let error = OptimizerError::new(ErrorCode::RunFailed, error_message);
    let reason_code = Some(reason_code.unwrap_or("failed"));
    on_queue(py, db_path, |queue, db| queue.fail(request_id, hold(db, request_id, lease_id), &error, reason_code, None))
}

/// Ends a request for good: at once where it is the caller's, and otherwise by whoever holds it.
#[pyfunction]
#[pyo3(signature = (db_path, request_id, reason = "cancelled", *, lease_id = None))]
pub(crate) fn workspace_cancel_run_request(
    py: Python<'_>,
    db_path: PathArgument,
    request_id: &str,
    reason: &str,
    lease_id: Option<&str>,
) -> PyResult<Plain> {
    on_queue(py, db_path, |queue, db| {
        let entry = queue.get_request(request_id)?;
        let is_held = matches!(entry.status, RequestState::Leased | RequestState::Running);
        let hold = hold(db, request_id, lease_id);
        if lease_id.is_some() || (is_held && hold == Hold::Token(entry.fencing_token)) {
            queue.mark_cancelled(request_id, hold, reason, None)
        } else {
            queue.control(request_id, &ControlRequest::cancel(reason)).map(|ack| ack.entry)
        }
    })
}

/// Gives requests whose lease has run out back to the queue.
#[pyfunction]
pub(crate) fn workspace_recover_expired_run_requests(py: Python<'_>, db_path: PathArgument) -> PyResult<Plain> {
    on_queue(py, db_path, |queue, _| queue.recover(None))
}

/// What a run has left in its directory, if it has one.
fn left_behind(entry: &RequestEntry) -> Result<Completion, OptimizerError> {
    let paths = RunPaths::new(Utf8Path::new(&entry.output_dir), &entry.run_id)?;
    if !paths.workspace_db().is_file() {
        return Ok(Completion::default());
    }
    let done = completion(&paths)?;
    let state = done.result.as_ref().and_then(|result| result["state"].as_str()).unwrap_or_default();
    if state != RunState::Completed.word() {
        let message = format!("run {} is {state}: its request is not completed", entry.run_id);
        return Err(OptimizerError::new(ErrorCode::StateTransition, message).with_hint(
            "Carry the run to its end first, or say how it ended with workspace_fail_run_request or \
             workspace_cancel_run_request.",
        ));
    }
    Ok(done)
}

/// By what the caller says that a request is theirs: the claim of this process, or else the lease that they name. A name
/// can be given to a later lease as well, a token cannot.
fn hold<'a>(db: &Utf8Path, request_id: &str, lease_id: Option<&'a str>) -> Hold<'a> {
    let claimed = CLAIMED.lock();
    match (lease_id, claimed.get(&(db.to_owned(), request_id.to_owned()))) {
        (Some(lease_id), Some((token, named))) if named == lease_id => Hold::Token(*token),
        (Some(lease_id), _) => Hold::Lease(lease_id),
        (None, Some((token, _))) => Hold::Token(*token),
        (None, None) => Hold::Current,
    }
}

/// Longer than anything here may last, and still small in milliseconds.
const LONGEST: Duration = Duration::from_secs(1_000_000_000);

/// A time that people give in seconds.
pub(crate) fn seconds(name: &str, given: f64) -> Result<Duration, OptimizerError> {
    Duration::try_from_secs_f64(given).ok().filter(|time| !time.is_zero() && *time <= LONGEST).ok_or_else(|| {
        OptimizerError::new(ErrorCode::Config, format!("{name} {given} is not a time"))
            .with_hint("Give a positive number of seconds, at most a billion.")
    })
}

/// Does something with a queue while other Python threads go on.
fn on_queue<T: serde::Serialize + Send>(
    py: Python<'_>,
    PathArgument(path): PathArgument,
    work: impl FnOnce(&Queue, &Utf8Path) -> Result<T, QueueError> + Send,
) -> PyResult<Plain> {
    Plain::from_work(py, || work(&Queue::open(path.as_std_path())?, &path))
}

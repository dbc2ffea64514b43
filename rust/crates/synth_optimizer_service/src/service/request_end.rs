//! Records the end of a run in the queue.

use std::time::{Duration, Instant};

use backon::{BlockingRetryable, ConstantBuilder};
use camino::Utf8Path;
use serde_json::json;

use super::job::{Job, RequestEnd};
use super::workers::Workers;
use crate::ServiceErrorCode;
use crate::queue::{Completion, RequestEntry};
use synth_optimizer_core::model::control::{ControlAction, RunEnd};
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_platform::artifacts::{RunPaths, run_status};
use synth_optimizer_platform::runtime::RunOutcome;
use synth_optimizer_platform::workspace::{Reader, is_ownership_lost};

/// How long to retry reading the results of a completed run before its request fails.
const READ_TIMEOUT: Duration = Duration::from_secs(60);
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

impl Workers {
    /// Records how a job ended, unless another worker holds the request by now.
    pub(super) fn record_end(&self, job: &Job, result: Result<RunOutcome, OptimizerError>) -> RequestEnd {
        let outage = result.as_ref().err().filter(|error| may_pass(error)).map(|error| error.message.clone());
        let is_saved = matches!(&result, Ok(RunOutcome { end: RunEnd::Interrupted | RunEnd::Paused, .. }));
        let (mut end, mut message) = classify(job, result);
        let mut completion = Completion::default();
        if end == RunEnd::Completed {
            match read_completion(job) {
                Ok(done) => completion = done,
                Err(error) if job.has_lease_expired() => (end, message) = (RunEnd::Interrupted, error.message),
                Err(error) => (message, end) = (error.to_string(), RunEnd::Failed(error)),
            }
        }
        // A client that sees the final state of the request sees the results of its run with it.
        let results = match end {
            RunEnd::Failed(_) | RunEnd::Cancelled(_) => partial_results(&job.request),
            RunEnd::Completed | RunEnd::Paused | RunEnd::Interrupted => None,
        };
        let (id, proof) = (&job.request.request_id, job.lease_proof());
        let recorded = self.write_with_retry(job, |queue| match &end {
            RunEnd::Completed => queue.complete(id, proof, &completion),
            RunEnd::Failed(error) => queue.fail(id, proof, error, None, results.as_ref()),
            RunEnd::Cancelled(error) => queue.mark_cancelled(id, proof, &error.message, results.as_ref(), is_saved),
            // The request returns to the queue, and a pending control request takes effect, unless it was withdrawn.
            RunEnd::Paused | RunEnd::Interrupted => match &outage {
                Some(cause) => queue.release_for_retry(id, proof, cause, self.settings.outage_retry),
                None => queue.release(id, proof, &message),
            },
        });
        let recorded = match recorded {
            Ok(entry) => RequestEnd { entry, message },
            Err(error) => {
                if error.code == Some(ServiceErrorCode::Fenced) {
                    self.metrics.fenced.inc();
                }
                tracing::warn!(run_id = job.request.run_id, %error, "recording the end of a run request failed");
                RequestEnd {
                    entry: self.latest_entry(job),
                    message: format!("{message}; recording it in the queue failed: {error}"),
                }
            }
        };
        let (run_id, status, message) = (&job.request.run_id, recorded.entry.status.as_str(), &recorded.message);
        tracing::info!(run_id, request = job.request.request_id, status, outcome = message, "run request ended");
        recorded
    }

    /// Stores the results of a run whose request ended without its worker.
    pub(super) fn add_results(&self, entry: &RequestEntry) {
        if let Some(results) = partial_results(entry)
            && let Err(error) = self.queue.summarize(&entry.request_id, &results)
        {
            tracing::debug!(run_id = entry.run_id, %error, "storing the results of the run with its run request failed");
        }
    }
}

/// Returns the results of a run that failed or was cancelled, if it has a workspace that can be read.
fn partial_results(entry: &RequestEntry) -> Option<Completion> {
    let read = || -> Result<Option<Completion>, OptimizerError> {
        let paths = RunPaths::new(Utf8Path::new(&entry.output_dir), &entry.run_id)?;
        paths.workspace_db().is_file().then(|| completion(&paths)).transpose()
    };
    read().unwrap_or_else(|error| {
        tracing::debug!(run_id = entry.run_id, %error, "reading the results of the run failed");
        None
    })
}

/// Returns how the request ends, and a message for users.
fn classify(job: &Job, result: Result<RunOutcome, OptimizerError>) -> (RunEnd, String) {
    let control = job.control_state();
    let is_cancelled = control.ending == Some(ControlAction::Cancel);
    let end = match result {
        Ok(outcome) => outcome.end,
        // The lease expired or another worker has the run, so the queue will reject this write too.
        Err(error) if is_ownership_lost(&error) || job.has_lease_expired() => {
            return (RunEnd::Interrupted, error.message);
        }
        // The run has begun and is saved: a worker continues it when the outage is over.
        Err(error) if may_pass(&error) && has_begun(job) => RunEnd::Interrupted,
        Err(error) if error.code != ErrorCode::Cancelled => RunEnd::Failed(error),
        // A control request ended the run before it started, so it has sent no calls.
        Err(error) if is_cancelled => RunEnd::Cancelled(error),
        Err(error) if control.is_stopped && control.ending.is_none() && !control.is_stalled => RunEnd::Cancelled(error),
        Err(_) => RunEnd::Interrupted,
    };
    let saved = "the run was interrupted".to_owned();
    let end = match end {
        RunEnd::Interrupted | RunEnd::Paused if is_cancelled => {
            RunEnd::Cancelled(OptimizerError::new(ErrorCode::Cancelled, &saved))
        }
        RunEnd::Interrupted | RunEnd::Paused if control.is_stalled => RunEnd::Failed(stalled_run_error(job)),
        end => end,
    };
    let message = match &end {
        RunEnd::Completed => "the run completed".to_owned(),
        RunEnd::Failed(error) => error.to_string(),
        RunEnd::Cancelled(error) => error.message.clone(),
        RunEnd::Interrupted | RunEnd::Paused => saved,
    };
    (end, message)
}

/// Returns whether the same run may succeed later: something that it needs is unavailable, or the disk is full.
fn may_pass(error: &OptimizerError) -> bool {
    error.is_outage || error.code == ErrorCode::StorageFull
}

/// Returns whether the run has a log.
fn has_begun(job: &Job) -> bool {
    RunPaths::of_dir(Utf8Path::new(&job.request.run_dir)).is_ok_and(|paths| paths.workspace_db().is_file())
}

/// Returns the error of a run that stored no event for too long.
pub(super) fn stalled_run_error(job: &Job) -> OptimizerError {
    let message = format!("run {} made no progress for {} s", &job.request.run_id, job.time_since_progress().as_secs());
    OptimizerError::new(ErrorCode::RunFailed, message).with_hint(
        "Check the events of the run and the container's log. --stall-timeout-seconds is the limit, in addition to the run's own timeouts.",
    )
}

/// Reads the results of a completed run. Retries while the files cannot be read.
fn read_completion(job: &Job) -> Result<Completion, OptimizerError> {
    let read = || RunPaths::of_dir(Utf8Path::new(&job.request.run_dir)).and_then(|paths| completion(&paths));
    let (pauses, began) = (ConstantBuilder::new().with_delay(RETRY_INTERVAL).without_max_times(), Instant::now());
    let may_succeed = |error: &OptimizerError| {
        matches!(error.code, ErrorCode::Sqlite | ErrorCode::StorageFull | ErrorCode::Io)
            && !job.has_lease_expired()
            && began.elapsed() < READ_TIMEOUT
    };
    read.retry(pauses).sleep(std::thread::sleep).when(may_succeed).call()
}

/// Reads the results of a run, as the queue stores them.
pub fn completion(paths: &RunPaths) -> Result<Completion, OptimizerError> {
    let reader = Reader::open(paths.workspace_db().as_std_path())?;
    let overview = run_status(paths)?;
    let mut result = json!(overview);
    result["best_candidate"] = json!(reader.best()?);
    let usage = reader
        .run_usage()
        .map_err(|error| OptimizerError::from_cause(ErrorCode::Sqlite, "the usage cannot be read", error))?;
    Ok(Completion {
        run_workspace_db_path: Some(paths.workspace_db().to_string()),
        result_manifest_path: Some(paths.manifest().to_string()),
        cost_usd: overview.cost_usd.known().map(|amount| amount.usd()),
        best_candidate_id: overview.best_candidate_id,
        usage: Some(json!(usage)),
        result: Some(result),
    })
}

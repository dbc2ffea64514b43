//! How a run that has ended is written into the queue.

use std::time::{Duration, Instant};

use camino::Utf8Path;
use serde_json::{Value, json};

use super::crew::Crew;
use super::job::{Ended, Intent, Job};
use crate::artifacts::{RunPaths, run_status};
use crate::model::error::{ErrorCode, OptimizerError};
use crate::model::lifecycle::RequestState;
use crate::queue::{Completion, Hold, Queue, QueueCode, QueueError, RequestEntry};
use crate::runtime::{Outcome, RunStatus};
use crate::workspace::{Reader, is_fenced};

/// What becomes of a request.
#[derive(Debug)]
enum Verdict {
    Completed(Box<Completion>),
    Failed(Value),
    Cancelled,
    Paused,
    /// It is given back; what was asked of it takes effect.
    Released,
}

impl Crew {
    /// Writes down how a job ended, unless the request is somebody else's by now.
    pub(super) fn settle(&self, job: &Job, result: Result<Outcome, OptimizerError>) -> Ended {
        let (verdict, message) = self.judge(job, result);
        let rest = self.patience.pause;
        let told = self.persist(job, |queue| verdict.write(queue, job.request_id(), job.hold(), &message, rest));
        let ended = match told {
            Ok(entry) => Ended { entry: self.summarized(entry), message },
            Err(error) => {
                if error.code == QueueCode::Fenced {
                    self.metrics.fenced();
                }
                Ended { entry: self.latest(job), message: format!("{message}; the queue has not taken it: {error}") }
            }
        };
        self.log.line(&format!("run {} is {}: {}", job.run_id(), ended.entry.status.word(), ended.message));
        ended
    }

    /// The request with what its run has left, where it did not end well. A run that has left nothing has nothing to add.
    pub(super) fn summarized(&self, entry: RequestEntry) -> RequestEntry {
        if !matches!(entry.status, RequestState::Failed | RequestState::Cancelled) {
            return entry;
        }
        let paths = RunPaths::new(Utf8Path::new(&entry.output_dir), &entry.run_id);
        let left = paths.ok().filter(|paths| paths.workspace_db().is_file()).and_then(|paths| completion(&paths).ok());
        left.and_then(|left| self.queue.summarize(&entry.request_id, &left).ok()).unwrap_or(entry)
    }

    /// What the end of a run means for its request, and the same in words.
    fn judge(&self, job: &Job, result: Result<Outcome, OptimizerError>) -> (Verdict, String) {
        let failed = |error: &OptimizerError| (Verdict::Failed(error_json(error)), error.to_string());
        let outcome = match result {
            Ok(outcome) => outcome,
            // The lease ran out and nobody has taken the run, or somebody has: then the queue refuses this as well.
            Err(error) if is_fenced(&error) || job.is_lease_over() => return (Verdict::Released, error.message),
            // A run that was told to end before it began has paid for nothing.
            Err(error) if error.code == ErrorCode::Cancelled => return let_go(job, error.message),
            Err(error) => return failed(&error),
        };
        match outcome.status {
            RunStatus::Completed => match left_behind(job, &outcome.run_dir) {
                Ok(done) => (Verdict::Completed(Box::new(done)), "it is done".to_owned()),
                Err(error) if job.is_lease_over() => (Verdict::Released, error.message),
                Err(error) => failed(&error),
            },
            RunStatus::Failed => {
                failed(&outcome.error.unwrap_or_else(|| OptimizerError::new(ErrorCode::RunFailed, "it failed")))
            }
            RunStatus::Cancelled => {
                let reason = outcome.error.map_or_else(|| "cancelled".to_owned(), |error| error.message);
                (Verdict::Cancelled, reason)
            }
            RunStatus::Interrupted => let_go(job, "the run was set aside".to_owned()),
        }
    }

    /// Writes down that a job has failed, whatever its thread says later.
    pub(super) fn fail(&self, job: &Job, error: &OptimizerError) -> Result<RequestEntry, QueueError> {
        self.queue.fail(job.request_id(), job.hold(), &error_json(error))
    }
}

impl Verdict {
    fn write(
        &self,
        queue: &Queue,
        id: &str,
        hold: Hold<'_>,
        message: &str,
        rest: Duration,
    ) -> Result<RequestEntry, QueueError> {
        match self {
            Self::Completed(done) => queue.complete(id, hold, done),
            Self::Failed(error) => queue.fail(id, hold, error),
            Self::Cancelled => queue.cancelled(id, hold, message),
            Self::Paused => queue.paused(id, hold, rest),
            Self::Released => queue.release(id, hold, message),
        }
    }
}

/// How long to wait for a run that is done and cannot be read, before it counts as failed.
const READING: Duration = Duration::from_secs(60);
/// How often it is tried.
const GLANCE: Duration = Duration::from_millis(500);

/// What a run has left. What cannot be read just now is there all the same.
fn left_behind(job: &Job, run_dir: &Utf8Path) -> Result<Completion, OptimizerError> {
    let until = Instant::now() + READING;
    loop {
        match RunPaths::of_dir(run_dir).and_then(|paths| completion(&paths)) {
            Err(error)
                if matches!(error.code, ErrorCode::Sqlite | ErrorCode::Io)
                    && Instant::now() < until
                    && !job.is_lease_over() =>
            {
                std::thread::sleep(GLANCE);
            }
            done => return done,
        }
    }
}

/// A run that was let go, by why it was.
fn let_go(job: &Job, why: String) -> (Verdict, String) {
    match job.intent() {
        Intent::Cancel => (Verdict::Cancelled, why),
        Intent::Silence => {
            let error = silent(job);
            (Verdict::Failed(error_json(&error)), error.to_string())
        }
        Intent::Nothing if job.is_stopped() => (Verdict::Cancelled, why),
        Intent::Nothing | Intent::Shutdown | Intent::Pause => (Verdict::Released, why),
        Intent::Idle => (Verdict::Paused, why),
    }
}

/// The failure of a run that tells nothing.
pub(super) fn silent(job: &Job) -> OptimizerError {
    let message = format!("run {} told nothing for {} s", job.run_id(), job.silence().as_secs());
    OptimizerError::new(ErrorCode::RunFailed, message).with_hint(
        "Look into its events and the container's log; --silence-seconds is the limit, on top of the run's own timeouts.",
    )
}

/// An error as it is stored and shown.
fn error_json(error: &OptimizerError) -> Value {
    let OptimizerError { code, message, detail, hint, findings } = error;
    json!({
        "code": code.wire(),
        "error_code": code.wire(),
        "reason_code": code.wire(),
        "message": message,
        "detail": detail,
        "hint": hint,
        "retryable": is_retryable(*code),
        "findings": findings,
    })
}

/// Whether the same request may succeed when something outside of it has changed.
fn is_retryable(code: ErrorCode) -> bool {
    matches!(
        code,
        ErrorCode::CacheFull
            | ErrorCode::CacheMiss
            | ErrorCode::Container
            | ErrorCode::DiskBudget
            | ErrorCode::Http
            | ErrorCode::Io
            | ErrorCode::Proposer
            | ErrorCode::Sqlite
    )
}

/// What a finished run leaves in the queue.
pub fn completion(paths: &RunPaths) -> Result<Completion, OptimizerError> {
    let reader = Reader::open(paths.workspace_db().as_std_path())?;
    let overview = run_status(paths)?;
    let mut result = serde_json::to_value(&overview)
        .map_err(|error| OptimizerError::new(ErrorCode::Json, format!("the result cannot be written: {error}")))?;
    if let Some(result) = result.as_object_mut() {
        result.insert("best_candidate".into(), reader.best()?.unwrap_or(Value::Null));
    }
    let usage = reader.run_usage().map_err(|error| OptimizerError::new(ErrorCode::Sqlite, error.to_string()))?;
    let usage = serde_json::to_value(usage)
        .map_err(|error| OptimizerError::new(ErrorCode::Json, format!("the usage cannot be written: {error}")))?;
    Ok(Completion {
        run_workspace_db_path: Some(paths.workspace_db().to_string()),
        result_manifest_path: Some(paths.manifest().to_string()),
        cost_usd: overview.cost_usd.known().map(|amount| amount.usd()),
        best_candidate_id: overview.best_candidate_id,
        usage: Some(usage),
        result: Some(result),
    })
}

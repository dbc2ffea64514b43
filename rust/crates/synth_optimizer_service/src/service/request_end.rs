//! How a run that has ended is written into the queue.

use std::time::{Duration, Instant};

use camino::Utf8Path;
use serde_json::json;

use super::job::{Job, RequestEnd};
use super::workers::Workers;
use crate::Code;
use crate::queue::{Completion, RequestEntry};
use synth_optimizer_core::model::control::{ControlAction, RunEnd};
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_platform::artifacts::{RunPaths, run_status};
use synth_optimizer_platform::runtime::Outcome;
use synth_optimizer_platform::workspace::{Reader, is_fenced};

/// How long to wait for a run that is done and cannot be read, before it counts as failed.
const READ_TIMEOUT: Duration = Duration::from_secs(60);
/// How often it is tried.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

impl Workers {
    /// Records how a job ended, unless another worker holds the request by now.
    pub(super) fn record_end(&self, job: &Job, result: Result<Outcome, OptimizerError>) -> RequestEnd {
        let (mut end, mut message) = classify(job, result);
        let mut completion = Completion::default();
        if end == RunEnd::Completed {
            match left_behind(job) {
                Ok(done) => completion = done,
                Err(error) if job.is_lease_over() => (end, message) = (RunEnd::Interrupted, error.message),
                Err(error) => (message, end) = (error.to_string(), RunEnd::Failed(error)),
            }
        }
        // Who sees that the request is over sees with it what the run has left.
        let left = match end {
            RunEnd::Failed(_) | RunEnd::Cancelled(_) => left_unfinished(&job.request),
            RunEnd::Completed | RunEnd::Paused | RunEnd::Interrupted => None,
        };
        let (id, hold) = (&job.request.request_id, job.hold());
        let recorded = self.persist(job, |queue| match &end {
            RunEnd::Completed => queue.complete(id, hold, &completion),
            RunEnd::Failed(error) => queue.fail(id, hold, error, None, left.as_ref()),
            RunEnd::Cancelled(error) => queue.mark_cancelled(id, hold, &error.message, left.as_ref()),
            RunEnd::Paused => queue.mark_paused(id, hold, self.settings.pause_timeout),
            // The request is given back; what was asked of it takes effect.
            RunEnd::Interrupted => queue.release(id, hold, &message),
        });
        let recorded = match recorded {
            Ok(entry) => RequestEnd { entry, message },
            Err(error) => {
                if error.code == Some(Code::Fenced) {
                    self.metrics.fenced.inc();
                }
                RequestEnd {
                    entry: self.latest(job),
                    message: format!("{message}; the queue has not taken it: {error}"),
                }
            }
        };
        let (run_id, status, message) = (&job.request.run_id, recorded.entry.status.word(), &recorded.message);
        tracing::info!(run_id, request = job.request.request_id, status, outcome = message, "run request ended");
        recorded
    }

    /// Adds to a request that was ended without its worker what its run has left.
    pub(super) fn summarize(&self, entry: &RequestEntry) {
        if let Some(left) = left_unfinished(entry)
            && let Err(error) = self.queue.summarize(&entry.request_id, &left)
        {
            tracing::debug!(run_id = entry.run_id, %error, "what the run has left was not added to its request");
        }
    }
}

/// What a run has left that did not end well; nothing where it never began or cannot be read.
fn left_unfinished(entry: &RequestEntry) -> Option<Completion> {
    let read = || -> Result<Option<Completion>, OptimizerError> {
        let paths = RunPaths::new(Utf8Path::new(&entry.output_dir), &entry.run_id)?;
        paths.workspace_db().is_file().then(|| completion(&paths)).transpose()
    };
    read().unwrap_or_else(|error| {
        tracing::debug!(run_id = entry.run_id, %error, "what the run has left cannot be read");
        None
    })
}

/// What the end of a run means for its request, and the same in words.
fn classify(job: &Job, result: Result<Outcome, OptimizerError>) -> (RunEnd, String) {
    let end = match result {
        Ok(outcome) => outcome.end,
        // The lease ran out, or another worker has taken the run: then the queue refuses this as well.
        Err(error) if is_fenced(&error) || job.is_lease_over() => return (RunEnd::Interrupted, error.message),
        // A run that was asked to end before it began has paid for nothing.
        Err(error) if error.code == ErrorCode::Cancelled => return asked_to_end(job, error.message),
        Err(error) => RunEnd::Failed(error),
    };
    match end {
        RunEnd::Completed => (end, "it is done".to_owned()),
        RunEnd::Failed(ref error) => (end.clone(), error.to_string()),
        RunEnd::Cancelled(ref error) => (end.clone(), error.message.clone()),
        RunEnd::Interrupted | RunEnd::Paused => asked_to_end(job, "the run was set aside".to_owned()),
    }
}

/// The end of a run that was asked to end, by what was asked.
fn asked_to_end(job: &Job, why: String) -> (RunEnd, String) {
    let asked = job.asked();
    match asked.ending {
        None | Some(_) if asked.is_silent && asked.ending != Some(ControlAction::Cancel) => {
            let error = silent(job);
            (RunEnd::Failed(error.clone()), error.to_string())
        }
        Some(ControlAction::Cancel) => (RunEnd::Cancelled(OptimizerError::new(ErrorCode::Cancelled, &why)), why),
        None if asked.is_stopped => (RunEnd::Cancelled(OptimizerError::new(ErrorCode::Cancelled, &why)), why),
        Some(ControlAction::Interrupt) => (RunEnd::Paused, why),
        Some(_) | None => (RunEnd::Interrupted, why),
    }
}

/// The failure of a run that stores nothing.
pub(super) fn silent(job: &Job) -> OptimizerError {
    let message = format!("run {} told nothing for {} s", &job.request.run_id, job.silence().as_secs());
    OptimizerError::new(ErrorCode::RunFailed, message).with_hint(
        "Look into its events and the container's log; --silence-seconds is the limit, on top of the run's own timeouts.",
    )
}

/// What a completed run has left. What cannot be read just now is tried again.
fn left_behind(job: &Job) -> Result<Completion, OptimizerError> {
    let until = Instant::now() + READ_TIMEOUT;
    loop {
        match RunPaths::of_dir(Utf8Path::new(&job.request.run_dir)).and_then(|paths| completion(&paths)) {
            Err(error)
                if matches!(error.code, ErrorCode::Sqlite | ErrorCode::Io)
                    && Instant::now() < until
                    && !job.is_lease_over() =>
            {
                std::thread::sleep(RETRY_INTERVAL);
            }
            done => return done,
        }
    }
}

/// What a finished run leaves in the queue.
pub fn completion(paths: &RunPaths) -> Result<Completion, OptimizerError> {
    let reader = Reader::open(paths.workspace_db().as_std_path())?;
    let overview = run_status(paths)?;
    let mut result = json!(overview);
    result["best_candidate"] = json!(reader.best()?);
    let usage = reader.run_usage().map_err(|error| OptimizerError::new(ErrorCode::Sqlite, error.to_string()))?;
    Ok(Completion {
        run_workspace_db_path: Some(paths.workspace_db().to_string()),
        result_manifest_path: Some(paths.manifest().to_string()),
        cost_usd: overview.cost_usd.known().map(|amount| amount.usd()),
        best_candidate_id: overview.best_candidate_id,
        usage: Some(json!(usage)),
        result: Some(result),
    })
}

//! Takes requests from the queue and carries them out, one thread each. The service and a single worker use the same crew.

use std::sync::Arc;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use serde_json::{Value, json};

use super::algorithm::Algorithm;
use super::job::{Ended, Intent, Job, Manner};
use super::metrics::Metrics;
use crate::artifacts::{RunPaths, run_status};
use crate::clock::boot_millis;
use crate::config::{Config, from_stored};
use crate::container::Reach;
use crate::model::error::{ErrorCode, OptimizerError};
use crate::queue::{Claim, Completion, Holder, Queue, QueueError, RequestEntry, Which, random_id};
use crate::runtime::{Outcome, RunStatus};
use crate::workspace::Reader;

/// Taken back this often without a single event in between, a request breaks whoever carries it out.
const HOPELESS: i64 = 50;

/// Who takes a request, where it is not the crew as a whole.
#[derive(Debug, Clone, Default)]
pub struct Claimant {
    pub worker_id: Option<String>,
    pub lease: Option<Duration>,
}

/// What carrying out a request takes.
#[derive(Debug)]
pub struct Crew {
    pub(super) queue: Queue,
    pub(super) algorithm: Arc<dyn Algorithm>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) worker_id: String,
    pub(super) lease: Duration,
    pub(super) reach: Reach,
    pub(super) codex_runtime: Option<Utf8PathBuf>,
    pub(super) holder: Holder,
}

impl Crew {
    /// A crew of one, for a process that works off a queue without serving it.
    pub fn alone(queue: Queue, algorithm: Arc<dyn Algorithm>, worker_id: &str, lease: Duration) -> Self {
        Self {
            queue,
            algorithm,
            metrics: Arc::new(Metrics::new()),
            worker_id: worker_id.to_owned(),
            lease,
            reach: Reach::default(),
            codex_runtime: None,
            holder: Holder::Worker,
        }
    }

    /// The same crew with the codex binary that is installed with the package.
    #[must_use]
    pub fn with_codex(mut self, runtime: Option<Utf8PathBuf>) -> Self {
        self.codex_runtime = runtime;
        self
    }

    /// How often a job is told to the queue: often enough for its lease, and for wishes to be heard soon.
    pub fn pulse(&self) -> Duration {
        (self.lease / 3).min(Duration::from_millis(500))
    }

    /// Claims the next request that may run and starts it.
    pub fn begin(
        self: &Arc<Self>,
        which: Which<'_>,
        manner: Manner,
        claimant: &Claimant,
    ) -> Result<Option<Arc<Job>>, QueueError> {
        let lease_id = format!("lease_{}", random_id()?);
        let worker_id = Some(claimant.worker_id.as_deref().unwrap_or(&self.worker_id));
        let lease = claimant.lease.unwrap_or(self.lease);
        let claim = Claim { lease_id: &lease_id, worker_id, lease, holder: self.holder.clone(), which };
        let asked_at = boot_millis();
        let Some(entry) = self.queue.claim(&claim)? else { return Ok(None) };
        let superseded = self.queue.last_holder(&entry.request_id)?.map(|pid| format!("pid {pid}"));
        let manner = if entry.manual_step { Manner::Stepped } else { manner };
        let job = Job::new(entry, superseded, manner, asked_at, lease);
        job.start(self)?;
        Ok(Some(job))
    }

    /// Tells the queue that the job goes on, and the job what is wished of it.
    pub fn beat(&self, job: &Job) {
        let asked_at = boot_millis();
        match self.queue.heartbeat(job.request_id(), job.hold(), job.lease()) {
            Ok(Some(beat)) => {
                job.renew(asked_at);
                if let Some(wish) = &beat.wish {
                    job.obey(wish);
                }
            }
            Ok(None) => job.fence(),
            // The queue may answer the next one; without an answer the lease runs out by itself.
            Err(_) => {}
        }
    }

    /// The configuration of a request, as it was when it was submitted.
    pub(super) fn configured(&self, request: &RequestEntry) -> Result<Config, OptimizerError> {
        let (stored, _) = self.queue.config(&request.request_id)?;
        let mut config = from_stored(&stored, "the queue")?.config;
        config.run.run_id = Some(request.run_id.clone());
        self.queue.start(&request.request_id, crate::queue::Hold::Token(request.fencing_token))?;
        let paths = RunPaths::new(&config.run.output_dir, &request.run_id)?;
        let mark = last_sequence(&paths)?;
        if request.recoveries >= HOPELESS && claimed_in_vain(&self.queue, request, mark) {
            let message =
                format!("{} workers were lost at the same place of run {}", request.recoveries, request.run_id);
            return Err(OptimizerError::new(ErrorCode::RunFailed, message)
                .with_hint("Look what ends the workers: memory, or a container that takes the machine down."));
        }
        self.queue.progress(&request.request_id, crate::queue::Hold::Token(request.fencing_token), mark)?;
        Ok(config)
    }

    /// Writes down how a job ended, unless the request is somebody else's by now.
    pub(super) fn settle(&self, job: &Job, result: Result<Outcome, OptimizerError>) -> Ended {
        let (id, hold) = (job.request_id(), job.hold());
        let intent = job.intent();
        let (message, told) = match result {
            Ok(outcome) => match (outcome.status, intent) {
                (RunStatus::Completed, _) => {
                    let done = RunPaths::of_dir(&outcome.run_dir).and_then(|paths| completion(&paths));
                    let told = done.and_then(|done| Ok(self.queue.complete(id, hold, &done)?));
                    ("completed".to_owned(), told)
                }
                (RunStatus::Failed, _) => {
                    let error = outcome.error.unwrap_or_else(|| OptimizerError::new(ErrorCode::RunFailed, "it failed"));
                    (error.to_string(), self.fail(job, &error))
                }
                (RunStatus::Cancelled, _) => {
                    let reason = outcome.error.map_or_else(|| "cancelled".to_owned(), |error| error.message);
                    (reason.clone(), self.queue.cancelled(id, hold, &reason).map_err(OptimizerError::from))
                }
                (RunStatus::Interrupted, intent) => self.set_aside(job, intent, "the run was set aside"),
            },
            // A run that was told to end before it began has paid for nothing.
            Err(error) if error.code == ErrorCode::Cancelled => self.set_aside(job, intent, &error.message),
            Err(error) => (error.to_string(), self.fail(job, &error)),
        };
        match told {
            Ok(entry) => Ended { entry, message },
            Err(error) => {
                self.metrics.fenced();
                let entry = self.queue.get_request(id).unwrap_or_else(|_| job.request().clone());
                Ended { entry, message: format!("{message}; the queue has not taken it: {error}") }
            }
        }
    }

    /// A run that was let go, by why it was.
    fn set_aside(&self, job: &Job, intent: Intent, why: &str) -> (String, Result<RequestEntry, OptimizerError>) {
        let (id, hold) = (job.request_id(), job.hold());
        let told = match intent {
            Intent::Cancel => self.queue.cancelled(id, hold, why),
            Intent::Silence => {
                let message = format!("run {} told nothing for {} s", job.run_id(), job.silence().as_secs());
                let error = OptimizerError::new(ErrorCode::RunFailed, message)
                    .with_hint("Look into its events and the container's log; --silence-seconds sets the limit.");
                return (error.to_string(), self.fail(job, &error));
            }
            Intent::Shutdown => self.queue.release(id, hold, "the worker was shut down"),
            // Somebody has asked the run itself, past the queue.
            Intent::Pause | Intent::Nothing => self.queue.paused(id, hold),
        };
        (why.to_owned(), told.map_err(OptimizerError::from))
    }

    pub(super) fn fail(&self, job: &Job, error: &OptimizerError) -> Result<RequestEntry, OptimizerError> {
        Ok(self.queue.fail(job.request_id(), job.hold(), &error_json(error))?)
    }
}

/// An error as it is stored and shown.
pub(super) fn error_json(error: &OptimizerError) -> Value {
    let OptimizerError { code, message, detail, hint, findings } = error;
    json!({
        "code": code.wire(),
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

fn last_sequence(paths: &RunPaths) -> Result<i64, OptimizerError> {
    let db: &Utf8Path = &paths.workspace_db();
    if !db.is_file() {
        return Ok(-1);
    }
    let last = Reader::open(db.as_std_path())?.last_sequence()?;
    Ok(last.map_or(-1, |last| i64::try_from(last).unwrap_or(i64::MAX)))
}

/// Whether the run is where the worker before found it.
fn claimed_in_vain(queue: &Queue, request: &RequestEntry, mark: i64) -> bool {
    queue.progress_of(&request.request_id).is_ok_and(|before| before.mark == Some(mark))
}

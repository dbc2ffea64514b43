//! Steering a run from outside. Every wish is stored before it is acknowledged.

use std::sync::Arc;
use std::time::Duration;

use camino::Utf8Path;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::api::{Accepted, Document, Nothing};
use super::super::context::Context;
use super::super::crew::Claimant;
use super::super::input::{Json, Path};
use super::super::job::{Job, Manner};
use super::super::refusal::{Code, Refusal};
use super::super::runs::RunFiles;
use super::super::workers::Begun;
use super::{Reason, RunPath};
use crate::artifacts::RunPaths;
use crate::model::envelope::Envelope;
use crate::model::lifecycle::RequestState;
use crate::queue::{Ack, Acknowledgement, Queue, QueueError, RequestEntry, Which};
use crate::workspace::models::EventEnvelope;

/// Why, for those who read the history later.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(in super::super) struct Why {
    reason: Option<Reason>,
}

/// Why, and for how long.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(in super::super) struct PauseBody {
    reason: Option<Reason>,
    /// How long the run may stay paused before it is cancelled; the service's own limit when it is not given.
    #[schemars(range(min = 1, max = 14_400))]
    timeout_seconds: Option<u64>,
}

/// What became of what was asked.
#[derive(Debug, Serialize, JsonSchema)]
pub(in super::super) struct Acknowledged {
    run_id: String,
    action: &'static str,
    acknowledgement: Acknowledgement,
    /// The state of the request after this.
    status: RequestState,
    message: String,
}

type Acking = Result<Accepted<Acknowledged>, Refusal>;

pub(in super::super) async fn cancel(
    context: Arc<Context>,
    (Path(run), Json(why)): (Path<RunPath>, Json<Why>),
) -> Acking {
    ask(context, run, "cancel", move |queue, id| queue.cancel(id, why.reason.as_deref())).await
}

pub(in super::super) async fn stop(
    context: Arc<Context>,
    (Path(run), Json(why)): (Path<RunPath>, Json<Why>),
) -> Acking {
    ask(context, run, "stop", move |queue, id| queue.stop(id, why.reason.as_deref())).await
}

pub(in super::super) async fn pause(
    context: Arc<Context>,
    (Path(run), Json(body)): (Path<RunPath>, Json<PauseBody>),
) -> Acking {
    let timeout = match body.timeout_seconds {
        None => context.settings().pause_timeout,
        Some(seconds @ 1..=14_400) => Duration::from_secs(seconds),
        Some(seconds) => {
            let message = format!("timeout_seconds {seconds} is not between 1 and 14400");
            return Err(Refusal::new(Code::BadRequest, message));
        }
    };
    ask(context, run, "pause", move |queue, id| queue.pause(id, Some(timeout), body.reason.as_deref())).await
}

pub(in super::super) async fn resume(
    context: Arc<Context>,
    (Path(run), Json(why)): (Path<RunPath>, Json<Why>),
) -> Acking {
    ask(context, run, "resume", move |queue, id| queue.resume(id, why.reason.as_deref())).await
}

async fn ask(
    context: Arc<Context>,
    run: RunPath,
    action: &'static str,
    wish: impl FnOnce(&Queue, &str) -> Result<Ack, QueueError> + Send + 'static,
) -> Acking {
    let entry = context.entry(&run.run_id.0).await?;
    let id = entry.request_id.clone();
    let Ack { acknowledgement, entry } = context.change(move |queue| wish(queue, &id)).await?;
    let (heeding, id) = (Arc::clone(&context), entry.request_id.clone());
    context
        .read(move || {
            heeding.workers.heed(&id);
            Ok::<_, Refusal>(())
        })
        .await?;
    let message = match (acknowledgement, entry.status) {
        (Acknowledgement::Noop, status) => format!("nothing to do: the request is {}", status.word()),
        (Acknowledgement::Accepted, RequestState::Leased | RequestState::Running) => {
            "the run does so at its next check".to_owned()
        }
        (Acknowledgement::Accepted, status) => format!("the request is {}", status.word()),
    };
    let document = Acknowledged { run_id: entry.run_id, action, acknowledgement, status: entry.status, message };
    Ok(match acknowledgement {
        Acknowledgement::Accepted => Accepted::Asked(document),
        Acknowledgement::Noop => Accepted::Noop(document),
    })
}

/// What a step did.
#[derive(Debug, Serialize, JsonSchema)]
pub(in super::super) struct Stepped {
    run_id: String,
    /// Whether the run is over.
    terminal: bool,
    /// The state of the run, or of its request when it has none.
    state: String,
    /// What happened, in order.
    #[schemars(with = "Vec<EventEnvelope>")]
    events: Vec<Envelope>,
}

/// Events that a step tells of; the rest is at `/events`.
const TOLD: usize = 1000;

pub(in super::super) async fn step(
    context: Arc<Context>,
    (Path(run), Json(_)): (Path<RunPath>, Json<Why>),
) -> Result<Document<Stepped>, Refusal> {
    let entry = context.entry(&run.run_id.0).await?;
    if !entry.manual_step {
        let message = format!("run {} goes on by itself", entry.run_id);
        return Err(Refusal::new(Code::ManualStepRequired, message).in_state(entry.status.word()));
    }
    let job = held(&context, &entry).await?;
    Ok(Document(step_job(&context, &entry, &job).await?))
}

/// One step of a job that is stepped, and what happened in it.
pub(in super::super) async fn step_job(
    context: &Arc<Context>,
    entry: &RequestEntry,
    job: &Arc<Job>,
) -> Result<Stepped, Refusal> {
    let run = RunFiles::new(entry, context.readers.clone())?;
    let before = {
        let run = run.clone();
        context.read(move || run.last_sequence()).await?
    };
    let report = job.step().await;
    if report.is_none() {
        // The end of the run is in the queue a moment after its last event.
        job.end().await;
    }
    let from = before.map_or(-1, |before| i64::try_from(before).unwrap_or(i64::MAX));
    let events = context
        .read(move || match run.reader()? {
            Some(reader) => Ok::<_, Refusal>(reader.event_page(Some(from), Some(TOLD as i64))?.items),
            None => Ok(Vec::new()),
        })
        .await?;
    let entry = context.entry(&entry.run_id).await?;
    let state =
        report.and_then(|report| report.state).map_or_else(|| entry.status.word(), |state| state.word()).to_owned();
    Ok(Stepped { run_id: entry.run_id, terminal: entry.is_terminal, state, events })
}

/// The job of a stepped request; it is begun with the first step.
async fn held(context: &Arc<Context>, entry: &RequestEntry) -> Result<Arc<Job>, Refusal> {
    if let Some(job) = context.workers.job(&entry.request_id) {
        return Ok(job);
    }
    let refused = |entry: &RequestEntry| {
        let waiting = entry.waiting.as_ref().map_or_else(String::new, |waiting| format!(": {}", waiting.message));
        let message = format!("run {} is {} and cannot be stepped{waiting}", entry.run_id, entry.status.word());
        Refusal::new(Code::InvalidTransition, message).in_state(entry.status.word())
    };
    if entry.status != RequestState::Queued {
        return Err(refused(entry));
    }
    match begin(context, Some(entry.request_id.clone()), Manner::Stepped, Claimant::default()).await? {
        Some(job) => Ok(job),
        // Somebody else may have been faster.
        None => match context.workers.job(&entry.request_id) {
            Some(job) => Ok(job),
            None => Err(refused(&context.entry(&entry.run_id).await?)),
        },
    }
}

/// Starts a request, or the next one if none is named. A client that leaves meanwhile changes nothing about it.
pub(in super::super) async fn begin(
    context: &Arc<Context>,
    request_id: Option<String>,
    manner: Manner,
    claimant: Claimant,
) -> Result<Option<Arc<Job>>, Refusal> {
    let workers = Arc::clone(&context.workers);
    let begun = context.read(move || {
        let which = request_id.as_deref().map_or(Which::Any, Which::Request);
        workers.begin(which, manner, &claimant)
    });
    match begun.await? {
        Begun::Job(job) => Ok(Some(job)),
        Begun::Nothing => Ok(None),
        Begun::Full => {
            let message = format!("{} runs that were asked for one by one are under way", context.workers.places());
            Err(Refusal::new(Code::WorkersBusy, message))
        }
    }
}

pub(in super::super) async fn delete_run(context: Arc<Context>, Path(run): Path<RunPath>) -> Result<Nothing, Refusal> {
    remove(&context, run.run_id.0).await?;
    Ok(Nothing)
}

/// Removes a run that is over: its files first, so that whoever is interrupted can ask again.
pub(in super::super) async fn remove(context: &Arc<Context>, run_id: String) -> Result<(), Refusal> {
    let of = run_id.clone();
    let requests = context.ask(move |queue| queue.deletable(&of)).await?;
    // A directory of that name that no request has worked in is somebody else's.
    for entry in requests.iter().filter(|entry| entry.started_at.is_some()) {
        let paths = RunPaths::new(Utf8Path::new(&entry.output_dir), &entry.run_id)?;
        let readers = context.readers.clone();
        context
            .read(move || {
                // Another process may work on it, past the queue.
                paths.check_free().map_err(|error| Refusal::of(Code::NotTerminal, &error))?;
                paths.remove().map_err(Refusal::from)?;
                readers.forget(&paths.workspace_db());
                Ok::<_, Refusal>(())
            })
            .await?;
    }
    context.change(move |queue| queue.delete(&run_id, &requests)).await?;
    Ok(())
}

//! Controlling a run from outside, and working off the queue by hand. Every control request is stored before it is
//! acknowledged.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::response::NoContent;
use camino::Utf8Path;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Answer, Reason, RunPath, Service};
use crate::Code;
use crate::queue::{Ack, Acknowledgement, RequestEntry, Which};
use crate::service::api::{Between, Body, Changed, Path};
use crate::service::context::{Context, RunFiles};
use crate::service::job::Job;
use crate::service::refusal::Refusal;
use crate::service::workers::Claimant;
use synth_optimizer_core::model::control::{ControlAction, ControlRequest};
use synth_optimizer_core::model::envelope::Envelope;
use synth_optimizer_core::model::lifecycle::RequestState;
use synth_optimizer_platform::artifacts::RunPaths;
use synth_optimizer_platform::workspace::Reader;
use synth_optimizer_platform::workspace::models::EventEnvelope;

/// Why, for those who read the history later.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Why {
    reason: Option<Reason>,
}

/// Why, and for how long.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct PauseBody {
    reason: Option<Reason>,
    /// How long the run may stay paused before it is cancelled; the service's own limit when it is not given.
    timeout_seconds: Option<Between<i64, 1, 14_400>>,
}

/// What became of what was asked.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Acknowledged {
    run_id: String,
    action: &'static str,
    acknowledgement: Acknowledgement,
    /// The state of the request after this.
    status: RequestState,
    message: String,
}

type Acking = Result<Changed<202, Acknowledged>, Refusal>;

pub(crate) async fn cancel(State(context): Service, Path(run): Path<RunPath>, Body(why): Body<Why>) -> Acking {
    ask(context, run, ControlRequest::new(ControlAction::Cancel), why.reason).await
}

pub(crate) async fn stop(State(context): Service, Path(run): Path<RunPath>, Body(why): Body<Why>) -> Acking {
    ask(context, run, ControlRequest::new(ControlAction::Stop), why.reason).await
}

pub(crate) async fn pause(State(context): Service, Path(run): Path<RunPath>, Body(body): Body<PauseBody>) -> Acking {
    let timeout = body
        .timeout_seconds
        .map_or(context.workers.settings.pause_timeout, |Between(it)| Duration::from_secs(it.unsigned_abs()));
    let asked = ControlRequest { pause: Some(timeout), ..ControlRequest::new(ControlAction::Pause) };
    ask(context, run, asked, body.reason).await
}

pub(crate) async fn resume(State(context): Service, Path(run): Path<RunPath>, Body(why): Body<Why>) -> Acking {
    ask(context, run, ControlRequest::new(ControlAction::Resume), why.reason).await
}

async fn ask(context: Arc<Context>, run: RunPath, asked: ControlRequest, reason: Option<Reason>) -> Acking {
    let asked = ControlRequest { reason: reason.map(|Reason(reason)| reason), ..asked };
    let entry = context.entry(&run.run_id.0).await?;
    let (id, action) = (entry.request_id.clone(), asked.action.word());
    let Ack { acknowledgement, entry } = context.change(move |queue| queue.control(&id, &asked)).await?;
    let message = match (acknowledgement, entry.status) {
        (Acknowledgement::Noop, status) => format!("nothing to do: the request is {}", status.word()),
        (Acknowledgement::Accepted, RequestState::Leased | RequestState::Running) => {
            "the run does so at its next check".to_owned()
        }
        (Acknowledgement::Accepted, status) => format!("the request is {}", status.word()),
    };
    let document = Acknowledged { run_id: entry.run_id, action, acknowledgement, status: entry.status, message };
    Ok(Changed { is_change: acknowledgement == Acknowledgement::Accepted, document })
}

/// What a step did.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Stepped {
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
const TOLD: i64 = 1000;

pub(crate) async fn step(State(context): Service, Path(run): Path<RunPath>, Body(_): Body<Why>) -> Answer<Stepped> {
    let entry = context.entry(&run.run_id.0).await?;
    if !entry.manual_step {
        let message = format!("run {} goes on by itself", entry.run_id);
        return Err(Refusal::new(Code::ManualStepRequired, message).in_state(entry.status.word()));
    }
    let job = held(&context, &entry).await?;
    Ok(Json(step_job(&context, &entry, &job).await?))
}

/// One step of a job that is stepped, and what happened in it.
async fn step_job(context: &Arc<Context>, entry: &RequestEntry, job: &Arc<Job>) -> Result<Stepped, Refusal> {
    let run = RunFiles::new(entry, context.readers.clone())?;
    let before = context.look(&run, Reader::last_sequence).await?.flatten();
    let report = job.step().await;
    if report.is_none() {
        // The end of the run is in the queue a moment after its last event.
        job.end().await;
    }
    let from = before.map_or(-1, |before| i64::try_from(before).unwrap_or(i64::MAX));
    let page = context.look(&run, move |reader| reader.event_page(Some(from), Some(TOLD))).await?;
    let events = page.map_or_else(Vec::new, |page| page.items);
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
    match begin(context, Some(entry.request_id.clone()), true, Claimant::default()).await? {
        Some(job) => Ok(job),
        // Somebody else may have been faster.
        None => match context.workers.job(&entry.request_id) {
            Some(job) => Ok(job),
            None => Err(refused(&context.entry(&entry.run_id).await?)),
        },
    }
}

/// Starts a request, or the next one if none is named. A client that leaves meanwhile changes nothing about it.
async fn begin(
    context: &Arc<Context>,
    request_id: Option<String>,
    is_stepped: bool,
    claimant: Claimant,
) -> Result<Option<Arc<Job>>, Refusal> {
    let workers = Arc::clone(&context.workers);
    let begun = context.read(move || {
        let which = request_id.as_deref().map_or(Which::Any, Which::Request);
        workers.begin(which, is_stepped, &claimant)
    });
    Ok(begun.await?)
}

pub(crate) async fn delete_run(State(context): Service, Path(run): Path<RunPath>) -> Result<NoContent, Refusal> {
    remove(&context, run.run_id.0).await?;
    Ok(NoContent)
}

/// Removes a run that is over: its files first, so that whoever is interrupted can ask again.
pub(crate) async fn remove(context: &Arc<Context>, run_id: String) -> Result<(), Refusal> {
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

/// Who works.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Worker {
    /// The name under which the request is held; the service's --worker-id when it is not given.
    #[schemars(length(min = 1, max = 200))]
    worker_id: Option<String>,
    /// How long the request stays held when the service is not heard of; its --lease-seconds when it is not given.
    lease_seconds: Option<Between<f64, 1, 86_400>>,
}

impl Worker {
    fn checked(self) -> Result<Claimant, Refusal> {
        if self.worker_id.as_ref().is_some_and(|id| id.is_empty() || id.chars().count() > 200) {
            return Err(Refusal::new(Code::BadRequest, "worker_id must have 1 to 200 characters"));
        }
        let lease = self.lease_seconds.map(|Between(seconds)| Duration::from_secs_f64(seconds));
        Ok(Claimant { worker_id: self.worker_id, lease })
    }
}

/// A request that was worked off.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct WorkedOff {
    request: Option<RequestEntry>,
    result: Option<Value>,
    message: String,
}

const NOTHING: &str = "no queued run requests";

pub(crate) async fn run_next(State(context): Service, Body(worker): Body<Worker>) -> Answer<WorkedOff> {
    let Some(job) = begin(&context, None, false, worker.checked()?).await? else {
        return Ok(Json(WorkedOff { request: None, result: None, message: NOTHING.into() }));
    };
    let ended = job.end().await;
    let entry = context.entry(&job.request.run_id).await?;
    let message = ended.map_or_else(|| "the run ended".to_owned(), |ended| ended.message);
    Ok(Json(WorkedOff { result: entry.result.clone(), request: Some(entry), message }))
}

/// What a tick did.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Ticked {
    request: Option<RequestEntry>,
    result: Option<Value>,
    action: Action,
    /// Whether the run is over.
    terminal: bool,
    message: String,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Action {
    /// `noop`, `claim_run_request`, `step_run` or `terminalize_run`.
    action: &'static str,
}

pub(crate) async fn tick(State(context): Service, Body(worker): Body<Worker>) -> Answer<Ticked> {
    let claimant = worker.checked()?;
    let _turn = context.ticking.lock().await;
    let stepped = context.workers.jobs().into_iter().find(|job| job.is_stepped && !job.is_over());
    let ticked = |action, entry: Option<RequestEntry>, message| {
        let (terminal, result) =
            entry.as_ref().map_or((false, None), |entry| (entry.is_terminal, entry.result.clone()));
        Ok(Json(Ticked { request: entry, result, action: Action { action }, terminal, message }))
    };
    let Some(job) = stepped else {
        let Some(job) = begin(&context, None, true, claimant).await? else {
            return ticked("noop", None, NOTHING.to_owned());
        };
        let entry = context.entry(&job.request.run_id).await?;
        let message = format!("claimed the request of run {}", entry.run_id);
        return ticked("claim_run_request", Some(entry), message);
    };
    let entry = context.entry(&job.request.run_id).await?;
    step_job(&context, &entry, &job).await?;
    let entry = context.entry(&job.request.run_id).await?;
    let message = format!("run {} is {}", entry.run_id, entry.status.word());
    ticked(if entry.is_terminal { "terminalize_run" } else { "step_run" }, Some(entry), message)
}

/// What was taken back.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Recovered {
    recovered_run_requests: Vec<RequestEntry>,
}

pub(crate) async fn recover(State(context): Service) -> Answer<Recovered> {
    let workers = Arc::clone(&context.workers);
    let recovered = context.change(move |_| workers.recover()).await?;
    Ok(Json(Recovered { recovered_run_requests: recovered }))
}

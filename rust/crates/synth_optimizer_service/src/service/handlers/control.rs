//! Handlers for control requests, and for executing queued requests on demand. A control request is stored before it is
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

use super::{Answer, Reason, RunPath, ServiceState};
use crate::ServiceErrorCode;
use crate::queue::{Acknowledgement, ClaimFilter, ControlOutcome, RequestEntry};
use crate::service::api::{Body, Bounded, ChangeResponse, Path};
use crate::service::api_error::ApiError;
use crate::service::context::{Context, RunFiles};
use crate::service::job::Job;
use crate::service::workers::ClaimOptions;
use synth_optimizer_core::model::control::{ControlAction, ControlRequest};
use synth_optimizer_core::model::envelope::Envelope;
use synth_optimizer_core::model::lifecycle::RequestState;
use synth_optimizer_platform::artifacts::RunPaths;
use synth_optimizer_platform::workspace::Reader;
use synth_optimizer_platform::workspace::models::EventEnvelope;

/// The reason of a control request, for the history.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ReasonBody {
    reason: Option<Reason>,
}

/// The reason and the duration of a pause.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct PauseBody {
    reason: Option<Reason>,
    /// How long the run may stay paused before it is cancelled. Default: the service's --pause-timeout-seconds; without
    /// that, the run stays paused until it is resumed.
    timeout_seconds: Option<Bounded<i64, 1, 14_400>>,
}

/// The acknowledgement of a control request.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ControlResult {
    run_id: String,
    action: &'static str,
    acknowledgement: Acknowledgement,
    /// The state of the run request afterwards.
    status: RequestState,
    message: String,
}

type ControlAnswer = Result<ChangeResponse<202, ControlResult>, ApiError>;

pub(crate) async fn cancel(
    State(context): ServiceState,
    Path(run): Path<RunPath>,
    Body(why): Body<ReasonBody>,
) -> ControlAnswer {
    send_control(context, run, ControlRequest::new(ControlAction::Cancel), why.reason).await
}

pub(crate) async fn stop(
    State(context): ServiceState,
    Path(run): Path<RunPath>,
    Body(why): Body<ReasonBody>,
) -> ControlAnswer {
    send_control(context, run, ControlRequest::new(ControlAction::Stop), why.reason).await
}

pub(crate) async fn pause(
    State(context): ServiceState,
    Path(run): Path<RunPath>,
    Body(body): Body<PauseBody>,
) -> ControlAnswer {
    let requested = body.timeout_seconds.map(|Bounded(it)| Duration::from_secs(it.unsigned_abs()));
    let pause = requested.or(context.workers.settings.pause_timeout);
    let control = ControlRequest { pause, ..ControlRequest::new(ControlAction::Pause) };
    send_control(context, run, control, body.reason).await
}

pub(crate) async fn resume(
    State(context): ServiceState,
    Path(run): Path<RunPath>,
    Body(why): Body<ReasonBody>,
) -> ControlAnswer {
    send_control(context, run, ControlRequest::new(ControlAction::Resume), why.reason).await
}

async fn send_control(
    context: Arc<Context>,
    run: RunPath,
    control: ControlRequest,
    reason: Option<Reason>,
) -> ControlAnswer {
    let control = ControlRequest { reason: reason.map(|Reason(reason)| reason), ..control };
    let entry = context.latest_request(&run.run_id.0).await?;
    let (id, action) = (entry.request_id.clone(), control.action.as_str());
    let ControlOutcome { acknowledgement, entry } = context.update(move |queue| queue.control(&id, &control)).await?;
    let message = match (acknowledgement, entry.status) {
        (Acknowledgement::Noop, status) => format!("nothing to do: the run request is {}", status.as_str()),
        (Acknowledgement::Accepted, RequestState::Leased | RequestState::Running) => {
            "the run obeys at its next check".to_owned()
        }
        (Acknowledgement::Accepted, status) => format!("the run request is {}", status.as_str()),
    };
    let document = ControlResult { run_id: entry.run_id, action, acknowledgement, status: entry.status, message };
    Ok(ChangeResponse { is_change: acknowledgement == Acknowledgement::Accepted, document })
}

/// The result of a step.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct StepResult {
    run_id: String,
    /// Whether the run has ended.
    terminal: bool,
    /// The state of the run, or of its request if the run has not started.
    state: String,
    /// The events of the step, in order.
    #[schemars(with = "Vec<EventEnvelope>")]
    events: Vec<Envelope>,
}

/// Maximum number of events that a step returns. Further events are at `/events`.
const MAX_STEP_EVENTS: i64 = 1000;

pub(crate) async fn step(
    State(context): ServiceState,
    Path(run): Path<RunPath>,
    Body(_): Body<ReasonBody>,
) -> Answer<StepResult> {
    let entry = context.latest_request(&run.run_id.0).await?;
    if !entry.manual_step {
        let message = format!("run {} was submitted without manual_step", entry.run_id);
        return Err(ApiError::new(ServiceErrorCode::ManualStepRequired, message).in_state(entry.status.as_str()));
    }
    let job = stepped_job(&context, &entry).await?;
    Ok(Json(step_job(&context, &entry, &job).await?))
}

/// Executes one step of a job, and returns its events.
async fn step_job(context: &Arc<Context>, entry: &RequestEntry, job: &Arc<Job>) -> Result<StepResult, ApiError> {
    let run = RunFiles::new(entry, context.readers.clone())?;
    let before = context.read_run(&run, Reader::last_sequence).await?.flatten();
    let report = job.step().await;
    if report.is_none() {
        // The queue records the end of the run shortly after its last event.
        job.wait_for_end().await;
    }
    let from = before.map_or(-1, |before| i64::try_from(before).unwrap_or(i64::MAX));
    let page = context.read_run(&run, move |reader| reader.event_page(Some(from), Some(MAX_STEP_EVENTS))).await?;
    let events = page.map_or_else(Vec::new, |page| page.items);
    let entry = context.latest_request(&entry.run_id).await?;
    let state =
        report.and_then(|report| report.state).map_or_else(|| entry.status.as_str(), |state| state.as_str()).to_owned();
    Ok(StepResult { run_id: entry.run_id, terminal: entry.is_terminal, state, events })
}

/// Returns the job of a request in manual-step mode. The first step starts the job.
async fn stepped_job(context: &Arc<Context>, entry: &RequestEntry) -> Result<Arc<Job>, ApiError> {
    if let Some(job) = context.workers.job(&entry.request_id) {
        return Ok(job);
    }
    let refused = |entry: &RequestEntry| {
        let waiting = entry.waiting.as_ref().map_or_else(String::new, |waiting| format!(": {}", waiting.message));
        let message = format!("run {} is {} and cannot execute a step{waiting}", entry.run_id, entry.status.as_str());
        ApiError::new(ServiceErrorCode::InvalidTransition, message).in_state(entry.status.as_str())
    };
    if entry.status != RequestState::Queued {
        return Err(refused(entry));
    }
    match start_job(context, Some(entry.request_id.clone()), true, ClaimOptions::default()).await? {
        Some(job) => Ok(job),
        // Another client may have started it meanwhile.
        None => match context.workers.job(&entry.request_id) {
            Some(job) => Ok(job),
            None => Err(refused(&context.latest_request(&entry.run_id).await?)),
        },
    }
}

/// Claims a request, or the next one if none is named, and starts its job. A disconnecting client does not interrupt this.
async fn start_job(
    context: &Arc<Context>,
    request_id: Option<String>,
    is_stepped: bool,
    claimant: ClaimOptions,
) -> Result<Option<Arc<Job>>, ApiError> {
    let workers = Arc::clone(&context.workers);
    let started = context.run_blocking(move || {
        let filter = request_id.as_deref().map_or(ClaimFilter::Any, ClaimFilter::Request);
        workers.start_job(filter, is_stepped, &claimant)
    });
    Ok(started.await?)
}

pub(crate) async fn delete_run(State(context): ServiceState, Path(run): Path<RunPath>) -> Result<NoContent, ApiError> {
    delete_run_data(&context, run.run_id.0).await?;
    Ok(NoContent)
}

/// Deletes a finished run. The files are deleted first, so that an interrupted deletion can be repeated.
pub(crate) async fn delete_run_data(context: &Arc<Context>, run_id: String) -> Result<(), ApiError> {
    let of = run_id.clone();
    let requests = context.query(move |queue| queue.deletable(&of)).await?;
    // If no request has started, the service did not create the directory and must not delete it.
    for entry in requests.iter().filter(|entry| entry.started_at.is_some()) {
        let paths = RunPaths::new(Utf8Path::new(&entry.output_dir), &entry.run_id)?;
        let readers = context.readers.clone();
        context
            .run_blocking(move || {
                // A process may execute the run without using the queue.
                paths.check_unlocked().map_err(|error| ApiError::from_error(ServiceErrorCode::NotTerminal, &error))?;
                paths.remove().map_err(ApiError::from)?;
                readers.close(&paths.workspace_db());
                Ok::<_, ApiError>(())
            })
            .await?;
    }
    context.update(move |queue| queue.delete(&run_id, &requests)).await?;
    Ok(())
}

/// The worker that claims a request.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct WorkerBody {
    /// The worker id of the lease. Default: the service's --worker-id.
    #[schemars(length(min = 1, max = 200))]
    worker_id: Option<String>,
    /// How long the lease lasts without a heartbeat. Default: the service's --lease-seconds.
    lease_seconds: Option<Bounded<f64, 1, 86_400>>,
}

impl WorkerBody {
    fn claim_options(self) -> Result<ClaimOptions, ApiError> {
        if self.worker_id.as_ref().is_some_and(|id| id.is_empty() || id.chars().count() > 200) {
            return Err(ApiError::new(ServiceErrorCode::BadRequest, "worker_id must have 1 to 200 characters"));
        }
        let lease = self.lease_seconds.map(|Bounded(seconds)| Duration::from_secs_f64(seconds));
        Ok(ClaimOptions { worker_id: self.worker_id, lease })
    }
}

/// The result of executing a request.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct RunNextResult {
    request: Option<RequestEntry>,
    result: Option<Value>,
    message: String,
}

const NO_QUEUED_REQUESTS: &str = "no queued run requests";

pub(crate) async fn run_next(State(context): ServiceState, Body(worker): Body<WorkerBody>) -> Answer<RunNextResult> {
    let Some(job) = start_job(&context, None, false, worker.claim_options()?).await? else {
        return Ok(Json(RunNextResult { request: None, result: None, message: NO_QUEUED_REQUESTS.into() }));
    };
    let ended = job.wait_for_end().await;
    let entry = context.latest_request(&job.request.run_id).await?;
    let message = ended.map_or_else(|| "the run ended".to_owned(), |ended| ended.message);
    Ok(Json(RunNextResult { result: entry.result.clone(), request: Some(entry), message }))
}

/// The result of a tick.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct TickResult {
    request: Option<RequestEntry>,
    result: Option<Value>,
    action: TickAction,
    /// Whether the run has ended.
    terminal: bool,
    message: String,
}

#[derive(Debug, Serialize, JsonSchema)]
struct TickAction {
    /// `noop`, `claim_run_request`, `step_run` or `terminalize_run`.
    action: &'static str,
}

pub(crate) async fn tick(State(context): ServiceState, Body(worker): Body<WorkerBody>) -> Answer<TickResult> {
    let claimant = worker.claim_options()?;
    let _guard = context.ticking.lock().await;
    let stepped = context.workers.jobs().into_iter().find(|job| job.is_stepped && !job.has_ended());
    let ticked = |action, entry: Option<RequestEntry>, message| {
        let (terminal, result) =
            entry.as_ref().map_or((false, None), |entry| (entry.is_terminal, entry.result.clone()));
        Ok(Json(TickResult { request: entry, result, action: TickAction { action }, terminal, message }))
    };
    let Some(job) = stepped else {
        let Some(job) = start_job(&context, None, true, claimant).await? else {
            return ticked("noop", None, NO_QUEUED_REQUESTS.to_owned());
        };
        let entry = context.latest_request(&job.request.run_id).await?;
        let message = format!("claimed the run request of run {}", entry.run_id);
        return ticked("claim_run_request", Some(entry), message);
    };
    let entry = context.latest_request(&job.request.run_id).await?;
    step_job(&context, &entry, &job).await?;
    let entry = context.latest_request(&job.request.run_id).await?;
    let message = format!("run {} is {}", entry.run_id, entry.status.as_str());
    ticked(if entry.is_terminal { "terminalize_run" } else { "step_run" }, Some(entry), message)
}

/// The recovered requests.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct RecoverResult {
    recovered_run_requests: Vec<RequestEntry>,
}

pub(crate) async fn recover(State(context): ServiceState) -> Answer<RecoverResult> {
    let workers = Arc::clone(&context.workers);
    let recovered = context.update(move |_| workers.recover()).await?;
    Ok(Json(RecoverResult { recovered_run_requests: recovered }))
}

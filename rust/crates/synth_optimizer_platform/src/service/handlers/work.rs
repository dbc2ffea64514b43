//! Working off the queue by hand.

use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::super::api::Document;
use super::super::context::Context;
use super::super::crew::Claimant;
use super::super::input::Json;
use super::super::job::Manner;
use super::super::refusal::{Code, Refusal};
use super::control::{begin, step_job};
use crate::queue::RequestEntry;

/// Who works.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(in super::super) struct Worker {
    /// The name under which the request is held; the service's --worker-id when it is not given.
    #[schemars(length(min = 1, max = 200))]
    worker_id: Option<String>,
    /// How long the request stays held when the service is not heard of; its --lease-seconds when it is not given.
    #[schemars(range(min = 1, max = 86_400))]
    lease_seconds: Option<f64>,
}

impl Worker {
    fn checked(self) -> Result<Claimant, Refusal> {
        let lease = match self.lease_seconds {
            Some(seconds) if !(1.0..=86_400.0).contains(&seconds) => {
                let message = format!("lease_seconds {seconds} is not between 1 and 86400");
                return Err(Refusal::new(Code::BadRequest, message));
            }
            seconds => seconds.map(Duration::from_secs_f64),
        };
        if self.worker_id.as_ref().is_some_and(|id| id.is_empty() || id.chars().count() > 200) {
            return Err(Refusal::new(Code::BadRequest, "worker_id must have 1 to 200 characters"));
        }
        Ok(Claimant { worker_id: self.worker_id, lease })
    }
}

/// A request that was worked off.
#[derive(Debug, Serialize, JsonSchema)]
pub(in super::super) struct WorkedOff {
    request: Option<RequestEntry>,
    result: Option<Value>,
    message: String,
}

const NOTHING: &str = "no queued run requests";

pub(in super::super) async fn run_next(
    context: Arc<Context>,
    Json(worker): Json<Worker>,
) -> Result<Document<WorkedOff>, Refusal> {
    let Some(job) = begin(&context, None, Manner::Freely, worker.checked()?).await? else {
        return Ok(Document(WorkedOff { request: None, result: None, message: NOTHING.into() }));
    };
    let ended = job.end().await;
    let entry = context.entry(job.run_id()).await?;
    let message = ended.map_or_else(|| "the run ended".to_owned(), |ended| ended.message);
    Ok(Document(WorkedOff { result: entry.result.clone(), request: Some(entry), message }))
}

/// What a tick did.
#[derive(Debug, Serialize, JsonSchema)]
pub(in super::super) struct Ticked {
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

pub(in super::super) async fn tick(
    context: Arc<Context>,
    Json(worker): Json<Worker>,
) -> Result<Document<Ticked>, Refusal> {
    let claimant = worker.checked()?;
    let _turn = context.ticking.lock().await;
    let stepped = context.workers.jobs().into_iter().find(|job| job.manner() == Manner::Stepped && !job.is_over());
    let Some(job) = stepped else {
        let Some(job) = begin(&context, None, Manner::Stepped, claimant).await? else {
            let action = Action { action: "noop" };
            let message = NOTHING.to_owned();
            return Ok(Document(Ticked { request: None, result: None, action, terminal: false, message }));
        };
        let entry = context.entry(job.run_id()).await?;
        let message = format!("claimed the request of run {}", entry.run_id);
        let action = Action { action: "claim_run_request" };
        return Ok(Document(Ticked { request: Some(entry), result: None, action, terminal: false, message }));
    };
    let entry = context.entry(job.run_id()).await?;
    step_job(&context, &entry, &job).await?;
    let entry = context.entry(job.run_id()).await?;
    let terminal = entry.is_terminal;
    let action = Action { action: if terminal { "terminalize_run" } else { "step_run" } };
    let message = format!("run {} is {}", entry.run_id, entry.status.word());
    Ok(Document(Ticked { result: entry.result.clone(), request: Some(entry), action, terminal, message }))
}

/// What was taken back.
#[derive(Debug, Serialize, JsonSchema)]
pub(in super::super) struct Recovered {
    recovered_run_requests: Vec<RequestEntry>,
}

pub(in super::super) async fn recover(context: Arc<Context>, (): ()) -> Result<Document<Recovered>, Refusal> {
    let crew = Arc::clone(context.workers.crew());
    let recovered = context.change(move |_| crew.recover()).await?;
    context.workers.wake();
    Ok(Document(Recovered { recovered_run_requests: recovered }))
}

//! Working off the queue by hand.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::control::{begin, step_job};
use super::{Answer, Service};
use crate::Code;
use crate::queue::RequestEntry;
use crate::service::api::{Between, Body};
use crate::service::job::Manner;
use crate::service::refusal::Refusal;
use crate::service::worker::Claimant;

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
    let Some(job) = begin(&context, None, Manner::Freely, worker.checked()?).await? else {
        return Ok(Json(WorkedOff { request: None, result: None, message: NOTHING.into() }));
    };
    let ended = job.end().await;
    let entry = context.entry(job.run_id()).await?;
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
    let stepped = context.workers.jobs().into_iter().find(|job| job.manner() == Manner::Stepped && !job.is_over());
    let Some(job) = stepped else {
        let Some(job) = begin(&context, None, Manner::Stepped, claimant).await? else {
            let action = Action { action: "noop" };
            let message = NOTHING.to_owned();
            return Ok(Json(Ticked { request: None, result: None, action, terminal: false, message }));
        };
        let entry = context.entry(job.run_id()).await?;
        let message = format!("claimed the request of run {}", entry.run_id);
        let action = Action { action: "claim_run_request" };
        return Ok(Json(Ticked { request: Some(entry), result: None, action, terminal: false, message }));
    };
    let entry = context.entry(job.run_id()).await?;
    step_job(&context, &entry, &job).await?;
    let entry = context.entry(job.run_id()).await?;
    let terminal = entry.is_terminal;
    let action = Action { action: if terminal { "terminalize_run" } else { "step_run" } };
    let message = format!("run {} is {}", entry.run_id, entry.status.word());
    Ok(Json(Ticked { result: entry.result.clone(), request: Some(entry), action, terminal, message }))
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

//! Handlers about the service itself: health, status, metrics, pruning and the API description.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Answer, ServiceState, control};
use crate::ServiceErrorCode;
use crate::queue::{LeaseEntry, Liveness};
use crate::service::api::{Body, RawResponse};
use crate::service::api_error::ApiError;
use crate::service::context::Phase;
use synth_optimizer_core::model::envelope::unix_millis_of;
use synth_optimizer_core::model::lifecycle::RequestState;
use synth_optimizer_platform::clock::unix_millis;

/// The health of the process.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Health {
    /// `ok` in every phase.
    status: &'static str,
    phase: &'static str,
    pid: u32,
    version: &'static str,
    started_at: String,
    /// Identifies this start of the service.
    instance_id: String,
}

pub(crate) async fn health(State(context): ServiceState) -> Answer<Health> {
    let phase = match *context.phase.borrow() {
        Phase::Starting => "starting",
        Phase::Ready => "ready",
        Phase::Draining => "draining",
    };
    Ok(Json(Health {
        status: "ok",
        phase,
        pid: std::process::id(),
        version: env!("CARGO_PKG_VERSION"),
        started_at: context.started_at.clone(),
        instance_id: context.instance_id.clone(),
    }))
}

/// The readiness of the service.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Readiness {
    status: &'static str,
    database: &'static str,
    workers: usize,
}

pub(crate) async fn ready(State(context): ServiceState) -> Answer<Readiness> {
    match *context.phase.borrow() {
        Phase::Starting => return Err(ApiError::new(ServiceErrorCode::Starting, "the service is starting")),
        Phase::Draining => return Err(ApiError::new(ServiceErrorCode::Draining, "the service is shutting down")),
        Phase::Ready => {}
    }
    let claim_error = context.workers.claim_error.lock().clone();
    if let Some(claim_error) = claim_error {
        return Err(ApiError::new(ServiceErrorCode::DatabaseBusy, claim_error));
    }
    // Fails if the database does not answer.
    context.query(|queue| queue.counts()).await?;
    Ok(Json(Readiness { status: "ready", database: "open", workers: context.workers.settings.workers }))
}

pub(crate) async fn status(State(context): ServiceState) -> Answer<Value> {
    let path = context.workers.settings.db.clone();
    Ok(Json(context.run_blocking(move || crate::queue::workspace_status(path.as_std_path())).await?))
}

/// Counts, leases and workers of the queue.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Workspace {
    schema_version: &'static str,
    runs: StatusCounts,
    leases: Vec<LeaseEntry>,
    workers: Vec<ActiveRun>,
    projections: Vec<Value>,
    /// The invariant report of the queue.
    invariants: Value,
    liveness: Liveness,
}

#[derive(Debug, Serialize, JsonSchema)]
struct StatusCounts {
    total: i64,
    by_status: BTreeMap<String, i64>,
}

/// A run that this service executes.
#[derive(Debug, Serialize, JsonSchema)]
struct ActiveRun {
    run_id: String,
    request_id: String,
    /// Seconds since the run last stored an event.
    seconds_since_progress: f64,
    manual_step: bool,
}

pub(crate) async fn workspace(State(context): ServiceState) -> Answer<Workspace> {
    let (counts, leases, liveness, invariants) =
        context.query(|queue| Ok((queue.counts()?, queue.leases()?, queue.liveness()?, queue.invariants()?))).await?;
    let workers = context.workers.jobs();
    let workers = workers.iter().map(|job| ActiveRun {
        run_id: job.request.run_id.clone(),
        request_id: job.request.request_id.clone(),
        seconds_since_progress: job.time_since_progress().as_secs_f64(),
        manual_step: job.is_stepped,
    });
    Ok(Json(Workspace {
        schema_version: "synth_optimizers.workspace.v1",
        runs: StatusCounts { total: counts.values().sum(), by_status: counts },
        workers: workers.collect(),
        projections: Vec::new(),
        invariants,
        liveness,
        leases,
    }))
}

/// Selects the runs to delete.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct PruneBody {
    /// Only runs that ended before this time (RFC 3339).
    older_than: Option<String>,
    /// Only runs that ended in one of these states. Default: all.
    status: Vec<RequestState>,
    /// Only return the ids of the runs that would be deleted.
    dry_run: bool,
}

impl Default for PruneBody {
    fn default() -> Self {
        Self { older_than: None, status: Vec::new(), dry_run: true }
    }
}

/// The deleted runs, or with `dry_run` the runs that would be deleted.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct PruneResult {
    run_ids: Vec<String>,
    dry_run: bool,
    /// Runs that could not be deleted, with the reason.
    not_pruned: Vec<NotPruned>,
}

/// A run that could not be deleted.
#[derive(Debug, Serialize, JsonSchema)]
struct NotPruned {
    run_id: String,
    message: String,
}

pub(crate) async fn prune(State(context): ServiceState, Body(body): Body<PruneBody>) -> Answer<PruneResult> {
    let PruneBody { older_than, status, dry_run } = body;
    let older_than = match older_than {
        None => None,
        Some(text) => Some(unix_millis_of(&text).ok_or_else(|| {
            ApiError::new(ServiceErrorCode::BadRequest, format!("older_than {text:?} is not a time"))
                .with_hint("Write it as RFC 3339, like 2026-01-31T12:00:00Z.")
        })?),
    };
    let found = context.query(move |queue| queue.prunable(older_than, &status)).await?;
    let (mut run_ids, mut not_pruned) = (Vec::with_capacity(found.len()), Vec::new());
    for entry in found {
        if !dry_run && let Err(refusal) = control::delete_run_data(&context, entry.run_id.clone()).await {
            not_pruned.push(NotPruned { run_id: entry.run_id, message: refusal.public_message() });
            continue;
        }
        run_ids.push(entry.run_id);
    }
    Ok(Json(PruneResult { run_ids, dry_run, not_pruned }))
}

pub(crate) async fn metrics(State(context): ServiceState) -> Result<RawResponse, ApiError> {
    let (counts, leases, liveness) =
        context.query(|queue| Ok((queue.counts()?, queue.leases()?, queue.liveness()?))).await?;
    let now = unix_millis();
    let age = |at: &str| now.saturating_sub(unix_millis_of(at).unwrap_or(now)) as f64 / 1000.0;
    let oldest_lease = leases.iter().filter_map(|lease| lease.leased_at.as_deref()).map(age).fold(0.0, f64::max);
    let oldest_queued = liveness.oldest_queued_age_seconds.unwrap_or(0.0);
    let jobs = context.workers.jobs().len();
    let text = context.workers.metrics.encode_text(&counts, oldest_lease, oldest_queued, jobs)?;
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok(RawResponse(([(header::CONTENT_TYPE, kind)], text).into_response()))
}

pub(crate) async fn openapi(State(context): ServiceState) -> Answer<Value> {
    Ok(Json(context.document.clone()))
}

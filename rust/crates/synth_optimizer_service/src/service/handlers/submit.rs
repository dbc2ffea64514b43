//! Handlers that submit a run: load its configuration, run the preflight checks, and store the request.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Answer, ServiceState};
use crate::ServiceErrorCode;
use crate::queue::{RequestEntry, Submission};
use crate::service::api::{Body, ChangeResponse, Headers};
use crate::service::api_error::ApiError;
use crate::service::context::Context;
use crate::service::preflight::{Evaluation, evaluate};
use synth_optimizer_core::model::canonical::canonical_digest;
use synth_optimizer_core::secrets::is_credential_name;
use synth_optimizer_platform::runtime::{CheckReport, CheckStage, Finding};

/// A run to submit, with either `config_path` or `config`.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RunBody {
    /// A TOML file beneath the service's --config-root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) config_path: Option<String>,
    /// The configuration itself, as TOML text or as an object of sections.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) config: Option<ConfigBody>,
    /// Requests with a higher priority are claimed first.
    #[serde(default)]
    #[schemars(range(min = -1_000_000, max = 1_000_000))]
    pub(crate) priority: i64,
    /// Whether a background worker may claim the request.
    #[serde(default = "yes")]
    pub(crate) auto_start: bool,
    /// Whether the run advances only by step requests.
    #[serde(default)]
    pub(crate) manual_step: bool,
    /// Skip the checks of container and proposer.
    #[serde(default)]
    pub(crate) allow_unverified: bool,
    /// Overrides of configuration fields, such as `gepa.max_generations=3`.
    #[serde(default)]
    pub(crate) overrides: Vec<String>,
}

fn yes() -> bool {
    true
}

/// An inline configuration.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
#[serde(untagged, expecting = "config is neither TOML text nor an object")]
pub(crate) enum ConfigBody {
    /// TOML text.
    Text(String),
    /// Sections by name.
    Sections(Map<String, Value>),
}

/// A submitted run.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct SubmitResult {
    run_id: String,
    request: RequestEntry,
    /// Whether a background worker claims it as soon as possible.
    auto_started: bool,
    /// Whether the request exists already, from an earlier submission with the same Idempotency-Key.
    replayed: bool,
    warnings: Vec<Finding>,
}

/// The headers of a submission.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct SubmitHeaders {
    /// Identifies this submission: a second submission with the same key and body returns the same run.
    #[serde(default, rename = "idempotency-key")]
    #[schemars(rename = "Idempotency-Key", with = "IdempotencyKey")]
    idempotency_key: Option<IdempotencyKey>,
}

/// A valid idempotency key.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(try_from = "String")]
#[schemars(inline, extend("minLength" = 1, "maxLength" = MAX_KEY_LENGTH, "pattern" = "^[\\x21-\\x7e]+$"))]
struct IdempotencyKey(String);

const MAX_KEY_LENGTH: usize = 200;

impl TryFrom<String> for IdempotencyKey {
    type Error = String;

    fn try_from(key: String) -> Result<Self, String> {
        match (1..=MAX_KEY_LENGTH).contains(&key.len()) && key.bytes().all(|byte| byte.is_ascii_graphic()) {
            true => Ok(Self(key)),
            false => Err(format!("it must have 1 to {MAX_KEY_LENGTH} visible ASCII characters")),
        }
    }
}

pub(crate) async fn submit(
    State(context): ServiceState,
    Headers(headers): Headers<SubmitHeaders>,
    Body(body): Body<RunBody>,
) -> Result<ChangeResponse<201, SubmitResult>, ApiError> {
    let key = headers.idempotency_key.map(|key| key.0);
    let digest = canonical_digest(&body);
    // A repeated submission returns the stored request, without checking the container again.
    if let Some(entry) = find_earlier(&context, key.as_deref(), &digest).await? {
        return Ok(submit_response(entry, true, Vec::new()));
    }
    let Evaluation { report, loaded, config_path, conflict } = evaluate(&context, &body).await?;
    let loaded = match (conflict, loaded.filter(|_| report.ok)) {
        (None, Some(loaded)) => loaded,
        (conflict, _) => {
            // The same submission may have been stored while this one was evaluated.
            if let Some(entry) = find_earlier(&context, key.as_deref(), &digest).await? {
                return Ok(submit_response(entry, true, Vec::new()));
            }
            return Err(match conflict {
                Some(taken) => ApiError::from(taken).with_fields(report.blockers),
                None => preflight_error(report, body.allow_unverified),
            });
        }
    };
    let max_queued = context.workers.settings.max_queued;
    let stored = context
        .update(move |queue| {
            queue.submit(&Submission {
                config: &loaded,
                config_path: config_path.as_deref(),
                priority: body.priority,
                auto_start: body.auto_start,
                manual_step: body.manual_step,
                idempotency_key: key.as_deref(),
                body_digest: &digest,
                max_queued: Some(max_queued),
            })
        })
        .await?;
    let warnings = if stored.replayed { Vec::new() } else { report.warnings };
    Ok(submit_response(stored.entry, stored.replayed, warnings))
}

/// Returns the request of an earlier submission with this key.
async fn find_earlier(
    context: &Arc<Context>,
    key: Option<&str>,
    digest: &str,
) -> Result<Option<RequestEntry>, ApiError> {
    let Some(key) = key.map(str::to_owned) else { return Ok(None) };
    let digest = digest.to_owned();
    context.query(move |queue| queue.find_by_idempotency_key(&key, &digest)).await
}

/// Builds the response to a submission.
fn submit_response(entry: RequestEntry, replayed: bool, warnings: Vec<Finding>) -> ChangeResponse<201, SubmitResult> {
    let auto_started = entry.auto_start && !entry.manual_step;
    let document = SubmitResult { run_id: entry.run_id.clone(), request: entry, auto_started, replayed, warnings };
    ChangeResponse { is_change: !replayed, document }
}

/// Returns one error with all blockers as its fields.
fn preflight_error(report: CheckReport, is_unverified: bool) -> ApiError {
    let is_secret = |finding: &Finding| {
        let name = finding.field.as_deref().and_then(|field| field.rsplit('.').next()).unwrap_or_default();
        let is_credential = finding.stage == CheckStage::Config && is_credential_name(name.trim_matches('"'));
        is_credential
            || [ServiceErrorCode::InlineSecret.as_str(), "credential_in_config"].contains(&finding.code.as_str())
    };
    let code = match &report.blockers {
        all if all.iter().any(is_secret) => ServiceErrorCode::InlineSecret,
        all if all.iter().all(|finding| finding.stage == CheckStage::Config) => ServiceErrorCode::InvalidConfig,
        _ => ServiceErrorCode::PreflightFailed,
    };
    let secret = report.blockers.iter().find(|finding| is_secret(finding));
    let first = secret.or(report.blockers.first()).map(|finding| finding.message.as_str()).unwrap_or_default();
    let message = match report.blockers.len() {
        1 => format!("preflight found 1 problem: {first}"),
        count => format!("preflight found {count} problems, the first: {first}"),
    };
    let refusal = ApiError::new(code, message);
    let refusal = match code {
        ServiceErrorCode::PreflightFailed if is_unverified => {
            refusal.caused_by(&report.blockers).with_hint("Fix the findings, and check them with POST /runs/preflight.")
        }
        ServiceErrorCode::PreflightFailed => refusal.caused_by(&report.blockers),
        _ => refusal,
    };
    refusal.with_fields(report.blockers)
}

pub(crate) async fn preflight(State(context): ServiceState, Body(body): Body<RunBody>) -> Answer<CheckReport> {
    Ok(Json(evaluate(&context, &body).await?.report))
}

//! Builds the body of a rollout request: the smallest one that every known container accepts.

use bytes::Bytes;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::contract::{Task, TaskRow};
use synth_optimizer_core::config::gepa::SubmissionMode;
use synth_optimizer_core::config::sections::PolicySection;
use synth_optimizer_core::model::command::RolloutCommand;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::ids::Payload;

/// Returns the policy as it is sent to the container: only the keys that strict containers accept, and no credentials.
/// Null if the configuration has no policy: the container is then told nothing about a model.
pub fn policy_value(policy: Option<&PolicySection>) -> Value {
    let Some(policy) = policy else { return Value::Null };
    let mut value = json!({
        "provider": policy.provider,
        "model": policy.model,
        "api_family": policy.api_family.as_str(),
        "base_url": policy.base_url,
        "inference_url": policy.inference_url,
        "max_tokens": policy.max_tokens,
        "disable_reasoning": policy.disable_reasoning.as_str(),
        "tool_call_style": policy.tool_call_style.as_str(),
        "proxy_mode": policy.proxy_mode.as_str(),
        "credential_mode": policy.credential_mode.as_str(),
        "config": Some(&policy.config).filter(|config| !config.is_empty()),
    });
    if let Value::Object(entries) = &mut value {
        entries.retain(|_, entry| !entry.is_null());
    }
    value
}

/// Builds the body of one rollout. Equal commands produce equal bytes, so a container recognises a repeated rollout id.
pub fn rollout_body(
    task: &Task,
    policy: &Value,
    command: &RolloutCommand,
    row: &TaskRow,
    rollout_id: &str,
    mode: SubmissionMode,
) -> Result<Bytes, OptimizerError> {
    let routes = &task.contract.routes;
    let body = RolloutBody {
        rollout_id,
        submission_mode: mode.as_str(),
        task_id: &task.family,
        candidate: &command.payload,
        candidate_overlay: CandidateOverlay { candidate: &command.payload, metadata: Map::new() },
        policy,
        metadata: RolloutMetadata {
            candidate_id: command.candidate_id.as_str(),
            seed: row.seed,
            stage: command.stage.as_str(),
            attempt: command.attempt,
        },
        task: routes.taskset.is_some().then_some(&row.value),
        dataset_row: routes.dataset.is_some().then_some(&row.value),
    };
    // Large enough for most bodies.
    let mut text = Vec::with_capacity(2048);
    serde_json::to_writer(&mut text, &body).map(|()| Bytes::from(text)).map_err(|error| {
        let what = format!("encoding rollout {rollout_id} as JSON failed");
        OptimizerError::from_cause(ErrorCode::Container, what, error)
    })
}

#[derive(Serialize)]
struct RolloutBody<'a> {
    rollout_id: &'a str,
    submission_mode: &'a str,
    task_id: &'a str,
    candidate: &'a Payload,
    candidate_overlay: CandidateOverlay<'a>,
    #[serde(skip_serializing_if = "Value::is_null")]
    policy: &'a Value,
    metadata: RolloutMetadata<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    task: Option<&'a Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dataset_row: Option<&'a Value>,
}

#[derive(Serialize)]
struct CandidateOverlay<'a> {
    candidate: &'a Payload,
    metadata: Map<String, Value>,
}

#[derive(Serialize)]
struct RolloutMetadata<'a> {
    candidate_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    seed: Option<i64>,
    stage: &'a str,
    attempt: u32,
}

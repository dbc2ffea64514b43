//! The content of the result files of a run, from the view of its log: the manifest of every end, and the candidates of the
//! registry.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::registry::RegistryStatus;
use super::run_dir::RunPaths;
use crate::container_log::{CONTAINER_LOG_FILE, log_tail};
use crate::workspace::ArtifactRef;
use synth_optimizer_core::config::gepa::GepaSection;
use synth_optimizer_core::model::claim::Claim;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::event::Event;
use synth_optimizer_core::model::event_fields::{NamedScore, RolloutCount};
use synth_optimizer_core::model::ids::CandidateId;
use synth_optimizer_core::model::run_totals::RunCounts;
use synth_optimizer_core::model::run_view::{MeasuredCandidate, RunView};
use synth_optimizer_core::model::score::Score;

const RESULT_SCHEMA: &str = "gepa_result_manifest.v1";
const FAILURE_SCHEMA: &str = "gepa_failure_manifest.v1";
const UNAVAILABLE: &str = "unavailable";

/// Returns the content of `candidate_registry.json`: every candidate with its scores by row.
pub(crate) fn registry(view: &RunView) -> Value {
    view.candidates.iter().map(registry_candidate).collect()
}

/// Returns one candidate of the registry, without the sequence numbers and times of its events: equal runs have equal
/// files, however they were executed.
pub(crate) fn registry_candidate(candidate: &MeasuredCandidate) -> Value {
    const VOLATILE: [&str; 6] =
        ["registered_sequence", "registered_at", "updated_sequence", "updated_at", "sequence", "at"];
    fn without_places(fields: &mut Value) {
        if let Some(fields) = fields.as_object_mut() {
            fields.retain(|name, _| !VOLATILE.contains(&name.as_str()));
        }
    }
    let mut entry = json!(candidate);
    without_places(&mut entry);
    entry["acceptance_metadata"].as_array_mut().into_iter().flatten().for_each(without_places);
    entry
}

/// Builds the manifest of a run that has ended.
pub(crate) fn manifest(
    paths: &RunPaths,
    view: &RunView,
    config: &Value,
    refs: &[ArtifactRef],
) -> Result<(RegistryStatus, Value), OptimizerError> {
    let (status, ending) = match &view.end {
        Some(Event::RunFinished(run)) => {
            let result = json!({
                "schema_version": RESULT_SCHEMA,
                "best_candidate": view.candidate(&run.best_candidate_id).map(registry_candidate),
                "scores": scores(&run.scores),
                "train_gain": run.train_gain,
                "heldout_gain": run.heldout_gain,
                "claim": claim(view, config),
                "stopped_by": run.stopped_by,
                "generations": run.generations,
            });
            (RegistryStatus::Completed, result)
        }
        Some(Event::RunFailed(run)) => (RegistryStatus::Failed, failed(paths, view, &run.error())),
        Some(Event::RunCancelled(run)) => {
            let error = OptimizerError::new(ErrorCode::Cancelled, run.reason.as_str());
            (RegistryStatus::Cancelled, failed(paths, view, &error))
        }
        Some(_) | None => {
            let message = format!("run {} has not ended, so it has no result", paths.run_id());
            return Err(OptimizerError::new(ErrorCode::Invariant, message));
        }
    };
    Ok((status, ended_document(paths, view, refs, status, ending)))
}

/// Returns the fields of a run without a result.
pub(crate) fn failed(paths: &RunPaths, view: &RunView, error: &OptimizerError) -> Value {
    let best = view.totals.best_candidate_id().map_or(UNAVAILABLE, |best| best.as_str());
    json!({
        "schema_version": FAILURE_SCHEMA,
        "failure": failure(paths, error),
        "best_candidate_id": best,
        "stopped_by": view.totals.stopped_by,
    })
}

/// Adds what every run with a log has: its usage, candidates and files.
pub(crate) fn ended_document(
    paths: &RunPaths,
    view: &RunView,
    refs: &[ArtifactRef],
    status: RegistryStatus,
    ending: Value,
) -> Value {
    let counts = &view.totals.counts;
    let usage = counts.usage();
    let used = json!({
        "candidates": counts.candidates,
        "rollouts": rollouts(counts),
        "rollouts_by_purpose": view.rollouts_by_purpose,
        "cost_usd": usage.total.cost_usd,
        "usage": usage,
        "shortfalls": view.totals.shortfalls,
        "seed": view.started.as_ref().map(|run| run.seed),
        "config_digest": view.started.as_ref().map(|run| &run.config_digest),
        "state_history": view.state_history,
        "artifact_refs": refs,
    });
    document(paths, status.as_str(), [ending, used])
}

/// Builds the manifest of a run that could not start.
pub(crate) fn early_failure(paths: &RunPaths, error: &OptimizerError) -> (RegistryStatus, Value) {
    let status = match error.code {
        ErrorCode::Cancelled => RegistryStatus::Cancelled,
        _ => RegistryStatus::Failed,
    };
    let fields = json!({
        "schema_version": FAILURE_SCHEMA,
        "failure": failure(paths, error),
        "best_candidate_id": UNAVAILABLE,
        "candidates": 0,
        // Without a log, nothing was sent that has a cost.
        "cost_usd": 0.0,
        "usage": null,
        "state_history": [],
        "artifact_refs": [],
    });
    (status, document(paths, status.as_str(), [fields]))
}

fn failure(paths: &RunPaths, error: &OptimizerError) -> Value {
    let OptimizerError { code, message, hint, detail, is_outage, findings: _, cause: _ } = error;
    let detail = detail.clone().or_else(|| container_log(paths, error));
    json!({ "error_code": code.as_str(), "message": message, "hint": hint, "detail": detail, "is_outage": is_outage })
}

/// Returns the path and the last lines of the container's log, if the container caused the error and the run starts it.
pub(crate) fn container_log(paths: &RunPaths, error: &OptimizerError) -> Option<String> {
    let is_of_container = matches!(error.code, ErrorCode::Container | ErrorCode::RunFailed);
    let tail = is_of_container.then(|| log_tail(paths.dir(), 0)).flatten()?;
    Some(format!("{}:\n{tail}", paths.dir().join(CONTAINER_LOG_FILE)))
}

/// A score of the initial or the best candidate.
#[derive(Serialize)]
struct CandidateScore<'a> {
    candidate_id: &'a CandidateId,
    #[serde(flatten)]
    score: Score,
}

/// Groups scores by role, then by split.
fn scores(named: &[NamedScore]) -> BTreeMap<&str, BTreeMap<&str, CandidateScore<'_>>> {
    let mut scores: BTreeMap<&str, BTreeMap<&str, CandidateScore<'_>>> = BTreeMap::new();
    for NamedScore { role, split, candidate_id, score } in named {
        scores.entry(role).or_default().insert(split, CandidateScore { candidate_id, score: *score });
    }
    scores
}

/// Returns what the held-out rows show about the result of a completed run. Unknown values are null.
pub(super) fn claim(view: &RunView, config: &Value) -> Option<Value> {
    let tolerance = config.pointer("/gepa/rollout_failure_rate_tolerance").and_then(Value::as_f64);
    let claim = view.claim(tolerance.unwrap_or_else(|| GepaSection::default().rollout_failure_rate_tolerance))?;
    let Claim { verdict, candidate_id, gain, p_value, smallest_gain, sentence } = claim;
    Some(json!({
        "verdict": verdict,
        "candidate_id": candidate_id,
        "gain": gain,
        "p_value": p_value,
        "smallest_gain": smallest_gain,
        "sentence": sentence,
    }))
}

pub(super) fn rollouts(counts: &RunCounts) -> Value {
    let RolloutCount { train, heldout, unknown_outcomes } = counts.rollout_count();
    json!({
        "train": train,
        "heldout": heldout,
        "unknown_outcomes": unknown_outcomes,
        "finished": counts.rollouts_finished,
        "failed": counts.rollouts_failed,
        "unsent": counts.rollouts_unsent,
    })
}

/// Builds a document that begins with the run id, the status and every path.
pub(super) fn document(paths: &RunPaths, status: &str, parts: impl IntoIterator<Item = Value>) -> Value {
    let mut document = Map::new();
    document.insert("run_id".to_owned(), paths.run_id().into());
    document.insert("status".to_owned(), status.into());
    document.insert("run_dir".to_owned(), paths.dir().as_str().into());
    document.extend(paths.path_fields());
    for part in parts {
        if let Value::Object(fields) = part {
            document.extend(fields);
        }
    }
    Value::Object(document)
}

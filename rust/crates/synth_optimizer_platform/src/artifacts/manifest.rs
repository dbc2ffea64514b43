//! `result_manifest.json`: the result of a run, or why there is none.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::fault;
use super::registry::RegistryStatus;
use super::results::registered;
use super::run_dir::RunPaths;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::event_fields::{NamedScore, RolloutCount};
use synth_optimizer_core::model::ids::CandidateId;
use synth_optimizer_core::model::run_totals::RunCounts;
use synth_optimizer_core::model::run_view::{FinalEvent, RunView};
use synth_optimizer_core::model::score::Score;

const RESULT_SCHEMA: &str = "gepa_result_manifest.v1";
const FAILURE_SCHEMA: &str = "gepa_failure_manifest.v1";

/// A file of the run, named by its content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ArtifactRef {
    pub path: String,
    pub kind: String,
    pub sha256: String,
    pub bytes: u64,
    pub retention: String,
}

/// The manifest of a run that is over.
pub(super) fn manifest(
    paths: &RunPaths,
    view: &RunView,
    refs: &[ArtifactRef],
) -> Result<(RegistryStatus, Value), OptimizerError> {
    let mut fields = Map::new();
    let status = match &view.end {
        None => {
            return Err(OptimizerError::new(
                ErrorCode::Invariant,
                format!("run {} is not over and has no result", paths.run_id()),
            ));
        }
        Some(FinalEvent::Finished(run)) => {
            fields.insert("schema_version".into(), RESULT_SCHEMA.into());
            put(&mut fields, "best_candidate", &view.candidate(&run.best_candidate_id).map(registered).transpose()?)?;
            put(&mut fields, "scores", &scores(&run.scores))?;
            put(&mut fields, "train_gain", &run.train_gain)?;
            put(&mut fields, "heldout_gain", &run.heldout_gain)?;
            put(&mut fields, "stopped_by", &run.stopped_by)?;
            put(&mut fields, "generations", &run.generations)?;
            RegistryStatus::Finished
        }
        Some(FinalEvent::Failed(run)) => {
            fields.insert("schema_version".into(), FAILURE_SCHEMA.into());
            let told = OptimizerError::new(run.error_code, run.message.as_str());
            fields.insert("failure".into(), failure(&told));
            RegistryStatus::Failed
        }
        Some(FinalEvent::Cancelled(run)) => {
            fields.insert("schema_version".into(), FAILURE_SCHEMA.into());
            let told = OptimizerError::new(ErrorCode::Cancelled, run.reason.as_str());
            fields.insert("failure".into(), failure(&told));
            RegistryStatus::Cancelled
        }
    };
    if status != RegistryStatus::Finished {
        let best = view.totals.best_candidate_id().map_or(UNAVAILABLE, |best| best.as_str());
        fields.insert("best_candidate_id".into(), best.into());
        put(&mut fields, "stopped_by", &view.totals.stopped_by)?;
    }
    let counts = &view.totals.counts;
    let usage = counts.usage();
    put(&mut fields, "candidates", &counts.candidates)?;
    fields.insert("rollouts".into(), rollouts(counts));
    put(&mut fields, "cost_usd", &usage.total.cost_usd)?;
    put(&mut fields, "usage", &usage)?;
    put(&mut fields, "seed", &view.started.as_ref().map(|run| run.seed))?;
    put(&mut fields, "config_digest", &view.started.as_ref().map(|run| &run.config_digest))?;
    put(&mut fields, "state_history", &view.state_history)?;
    put(&mut fields, "artifact_refs", &refs)?;
    Ok((status, with_places(paths, status, fields)))
}

/// The manifest of a run that failed before it had a log.
pub(super) fn early_failure(paths: &RunPaths, error: &OptimizerError) -> (RegistryStatus, Value) {
    let status = match error.code {
        ErrorCode::Cancelled => RegistryStatus::Cancelled,
        _ => RegistryStatus::Failed,
    };
    let mut fields = Map::new();
    fields.insert("schema_version".into(), FAILURE_SCHEMA.into());
    fields.insert("failure".into(), failure(error));
    fields.insert("best_candidate_id".into(), UNAVAILABLE.into());
    fields.insert("candidates".into(), 0.into());
    // Without a log nothing was sent that costs anything; with one, only the log knows.
    let cost = if paths.workspace_db().exists() { Value::Null } else { 0.0.into() };
    fields.insert("cost_usd".into(), cost);
    fields.insert("usage".into(), Value::Null);
    fields.insert("state_history".into(), json!([]));
    fields.insert("artifact_refs".into(), json!([]));
    (status, with_places(paths, status, fields))
}

const UNAVAILABLE: &str = "unavailable";

fn failure(error: &OptimizerError) -> Value {
    let OptimizerError { code, message, hint, detail, findings: _, cause: _ } = error;
    json!({ "error_code": code.wire(), "message": message, "hint": hint, "detail": detail })
}

/// A score of seed or best.
#[derive(Serialize)]
struct Placed<'a> {
    candidate_id: &'a CandidateId,
    #[serde(flatten)]
    score: Score,
}

/// By role, then by split.
fn scores(named: &[NamedScore]) -> BTreeMap<&str, BTreeMap<&str, Placed<'_>>> {
    let mut scores: BTreeMap<&str, BTreeMap<&str, Placed<'_>>> = BTreeMap::new();
    for NamedScore { role, split, candidate_id, score } in named {
        scores.entry(role).or_default().insert(split, Placed { candidate_id, score: *score });
    }
    scores
}

fn rollouts(counts: &RunCounts) -> Value {
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

/// The document with the run's name, status and every path first.
fn with_places(paths: &RunPaths, status: RegistryStatus, fields: Map<String, Value>) -> Value {
    let mut document = Map::new();
    let mut place = |name: &str, value: &str| document.insert(name.to_owned(), value.into());
    place("run_id", paths.run_id());
    place("status", status.word());
    place("run_dir", paths.dir().as_str());
    place("manifest_path", paths.manifest().as_str());
    place("event_feed_path", paths.events().as_str());
    place("normalized_event_feed_path", paths.normalized_events().as_str());
    place("cache_profile_path", paths.cache_profile().as_str());
    place("best_candidate_path", paths.best_candidate().as_str());
    place("candidate_registry_path", paths.candidate_registry().as_str());
    place("frontier_path", paths.frontier().as_str());
    place("score_chart_path", paths.score_chart().as_str());
    place("run_registry_path", paths.run_registry().as_str());
    place("workspace_db_path", paths.workspace_db().as_str());
    document.extend(fields);
    Value::Object(document)
}

fn put(fields: &mut Map<String, Value>, name: &str, value: &impl Serialize) -> Result<(), OptimizerError> {
    let value = serde_json::to_value(value).map_err(|error| fault::json(name, error))?;
    fields.insert(name.to_owned(), value);
    Ok(())
}

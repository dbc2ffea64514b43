//! `result_manifest.json`: the result of a run, or why there is none.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::registry::RegistryStatus;
use super::results::registered;
use super::run_dir::RunPaths;
use crate::workspace::ArtifactRef;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::event_fields::{NamedScore, RolloutCount};
use synth_optimizer_core::model::ids::CandidateId;
use synth_optimizer_core::model::run_totals::RunCounts;
use synth_optimizer_core::model::run_view::{FinalEvent, RunView};
use synth_optimizer_core::model::score::Score;

const RESULT_SCHEMA: &str = "gepa_result_manifest.v1";
const FAILURE_SCHEMA: &str = "gepa_failure_manifest.v1";

/// The manifest of a run that is over.
pub(super) fn manifest(
    paths: &RunPaths,
    view: &RunView,
    refs: &[ArtifactRef],
) -> Result<(RegistryStatus, Value), OptimizerError> {
    let failed = |error: &OptimizerError| {
        let best = view.totals.best_candidate_id().map_or(UNAVAILABLE, |best| best.as_str());
        json!({
            "schema_version": FAILURE_SCHEMA,
            "failure": failure(error),
            "best_candidate_id": best,
            "stopped_by": view.totals.stopped_by,
        })
    };
    let (status, ending) = match &view.end {
        None => {
            let message = format!("run {} is not over and has no result", paths.run_id());
            return Err(OptimizerError::new(ErrorCode::Invariant, message));
        }
        Some(FinalEvent::Finished(run)) => {
            let result = json!({
                "schema_version": RESULT_SCHEMA,
                "best_candidate": view.candidate(&run.best_candidate_id).map(registered),
                "scores": scores(&run.scores),
                "train_gain": run.train_gain,
                "heldout_gain": run.heldout_gain,
                "stopped_by": run.stopped_by,
                "generations": run.generations,
            });
            (RegistryStatus::Finished, result)
        }
        Some(FinalEvent::Failed(run)) => {
            (RegistryStatus::Failed, failed(&OptimizerError::new(run.error_code, run.message.as_str())))
        }
        Some(FinalEvent::Cancelled(run)) => {
            (RegistryStatus::Cancelled, failed(&OptimizerError::new(ErrorCode::Cancelled, run.reason.as_str())))
        }
    };
    let counts = &view.totals.counts;
    let usage = counts.usage();
    let used = json!({
        "candidates": counts.candidates,
        "rollouts": rollouts(counts),
        "cost_usd": usage.total.cost_usd,
        "usage": usage,
        "seed": view.started.as_ref().map(|run| run.seed),
        "config_digest": view.started.as_ref().map(|run| &run.config_digest),
        "state_history": view.state_history,
        "artifact_refs": refs,
    });
    Ok((status, document(paths, status, [ending, used])))
}

/// The manifest of a run that failed before it had a log.
pub(super) fn early_failure(paths: &RunPaths, error: &OptimizerError) -> (RegistryStatus, Value) {
    let status = match error.code {
        ErrorCode::Cancelled => RegistryStatus::Cancelled,
        _ => RegistryStatus::Failed,
    };
    let fields = json!({
        "schema_version": FAILURE_SCHEMA,
        "failure": failure(error),
        "best_candidate_id": UNAVAILABLE,
        "candidates": 0,
        // Without a log nothing was sent that costs anything; with one, only the log knows.
        "cost_usd": if paths.workspace_db().exists() { Value::Null } else { 0.0.into() },
        "usage": null,
        "state_history": [],
        "artifact_refs": [],
    });
    (status, document(paths, status, [fields]))
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
fn document(paths: &RunPaths, status: RegistryStatus, parts: impl IntoIterator<Item = Value>) -> Value {
    let mut document = Map::new();
    document.insert("run_id".to_owned(), paths.run_id().into());
    document.insert("status".to_owned(), status.word().into());
    document.insert("run_dir".to_owned(), paths.dir().as_str().into());
    document.extend(paths.places());
    for part in parts {
        if let Value::Object(fields) = part {
            document.extend(fields);
        }
    }
    Value::Object(document)
}

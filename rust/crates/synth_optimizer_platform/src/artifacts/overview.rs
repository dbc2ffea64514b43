//! A run as its directory shows it to people, while it goes on and after.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::fault;
use super::run_dir::RunPaths;
use super::run_lock::RunLock;
use super::summary::{RunEnd, RunSummary};
use crate::model::envelope::rfc3339;
use crate::model::error::{ErrorCode, OptimizerError};
use crate::model::score::Score;
use crate::model::usage::Cost;
use crate::workspace::{Reader, Totals, limits};

/// Where a run is and what it has used. What is not known is null.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct RunOverview {
    pub run_id: String,
    pub run_dir: String,
    pub state: String,
    pub is_over: bool,
    /// The process that works on it.
    pub holder: Option<String>,
    pub best_candidate_id: Option<String>,
    /// Train scores.
    pub best_score: Option<Score>,
    pub seed_score: Option<Score>,
    pub best_heldout_score: Option<Score>,
    pub frontier_size: u64,
    pub candidates: u64,
    pub generations: u64,
    pub rollouts_requested: u64,
    pub rollouts_finished: u64,
    pub rollouts_failed: u64,
    /// Answers that have come and wait for their turn to become events.
    pub rollouts_waiting: u64,
    pub proposer_turns: u64,
    pub paid_calls: u64,
    pub cached_calls: u64,
    pub unknown_outcomes: u64,
    pub total_tokens: u64,
    #[schemars(with = "Option<f64>")]
    pub cost_usd: Cost,
    pub limits: Map<String, Value>,
    pub started_at: Option<String>,
    pub updated_at: Option<String>,
    pub finished_at: Option<String>,
    pub stopped_by: Option<Value>,
    /// Why it failed or was let go, as its manifest tells it.
    pub failure: Option<Value>,
}

/// Reads where a run is, from a few rows.
pub fn run_status(paths: &RunPaths) -> Result<RunOverview, OptimizerError> {
    let holder = RunLock::holder(&paths.lock())?;
    // While somebody works on the run, an older failure is history.
    let manifest = if holder.is_none() { manifest(paths)? } else { None };
    let failure = manifest.as_ref().and_then(|manifest| manifest.get("failure")).cloned();
    if !paths.workspace_db().is_file() {
        return Ok(never_begun(paths, holder, manifest.as_ref(), failure));
    }
    let reader = Reader::open(paths.workspace_db().as_std_path())?;
    let (run, totals, glance) = (reader.run_row()?, reader.totals()?, reader.glance()?);
    let cost_usd = totals.cost();
    let is_over = totals.is_over();
    let Totals { state, best_candidate_id, started_at, updated_at, finished_at, stopped_by, .. } = totals;
    Ok(RunOverview {
        run_id: run.run_id,
        run_dir: paths.dir().to_string(),
        state: state.word().to_owned(),
        is_over,
        holder,
        best_candidate_id,
        best_score: glance.best_train,
        seed_score: glance.seed_train,
        best_heldout_score: glance.best_heldout,
        frontier_size: glance.frontier_size,
        candidates: totals.candidates,
        generations: totals.generations,
        rollouts_requested: totals.rollouts_requested,
        rollouts_finished: totals.rollouts_finished,
        rollouts_failed: totals.rollouts_failed,
        rollouts_waiting: glance.waiting,
        proposer_turns: totals.proposer_turns,
        paid_calls: totals.paid_calls,
        cached_calls: totals.cached_calls,
        unknown_outcomes: totals.unknown_outcomes,
        total_tokens: totals.total_tokens,
        cost_usd,
        limits: run.config.get("gepa").map(limits).unwrap_or_default(),
        started_at: started_at.map(rfc3339),
        updated_at: updated_at.map(rfc3339),
        finished_at: finished_at.map(rfc3339),
        stopped_by: stopped_by.as_deref().and_then(|text| serde_json::from_str(text).ok()),
        failure,
    })
}

/// Everything about a run: its overview, and every candidate as the log tells of it. Reads the whole log.
pub fn run_summary(paths: &RunPaths) -> Result<Value, OptimizerError> {
    let overview = run_status(paths)?;
    let mut summary = RunSummary::default();
    let mut config = Value::Null;
    if paths.workspace_db().is_file() {
        let reader = Reader::open(paths.workspace_db().as_std_path())?;
        config = reader.run_row()?.config;
        summary = RunSummary::of(|each| reader.log(0, each))?;
    }
    let (train_gain, heldout_gain) = match &summary.end {
        Some(RunEnd::Finished(run)) => (json!(run.train_gain), json!(run.heldout_gain)),
        Some(RunEnd::Failed(_) | RunEnd::Cancelled(_)) | None => (Value::Null, Value::Null),
    };
    let failed = |error: serde_json::Error| fault::json("the summary", &error);
    Ok(json!({
        "overview": serde_json::to_value(&overview).map_err(failed)?,
        "candidates": serde_json::to_value(&summary.candidates).map_err(failed)?,
        "frontier": summary.frontier,
        "state_history": summary.state_history,
        "calls": summary.calls,
        "train_gain": train_gain,
        "heldout_gain": heldout_gain,
        "config": config,
    }))
}

/// A run that failed before it had a log.
fn never_begun(
    paths: &RunPaths,
    holder: Option<String>,
    manifest: Option<&Value>,
    failure: Option<Value>,
) -> RunOverview {
    let status = manifest.and_then(|manifest| manifest.get("status")).and_then(Value::as_str);
    RunOverview {
        run_id: paths.run_id().to_owned(),
        run_dir: paths.dir().to_string(),
        state: status.unwrap_or("created").to_owned(),
        is_over: false,
        holder,
        best_candidate_id: None,
        best_score: None,
        seed_score: None,
        best_heldout_score: None,
        frontier_size: 0,
        candidates: 0,
        generations: 0,
        rollouts_requested: 0,
        rollouts_finished: 0,
        rollouts_failed: 0,
        rollouts_waiting: 0,
        proposer_turns: 0,
        paid_calls: 0,
        cached_calls: 0,
        unknown_outcomes: 0,
        total_tokens: 0,
        cost_usd: Cost::default(),
        limits: Map::new(),
        started_at: None,
        updated_at: None,
        finished_at: None,
        stopped_by: None,
        failure,
    }
}

fn manifest(paths: &RunPaths) -> Result<Option<Value>, OptimizerError> {
    let path = paths.manifest();
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(fault::io(&path, "reading", &error)),
    };
    serde_json::from_slice(&bytes).map(Some).map_err(|error| {
        OptimizerError::new(ErrorCode::Json, format!("{path} is not JSON: {error}"))
            .with_hint("Run the same command again: it writes the results of a run that is over anew.")
    })
}

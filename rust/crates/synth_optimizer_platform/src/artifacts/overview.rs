//! The overview of a run from its directory, during the run and after.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::documents::{claim, document, registry, registry_candidate, rollouts};
use super::lock::FileLock;
use super::run_dir::RunPaths;
use crate::file_error;
use crate::workspace::{Reader, limits};
use synth_optimizer_core::model::candidate_view::Candidate;
use synth_optimizer_core::model::envelope::rfc3339;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::event::Event;
use synth_optimizer_core::model::event_fields::{
    ConcurrencyAdjusted, EstimateShortfall, RunWaiting, SearchChosen, SearchMode,
};
use synth_optimizer_core::model::ids::CandidateId;
use synth_optimizer_core::model::lifecycle::RunState;
use synth_optimizer_core::model::run_totals::RunTotals;
use synth_optimizer_core::model::run_view::{MeasuredCandidate, RunView};
use synth_optimizer_core::model::score::Score;
use synth_optimizer_core::model::usage::{Cost, RunUsage};

/// The state and usage of a run. Unknown values are null.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct RunOverview {
    pub run_id: String,
    pub run_dir: String,
    pub state: String,
    pub is_terminal: bool,
    /// The process that executes it. Null if there is none.
    pub holder: Option<String>,
    pub best_candidate_id: Option<String>,
    /// Train scores.
    pub best_train_score: Option<Score>,
    pub seed_train_score: Option<Score>,
    pub best_heldout_score: Option<Score>,
    pub frontier_size: u64,
    pub candidates: u64,
    pub generations: u64,
    pub rollouts_requested: u64,
    pub rollouts_finished: u64,
    pub rollouts_failed: u64,
    /// Answers that were received and wait in the inbox for their turn to become events.
    pub rollouts_waiting: u64,
    pub proposer_turns: u64,
    pub sent_calls: u64,
    pub cached_calls: u64,
    pub unknown_outcomes: u64,
    pub total_tokens: u64,
    #[schemars(with = "Option<f64>")]
    pub cost_usd: Cost,
    pub limits: Map<String, Value>,
    /// `sprint` or `reference`, and why. Null before the choice.
    pub search: Option<SearchMode>,
    pub search_reason: Option<String>,
    pub started_at: Option<String>,
    pub updated_at: Option<String>,
    pub finished_at: Option<String>,
    pub stopped_by: Option<Value>,
    /// What it waits for, because it is unavailable.
    pub waiting: Vec<RunWaiting>,
    /// Fewer rollouts than workers at once, and why. Null if all workers are used.
    pub concurrency: Option<ConcurrencyAdjusted>,
    /// Limits that it exceeded, because calls used more than their estimates.
    pub shortfalls: Vec<EstimateShortfall>,
    /// Why it failed or was interrupted, from its manifest.
    pub failure: Option<Value>,
    /// The usage of the same moment, in the form that every document has.
    #[serde(skip)]
    pub usage: RunUsage,
}

/// Returns the overview of a run. Reads only a few rows.
pub fn run_status(paths: &RunPaths) -> Result<RunOverview, OptimizerError> {
    let reader = open_reader(paths)?;
    run_overview(paths, reader.as_ref())
}

/// Opens the workspace of a run, if it exists.
fn open_reader(paths: &RunPaths) -> Result<Option<Reader>, OptimizerError> {
    let path = paths.workspace_db();
    path.is_file().then(|| Reader::open(path.as_std_path())).transpose()
}

/// Returns the overview of a run from its open workspace; `None` if it has none.
pub fn run_overview(paths: &RunPaths, reader: Option<&Reader>) -> Result<RunOverview, OptimizerError> {
    let holder = FileLock::holder(&paths.lock())?;
    // While a process executes the run, an earlier failure is outdated.
    let manifest = if holder.is_none() { read_manifest(paths) } else { Ok(None) };
    let manifest = match manifest {
        // The workspace tells everything else.
        Err(error) if reader.is_some() => Some(unreadable_manifest(&error)),
        manifest => manifest?,
    };
    let failure = manifest.as_ref().and_then(|manifest| manifest.get("failure")).cloned();
    let Some(reader) = reader else {
        // The run failed before it had a log.
        let status = manifest.as_ref().and_then(|manifest| manifest.get("status")).and_then(Value::as_str);
        let overview = overview(paths, &RunTotals::default());
        let state = status.map_or(overview.state, str::to_owned);
        return Ok(RunOverview { state, holder, cost_usd: Cost::Unknown, failure, ..overview });
    };
    let (run, totals, best, seed, rollouts_waiting, search) = reader.in_snapshot(|_| {
        let totals = reader.totals()?;
        let record = |id: Option<&CandidateId>| id.map(|id| reader.candidate_record(id.as_str())).transpose();
        let best = record(totals.best_candidate_id())?.flatten();
        let seed = record(totals.seed_candidate_id.as_ref())?.flatten();
        Ok::<_, OptimizerError>((reader.run_row()?, totals, best, seed, reader.inbox_len()?, reader.search()?))
    })?;
    let (search, search_reason) = search.map(|SearchChosen { search, reason }| (search, reason)).unzip();
    Ok(RunOverview {
        run_id: run.run_id,
        holder,
        best_train_score: best.as_ref().and_then(|best| best.train_score),
        seed_train_score: seed.and_then(|seed| seed.train_score),
        best_heldout_score: best.and_then(|best| best.heldout_score),
        rollouts_waiting,
        limits: run.config.get("gepa").map(limits).unwrap_or_default(),
        search,
        search_reason,
        failure,
        ..overview(paths, &totals)
    })
}

/// Returns what stands for a manifest that cannot be read.
fn unreadable_manifest(error: &OptimizerError) -> Value {
    json!({"failure": {"error_code": error.code.as_str(), "message": error.message, "hint": error.hint}})
}

/// Builds an overview from the totals of a run.
fn overview(paths: &RunPaths, totals: &RunTotals) -> RunOverview {
    let (counts, spend) = (&totals.counts, totals.counts.spend());
    RunOverview {
        run_id: paths.run_id().to_owned(),
        run_dir: paths.dir().to_string(),
        state: totals.state.as_str().to_owned(),
        is_terminal: totals.is_terminal(),
        holder: None,
        best_candidate_id: totals.best_candidate_id().map(ToString::to_string),
        best_train_score: None,
        seed_train_score: None,
        best_heldout_score: None,
        frontier_size: u64::from(totals.frontier_size),
        candidates: counts.candidates,
        generations: counts.generations,
        rollouts_requested: counts.rollouts_requested,
        rollouts_finished: counts.rollouts_finished,
        rollouts_failed: counts.rollouts_failed,
        rollouts_waiting: 0,
        proposer_turns: counts.proposer_turns,
        sent_calls: spend.sent_calls,
        cached_calls: spend.cached_calls,
        unknown_outcomes: spend.unknown_outcomes,
        total_tokens: spend.total_tokens,
        cost_usd: spend.cost(),
        limits: Map::new(),
        search: None,
        search_reason: None,
        started_at: totals.started_at.map(rfc3339),
        updated_at: totals.updated_at.map(rfc3339),
        finished_at: totals.finished_at.map(rfc3339),
        stopped_by: totals.stopped_by.as_ref().map(|stop| json!(stop)),
        waiting: totals.waiting.clone(),
        concurrency: totals.concurrency.clone(),
        shortfalls: totals.shortfalls.clone(),
        failure: None,
        usage: counts.usage(),
    }
}

/// Returns everything about a run: its overview, and every candidate with its scores. Reads the whole log.
pub fn run_summary(paths: &RunPaths) -> Result<Value, OptimizerError> {
    let (overview, view, config) = read_log(paths)?;
    let finished = if let Some(Event::RunFinished(run)) = &view.end { Some(run) } else { None };
    Ok(json!({
        "overview": overview,
        "candidates": registry(&view),
        "frontier": view.frontier().iter().map(|member| &member.candidate_id).collect::<Vec<_>>(),
        "state_history": view.state_history,
        "usage": view.totals.counts.usage(),
        "train_gain": finished.map(|run| &run.train_gain),
        "heldout_gain": finished.map(|run| &run.heldout_gain),
        "claim": claim(&view, &config),
        "rollouts_by_purpose": view.rollouts_by_purpose,
        "config": config,
    }))
}

/// Returns what there is of the result of a run that is not completed, with the fields of the manifest of a completed run: the
/// best candidate so far, the usage, and why the run ended. Reads the whole log.
pub fn partial_result(paths: &RunPaths) -> Result<Value, OptimizerError> {
    let (overview, view, _) = read_log(paths)?;
    let is_saved = !overview.is_terminal && overview.holder.is_none() && overview.state != RunState::Failed.as_str();
    let (seed, best) = (view.candidates.first(), view.best());
    let scores = |of: Option<&MeasuredCandidate>| {
        let score = |read: fn(&Candidate) -> Option<Score>| of.and_then(|of| read(&of.candidate));
        json!({"train": score(|of| of.train_score), "heldout": score(|of| of.heldout_score)})
    };
    let manifest = read_manifest(paths)?.unwrap_or_default();
    let fields = json!({
        "best_candidate": best.map_or_else(|| json!({}), registry_candidate),
        "scores": {"seed": scores(seed), "best": scores(best)},
        "stopped_by": overview.stopped_by,
        "failure": overview.failure,
        "generations": overview.generations,
        "candidates": overview.candidates,
        "rollouts": rollouts(&view.totals.counts),
        "rollouts_by_purpose": view.rollouts_by_purpose,
        "cost_usd": overview.cost_usd,
        "usage": overview.usage,
        "state_history": view.state_history,
        "artifact_refs": manifest.get("artifact_refs").cloned().unwrap_or_else(|| json!([])),
    });
    Ok(document(paths, if is_saved { "interrupted" } else { &overview.state }, [fields]))
}

/// Removes the failure manifest of an earlier attempt, because the run continues. Keeps the manifest of a completed run.
pub(crate) fn remove_failure(paths: &RunPaths) -> Result<(), OptimizerError> {
    let path = paths.manifest();
    let is_failure =
        read_manifest(paths).is_ok_and(|stored| stored.is_some_and(|stored| stored.get("failure").is_some()));
    if !is_failure {
        return Ok(());
    }
    file_error::if_exists(std::fs::remove_file(&path)).map(drop).map_err(file_error::io(&path, "removing"))
}

/// Returns the overview of a run, the view of its whole log, and its configuration.
fn read_log(paths: &RunPaths) -> Result<(RunOverview, RunView, Value), OptimizerError> {
    match open_reader(paths)? {
        None => Ok((run_overview(paths, None)?, RunView::default(), Value::Null)),
        Some(reader) => reader.in_snapshot(|_| {
            let (config, view) = (reader.run_row()?.config, log_view(&reader)?);
            Ok((run_overview(paths, Some(&reader))?, view, config))
        }),
    }
}

/// Returns the view of a whole log.
pub(crate) fn log_view(reader: &Reader) -> Result<RunView, OptimizerError> {
    let mut view = RunView::default();
    reader.log(0, |stored| {
        view.apply(stored.sequence, stored.unix_millis, &stored.event);
        Ok(())
    })?;
    Ok(view)
}

/// Reads the manifest, if there is one.
pub(crate) fn read_manifest(paths: &RunPaths) -> Result<Option<Value>, OptimizerError> {
    let path = paths.manifest();
    let read = file_error::if_exists(std::fs::read(&path)).map_err(file_error::io(&path, "reading"))?;
    let Some(bytes) = read else { return Ok(None) };
    serde_json::from_slice(&bytes).map(Some).map_err(|error| {
        OptimizerError::from_cause(ErrorCode::Json, format!("{path} is not JSON"), error)
            .with_hint("Run the same command again; it writes the results of an ended run again.")
    })
}

//! Writes the results of a run that has ended: the candidate registry, frontier, pictures and feeds, and last the manifest,
//! which holds the result of the run or the reason why there is none.

use std::collections::BTreeMap;
use std::fs::File;

use camino::Utf8Path;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::feed_writer::FeedWriter;
use super::files::hash;
use super::overview::read_manifest;
use super::pictures::{ChartAxis, PictureLayout, lineage, score_chart};
use super::registry::{RegistryEntry, RegistryStatus, register};
use super::run_dir::RunPaths;
use super::run_pictures::{chart_data, lineage_data};
use crate::atomic_file::write_atomic;
use crate::cache::CacheProfile;
use crate::container_log::{CONTAINER_LOG_FILE, log_tail};
use crate::file_error;
use crate::views::write_report;
use crate::warn_if_err;
use crate::workspace::models::{FrontierEntry, ReadError};
use crate::workspace::{ArtifactRef, Reader, Record, RunRow, Workspace};
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

/// Writes all results of a run and returns the manifest. The run must have ended, and its feed must be complete.
///
/// Can be called again, also after a crash: equal files replace the existing ones. The manifest is written last, so that
/// every file that it names exists. Without a cache profile, an existing one stays. Blocks on disk writes.
pub fn write_results(
    paths: &RunPaths,
    workspace: &Workspace,
    feed_writer: FeedWriter,
    cache: Option<&CacheProfile>,
) -> Result<Value, OptimizerError> {
    let view = feed_writer.finish()?;
    let unix_millis = view.totals.updated_at.unwrap_or_default();
    let mut refs = write_files(paths, workspace, &view, cache)?;
    let run = workspace.run_row()?;
    let (status, draft) = manifest(paths, &view, &run.config, &refs)?;
    write_report(paths, Some(workspace), &draft)?;
    refs.push(reference(&paths.report(), "report_html")?);
    let (_, document) = manifest(paths, &view, &run.config, &refs)?;
    let files = refs.into_iter().map(|file| Record::Artifact { file: inside(paths, file), unix_millis });
    workspace.record_all(files.collect())?;
    write_json(&paths.manifest(), &document)?;
    let record = Record::Manifest { path: paths.manifest().into(), document: document.clone(), unix_millis };
    workspace.record_all(vec![record])?;
    register(paths, status, &entry(&run, &view))?;
    Ok(document)
}

/// Writes the failure manifest and the registry line of a run that is interrupted by an error and can be resumed.
pub fn write_interruption(
    paths: &RunPaths,
    workspace: &Workspace,
    view: &RunView,
    error: &OptimizerError,
) -> Result<(), OptimizerError> {
    let run = workspace.run_row()?;
    let document = ended_document(paths, view, &[], RegistryStatus::Interrupted, failed(paths, view, error));
    write_json(&paths.manifest(), &document)?;
    register(paths, RegistryStatus::Interrupted, &entry(&run, view))?;
    warn_if_err!(write_report(paths, Some(workspace), &document), "the report of the interrupted run was not written");
    Ok(())
}

/// Writes the failure manifest and the registry line of a run that could not start.
///
/// Never replaces the manifest of a completed run.
pub fn write_failure(paths: &RunPaths, entry: &RegistryEntry, error: &OptimizerError) -> Result<Value, OptimizerError> {
    let (status, document) = early_failure(paths, error);
    let stored = read_manifest(paths);
    warn_if_err!(&stored, "the manifest of an earlier attempt cannot be read: it is replaced");
    if stored.ok().flatten().is_none_or(|stored| stored["status"] != RegistryStatus::Completed.as_str()) {
        write_json(&paths.manifest(), &document)?;
        register(paths, status, entry)?;
        warn_if_err!(write_report(paths, None, &document), "the report of the failed run was not written");
    }
    Ok(document)
}

/// Returns the registry entry of a run that starts: its settings, without usage.
pub fn starting_entry(run: &RunRow) -> RegistryEntry {
    let backend = run.config.pointer("/proposer/backend").and_then(Value::as_str);
    RegistryEntry {
        cache_mode: Some(run.cache_mode.clone()),
        cache_namespace: Some(run.cache_namespace.clone()),
        proposer_backend: backend.map(str::to_owned),
        ..RegistryEntry::default()
    }
}

fn write_files(
    paths: &RunPaths,
    reader: &Reader,
    view: &RunView,
    cache: Option<&CacheProfile>,
) -> Result<Vec<ArtifactRef>, OptimizerError> {
    let mut written = Vec::new();
    if let Some(best) = view.best() {
        write_json(&paths.best_candidate(), &registry_candidate(best))?;
        written.push((paths.best_candidate(), "best_candidate"));
    }
    write_json(&paths.candidate_registry(), &registry(view))?;
    written.push((paths.candidate_registry(), "candidate_registry"));
    let frontier: Vec<FrontierEntry> = view.frontier().into_iter().map(FrontierEntry::from).collect();
    write_json(&paths.frontier(), &frontier)?;
    written.push((paths.frontier(), "frontier"));
    if let Some(cache) = cache {
        write_json(&paths.cache_profile(), cache)?;
    }
    if paths.cache_profile().exists() {
        written.push((paths.cache_profile(), "cache_profile"));
    }
    let scores = reader.score_chart().map_err(ReadError::into_error)?;
    let chart = score_chart(&chart_data(&scores, paths.run_id(), ChartAxis::Rollouts), PictureLayout::FILE);
    write_atomic(&paths.score_chart(), chart.as_bytes())?;
    written.push((paths.score_chart(), "score_chart_svg"));
    let candidates = reader.lineage().map_err(ReadError::into_error)?;
    let tree = lineage(&lineage_data(&candidates, paths.run_id()), PictureLayout::FILE);
    write_atomic(&paths.lineage(), tree.as_bytes())?;
    written.push((paths.lineage(), "lineage_svg"));
    written.push((paths.normalized_events(), "events_normalized_jsonl"));
    written.push((paths.events(), "events_jsonl"));
    written.iter().map(|(path, kind)| reference(path, kind)).collect()
}

fn entry(run: &RunRow, view: &RunView) -> RegistryEntry {
    let usage = view.totals.counts.usage();
    RegistryEntry {
        best_candidate_id: view.totals.best_candidate_id().map(ToString::to_string),
        cost_usd: usage.total.cost_usd,
        usage: Some(json!(usage)),
        ..starting_entry(run)
    }
}

/// Returns the content of `candidate_registry.json`: every candidate with its scores by row.
pub(super) fn registry(view: &RunView) -> Value {
    view.candidates.iter().map(registry_candidate).collect()
}

/// Returns one candidate of the registry, without the sequence numbers and times of its events: equal runs have equal
/// files, however they were executed.
pub(super) fn registry_candidate(candidate: &MeasuredCandidate) -> Value {
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
fn manifest(
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
fn failed(paths: &RunPaths, view: &RunView, error: &OptimizerError) -> Value {
    let best = view.totals.best_candidate_id().map_or(UNAVAILABLE, |best| best.as_str());
    json!({
        "schema_version": FAILURE_SCHEMA,
        "failure": failure(paths, error),
        "best_candidate_id": best,
        "stopped_by": view.totals.stopped_by,
    })
}

/// Adds what every run with a log has: its usage, candidates and files.
fn ended_document(
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
fn early_failure(paths: &RunPaths, error: &OptimizerError) -> (RegistryStatus, Value) {
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

/// Makes the path of a file relative to the run directory, so that the directory can be moved.
fn inside(paths: &RunPaths, file: ArtifactRef) -> ArtifactRef {
    let path = Utf8Path::new(&file.path);
    ArtifactRef { path: path.strip_prefix(paths.dir()).unwrap_or(path).to_string(), ..file }
}

fn reference(path: &Utf8Path, kind: &str) -> Result<ArtifactRef, OptimizerError> {
    let hashed = File::open(path).and_then(|mut file| hash(&mut file));
    let (sha256, bytes) = hashed.map_err(file_error::io(path, "reading"))?;
    let (path, kind, retention) = (path.to_string(), kind.to_owned(), "release_evidence".to_owned());
    Ok(ArtifactRef { path, kind, sha256, bytes, retention })
}

/// Writes indented JSON with a trailing line break.
fn write_json(path: &Utf8Path, value: &impl Serialize) -> Result<(), OptimizerError> {
    // Serialized in memory first, because many small writes to a file are much slower.
    let mut text = serde_json::to_vec_pretty(value).map_err(file_error::json(path.as_str()))?;
    text.push(b'\n');
    write_atomic(path, &text)
}

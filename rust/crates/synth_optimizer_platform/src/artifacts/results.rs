//! What is written when a run is over: the registries of its candidates, chart and feeds, and the manifest last.

use std::fs::File;

use camino::Utf8Path;
use serde::Serialize;
use serde_json::{Value, json};

use super::atomic::write_atomic;
use super::chart::{ChartData, ChartPoint, HeldoutBar, score_chart};
use super::chronicle::Chronicle;
use super::fault;
use super::files::hash;
use super::manifest::{early_failure, manifest};
use super::registry::{RegistryEntry, RegistryStatus, register};
use super::run_dir::RunPaths;
use crate::cache::CacheProfile;
use crate::workspace::models::FrontierEntry;
use crate::workspace::{ArtifactRef, Record, RunRow, Workspace};
use synth_optimizer_core::model::error::OptimizerError;
use synth_optimizer_core::model::event_fields::Direction;
use synth_optimizer_core::model::lifecycle::CandidateStatus;
use synth_optimizer_core::model::run_view::{MeasuredCandidate, RunView};

/// The end of a run, as its manifest tells it.
#[derive(Debug, Clone, PartialEq)]
pub struct RunResult {
    pub status: RegistryStatus,
    pub manifest: Value,
}

/// Writes everything that a run leaves behind, from its chronicle. The run must be over, and its feed complete.
///
/// May be called again, also after a crash in the middle: the files are replaced by equal ones, and the manifest comes
/// last, so that it never names a file that is not there. Without a cache profile, the one that is there stays. Blocks
/// on the disk.
pub fn write_results(
    paths: &RunPaths,
    workspace: &Workspace,
    chronicle: Chronicle,
    cache: Option<&CacheProfile>,
) -> Result<RunResult, OptimizerError> {
    let view = chronicle.end()?;
    let unix_millis = view.totals.updated_at.unwrap_or_default();
    let refs = write_files(paths, &view, cache)?;
    let (status, document) = manifest(paths, &view, &refs)?;
    let files = refs.into_iter().map(|file| Record::Artifact { file: inside(paths, file), unix_millis });
    workspace.record_all(files.collect())?;
    write_json(&paths.manifest(), &document)?;
    let record = Record::Manifest { path: paths.manifest().into(), document: document.clone(), unix_millis };
    workspace.record_all(vec![record])?;
    register(paths, status, &entry(&workspace.run_row()?, &view))?;
    Ok(RunResult { status, manifest: document })
}

/// Writes what is left of a run that failed before it had a log: the manifest of the failure and a line in the registry.
///
/// The manifest of a run that has finished is never replaced.
pub fn write_failure(
    paths: &RunPaths,
    entry: &RegistryEntry,
    error: &OptimizerError,
) -> Result<RunResult, OptimizerError> {
    let (status, document) = early_failure(paths, error);
    if !has_finished(&paths.manifest()) {
        write_json(&paths.manifest(), &document)?;
        register(paths, status, entry)?;
    }
    Ok(RunResult { status, manifest: document })
}

/// What the registry says about a run that begins: its settings, and nothing used yet.
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
    view: &RunView,
    cache: Option<&CacheProfile>,
) -> Result<Vec<ArtifactRef>, OptimizerError> {
    let mut written = Vec::new();
    if let Some(best) = view.best() {
        write_json(&paths.best_candidate(), &registered(best))?;
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
    write_atomic(&paths.score_chart(), score_chart(&chart(view, paths.run_id())).as_bytes())?;
    written.push((paths.score_chart(), "score_chart_svg"));
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

/// `candidate_registry.json`: every candidate with its scores by row.
pub(super) fn registry(view: &RunView) -> Value {
    view.candidates.iter().map(registered).collect()
}

/// One candidate of the registry, without the places and times of its events: equal runs have equal files, however they
/// were carried out.
pub(super) fn registered(candidate: &MeasuredCandidate) -> Value {
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

/// What the score chart shows.
fn chart(view: &RunView, title: &str) -> ChartData {
    let objective = view.objectives.as_ref().map_or("score", |set| set.selection_objective.as_str());
    let declared = view.objectives.iter().flat_map(|set| &set.objectives).find(|known| known.name == objective);
    let point = |known: &MeasuredCandidate| ChartPoint {
        label: known.candidate.candidate_id.to_string(),
        train: known.candidate.train_score,
        accepted: known.candidate.status == CandidateStatus::Accepted,
    };
    let seed = view.candidates.first().map(|seed| ("seed", seed));
    let best = view.best().map(|best| ("best", best));
    let best = best.filter(|(_, best)| seed.is_none_or(|(_, seed)| seed.candidate != best.candidate));
    let bar = |(role, known): (&str, &MeasuredCandidate)| {
        let (label, score) = (known.candidate.candidate_id.to_string(), known.candidate.heldout_score?);
        Some(HeldoutBar { role: role.to_owned(), label, score })
    };
    ChartData {
        title: title.to_owned(),
        objective: objective.to_owned(),
        direction: declared.map_or(Direction::Maximize, |known| known.direction),
        candidates: view.candidates.iter().map(point).collect(),
        heldout: seed.into_iter().chain(best).filter_map(bar).collect(),
    }
}

/// The workspace names files of the run directory by their names alone, so that the directory can be moved.
fn inside(paths: &RunPaths, file: ArtifactRef) -> ArtifactRef {
    let path = Utf8Path::new(&file.path);
    ArtifactRef { path: path.strip_prefix(paths.dir()).unwrap_or(path).to_string(), ..file }
}

fn reference(path: &Utf8Path, kind: &str) -> Result<ArtifactRef, OptimizerError> {
    let hashed = File::open(path).and_then(|mut file| hash(&mut file));
    let (sha256, bytes) = hashed.map_err(fault::io(path, "reading"))?;
    let (path, kind, retention) = (path.to_string(), kind.to_owned(), "release_evidence".to_owned());
    Ok(ArtifactRef { path, kind, sha256, bytes, retention })
}

/// Readable JSON with a line break at its end.
fn write_json(path: &Utf8Path, value: &impl Serialize) -> Result<(), OptimizerError> {
    // Put together in memory: a file takes the many small pieces of a document much more slowly.
    let mut text = serde_json::to_vec_pretty(value).map_err(fault::json(path.as_str()))?;
    text.push(b'\n');
    write_atomic(path, &text)
}

fn has_finished(manifest: &Utf8Path) -> bool {
    let found = std::fs::read(manifest).ok().and_then(|bytes| serde_json::from_slice::<Value>(&bytes).ok());
    found.is_some_and(|document| document["status"] == RegistryStatus::Finished.word())
}

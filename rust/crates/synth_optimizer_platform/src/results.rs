//! Writes the results of a run that has ended: the candidate registry, frontier, pictures, feeds and report, and last the
//! manifest, which holds the result of the run or the reason why there is none.

use std::fs::File;

use camino::Utf8Path;
use serde::Serialize;
use serde_json::{Value, json};

use crate::artifacts::pictures::{ChartAxis, PictureLayout, lineage, score_chart};
use crate::artifacts::{
    FeedWriter, RegistryEntry, RegistryStatus, RunPaths, chart_data, early_failure, ended_document, failed, hash,
    lineage_data, manifest, read_manifest, register, registry, registry_candidate,
};
use crate::atomic_file::write_atomic;
use crate::cache::CacheProfile;
use crate::file_error;
use crate::views::write_report;
use crate::warn_if_err;
use crate::workspace::models::{FrontierEntry, ReadError};
use crate::workspace::{ArtifactRef, Reader, Record, RunRow, Workspace};
use synth_optimizer_core::model::error::OptimizerError;
use synth_optimizer_core::model::run_view::RunView;

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

/// Writes the failure manifest, the registry line and the report of a run that is interrupted by an error and can be resumed.
pub fn write_interruption(
    paths: &RunPaths,
    reader: &Reader,
    view: &RunView,
    error: &OptimizerError,
) -> Result<(), OptimizerError> {
    let run = reader.run_row()?;
    let document = ended_document(paths, view, &[], RegistryStatus::Interrupted, failed(paths, view, error));
    write_json(&paths.manifest(), &document)?;
    register(paths, RegistryStatus::Interrupted, &entry(&run, view))?;
    warn_if_err!(write_report(paths, Some(reader), &document), "the report of the interrupted run was not written");
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

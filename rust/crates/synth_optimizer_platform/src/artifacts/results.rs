//! What is written when a run is over: the registries of its candidates, chart and feeds, and the manifest last.

use std::fs::File;
use std::io::Read;

use camino::Utf8Path;
use serde::Serialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::atomic::write_atomic;
use super::chart::score_chart;
use super::chronicle::Told;
use super::fault;
use super::manifest::{ArtifactRef, counted, early_failure, manifest, usage};
use super::registry::{RegistryEntry, RegistryStatus, register};
use super::run_dir::RunPaths;
use super::summary::RunSummary;
use crate::cache::CacheProfile;
use crate::model::canonical::hex;
use crate::model::error::OptimizerError;
use crate::workspace::{Artifact, Manifest, Record, RunRow, Workspace};

/// The end of a run, as its manifest tells it.
#[derive(Debug, Clone, PartialEq)]
pub struct RunResult {
    pub status: RegistryStatus,
    pub manifest: Value,
}

/// Writes everything that a run leaves behind, from what its log told. The run must be over, and its feed complete.
///
/// May be called again, also after a crash in the middle: the files are replaced by equal ones, and the manifest comes
/// last, so that it never names a file that is not there. Without a cache profile, the one that is there stays. Blocks
/// on the disk.
pub fn write_results(
    paths: &RunPaths,
    workspace: &Workspace,
    told: Told,
    cache: Option<&CacheProfile>,
) -> Result<RunResult, OptimizerError> {
    let Told { summary, normalized } = told;
    normalized.commit()?;
    let refs = write_files(paths, &summary, cache)?;
    let (status, document) = manifest(paths, &summary, &refs)?;
    let files = refs.iter().map(|known| Record::Artifact(artifact(paths, known, summary.unix_millis)));
    workspace.record_all(files.collect())?;
    write_json(&paths.manifest(), &document)?;
    workspace.record_blocking(Record::Manifest(Manifest {
        path: paths.manifest().into(),
        document: document.clone(),
        unix_millis: summary.unix_millis,
    }))?;
    register(paths, status, &entry(&workspace.run_row()?, &summary))?;
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
    summary: &RunSummary,
    cache: Option<&CacheProfile>,
) -> Result<Vec<ArtifactRef>, OptimizerError> {
    let best = summary.best_candidate_id().and_then(|best| summary.candidate(best));
    let mut written = Vec::new();
    if let Some(best) = best {
        write_json(&paths.best_candidate(), best)?;
        written.push((paths.best_candidate(), "best_candidate"));
    }
    write_json(&paths.candidate_registry(), &summary.candidates)?;
    written.push((paths.candidate_registry(), "candidate_registry"));
    write_json(&paths.frontier(), &frontier(summary))?;
    written.push((paths.frontier(), "frontier"));
    if let Some(cache) = cache {
        write_json(&paths.cache_profile(), cache)?;
    }
    if paths.cache_profile().exists() {
        written.push((paths.cache_profile(), "cache_profile"));
    }
    write_atomic(&paths.score_chart(), score_chart(&summary.chart(paths.run_id())).as_bytes())?;
    written.push((paths.score_chart(), "score_chart_svg"));
    written.push((paths.normalized_events(), "events_normalized_jsonl"));
    written.push((paths.events(), "events_jsonl"));
    written.iter().map(|(path, kind)| reference(path, kind)).collect()
}

/// `frontier.json`, by id.
fn frontier(summary: &RunSummary) -> Value {
    let members = summary.frontier.iter().filter_map(|id| summary.candidate(id));
    let member = members.map(|candidate| {
        json!({
            "candidate_id": candidate.candidate_id,
            "parent_id": candidate.parent_id,
            "source": candidate.source,
            "train_reward": candidate.train_reward,
            "heldout_reward": candidate.heldout_reward,
            "train_score": candidate.train_score,
            "heldout_score": candidate.heldout_score,
        })
    });
    member.collect()
}

fn entry(run: &RunRow, summary: &RunSummary) -> RegistryEntry {
    let mut entry = starting_entry(run);
    entry.best_candidate_id = summary.best_candidate_id().map(|best| best.to_string());
    if let Some((_, bill)) = counted(summary) {
        entry.cost_usd = bill.cost_usd;
        entry.usage = Some(usage(summary, bill));
    }
    entry
}

/// The workspace names files of the run directory by their names alone, so that the directory can be moved.
fn artifact(paths: &RunPaths, known: &ArtifactRef, unix_millis: u64) -> Artifact {
    let path = Utf8Path::new(&known.path);
    Artifact {
        path: path.strip_prefix(paths.dir()).unwrap_or(path).to_string(),
        kind: known.kind.clone(),
        sha256: known.sha256.clone(),
        bytes: known.bytes,
        retention: known.retention.clone(),
        unix_millis,
    }
}

fn reference(path: &Utf8Path, kind: &str) -> Result<ArtifactRef, OptimizerError> {
    let failed = |error: std::io::Error| fault::io(path, "reading", &error);
    let mut file = File::open(path).map_err(failed)?;
    let (mut hash, mut bytes, mut buffer) = (Sha256::new(), 0_u64, vec![0; 1 << 16]);
    loop {
        let read = file.read(&mut buffer).map_err(failed)?;
        if read == 0 {
            break;
        }
        hash.update(&buffer[..read]);
        bytes += read as u64;
    }
    Ok(ArtifactRef {
        path: path.to_string(),
        kind: kind.to_owned(),
        sha256: hex(&hash.finalize()),
        bytes,
        retention: "release_evidence".to_owned(),
    })
}

/// Readable JSON with a line break at its end.
fn write_json(path: &Utf8Path, value: &impl Serialize) -> Result<(), OptimizerError> {
    // Put together in memory: a file takes the many small pieces of a document much more slowly.
    let mut text = serde_json::to_vec_pretty(value).map_err(|error| fault::json(path.as_str(), &error))?;
    text.push(b'\n');
    write_atomic(path, &text)
}

fn has_finished(manifest: &Utf8Path) -> bool {
    let found = std::fs::read(manifest).ok().and_then(|bytes| serde_json::from_slice::<Value>(&bytes).ok());
    found.is_some_and(|document| document["status"] == RegistryStatus::Finished.word())
}

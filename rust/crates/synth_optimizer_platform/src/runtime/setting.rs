//! What is written down when a process takes a run up: what the run is, who works on it, and what the container told.

use super::request::Request;
use super::setup::SetupAccess;
use crate::artifacts::RunDir;
use crate::cache::CacheSettings;
use crate::clock::unix_millis;
use crate::container::Task;
use crate::workspace::{Record, RunRow, SnapshotKind, Workspace};
use synth_optimizer_core::config::{search_digest, shown};
use synth_optimizer_core::model::error::OptimizerError;
use synth_optimizer_core::model::event_fields::RunStarted;
use synth_optimizer_core::secrets::scrub;

/// What the workspace keeps of the run itself.
pub(super) fn row(request: &Request, dir: &RunDir) -> RunRow {
    let config = &request.config;
    let cache = CacheSettings::of(&config.cache, dir.dir(), dir.run_id());
    RunRow {
        run_id: dir.run_id().to_owned(),
        algorithm: request.algorithm.clone(),
        config: shown(config),
        config_digest: search_digest(config),
        container_url: scrub(&config.container.url),
        cache_mode: config.cache.mode.word().to_owned(),
        cache_namespace: cache.namespace,
        cache_path: Some(cache.path.into()),
        output_dir: config.run.output_dir.to_string(),
        run_dir: dir.dir().to_string(),
        created_at: unix_millis(),
    }
}

pub(super) fn run_started(request: &Request) -> RunStarted {
    RunStarted {
        algorithm: request.algorithm.clone(),
        config_digest: search_digest(&request.config),
        seed: request.config.run.seed,
        container_url: scrub(&request.config.container.url),
    }
}

/// Writes down who runs this, and what the container told.
pub(super) fn record_start(
    workspace: &Workspace,
    task: &Task,
    accesses: Vec<SetupAccess>,
    how: &str,
) -> Result<(), OptimizerError> {
    let now = unix_millis();
    let rows = |heldout: bool| {
        let rows = if heldout { &task.inputs.heldout } else { &task.inputs.train };
        rows.iter().filter_map(|row| task.rows.get(&row.id)).map(|row| row.value.clone()).collect()
    };
    let mut documents = vec![
        (SnapshotKind::Contract, task.metadata.clone()),
        (SnapshotKind::Program, task.program.clone()),
        (SnapshotKind::Dataset, task.dataset.clone()),
        (SnapshotKind::TrainRows, rows(false)),
        (SnapshotKind::HeldoutRows, rows(true)),
    ];
    documents.extend(task.task_info.clone().ok().map(|info| (SnapshotKind::TaskInfo, info)));
    let snapshots = documents.into_iter().map(|(kind, document)| Record::Snapshot { kind, unix_millis: now, document });
    let calls = accesses.into_iter().map(|access| Record::SetupCall {
        boundary: access.boundary.to_owned(),
        unix_millis: now,
        cache: Some(access.cache),
    });
    let operation = Record::Operation { operation_type: how.to_owned(), subject: subject(), unix_millis: now };
    workspace.record_all(snapshots.chain(calls).chain([operation]).collect())
}

/// Takes the run in the name of this process. Who held it before can write nothing from here on.
pub(super) fn hold(workspace: &Workspace) -> Result<(), OptimizerError> {
    workspace.hold(subject())
}

fn subject() -> String {
    format!("pid {}", std::process::id())
}

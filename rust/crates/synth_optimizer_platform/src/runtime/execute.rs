//! A whole run: open or resume it, load the task, drive the loop, and leave its results behind.

use std::sync::Arc;
use std::time::Duration;

use camino::Utf8PathBuf;
use tokio::sync::oneshot;

use super::calls::Calls;
use super::control::{Controlled, Signal};
use super::driver::{Driver, End, Ground};
use super::hooks::{Boundary, Hooks};
use super::outcome::{Outcome, RunStatus};
use super::prepare::{Prepared, prepare};
use super::resume::{Begun, begin, check_same_search, resume};
use super::setup::SetupAccess;
use crate::artifacts::{
    Chronicle, RegistryStatus, RunDir, Told, register, starting_entry, write_failure, write_results,
};
use crate::cache::{CacheProfile, CacheSettings};
use crate::clock::unix_millis;
use crate::config::{Config, scrub, search_digest, shown};
use crate::container::{Task, Transport};
use crate::model::engine::Engine;
use crate::model::error::{ErrorCode, OptimizerError};
use crate::model::event::Event;
use crate::model::event_fields::RunStarted;
use crate::model::lifecycle::RunState;
use crate::model::program::Inputs;
use crate::proposer::{Proposer, configured};
use crate::workspace::{
    Lease, LeaseId, Operation, OperationStatus, Record, RunRow, SetupCall, Snapshot, SnapshotKind, Workspace,
};

/// What to run.
#[derive(Debug)]
pub struct Request {
    pub config: Config,
    /// Name of the algorithm; a run is resumed by the one that began it.
    pub algorithm: String,
    /// None: the one that the config names.
    pub proposer: Option<Arc<dyn Proposer>>,
    /// The codex binary that is installed with the package.
    pub codex_runtime: Option<Utf8PathBuf>,
    pub hooks: Hooks,
}

/// Runs or resumes. `engine` builds the algorithm from the loaded task.
///
/// A run that is over already gives the same outcome again. An error means that the run could not be begun or that its
/// storage failed; whatever was stored can be resumed.
pub async fn execute<E, F>(request: Request, engine: F, controlled: Controlled) -> Result<Outcome, OptimizerError>
where
    E: Engine + Sync,
    E::State: Send,
    F: FnOnce(&Config, Inputs) -> Result<E, OptimizerError>,
{
    let run_id = match &request.config.run.run_id {
        Some(run_id) => run_id.clone(),
        None => new_run_id()?,
    };
    let dir = RunDir::open(&request.config.run.output_dir, &run_id)?;
    let existing = open_existing(&request, &dir)?;
    if let Some(workspace) = existing {
        if workspace.totals()?.is_over() {
            // A process that ended between the last commit and the feed has left it short.
            let told = chronicle(&dir, &workspace)?.end();
            let lease = hold(&workspace)?;
            return finish(&request, &dir, Ended { workspace, lease, told }, None, None);
        }
        return carry_out(&request, &dir, Some(workspace), engine, controlled).await;
    }
    let result = carry_out(&request, &dir, None, engine, controlled).await;
    if let Err(error) = &result
        && !dir.workspace_db().exists()
    {
        write_failure(&dir, &starting_entry(&row(&request, &dir)), error)?;
    }
    result
}

/// Everything between the opening of the run directory and the results.
async fn carry_out<E, F>(
    request: &Request,
    dir: &RunDir,
    existing: Option<Workspace>,
    engine: F,
    mut controlled: Controlled,
) -> Result<Outcome, OptimizerError>
where
    E: Engine + Sync,
    E::State: Send,
    F: FnOnce(&Config, Inputs) -> Result<E, OptimizerError>,
{
    let proposer = match &request.proposer {
        Some(proposer) => Arc::clone(proposer),
        None => configured(&request.config, dir.dir(), request.codex_runtime.as_deref())?,
    };
    let prepared = tokio::select! {
        biased;
    Some(signal) = controlled.signals.recv() => Err(before_it_began(&signal)),
    prepared = prepare(&request.config, dir, &proposer, existing.is_none()) => prepared,
    };
    let (mut process, prepared) = match prepared {
        Ok(prepared) => prepared,
        Err(error) => {
            proposer.close().await;
            return Err(error);
        }
    };
    let (gone, broken) = oneshot::channel();
    let mut gone = Some(gone);
    let interval = Duration::from_millis(request.config.container.health_interval_ms);
    let watched = Watched { is_managed: process.is_some(), broken };
    let result = {
        let run = run(request, dir, existing, prepared, engine, controlled, watched);
        tokio::pin!(run);
        loop {
            let ended = async {
                match &mut process {
                    Some(process) => process.ended(interval).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                result = &mut run => break result,
                error = ended, if gone.is_some() => {
                    // The run is told once; it may be over already.
                    drop(gone.take().map(|gone| gone.send(error)));
                }
            }
        }
    };
    // Proposer and container are ours to end, however the run ended.
    proposer.close().await;
    let stopped = match process {
        Some(process) => process.stop().await,
        None => Ok(()),
    };
    let outcome = result?;
    stopped?;
    Ok(outcome)
}

/// The container as the run sees it.
struct Watched {
    is_managed: bool,
    broken: oneshot::Receiver<OptimizerError>,
}

fn before_it_began(signal: &Signal) -> OptimizerError {
    let reason = signal.reason();
    OptimizerError::new(ErrorCode::Cancelled, format!("the run was told to end before it began: {reason}"))
        .with_hint("Nothing was paid for. The same command begins it.")
}

/// A name for a run that has none.
pub fn new_run_id() -> Result<String, OptimizerError> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)
        .map_err(|error| OptimizerError::new(ErrorCode::Io, format!("no randomness for a run id: {error}")))?;
    Ok(format!("gepa_{}", crate::model::canonical::hex(&bytes)))
}

/// The workspace of a run that has begun, if it is the same run.
fn open_existing(request: &Request, dir: &RunDir) -> Result<Option<Workspace>, OptimizerError> {
    if !dir.workspace_db().exists() {
        return Ok(None);
    }
    let workspace = Workspace::open(dir.workspace_db().as_std_path(), request.config.run.durability)?;
    check_same_search(&workspace.run_row()?, &request.config, &request.algorithm)?;
    Ok(Some(workspace))
}

async fn run<E, F>(
    request: &Request,
    dir: &RunDir,
    existing: Option<Workspace>,
    prepared: Prepared,
    engine: F,
    controlled: Controlled,
    watched: Watched,
) -> Result<Outcome, OptimizerError>
where
    E: Engine + Sync,
    E::State: Send,
    F: FnOnce(&Config, Inputs) -> Result<E, OptimizerError>,
{
    let config = &request.config;
    let Prepared { task, cache, client, disk, accesses, proposer, ready } = prepared;
    let engine = engine(config, task.inputs.clone())?;
    let workspace = match existing {
        Some(workspace) => workspace,
        None => Workspace::create(dir.workspace_db().as_std_path(), &row(request, dir), config.run.durability)?,
    };
    let begun = match workspace.last_sequence()? {
        None => begin(&engine, run_started(request), &task)?,
        Some(_) => resume(&engine, &workspace, &task.inputs)?,
    };
    let Begun { session, mut events, next_sequence, elapsed_before, unanswered, waiting } = begun;
    let lease = hold(&workspace)?;
    record_start(&workspace, &task, accesses, if next_sequence == 0 { "start" } else { "resume" })?;
    register(dir, RegistryStatus::Started, &starting_entry(&workspace.run_row()?))?;
    dir.mark_latest();
    let chronicle = chronicle(dir, &workspace)?;
    let transport = client.map(|client| Transport::new(client, &task.contract, config));
    events.extend(transport.as_ref().and_then(Transport::fallback_at_start).map(Event::TransportFallback));
    events.extend(ready.map(Event::ProposerReady));
    let calls = Calls::new(config, dir.run_id(), task, cache, transport, proposer);
    let ground = Ground {
        engine: &engine,
        session,
        calls: Arc::new(calls),
        workspace,
        chronicle,
        hooks: request.hooks.clone(),
        next_sequence,
        elapsed_before,
        unanswered,
        waiting,
        disk,
        is_managed: watched.is_managed,
        broken: watched.broken,
    };
    let (ground, end) = Driver::new(config, ground, controlled).run(events).await;
    let Ground { calls, workspace, chronicle, .. } = ground;
    let flushed = calls.cache.flush().await;
    match end? {
        End::Over(error) => {
            let ended = Ended { workspace, lease, told: chronicle.end() };
            let outcome = finish(request, dir, ended, Some(&calls.cache.profile()), error)?;
            flushed?;
            Ok(outcome)
        }
        End::Interrupted => {
            let outcome = outcome(dir, &workspace, RunStatus::Interrupted, None)?;
            let_go(workspace, lease)?;
            flushed?;
            Ok(outcome)
        }
        End::Stuck(error) => {
            write_failure(dir, &starting_entry(&workspace.run_row()?), &error)?;
            let_go(workspace, lease)?;
            Err(error)
        }
    }
}

/// What the workspace keeps of the run itself.
fn row(request: &Request, dir: &RunDir) -> RunRow {
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

fn run_started(request: &Request) -> RunStarted {
    RunStarted {
        algorithm: request.algorithm.clone(),
        config_digest: search_digest(&request.config),
        seed: request.config.run.seed,
        container_url: scrub(&request.config.container.url),
    }
}

/// Writes down who runs this, and what the container told.
fn record_start(
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
    let snapshots =
        documents.into_iter().map(|(kind, document)| Record::Snapshot(Snapshot { kind, unix_millis: now, document }));
    let calls = accesses.into_iter().map(|access| {
        Record::SetupCall(SetupCall {
            boundary: access.boundary.to_owned(),
            unix_millis: now,
            cache: Some(access.cache),
        })
    });
    let operation = Record::Operation(Operation {
        operation_type: how.to_owned(),
        subject: subject(),
        status: OperationStatus::Completed,
        unix_millis: now,
        detail: serde_json::Value::Null,
    });
    workspace.record_all(snapshots.chain(calls).chain([operation]).collect()).map(|_| ())
}

/// Takes the run directory in the name of this process.
fn hold(workspace: &Workspace) -> Result<LeaseId, OptimizerError> {
    workspace.lease(Lease {
        resource_kind: "run_directory".into(),
        resource_id: "run.lock".into(),
        subject: subject(),
        unix_millis: unix_millis(),
    })
}

fn let_go(workspace: Workspace, lease: LeaseId) -> Result<(), OptimizerError> {
    workspace.record_blocking(Record::Release { lease, unix_millis: unix_millis() })?;
    workspace.close()
}

fn subject() -> String {
    format!("pid {}", std::process::id())
}

/// A run that is over, with what its log told.
struct Ended {
    workspace: Workspace,
    lease: LeaseId,
    told: Told,
}

/// Writes the results of a run that is over; a second time changes nothing.
fn finish(
    request: &Request,
    dir: &RunDir,
    ended: Ended,
    cache: Option<&CacheProfile>,
    error: Option<OptimizerError>,
) -> Result<Outcome, OptimizerError> {
    let Ended { workspace, lease, told } = ended;
    let error = match error {
        Some(error) => Some(error),
        None => failure(&workspace)?,
    };
    request.hooks.at(Boundary::BeforeResults);
    write_results(dir, &workspace, told, cache)?;
    request.hooks.at(Boundary::AfterResults);
    let status = match workspace.totals()?.state {
        RunState::Completed => RunStatus::Completed,
        RunState::Cancelled => RunStatus::Cancelled,
        _ => RunStatus::Failed,
    };
    let outcome = outcome(dir, &workspace, status, error)?;
    let_go(workspace, lease)?;
    Ok(outcome)
}

fn chronicle(dir: &RunDir, workspace: &Workspace) -> Result<Chronicle, OptimizerError> {
    Chronicle::open(dir.paths(), |each| workspace.log(0, each))
}

/// What the log says that the run failed of, or was cancelled for.
fn failure(workspace: &Workspace) -> Result<Option<OptimizerError>, OptimizerError> {
    let Some(last) = workspace.last_sequence()? else { return Ok(None) };
    Ok(workspace.events(last, 1)?.pop().and_then(|stored| match stored.event {
        Event::RunFailed(failed) => Some(OptimizerError::new(failed.error_code, failed.message)),
        Event::RunCancelled(ended) => {
            let message = format!("the run was cancelled: {}", ended.reason);
            Some(OptimizerError::new(ErrorCode::Cancelled, message))
        }
        _ => None,
    }))
}

fn outcome(
    dir: &RunDir,
    workspace: &Workspace,
    status: RunStatus,
    error: Option<OptimizerError>,
) -> Result<Outcome, OptimizerError> {
    Ok(Outcome {
        run_id: dir.run_id().to_owned(),
        status,
        run_dir: dir.dir().to_owned(),
        totals: workspace.totals()?,
        error,
        transactions: workspace.transactions(),
    })
}

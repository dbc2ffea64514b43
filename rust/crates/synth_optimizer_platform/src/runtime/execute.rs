//! A whole run: open or resume it, load the task, drive the loop, and leave its results behind.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::oneshot;
use tracing::{Instrument, info};

use super::calls::Calls;
use super::control::Controlled;
use super::driver::{Driver, Ground};
use super::fence::Fence;
use super::finalize::{Outcome, chronicle, close, finish, stored_end};
use super::prepare::{Prepared, prepare, recall};
use super::request::Request;
use super::resume::{Begun, begin, check_same_search, resume};
use super::setting::{hold, record_start, row, run_started};
use crate::artifacts::{RegistryStatus, RunDir, register, starting_entry, write_failure};
use crate::container::Transport;
use crate::proposer::configured;
use crate::workspace::{Workspace, is_fenced};
use synth_optimizer_core::config::Config;
use synth_optimizer_core::model::control::{ControlAction, ControlRequest, RunEnd};
use synth_optimizer_core::model::engine::Engine;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::event::Event;
use synth_optimizer_core::model::program::Inputs;

/// Runs or resumes. `engine` builds the algorithm from the loaded task.
///
/// A run that is over already gives the same outcome again. An error means that the run could not be begun or that its
/// storage failed; whatever was stored can be resumed. One for which `is_fenced` is true means that the run is not this
/// process's any more: nothing was written and nobody was called since.
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
    let (span, began) = (tracing::error_span!("run", run_id), Instant::now());
    async {
        let result = execute_named(&run_id, request, engine, controlled).await;
        let duration_ms = began.elapsed().as_millis() as u64;
        match &result {
            Ok(outcome) => info!(duration_ms, status = outcome.end.word(), "run ended"),
            Err(error) => info!(duration_ms, %error, "run could not go on"),
        }
        result
    }
    .instrument(span)
    .await
}

async fn execute_named<E, F>(
    run_id: &str,
    request: Request,
    engine: F,
    controlled: Controlled,
) -> Result<Outcome, OptimizerError>
where
    E: Engine + Sync,
    E::State: Send,
    F: FnOnce(&Config, Inputs) -> Result<E, OptimizerError>,
{
    let dir = RunDir::take_over(&request.config.run.output_dir, run_id, request.takeover.as_deref())?;
    let fence = Fence::new(dir.mark().clone(), request.lease.clone());
    let existing = open_existing(&request, &dir, &fence)?;
    if let Some(workspace) = existing {
        if workspace.totals()?.is_over() {
            // A process that ended between the last commit and the feed has left it short.
            let (chronicle, end) = (chronicle(&dir, &workspace)?, stored_end(&workspace)?);
            return finish(&request, &dir, &fence, (workspace, chronicle), None, end);
        }
        return prepare_and_drive(&request, &dir, &fence, Some(workspace), engine, controlled).await;
    }
    let result = prepare_and_drive(&request, &dir, &fence, None, engine, controlled).await;
    if let Err(error) = &result
        && !dir.workspace_db().exists()
        && fence.check().is_ok()
    {
        write_failure(&dir, &starting_entry(&row(&request, &dir)), error)?;
    }
    result
}

/// Everything between the opening of the run directory and the results.
async fn prepare_and_drive<E, F>(
    request: &Request,
    dir: &RunDir,
    fence: &Fence,
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
    let prepared = {
        let has_begun = existing.is_some();
        let preparing = prepare(request, dir, fence, &proposer, !has_begun);
        tokio::pin!(preparing);
        loop {
            tokio::select! {
                biased;
                Some(asked) = controlled.requests.recv() => match asked.action {
                    ControlAction::Step | ControlAction::Resume => controlled.early.push(asked),
                    // What was measured before is worth its held-out evaluation.
                    ControlAction::Stop if has_begun => controlled.early.push(asked),
                    _ => break Err(asked),
                },
                prepared = &mut preparing => break Ok(prepared),
            }
        }
    };
    let prepared = match (prepared, &existing) {
        (Ok(prepared), _) => prepared,
        // It can be ended as it is, without anybody else.
        (Err(asked), Some(stored)) if asked.action == ControlAction::Cancel => {
            controlled.early.push(asked);
            recall(request, dir, fence, stored, &proposer).await.map(|recalled| (None, recalled))
        }
        (Err(asked), _) => Err(before_it_began(&asked)),
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
    let watched = Watched { fence: fence.clone(), is_managed: process.is_some(), broken };
    let result = {
        let run = drive(request, dir, existing, prepared, engine, controlled, watched);
        tokio::pin!(run);
        loop {
            let ended = async {
                match &mut process {
                    Some(process) => process.ended().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                result = &mut run => break result,
                error = ended, if gone.is_some() => {
                    // The run is told once; it may be over already.
                    tracing::warn!(%error, "the container ended by itself");
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

/// What may end the run from outside: another process that takes it over, and the container.
struct Watched {
    fence: Fence,
    is_managed: bool,
    broken: oneshot::Receiver<OptimizerError>,
}

fn before_it_began(asked: &ControlRequest) -> OptimizerError {
    let reason = asked.reason();
    OptimizerError::new(ErrorCode::Cancelled, format!("the run was told to end before it began: {reason}"))
        .with_hint("Nothing was paid for. The same command begins it.")
}

/// A name for a run that has none.
pub fn new_run_id() -> Result<String, OptimizerError> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)
        .map_err(|error| OptimizerError::from_cause(ErrorCode::Io, "no randomness for a run id", error))?;
    Ok(format!("gepa_{}", synth_optimizer_core::model::canonical::hex(&bytes)))
}

/// The workspace of a run that has begun, if it is the same run. It is held from here on, so that nothing is read that
/// somebody else may still change.
fn open_existing(request: &Request, dir: &RunDir, fence: &Fence) -> Result<Option<Workspace>, OptimizerError> {
    if !dir.workspace_db().exists() {
        return Ok(None);
    }
    let workspace = Workspace::open(dir.workspace_db().as_std_path(), request.config.run.durability)?;
    fence.check()?;
    hold(&workspace)?;
    check_same_search(&workspace.run_row()?, &request.config, &request.algorithm)?;
    Ok(Some(workspace))
}

/// Opens the log, builds the engine and drives the loop to its end.
async fn drive<E, F>(
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
        None => {
            watched.fence.check()?;
            let place = dir.workspace_db();
            let new = Workspace::create(place.as_std_path(), &row(request, dir), config.run.durability)?;
            hold(&new)?;
            new
        }
    };
    let state = match workspace.last_sequence()? {
        None => None,
        Some(_) => Some(workspace.totals()?.state),
    };
    let begun = match workspace.last_sequence()? {
        None => begin(&engine, run_started(request), &task)?,
        Some(_) => resume(&engine, &workspace, &task.inputs)?,
    };
    let Begun { session, mut events, next_sequence, elapsed_before, unanswered, waiting } = begun;
    let (resumed, unknown) = (next_sequence > 0, unanswered.len());
    info!(events = next_sequence, unknown, "{}", if resumed { "run resumed" } else { "run started" });
    record_start(&workspace, &task, accesses, if next_sequence == 0 { "start" } else { "resume" })?;
    register(dir, RegistryStatus::Started, &starting_entry(&workspace.run_row()?))?;
    dir.mark_latest();
    let chronicle = chronicle(dir, &workspace)?;
    let transport = client.map(|client| Transport::new(client, &task.contract, config));
    events.extend(transport.as_ref().and_then(Transport::fallback_at_start).map(Event::TransportFallback));
    events.extend(ready.map(Event::ProposerReady));
    let Watched { fence, is_managed, broken } = watched;
    let calls = Calls::new(config, dir.run_id(), task, cache, transport, proposer, fence.clone());
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
        is_managed,
        broken,
        is_held: request.stepping,
        state,
        fence,
    };
    let (ground, end) = Driver::new(config, ground, controlled).run(events).await;
    let Ground { calls, workspace, chronicle, fence, .. } = ground;
    let flushed = match &end {
        Err(error) if is_fenced(error) => Ok(()),
        Ok(_) | Err(_) => calls.cache.flush().await,
    };
    match end? {
        RunEnd::Failed(error) if !workspace.totals()?.is_over() => {
            fence.check()?;
            write_failure(dir, &starting_entry(&workspace.run_row()?), &error)?;
            workspace.close()?;
            Err(error)
        }
        RunEnd::Interrupted => {
            let outcome = close(dir, workspace, RunEnd::Interrupted)?;
            flushed?;
            Ok(outcome)
        }
        end => {
            let outcome = finish(request, dir, &fence, (workspace, chronicle), Some(&calls.cache.profile()), end)?;
            flushed?;
            Ok(outcome)
        }
    }
}

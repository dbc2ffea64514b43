//! A whole run: open or resume it, load the task, drive the loop, and leave its results behind.

use std::time::Instant;

use camino::Utf8PathBuf;
use tokio::sync::oneshot;
use tracing::{Instrument, info};

use super::control::Controlled;
use super::driver::Driver;
use super::fence::Fence;
use super::prepare::{Prepared, prepare, recall};
use super::request::{Boundary, Request};
use super::start::{check_same_search, hold, row};
use crate::artifacts::{Chronicle, RunDir, starting_entry, write_failure, write_results};
use crate::cache::CacheProfile;
use crate::workspace::{Workspace, is_fenced};
use synth_optimizer_core::engine::Engine;
use synth_optimizer_core::model::canonical::hex;
use synth_optimizer_core::model::control::{ControlAction, ControlRequest, RunEnd};
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::run_totals::RunTotals;

/// A run on which this process does not work any more.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    pub run_id: String,
    pub end: RunEnd,
    pub run_dir: Utf8PathBuf,
    pub totals: RunTotals,
    /// Transactions of the workspace in this process.
    pub transactions: u64,
}

/// Runs or resumes with this engine.
///
/// A run that is over already gives the same outcome again. An error means that the run could not be begun or that its
/// storage failed; whatever was stored can be resumed. One for which `is_fenced` is true means that the run is not this
/// process's any more: nothing was written and nobody was called since.
pub async fn execute<E: Engine>(request: Request, controlled: Controlled) -> Result<Outcome, OptimizerError> {
    let run_id = match &request.config.run.run_id {
        Some(run_id) => run_id.clone(),
        None => new_run_id::<E>()?,
    };
    let (span, began) = (tracing::error_span!("run", run_id), Instant::now());
    async {
        let result = execute_named::<E>(&run_id, &request, controlled).await;
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

async fn execute_named<E: Engine>(
    run_id: &str,
    request: &Request,
    controlled: Controlled,
) -> Result<Outcome, OptimizerError> {
    let dir = &RunDir::take_over(&request.config.run.output_dir, run_id, request.takeover.as_deref())?;
    let fence = &Fence::new(dir.mark().clone(), request.lease.clone());
    let run = Run { request, dir, fence };
    let existing = run.open_existing::<E>()?;
    if let Some(workspace) = existing {
        if workspace.totals()?.is_over() {
            // A process that ended between the last commit and the feed has left it short.
            let (chronicle, end) = (open_chronicle(dir, &workspace)?, stored_end(&workspace)?);
            return run.finish(workspace, chronicle, None, end);
        }
        return run.prepare_and_drive::<E>(Some(workspace), controlled).await;
    }
    let result = run.prepare_and_drive::<E>(None, controlled).await;
    if let Err(error) = &result
        && !dir.workspace_db().exists()
        && fence.check().is_ok()
    {
        write_failure(dir, &starting_entry(&row::<E>(&run)), error)?;
    }
    result
}

/// A name for a run that has none, which begins with the name of its engine.
pub fn new_run_id<E: Engine>() -> Result<String, OptimizerError> {
    Ok(format!("{}_{}", E::NAME, random_name::<16>("a run id")?))
}

/// So many random bytes in hexadecimal.
pub(super) fn random_name<const BYTES: usize>(what: &str) -> Result<String, OptimizerError> {
    let mut bytes = [0; BYTES];
    getrandom::fill(&mut bytes)
        .map_err(|error| OptimizerError::from_cause(ErrorCode::Io, format!("no randomness for {what}"), error))?;
    Ok(hex(&bytes))
}

/// A run that this process holds.
pub(super) struct Run<'r> {
    pub(super) request: &'r Request,
    pub(super) dir: &'r RunDir,
    pub(super) fence: &'r Fence,
}

impl Run<'_> {
    /// The workspace of a run that has begun, if it is the same run. It is held from here on, so that nothing is read that
    /// somebody else may still change.
    fn open_existing<E: Engine>(&self) -> Result<Option<Workspace>, OptimizerError> {
        let (path, config) = (self.dir.workspace_db(), &self.request.config);
        if !path.exists() {
            return Ok(None);
        }
        let workspace = Workspace::open(path.as_std_path(), config.run.durability)?;
        self.fence.check()?;
        hold(&workspace)?;
        check_same_search::<E>(&workspace.run_row()?, config)?;
        Ok(Some(workspace))
    }

    /// Everything between the opening of the run directory and the results.
    async fn prepare_and_drive<E: Engine>(
        &self,
        existing: Option<Workspace>,
        mut controlled: Controlled,
    ) -> Result<Outcome, OptimizerError> {
        let proposer = self.request.proposer_in(self.dir.dir())?;
        let prepared = {
            let has_begun = existing.is_some();
            let preparing = prepare(self, &proposer, !has_begun);
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
                recall(self, stored, &proposer).await.map(|recalled| (None, recalled))
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
        let (gone, container_end) = oneshot::channel();
        let mut gone = Some(gone);
        let container_end = process.is_some().then_some(container_end);
        let result = {
            let run = self.drive::<E>(existing, prepared, controlled, container_end);
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

    /// Opens the log, builds the engine and drives the loop to its end.
    async fn drive<E: Engine>(
        &self,
        existing: Option<Workspace>,
        prepared: Prepared,
        controlled: Controlled,
        container_end: Option<oneshot::Receiver<OptimizerError>>,
    ) -> Result<Outcome, OptimizerError> {
        let config = &self.request.config;
        let engine = E::new(config, prepared.task.inputs.clone())?;
        let workspace = match existing {
            Some(workspace) => workspace,
            None => {
                self.fence.check()?;
                let path = self.dir.workspace_db();
                let new = Workspace::create(path.as_std_path(), &row::<E>(self), config.run.durability)?;
                hold(&new)?;
                new
            }
        };
        let (driver, events) = Driver::open(&engine, self, workspace, prepared, controlled, container_end)?;
        let (driver, end) = driver.run(events).await;
        let Driver { calls, workspace, chronicle, .. } = driver;
        let flushed = match &end {
            Err(error) if is_fenced(error) => Ok(()),
            Ok(_) | Err(_) => calls.cache.flush().await,
        };
        let outcome = match end? {
            RunEnd::Failed(error) if !workspace.totals()?.is_over() => {
                self.fence.check()?;
                write_failure(self.dir, &starting_entry(&workspace.run_row()?), &error)?;
                workspace.close()?;
                return Err(error);
            }
            RunEnd::Interrupted => self.close(workspace, RunEnd::Interrupted)?,
            end => self.finish(workspace, chronicle, Some(&calls.cache.profile()), end)?,
        };
        flushed?;
        Ok(outcome)
    }

    /// Writes the results of a run that is over; a second time changes nothing.
    fn finish(
        &self,
        workspace: Workspace,
        chronicle: Chronicle,
        cache: Option<&CacheProfile>,
        end: RunEnd,
    ) -> Result<Outcome, OptimizerError> {
        self.fence.check()?;
        self.request.hooks.at(Boundary::BeforeResults);
        write_results(self.dir, &workspace, chronicle, cache)?;
        self.request.hooks.at(Boundary::AfterResults);
        self.close(workspace, end)
    }

    /// Closes the workspace of a run that is over or saved.
    fn close(&self, workspace: Workspace, end: RunEnd) -> Result<Outcome, OptimizerError> {
        let outcome = Outcome {
            run_id: self.dir.run_id().to_owned(),
            end,
            run_dir: self.dir.dir().to_owned(),
            totals: workspace.totals()?,
            transactions: workspace.transactions(),
        };
        workspace.close()?;
        Ok(outcome)
    }
}

fn before_it_began(asked: &ControlRequest) -> OptimizerError {
    let reason = asked.reason();
    OptimizerError::new(ErrorCode::Cancelled, format!("the run was told to end before it began: {reason}"))
        .with_hint("Nothing was paid for. The same command begins it.")
}

pub(super) fn open_chronicle(dir: &RunDir, workspace: &Workspace) -> Result<Chronicle, OptimizerError> {
    Chronicle::open(dir.paths(), |each| workspace.log(0, each))
}

/// How a run ended, by the last event of its log.
fn stored_end(workspace: &Workspace) -> Result<RunEnd, OptimizerError> {
    let last = match workspace.last_sequence()? {
        Some(last) => workspace.events(last, 1)?.pop(),
        None => None,
    };
    last.and_then(|stored| RunEnd::of_event(&stored.event)).ok_or_else(no_end)
}

/// The error for a run that is over and whose log does not say so.
pub(super) fn no_end() -> OptimizerError {
    OptimizerError::new(ErrorCode::Invariant, "the run is over, and its log has no last event")
}

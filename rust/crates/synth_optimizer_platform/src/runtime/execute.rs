//! Executes a whole run: opens or resumes it, loads the task, drives the loop and writes the results.

use std::time::Instant;

use camino::Utf8PathBuf;
use serde_json::json;
use tokio::sync::oneshot;
use tracing::{Instrument, info};

use super::control::ControlReceiver;
use super::driver::Driver;
use super::ownership::Ownership;
use super::prepare::{Prepared, prepare, prepare_from_stored};
use super::run_spec::{HookPoint, RunSpec};
use super::start::{acquire_lease, check_same_search, run_row};
use crate::artifacts::{FeedWriter, RunDir, container_log, log_view, read_manifest, remove_failure};
use crate::cache::CacheProfile;
use crate::clock::random_hex;
use crate::results::{starting_entry, write_failure, write_interruption, write_results};
use crate::views::write_report;
use crate::workspace::{Reader, Workspace, is_ownership_lost};
use synth_optimizer_core::config::adopt_stored;
use synth_optimizer_core::engine::Engine;
use synth_optimizer_core::model::control::{ControlAction, ControlRequest, RunEnd};
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::run_totals::RunTotals;

/// The outcome of a run that this process has executed.
#[derive(Debug, Clone, PartialEq)]
pub struct RunOutcome {
    pub run_id: String,
    pub end: RunEnd,
    pub run_dir: Utf8PathBuf,
    pub totals: RunTotals,
    /// Number of workspace transactions that this process committed.
    pub transactions: u64,
}

/// Starts or resumes a run with this engine and executes it to its end.
///
/// A run that is already completed, failed or cancelled returns the same outcome again. An error means that the run could
/// not be started or that it was stopped by a problem that can be fixed; the stored run can then be resumed. An error for
/// which `is_ownership_lost` is true means that another process owns the run: this process has written and sent nothing
/// since.
pub async fn execute<E: Engine>(request: RunSpec, receiver: ControlReceiver) -> Result<RunOutcome, OptimizerError> {
    let run_id = match &request.config.run.run_id {
        Some(run_id) => run_id.clone(),
        None => new_run_id::<E>()?,
    };
    let (span, began) = (tracing::error_span!(parent: None, "run", run_id), Instant::now());
    async {
        let result = execute_named::<E>(&run_id, &request, receiver).await;
        let duration_ms = began.elapsed().as_millis() as u64;
        match &result {
            Ok(outcome) => info!(duration_ms, status = outcome.end.as_str(), "run ended"),
            Err(error) => info!(duration_ms, %error, "run stopped with an error"),
        }
        result
    }
    .instrument(span)
    .await
}

async fn execute_named<E: Engine>(
    run_id: &str,
    request: &RunSpec,
    receiver: ControlReceiver,
) -> Result<RunOutcome, OptimizerError> {
    let dir = &RunDir::take_over(&request.config.run.output_dir, run_id, request.takeover.as_deref())?;
    let ownership = &Ownership::new(dir.identity().clone(), request.lease.clone());
    let mut run = RunContext { request: request.clone(), dir, ownership };
    let existing = run.open_existing::<E>()?;
    if let Some(workspace) = existing {
        if workspace.totals()?.is_terminal() {
            // Opening the feed appends the events that a process committed before it was killed.
            let (feed_writer, end) = (open_feed_writer(dir, &workspace)?, stored_end(&workspace)?);
            let end = match end {
                RunEnd::Failed(error) => {
                    let hint = format!("This is the stored end of the run: nothing was tried again. {}", error.hint);
                    RunEnd::Failed(error.with_hint(hint))
                }
                end => end,
            };
            return run.write_results(workspace, feed_writer, None, end);
        }
        let result = run.prepare_and_drive::<E>(Some(workspace), receiver).await;
        if let Err(error) = &result {
            run.record_interruption(error);
        }
        return result;
    }
    let result = run.prepare_and_drive::<E>(None, receiver).await;
    match &result {
        Err(error) if dir.workspace_db().exists() => run.record_interruption(error),
        Err(error) if ownership.check().is_ok() => {
            write_failure(dir, &starting_entry(&run_row::<E>(&run)), error)?;
        }
        Ok(_) | Err(_) => {}
    }
    result
}

/// Returns a new run id, which begins with the name of the engine.
pub fn new_run_id<E: Engine>() -> Result<String, OptimizerError> {
    Ok(format!("{}_{}", E::NAME, random_hex::<16>()?))
}

/// A run that this process owns.
pub(super) struct RunContext<'r> {
    pub(super) request: RunSpec,
    pub(super) dir: &'r RunDir,
    pub(super) ownership: &'r Ownership,
}

impl RunContext<'_> {
    /// Opens the workspace of an existing run and acquires its lease before reading, so that no other process can change
    /// what is read. Takes over the rows and sizes that the run started with. Returns `None` if the run has no workspace yet.
    fn open_existing<E: Engine>(&mut self) -> Result<Option<Workspace>, OptimizerError> {
        let (path, config) = (self.dir.workspace_db(), &mut self.request.config);
        if !path.exists() {
            return Ok(None);
        }
        let workspace = Workspace::open(path.as_std_path(), config.run.durability)?;
        self.ownership.check()?;
        acquire_lease(&workspace)?;
        let stored = workspace.run_row()?;
        check_same_search::<E>(&stored, config)?;
        adopt_stored(config, &stored.config);
        Ok(Some(workspace))
    }

    /// Prepares the run and drives it to its results. Handles control requests that arrive during the preparation.
    async fn prepare_and_drive<E: Engine>(
        &self,
        existing: Option<Workspace>,
        mut receiver: ControlReceiver,
    ) -> Result<RunOutcome, OptimizerError> {
        let proposer = self.request.proposer_in(self.dir.dir())?;
        if let Some(model) = existing.as_ref().map(|stored| stored.proposer_model()).transpose()?.flatten() {
            // The check of the proposer reports another model.
            let _ = proposer.adopt_model(&model);
        }
        let prepared = {
            let has_begun = existing.is_some();
            let preparing = prepare(self, &proposer, !has_begun);
            tokio::pin!(preparing);
            loop {
                tokio::select! {
                    biased;
                    Some(asked) = receiver.requests.recv() => match asked.action {
                        ControlAction::Step | ControlAction::Resume => receiver.early_requests.push(asked),
                        // A resumed run that is stopped still evaluates its best candidate on the held-out rows.
                        ControlAction::Stop if has_begun => receiver.early_requests.push(asked),
                        _ => break Err(asked),
                    },
                    prepared = &mut preparing => break Ok(prepared),
                }
            }
        };
        let prepared = match (prepared, &existing) {
            (Ok(prepared), _) => prepared,
            // A cancel needs neither the container nor the proposer.
            (Err(asked), Some(stored)) if asked.action == ControlAction::Cancel => {
                receiver.early_requests.push(asked);
                prepare_from_stored(self, stored, &proposer).await.map(|recalled| (None, recalled))
            }
            (Err(asked), _) => Err(ended_before_start(&asked)),
        };
        let (mut process, prepared) = match prepared {
            Ok(prepared) => prepared,
            Err(error) => {
                proposer.close().await;
                return Err(error);
            }
        };
        let (gone, container_exit_receiver) = oneshot::channel();
        let mut gone = Some(gone);
        let container_exit_receiver = process.is_some().then_some(container_exit_receiver);
        let result = {
            let run = self.drive::<E>(existing, prepared, receiver, container_exit_receiver);
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
                        // Sent once. The loop may have ended already.
                        tracing::warn!(%error, "the container exited during the run");
                        drop(gone.take().map(|gone| gone.send(error)));
                    }
                }
            }
        };
        // This run closes its proposer and container, however it ended.
        proposer.close().await;
        let stopped = match process {
            Some(process) => process.stop().await,
            None => Ok(()),
        };
        let outcome = result?;
        stopped?;
        Ok(outcome)
    }

    /// Opens the workspace, builds the engine and drives the loop to its end.
    async fn drive<E: Engine>(
        &self,
        existing: Option<Workspace>,
        prepared: Prepared,
        receiver: ControlReceiver,
        container_exit_receiver: Option<oneshot::Receiver<OptimizerError>>,
    ) -> Result<RunOutcome, OptimizerError> {
        let request = RunSpec { config: prepared.task.config.clone(), ..self.request.clone() };
        let run = RunContext { request, dir: self.dir, ownership: self.ownership };
        run.drive_resolved::<E>(existing, prepared, receiver, container_exit_receiver).await
    }

    /// Drives a run whose rows and sizes are resolved.
    async fn drive_resolved<E: Engine>(
        &self,
        existing: Option<Workspace>,
        prepared: Prepared,
        receiver: ControlReceiver,
        container_exit_receiver: Option<oneshot::Receiver<OptimizerError>>,
    ) -> Result<RunOutcome, OptimizerError> {
        let config = &self.request.config;
        let engine = E::new(config, prepared.task.inputs.clone())?;
        let workspace = match existing {
            Some(workspace) => workspace,
            None => {
                self.ownership.check()?;
                let path = self.dir.workspace_db();
                let new = Workspace::create(path.as_std_path(), &run_row::<E>(self), config.run.durability)?;
                acquire_lease(&new)?;
                new
            }
        };
        // The run continues, so the failure of an earlier attempt is outdated.
        remove_failure(self.dir)?;
        let (driver, events) = Driver::open(&engine, self, workspace, prepared, receiver, container_exit_receiver)?;
        let (driver, end) = driver.run(events).await;
        let Driver { calls, workspace, feed_writer, .. } = driver;
        let flushed = match &end {
            Err(error) if is_ownership_lost(error) => Ok(()),
            // The end itself is returned below.
            Ok(_) | Err(_) => calls.cache.flush().await,
        };
        let end = match end {
            Ok(end) => end,
            Err(error) if is_ownership_lost(&error) => return Err(error),
            Err(error) => {
                // On a full disk, this makes room for the manifest.
                let view = feed_writer.discard();
                let written = write_interruption(self.dir, &workspace, &view, &error);
                crate::warn_if_err!(written, "the interruption of the run was not written");
                return Err(error);
            }
        };
        let outcome = match end {
            RunEnd::Failed(error) if !workspace.totals()?.is_terminal() => {
                self.ownership.check()?;
                write_interruption(self.dir, &workspace, feed_writer.view(), &error)?;
                workspace.close()?;
                return Err(error);
            }
            RunEnd::Failed(error) => {
                let detail = error.detail.clone().or_else(|| container_log(self.dir, &error));
                let mut hint = error.hint;
                if config.cache.is_shared() {
                    hint.push_str(
                        " With the same cache.path and cache.namespace, another run reuses the stored answers.",
                    );
                }
                let end = RunEnd::Failed(OptimizerError { detail, hint, ..error });
                self.write_results(workspace, feed_writer, Some(&calls.cache.profile()), end)?
            }
            end @ (RunEnd::Interrupted | RunEnd::Paused) => {
                let written = write_report(self.dir, Some(&workspace), &json!({"status": end.as_str()}));
                crate::warn_if_err!(written, "the report of the run was not written");
                self.close(workspace, end)?
            }
            end => self.write_results(workspace, feed_writer, Some(&calls.cache.profile()), end)?,
        };
        flushed?;
        Ok(outcome)
    }

    /// Writes the manifest and the report of a run that stops with an error and can be resumed, unless they tell this error
    /// already. A run that has ended keeps its results, and the files of a run that another process owns are left alone.
    fn record_interruption(&self, error: &OptimizerError) {
        if !is_ownership_lost(error) && self.ownership.check().is_ok() {
            crate::warn_if_err!(self.write_missing_interruption(error), "the interruption of the run was not written");
        }
    }

    fn write_missing_interruption(&self, error: &OptimizerError) -> Result<(), OptimizerError> {
        let reader = Reader::open(self.dir.workspace_db().as_std_path())?;
        let stored = read_manifest(self.dir).ok().flatten().unwrap_or_default();
        if reader.totals()?.is_terminal() || stored["failure"]["message"] == error.message.as_str() {
            return Ok(());
        }
        write_interruption(self.dir, &reader, &log_view(&reader)?, error)
    }

    /// Writes the results of a run whose log is complete. Writing them again changes nothing.
    fn write_results(
        &self,
        workspace: Workspace,
        feed_writer: FeedWriter,
        cache: Option<&CacheProfile>,
        end: RunEnd,
    ) -> Result<RunOutcome, OptimizerError> {
        self.ownership.check()?;
        self.request.hooks.call(HookPoint::BeforeResults);
        write_results(self.dir, &workspace, feed_writer, cache)?;
        self.request.hooks.call(HookPoint::AfterResults);
        self.close(workspace, end)
    }

    /// Closes the workspace of a run and returns the outcome.
    fn close(&self, workspace: Workspace, end: RunEnd) -> Result<RunOutcome, OptimizerError> {
        let outcome = RunOutcome {
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

fn ended_before_start(asked: &ControlRequest) -> OptimizerError {
    let reason = asked.reason();
    OptimizerError::new(ErrorCode::Cancelled, format!("a control request ended the run before it started: {reason}"))
        .with_hint("Nothing was sent. Run the same command to start it.")
}

pub(super) fn open_feed_writer(dir: &RunDir, workspace: &Workspace) -> Result<FeedWriter, OptimizerError> {
    FeedWriter::open(dir.paths(), |each| workspace.log(0, each))
}

/// Returns how a run ended, from the last event of its log.
fn stored_end(workspace: &Workspace) -> Result<RunEnd, OptimizerError> {
    let last = match workspace.last_sequence()? {
        Some(last) => workspace.events(last, 1)?.pop(),
        None => None,
    };
    last.and_then(|stored| RunEnd::from_event(&stored.event)).ok_or_else(missing_end_error)
}

/// Returns the error for a run that has ended although its log has no last event.
pub(super) fn missing_end_error() -> OptimizerError {
    OptimizerError::new(ErrorCode::Invariant, "the run has ended, and its log has no final event")
}

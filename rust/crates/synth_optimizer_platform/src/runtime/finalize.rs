//! How the work on a run ended, and what a run that is over leaves behind.

use camino::Utf8PathBuf;

use super::fence::Fence;
use super::hooks::Boundary;
use super::request::Request;
use crate::artifacts::{Chronicle, RunDir, write_results};
use crate::cache::CacheProfile;
use crate::workspace::Workspace;
use synth_optimizer_core::model::control::RunEnd;
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

/// Writes the results of a run that is over; a second time changes nothing.
pub(super) fn finish(
    request: &Request,
    dir: &RunDir,
    fence: &Fence,
    (workspace, chronicle): (Workspace, Chronicle),
    cache: Option<&CacheProfile>,
    end: RunEnd,
) -> Result<Outcome, OptimizerError> {
    fence.check()?;
    request.hooks.at(Boundary::BeforeResults);
    write_results(dir, &workspace, chronicle, cache)?;
    request.hooks.at(Boundary::AfterResults);
    close(dir, workspace, end)
}

/// Closes the workspace of a run that is over or saved.
pub(super) fn close(dir: &RunDir, workspace: Workspace, end: RunEnd) -> Result<Outcome, OptimizerError> {
    let outcome = Outcome {
        run_id: dir.run_id().to_owned(),
        end,
        run_dir: dir.dir().to_owned(),
        totals: workspace.totals()?,
        transactions: workspace.transactions(),
    };
    workspace.close()?;
    Ok(outcome)
}

pub(super) fn chronicle(dir: &RunDir, workspace: &Workspace) -> Result<Chronicle, OptimizerError> {
    Chronicle::open(dir.paths(), |each| workspace.log(0, each))
}

/// How a run ended, by the last event of its log.
pub(super) fn stored_end(workspace: &Workspace) -> Result<RunEnd, OptimizerError> {
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

//! What a run leaves behind when it is over, and how it is told to whoever began it.

use super::fence::Fence;
use super::hooks::Boundary;
use super::outcome::{Outcome, RunStatus};
use super::request::Request;
use crate::artifacts::{Chronicle, RunDir, Told, write_results};
use crate::cache::CacheProfile;
use crate::model::error::{ErrorCode, OptimizerError};
use crate::model::event::Event;
use crate::model::lifecycle::RunState;
use crate::workspace::Workspace;

/// A run that is over, with what its log told.
pub(super) struct Ended {
    pub(super) workspace: Workspace,
    pub(super) told: Told,
}

/// Writes the results of a run that is over; a second time changes nothing.
pub(super) fn finish(
    request: &Request,
    dir: &RunDir,
    fence: &Fence,
    ended: Ended,
    cache: Option<&CacheProfile>,
    error: Option<OptimizerError>,
) -> Result<Outcome, OptimizerError> {
    let Ended { workspace, told } = ended;
    let error = match error {
        Some(error) => Some(error),
        None => failure(&workspace)?,
    };
    fence.check()?;
    request.hooks.at(Boundary::BeforeResults);
    write_results(dir, &workspace, told, cache)?;
    request.hooks.at(Boundary::AfterResults);
    let status = match workspace.totals()?.state {
        RunState::Completed => RunStatus::Completed,
        RunState::Cancelled => RunStatus::Cancelled,
        _ => RunStatus::Failed,
    };
    let outcome = outcome(dir, &workspace, status, error)?;
    workspace.close()?;
    Ok(outcome)
}

pub(super) fn chronicle(dir: &RunDir, workspace: &Workspace) -> Result<Chronicle, OptimizerError> {
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

pub(super) fn outcome(
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

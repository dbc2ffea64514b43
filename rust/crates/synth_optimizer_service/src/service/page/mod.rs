//! The page for people: its files, its views, and where they find runs.
//!
//! The files are static and the same for everybody, so they need no token. The views are HTML that the platform renders from the
//! read models of runs (`synth_optimizer_platform::views`); they need the token like every other route.

pub(super) mod assets;
mod directory_runs;
mod queue_runs;
pub(super) mod view_cache;
mod viewer;

use synth_optimizer_platform::views::{ListedRun, RunFilesRead};
use synth_optimizer_platform::workspace::models::{ReadError, Refusal};

pub use directory_runs::DirectoryRuns;
pub(super) use queue_runs::{Executor, QueueRuns};
pub use viewer::{Viewer, ViewerSource};

/// Adds to the entry of a run what its files say.
fn files_of(listed: ListedRun, read: RunFilesRead) -> Result<ListedRun, ReadError> {
    let RunFilesRead { reader, overview, problem } = read;
    let (limits, steps) = match &reader {
        Some(reader) => (reader.limits()?, reader.score_steps()?),
        None => Default::default(),
    };
    Ok(ListedRun { overview, limits, steps, problem: problem.map(|problem| problem.message), ..listed })
}

/// Returns the error for a cursor that no page returned.
fn invalid_cursor(message: String) -> ReadError {
    let hint = "Pass next_cursor of the previous page, or no cursor for the first page.".to_owned();
    ReadError::Invalid(Refusal { code: "invalid_cursor", field: "cursor", message, hint })
}

//! The page for people: its files, its views, and where they find runs.
//!
//! The files are static and the same for everybody, so they need no token. The views are HTML that the platform renders from the
//! read models of runs (`synth_optimizer_platform::views`); they need the token like every other route.

pub(super) mod assets;
mod directory_runs;
mod queue_runs;
pub(super) mod view_cache;
mod viewer;

pub use directory_runs::DirectoryRuns;
pub(super) use queue_runs::{Executor, QueueRuns};
pub use viewer::{Viewer, ViewerSource};

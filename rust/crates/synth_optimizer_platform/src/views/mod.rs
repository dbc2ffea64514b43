//! What people look at: the views of a run as HTML, and the report.
//!
//! Each view is a function of the read models. The page of the service, `synth-optimizers ui` and `report.html` show the same
//! views. Whatever a user, a model or a container wrote is escaped text. No view needs a script; the page adds live updates and
//! keyboard navigation to them.

mod candidate_view;
mod compare_view;
mod diff;
mod health_view;
mod layout;
mod lineage_view;
mod overview_view;
mod picture_widths;
mod report;
mod rollout_view;
mod router;
mod rows_view;
mod run_controls;
mod runs_view;
mod settings_view;
mod source;
mod style;
mod turn_view;
mod verdict;
mod words;

pub use layout::View;
pub(crate) use report::write_report;
pub use report::{run_notebook_view, run_report};
pub use router::render;
pub use source::{
    ListedRun, RunControls, RunFilesRead, RunList, RunListQuery, RunSource, ServiceHealth, ShownRun, WaitingNote,
};
pub use style::page_style;

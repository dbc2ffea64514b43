//! Carrying out a run: observe, decide, store, send.

mod admit;
mod calls;
mod check;
mod concurrency;
mod control;
mod driver;
mod execute;
mod fence;
mod finalize;
mod findings;
mod hooks;
mod lanes;
mod launch;
mod place;
mod prepare;
mod probe;
mod proposals;
mod request;
mod resume;
mod setting;
mod setup;
mod stepping;
mod supervisor;
mod wind_down;

pub use check::check;
pub use control::{Acknowledgement, Asked, Control, Controlled, ask};
pub use execute::{execute, new_run_id};
pub use fence::LeaseWatch;
pub use finalize::Outcome;
pub use findings::{CheckReport, CheckStage, ContainerFacts, Facts, Finding, RowFacts};
pub use hooks::{Boundary, Hooks};
pub use request::{Request, Verify};
pub use stepping::StepReport;
pub use supervisor::{Monitor, block_on, catch, execute_watched, spawn};

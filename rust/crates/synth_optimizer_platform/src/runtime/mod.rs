//! Carrying out a run: observe, decide, store, send.

mod calls;
mod check;
mod control;
mod driver;
mod execute;
mod fence;
mod findings;
mod lanes;
mod prepare;
mod request;
mod start;
mod supervisor;

pub use check::check;
pub use control::{Acknowledgement, Asked, Control, Controlled, StepReport, ask};
pub use execute::{Outcome, execute, new_run_id};
pub use fence::LeaseWatch;
pub use findings::{CheckReport, CheckStage, ContainerFacts, Facts, Finding, RowFacts};
pub use request::{Boundary, Hooks, Request, Verify};
pub use supervisor::{Monitor, block_on, catch, execute_watched, spawn};

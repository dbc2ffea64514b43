//! Executes a run: observe, decide, store, send.

mod calls;
mod check;
mod control;
mod driver;
mod execute;
mod findings;
mod lanes;
mod ownership;
mod prepare;
mod run_spec;
mod start;
mod supervisor;

pub use check::check;
pub use control::{Acknowledgement, ControlReceiver, ControlReply, RunControl, StepReport, request_control};
pub use execute::{RunOutcome, execute, new_run_id};
pub use findings::{CheckReport, CheckStage, ContainerFacts, Facts, Finding, RowFacts};
pub use ownership::RunLease;
pub use run_spec::{CheckScope, HookPoint, Hooks, RunSpec};
pub use supervisor::{Monitor, block_on, catch_panic, execute_watched, spawn};

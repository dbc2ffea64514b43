//! Carrying out a run: observe, decide, store, send.

mod calls;
mod check;
mod concurrency;
mod control;
mod driver;
mod execute;
mod findings;
mod hooks;
mod lanes;
mod launch;
mod outcome;
mod place;
mod prepare;
mod probe;
mod proposals;
mod resume;
mod setup;
mod wind_down;
mod wish;

pub use check::check;
pub use control::{Control, Controlled, Signal};
pub use execute::{Request, execute, new_run_id};
pub use findings::{CheckReport, ContainerFacts, Facts, Finding, RowFacts, Stage};
pub use hooks::{Boundary, Hooks};
pub use outcome::{Outcome, RunStatus};
pub use wish::{Acknowledgement, Asked, WishKind, ask, listen, wish_kind};

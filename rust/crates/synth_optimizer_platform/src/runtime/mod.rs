//! Carrying out a run: observe, decide, store, send.

mod admit;
mod calls;
mod check;
mod concurrency;
mod control;
mod driver;
mod ending;
mod execute;
mod fence;
mod findings;
mod hooks;
mod lanes;
mod launch;
mod outcome;
mod place;
mod prepare;
mod probe;
mod proposals;
mod request;
mod resume;
mod setting;
mod setup;
mod stepping;
mod wind_down;
mod wish;

pub use check::check;
pub use control::{Control, Controlled, Signal};
pub use execute::{execute, new_run_id};
pub use fence::LeaseWatch;
pub use findings::{CheckReport, CheckStage, ContainerFacts, Facts, Finding, RowFacts};
pub use hooks::{Boundary, Hooks};
pub use outcome::{Outcome, RunStatus};
pub use request::{Request, Verify};
pub use stepping::StepReport;
pub use wish::{Acknowledgement, Asked, WishKind, ask, next_wish, wish_kind};

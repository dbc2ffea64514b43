//! Carrying out a run: observe, decide, store, send.

mod calls;
mod concurrency;
mod control;
mod driver;
mod execute;
mod hooks;
mod lanes;
mod launch;
mod outcome;
mod proposals;
mod resume;
mod setup;
mod wind_down;
mod wish;

pub use control::{Control, Controlled, Signal};
pub use execute::{Request, execute, new_run_id};
pub use hooks::{Boundary, Hooks};
pub use outcome::{Outcome, RunStatus};
pub use wish::{Acknowledgement, Asked, WishKind, ask, listen, wish_kind};

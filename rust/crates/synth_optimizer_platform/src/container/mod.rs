//! The container boundary: discovery, rows, rollouts and the managed process.
//!
//! `load` turns what a container says into a checked `Task` (`setup`, `contract`, `program`, `rows`). A rollout is
//! built by `body`, carried by `transport`, and read by `record`. Only `client` speaks HTTP.

mod body;
mod client;
mod contract;
mod orphans;
mod process;
mod program;
mod reach;
mod record;
mod rows;
mod screen;
mod setup;
mod transport;

pub use body::{policy_value, rollout_body};
pub use client::Client;
pub use contract::{Contract, Routes, Task, TaskRow};
pub(crate) use orphans::{AFTER_KILL, Family, GLANCE, Holder, Lease, has_orphans, reap};
pub use orphans::{LEASE_FILE, is_running, kill_orphans, reap_orphans, started};
pub use process::{LOG_FILE, ManagedProcess, start};
pub use reach::Reach;
pub use record::{Asked, Echo, Received, Record, Reply, read_reply};
pub use reqwest::Method;
pub(crate) use setup::{Part, survey};
pub use setup::{SetupCall, SetupCalls, SetupReply, load};
pub use transport::{RolloutEnd, Transport};

use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};

/// Something that is wrong with the container, and what can be done.
fn broken(message: impl Into<String>, hint: impl Into<String>) -> OptimizerError {
    OptimizerError::new(ErrorCode::Container, message).with_hint(hint)
}

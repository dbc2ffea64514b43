//! The container boundary: discovery, rows, rollouts and the managed process.
//!
//! `load` reads a container's description and returns a validated `Task` (`setup`, `contract`, `program`, `rows`).
//! `body` builds a rollout request, `transport` sends it, and `record` reads the reply. Only `client` uses HTTP.

mod body;
mod client;
mod contract;
mod credential_check;
mod orphaned_processes;
mod process;
mod program;
mod record;
mod rows;
mod setup;
mod splits;
mod token;
mod transport;

pub use crate::container_log::CONTAINER_LOG_FILE;
pub use body::{policy_value, rollout_body};
pub use client::Client;
pub use contract::{Contract, Routes, Task, TaskRow};
pub use orphaned_processes::{CONTAINER_LEASE_FILE, kill_orphans, reap_orphans};
pub(crate) use orphaned_processes::{
    KILL_TIMEOUT, PROCESS_POLL_INTERVAL, ProcessLease, ProcessOwner, ProcessSet, has_orphans, reap_orphans_of,
};
pub(crate) use process::run_blocking;
pub use process::{ManagedProcess, start};
pub use record::{ExpectedRollout, IdentityCheck, ReceivedRecord, RolloutRecord, RolloutReply, read_reply};
pub use reqwest::Method;
pub use setup::{SetupCall, SetupCalls, SetupReply, load};
pub(crate) use setup::{SetupPart, changed_program, changed_rows, inspect_container, load_again};
pub use transport::{EarlierRollouts, RolloutOutcome, Sending, Transport};

use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};

/// Creates an error about the container, with a hint.
fn container_error(message: impl Into<String>, hint: impl Into<String>) -> OptimizerError {
    OptimizerError::new(ErrorCode::Container, message).with_hint(hint)
}

//! The container boundary: discovery, rows, rollouts and the managed process.
//!
//! `load` turns what a container says into a checked `Task` (`setup`, `contract`, `program`, `rows`). A rollout is
//! built by `body`, carried by `transport` and `poll`, and read by `record` and `reply`. Only `client` speaks HTTP.

mod body;
mod client;
mod contract;
mod orphans;
mod poll;
mod process;
mod program;
mod reach;
mod record;
mod reply;
mod rows;
mod screen;
mod seeds;
mod setup;
mod transport;

pub use body::{policy_value, rollout_body};
pub use client::Client;
pub use contract::{Contract, Dialect, Routes, Task, TaskRow};
pub(crate) use orphans::{AFTER_KILL, Family, GLANCE, Holder, Lease, has_orphans, reap};
pub use orphans::{LEASE_FILE, is_running, kill_orphans, reap_orphans, started};
pub use process::{LOG_FILE, ManagedProcess, start};
pub use reach::Reach;
pub use record::{Received, Record};
pub use reply::{Asked, Echo, Reply, read_reply};
pub use reqwest::Method;
pub(crate) use setup::{Part, survey};
pub use setup::{SetupCall, SetupCalls, SetupReply, load};

pub use transport::{BodyOf, RolloutCall, RolloutEnd, Transport};

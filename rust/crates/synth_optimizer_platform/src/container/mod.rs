//! The container boundary: discovery, rows, rollouts and the managed process.
//!
//! `load` turns what a container says into a checked `Task` (`setup`, `contract`, `program`, `rows`). A rollout is
//! built by `body`, carried by `transport` and read by `reply`. Only `exchange` speaks HTTP.

mod body;
mod client;
mod contract;
mod echo;
mod exchange;
mod leaf;
mod lease;
mod orphans;
mod poll;
mod process;
mod program;
mod reach;
mod record;
mod reply;
mod rows;
mod scores;
mod screen;
mod seeds;
mod setup;
mod status;
mod survey;
pub mod task;
mod transport;

pub use body::{policy_value, rollout_body};
pub use client::Client;
pub use lease::LEASE_FILE;
pub(crate) use lease::{Holder, Lease};
pub(crate) use orphans::kill_orphans;
pub use orphans::reap_orphans;
pub(crate) use orphans::{AFTER_KILL, Family, GLANCE, has_orphans, is_running, reap, started};
pub use process::{LOG_FILE, ManagedProcess, start};
pub use reach::Reach;
pub use reply::{Asked, Echo, Reply, read_reply};
pub use reqwest::Method;
pub use setup::{SetupCall, SetupCalls, SetupReply, load};
pub(crate) use survey::{Part, Survey, survey};
pub use task::{Contract, Dialect, Routes, Task, TaskRow};
pub use transport::{BodyOf, RolloutCall, RolloutEnd, Transport};

//! A fast task container on loopback with its own bill, for tests and benchmarks.
//!
//! `flags` configures it, `task` is its task, `records` remembers rollouts, `latency` says how long they
//! take, `service` handles requests, and `http` is the server.

mod bill;
mod flags;
mod http;
mod latency;
mod records;
mod render;
mod service;
mod task;

pub use flags::{Dialect, Faults, Flags, Memory, Modes, USAGE};
pub use http::serve;
pub use latency::Latency;
pub use service::StubContainer;
pub use task::{FIELDS, StubTask};

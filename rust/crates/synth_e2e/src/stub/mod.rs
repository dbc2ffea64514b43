//! A fast task container on loopback with its own bill, for tests and benchmarks.
//!
//! `flags` says how it behaves, `world` is its task, `records` is its memory, `service` answers, `http` carries.

mod bill;
mod flags;
mod http;
mod records;
mod render;
mod service;
mod world;

pub use flags::{Dialect, Faults, Flags, Memory, Modes, USAGE};
pub use http::serve;
pub use service::Service;
pub use world::{FIELDS, World};

//! The standing service: a durable queue of run requests, the workers that carry them out, and the HTTP interface.

mod code;
pub mod queue;
pub mod service;

pub use code::Code;

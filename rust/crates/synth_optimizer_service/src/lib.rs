//! The HTTP service: a durable queue of run requests, the workers that execute them, and the HTTP interface.
//!
//! Start with [`queue::Queue`] and [`service::Service`].

mod error_code;
pub mod queue;
pub mod service;

pub use error_code::ServiceErrorCode;

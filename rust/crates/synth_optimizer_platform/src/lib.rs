//! Everything of a run that touches the world: containers, proposers, the cache, the workspace, its files and the loop
//! that drives a pure engine.

pub mod artifacts;
pub mod cache;
pub mod clock;
pub mod container;
mod http;
pub mod logs;
pub mod proposer;
pub mod rollout_trace;
pub mod runtime;
mod unpack;
pub mod workspace;

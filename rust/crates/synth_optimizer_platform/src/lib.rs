//! What every optimizer of this product stands on: the vocabulary of a run, its configuration, and everything that
//! touches the world.
//!
//! `model` and `config` are pure: no clock, no file, no socket, no randomness. The rest is behind the feature `io`.

#[cfg(feature = "io")]
pub mod artifacts;
#[cfg(feature = "io")]
pub mod cache;
#[cfg(feature = "io")]
mod clock;
pub mod config;
#[cfg(feature = "io")]
pub mod container;
#[cfg(feature = "io")]
mod http;
pub mod model;
#[cfg(feature = "io")]
pub mod proposer;
#[cfg(feature = "io")]
pub mod queue;
#[cfg(feature = "io")]
pub mod runtime;
#[cfg(feature = "io")]
pub mod service;
#[cfg(feature = "io")]
mod unpack;
#[cfg(feature = "io")]
pub mod workspace;

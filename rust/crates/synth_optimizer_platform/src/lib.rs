//! What every optimizer of this product stands on: the vocabulary of a run and its configuration.
//!
//! Both modules are pure: no clock, no file, no socket, no randomness.

pub mod config;
pub mod model;

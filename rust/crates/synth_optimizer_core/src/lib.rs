//! The vocabulary of a run and its configuration: plain data and pure functions.
//!
//! Nothing here sees a clock, a file, a socket or a thread. [`model::event::Event`] is everything that can happen in a
//! run; [`config::Config`] is everything that a user may set.

pub mod config;
pub mod engine;
pub mod model;
pub mod secrets;
pub mod string_enum;

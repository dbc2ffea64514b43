//! The codex proposer with the real binary, against a model that the test plays.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod endings;
mod faults;
mod happy;
#[path = "../harness/mod.rs"]
mod harness;
mod hostile;
mod models;
mod races;
mod whole;
mod world;

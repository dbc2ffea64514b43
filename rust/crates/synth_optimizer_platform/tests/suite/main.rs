//! The tests of the platform, as one program: each file of tests would otherwise link all of it once more.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

mod artifacts;
mod artifacts_results;
mod cache;
mod container;
mod feeds;
mod pauses;
mod pictures;
mod proposer_openai;
mod sample;
mod views;
// One way to wait for all crates: `synth_e2e`, where it stands, depends on this one.
#[allow(dead_code, unreachable_pub)]
#[path = "../../../synth_e2e/src/wait.rs"]
mod waiting;
mod workspace;

//! Whole runs, as one program: each file of tests would otherwise link all crates once more.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

mod architecture;
mod check;
mod codex;
mod control;
mod control_latency;
mod edits;
mod edits_recorded;
mod endpoint;
mod formats;
mod harness;
mod kill;
mod log_spans;
mod machine;
mod outages;
mod read_models;
mod real_containers;
mod replies;
mod rows;
mod service_kills;
mod service_panics;
mod service_stalls;
mod service_stops;
mod service_streams;
mod simulated_models;
mod stub;
mod takeover;
mod totals;

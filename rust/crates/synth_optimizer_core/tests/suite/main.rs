//! The test suite of the model and of the configuration, as one binary.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

mod config;
mod model_budget;
mod model_claim;
mod model_events;
mod model_identity;
mod model_score;
mod model_session;
mod model_tables;

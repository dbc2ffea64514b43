//! The test suite of the search, as one binary.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

mod claim;
mod edits;
mod golden;
mod partial;
mod parts;
mod plan;
mod properties;
mod rebase;
mod search;
mod sim;
mod sprint;
mod steering;

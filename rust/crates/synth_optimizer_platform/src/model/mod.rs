//! The vocabulary of a run: plain data and pure functions.

pub mod error;

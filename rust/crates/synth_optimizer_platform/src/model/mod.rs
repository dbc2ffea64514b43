//! The vocabulary of a run: plain data and pure functions.

pub mod answer;
pub mod budget;
pub mod cache_key;
pub mod canonical;
mod canonical_parts;
mod canonical_writer;
pub mod command;
pub mod engine;
pub mod envelope;
pub mod error;
pub mod event;
pub mod event_fields;
pub mod ids;
pub mod lifecycle;
pub mod message;
pub mod normalize;
pub mod program;
pub mod score;
pub mod usage;

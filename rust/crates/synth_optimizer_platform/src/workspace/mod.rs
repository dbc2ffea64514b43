//! `workspace.sqlite`: the log of a run, what was sent and what came, and the tables that people query.

pub mod batch;

pub use batch::{Answered, Batch, CacheAction, CacheUse, CallKind, Sent, Stored};

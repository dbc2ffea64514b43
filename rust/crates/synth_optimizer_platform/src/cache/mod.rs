//! The request cache: answers of container and proposer by the exact key of what was asked.
//!
//! `Cache` is the door. Behind it: `writer` stores in batches on its own thread, `reader` looks up on a few read
//! connections, `database` opens the file, `record` is one row as bytes, `profile` counts.

mod database;
mod fault;
mod reader;
mod record;
mod store;
mod writer;

pub use store::{BoundaryProfile, Cache, CacheProfile, CacheSettings, Lookup};

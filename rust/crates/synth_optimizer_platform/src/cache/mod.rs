//! The request cache: answers of container and proposer by the exact key of what was asked.
//!
//! `Cache` is the door. Behind it: `writer` stores in batches on its own thread, `reader` looks up on a few read
//! connections, `database` opens the file, `record` is one row as bytes, `profile` counts.

mod database;
mod fault;
mod profile;
mod reader;
mod record;
mod settings;
mod store;
mod writer;

pub use profile::{BoundaryProfile, CacheProfile};
pub use settings::CacheSettings;
pub use store::{Cache, Lookup};

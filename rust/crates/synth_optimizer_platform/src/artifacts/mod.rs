//! What a run leaves behind as files: its directory, feeds, manifest, registries and charts.
//!
//! Everything here is a function of the log and can be written again from it. Files are replaced as a whole or, for
//! the feed and the registry, appended to and repaired.

pub mod atomic;
pub mod chart;
mod chart_scale;
pub mod chronicle;
pub mod compare;
pub mod disk;
mod event_lines;
pub(crate) mod fault;
pub mod feed;
mod file_lock;
mod line;
pub mod log;
mod manifest;
pub mod normalized;
mod overview;
pub mod registry;
pub mod replay;
pub mod results;
pub mod run_dir;
mod run_lock;

pub use atomic::{AtomicFile, write_atomic};
pub use chart::{ChartData, ChartPoint, HeldoutBar, score_chart};
pub use chronicle::{Chronicle, Told};
pub use compare::events_compare;
pub use disk::DiskWatch;
pub use event_lines::{EventFormatter, EventLine, Weight};
pub use feed::{Feed, Repair};
pub use file_lock::LockMark;
pub use file_lock::{FileLock, NotTaken};
pub use log::Each;
pub use manifest::ArtifactRef;
pub use normalized::write_normalized;
pub use overview::{RunOverview, run_status, run_summary};
pub use registry::{Registered, RegistryEntry, RegistryStatus, register};
pub use replay::{Replay, events_replay};
pub use results::{RunResult, starting_entry, write_failure, write_results};
pub use run_dir::{RunDir, RunPaths};
pub use run_lock::RunLock;

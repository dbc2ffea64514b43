//! The files of a run: its directory, feeds, manifest, registries and charts.
//!
//! All of them are computed from the log and can be written again. Files are replaced as a whole, except the feed and the
//! run registry, which are appended to and repaired.

mod compare;
mod disk;
mod documents;
mod event_lines;
mod feed_writer;
mod files;
mod lock;
mod overview;
pub mod pictures;
mod registry;
mod replay;
mod run_dir;
mod run_pictures;

pub use crate::atomic_file::{AtomicFile, write_atomic};
pub use compare::events_compare;
pub use disk::DiskWatch;
pub(crate) use documents::{
    container_log, early_failure, ended_document, failed, manifest, registry, registry_candidate,
};
pub use event_lines::{EventFormatter, EventLine, Weight};
pub use feed_writer::{EventVisitor, FeedRepair, FeedWriter};
pub(crate) use files::hash;
pub use files::{ArtifactEntry, ArtifactFile, Artifacts, artifacts, open_artifact};
pub use lock::{FileLock, LockError, LockIdentity, lock_run};
pub use overview::{RunOverview, partial_result, run_overview, run_status, run_summary};
pub(crate) use overview::{log_view, read_manifest, remove_failure};
pub use registry::{RegistryEntry, RegistryStatus, register};
pub use replay::events_replay;
pub use run_dir::{RunDir, RunPaths, TRANSCRIPTS};
pub use run_pictures::{chart_data, heat_map_data, lineage_data};

//! Where the cache is and how it may be used, with every default filled in.

use camino::{Utf8Path, Utf8PathBuf};

use crate::config::sections::{CacheMode, CacheSection};

const FILE_NAME: &str = "request_cache.sqlite";
const BYTES_PER_MB: u64 = 1024 * 1024;

/// The cache of one run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheSettings {
    pub mode: CacheMode,
    pub path: Utf8PathBuf,
    /// Runs that share file and namespace share their answers.
    pub namespace: String,
    /// Largest size of the file and its write-ahead log.
    pub max_bytes: u64,
}

impl CacheSettings {
    /// The settings of a run: what the section leaves open depends on the run's name and directory.
    pub fn of(section: &CacheSection, run_dir: &Utf8Path, run_id: &str) -> Self {
        Self {
            mode: section.mode,
            path: section.path.clone().unwrap_or_else(|| run_dir.join(FILE_NAME)),
            namespace: section.namespace.clone().unwrap_or_else(|| format!("gepa:{run_id}")),
            max_bytes: section.max_mb.saturating_mul(BYTES_PER_MB),
        }
    }
}

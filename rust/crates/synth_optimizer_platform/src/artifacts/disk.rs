//! `[disk_budget]`: limits the disk space of all runs.

use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};

use crate::file_error;
use synth_optimizer_core::config::sections::DiskBudgetSection;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};

const BYTES_PER_GB: f64 = 1e9;
/// Measuring may take one part in this many of the run's time.
const MEASURE_TIME_DIVISOR: u32 = 50;
const MIN_MEASURE_INTERVAL: Duration = Duration::from_secs(1);

/// Checks the size of the directory of all runs against the limits.
#[derive(Debug)]
pub struct DiskWatch {
    enabled: bool,
    path: Utf8PathBuf,
    soft_bytes: u64,
    hard_bytes: u64,
    next: Option<Instant>,
}

impl DiskWatch {
    /// Measures `output_dir`, unless the section names another directory.
    pub fn new(section: &DiskBudgetSection, output_dir: &Utf8Path) -> Self {
        Self {
            enabled: section.enabled,
            path: section.path.clone().unwrap_or_else(|| output_dir.to_owned()),
            soft_bytes: (section.soft_limit_gb * BYTES_PER_GB) as u64,
            hard_bytes: (section.hard_limit_gb * BYTES_PER_GB) as u64,
            next: None,
        }
    }

    /// Fails at the soft limit. Called before a new run.
    pub fn check_start(&self) -> Result<(), OptimizerError> {
        if !self.enabled {
            return Ok(());
        }
        self.check_limit(self.soft_bytes, "new runs are refused", "disk_budget.soft_limit_gb")
    }

    /// Fails at the hard limit. Can be called after every batch: it measures rarely enough to cost little, however large
    /// the directory is.
    pub fn check_running(&mut self) -> Result<(), OptimizerError> {
        let begin = Instant::now();
        if !self.enabled || self.next.is_some_and(|next| begin < next) {
            return Ok(());
        }
        let checked = self.check_limit(self.hard_bytes, "the run stops", "disk_budget.hard_limit_gb");
        let end = Instant::now();
        self.next = Some(end + MIN_MEASURE_INTERVAL.max((end - begin) * MEASURE_TIME_DIVISOR));
        checked
    }

    fn check_limit(&self, limit: u64, consequence: &str, field: &str) -> Result<(), OptimizerError> {
        let size = directory_bytes(&self.path)?;
        if size < limit {
            return Ok(());
        }
        let gb = |bytes: u64| bytes as f64 / BYTES_PER_GB;
        Err(OptimizerError::new(
            ErrorCode::DiskBudget,
            format!("{} holds {:.3} GB and the limit is {:.3} GB; {consequence}", self.path, gb(size), gb(limit)),
        )
        .with_hint(format!("Remove runs under {} or raise {field}.", self.path)))
    }
}

/// Returns the size of all files below a directory. Does not follow links, and ignores files that are removed meanwhile.
fn directory_bytes(path: &Utf8Path) -> Result<u64, OptimizerError> {
    let mut open = vec![path.to_owned()];
    let mut total = 0_u64;
    while let Some(dir) = open.pop() {
        let listed = file_error::if_exists(dir.read_dir_utf8()).map_err(file_error::io(&dir, "measuring"))?;
        let Some(entries) = listed else { continue };
        for entry in entries.flatten() {
            match entry.metadata() {
                Ok(found) if found.is_dir() => open.push(entry.into_path()),
                Ok(found) => total = total.saturating_add(found.len()),
                // The file was removed meanwhile.
                Err(_) => {}
            }
        }
    }
    Ok(total)
}

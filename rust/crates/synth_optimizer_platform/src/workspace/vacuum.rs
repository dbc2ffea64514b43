//! Gives back the space of a workspace that nobody works on.

use std::path::Path;

use serde::Serialize;

use super::error::{io, sqlite};
use super::open;
use synth_optimizer_core::config::sections::Durability;
use synth_optimizer_core::model::error::OptimizerError;

/// What was gained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Vacuumed {
    pub bytes_before: u64,
    pub bytes_after: u64,
}

/// Writes the file anew without empty pages. No process may be running the run.
pub fn vacuum(path: &Path) -> Result<Vacuumed, OptimizerError> {
    let connection = open::open(path, Durability::Power)?;
    // What stands in the WAL belongs to the size before.
    let size = || std::fs::metadata(path).map(|found| found.len()).map_err(io("measure", path));
    let fold = || connection.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").map_err(sqlite("fold the WAL"));
    fold()?;
    let bytes_before = size()?;
    connection.execute_batch("VACUUM").map_err(sqlite(format_args!("vacuum {}", path.display())))?;
    fold()?;
    let bytes_after = size()?;
    connection.close().map_err(|(_, error)| sqlite(format_args!("close {}", path.display()))(error))?;
    Ok(Vacuumed { bytes_before, bytes_after })
}

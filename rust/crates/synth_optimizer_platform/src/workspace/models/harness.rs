//! What a run measures with: two scores can be compared where it is the same.

use rusqlite::Connection;

use super::query::{MILESTONES, first, list};
use synth_optimizer_core::model::canonical::digest_of;
use synth_optimizer_core::model::error::OptimizerError;

/// The task of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Harness {
    /// The container's name of the program.
    pub(super) id: String,
    /// Changes when the contract, the program or the rows change.
    pub(super) digest: String,
}

impl Harness {
    /// None before the program is loaded.
    pub(super) fn read(db: &Connection) -> Result<Option<Self>, OptimizerError> {
        let doing = "read what the container told";
        let sql = format!(
            "SELECT fields ->> 'program_id', fields ->> 'program_digest',
               (SELECT fields ->> 'rows_digest' FROM {MILESTONES} AND type = 'dataset.rows.loaded'
                ORDER BY sequence DESC LIMIT 1)
             FROM {MILESTONES} AND type = 'container.program.loaded' ORDER BY sequence DESC LIMIT 1"
        );
        type Told = (String, Option<String>, Option<String>);
        let told: Option<Told> = first(db, doing, &sql, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
        let Some((id, program, rows)) = told else { return Ok(None) };
        let sql = "SELECT kind, lower(hex(digest)), max(taken_at) FROM snapshots
                   WHERE kind IN ('contract', 'program', 'dataset', 'train_rows', 'heldout_rows')
                   GROUP BY kind ORDER BY kind";
        let documents: Vec<(String, String)> = list(db, doing, sql, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
        // The events tell the same in short, with the fields that this run may change; they serve where nothing else does.
        let digest = if documents.is_empty() { digest_of(&(program, rows)) } else { digest_of(&documents) };
        Ok(Some(Self { id, digest }))
    }
}

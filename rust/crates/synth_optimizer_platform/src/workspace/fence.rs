//! Keeps a process that was superseded from writing to a run.

use rusqlite::{Connection, OptionalExtension, params};

use super::error::sqlite;
use super::records::LeaseId;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};

/// How the message of such an error begins.
const FENCED: &str = "fenced: ";

const HOLDS: &str = "SELECT 1 FROM resource_leases WHERE resource_lease_id = ?1 AND status = 'active'";
const HOLDER: &str = "SELECT now.subject_id FROM resource_leases AS now JOIN resource_leases AS ours
    ON ours.resource_kind = now.resource_kind AND ours.resource_id = now.resource_id
    WHERE ours.resource_lease_id = ?1 AND now.status = 'active'";

/// The error of a process that may not write to its run any more.
pub(crate) fn fenced(why: &str) -> OptimizerError {
    OptimizerError::new(ErrorCode::StateTransition, format!("{FENCED}{why}"))
        .with_hint("Nothing needs to be done: whoever has the run now goes on with it, and nothing was lost.")
}

/// Whether an error says that this process may not write to the run any more.
pub fn is_fenced(error: &OptimizerError) -> bool {
    error.code == ErrorCode::StateTransition && error.message.starts_with(FENCED)
}

/// Fails unless the lease is the active one. To be called inside the transaction that it protects.
pub(super) fn check(db: &Connection, lease: LeaseId) -> Result<(), OptimizerError> {
    let held = db.prepare_cached(HOLDS).and_then(|mut held| held.exists(params![lease.0]));
    if held.map_err(sqlite("look up the lease of the run"))? {
        return Ok(());
    }
    let holder = db.query_row(HOLDER, params![lease.0], |row| row.get::<_, String>(0)).optional();
    let holder = holder.map_err(sqlite("look up who holds the run"))?;
    let detail = match holder {
        Some(holder) => format!("the run is held by {holder}"),
        None => "the one that had taken it over has let go of it".to_owned(),
    };
    Err(fenced("another process has taken the run over; nothing was written").with_detail(detail))
}

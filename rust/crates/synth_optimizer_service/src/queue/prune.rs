//! Removes requests that are over. The run directories are the caller's.

use rusqlite::Connection;

use super::Queue;
use super::entry::{RequestEntry, entries};
use super::error::{QueueCode, QueueError};
use super::read::is_in;
use super::transitions::{execute, int};
use synth_optimizer_core::model::lifecycle::{Lifecycle, RequestState};

impl Queue {
    /// Every request of a run, if all are over. A run that nobody knows has none.
    pub fn deletable(&self, run_id: &str) -> Result<Vec<RequestEntry>, QueueError> {
        self.read(|db, _| over(db, run_id))
    }

    /// Removes every request of a run, if all are over and were known to be: none has come since.
    pub fn delete(&self, run_id: &str, known: &[RequestEntry]) -> Result<(), QueueError> {
        self.write(|db, _| {
            let found = over(db, run_id)?;
            if let Some(new) = found.iter().find(|entry| known.iter().all(|old| old.request_id != entry.request_id)) {
                let message = format!("run {run_id} was submitted again: it is not deleted");
                let hint = "Look at the new request first.";
                return Err(QueueError::new(QueueCode::NotTerminal, message, hint).in_state(new.status));
            }
            execute(db, "delete requests", "DELETE FROM run_requests WHERE run_id = ?1", [run_id]).map(drop)
        })
    }

    /// The latest request of each run that is over, in one of these states (any if none is named) and finished before
    /// that moment, in milliseconds since 1970.
    pub fn prunable(&self, older_than: Option<u64>, states: &[RequestState]) -> Result<Vec<RequestEntry>, QueueError> {
        if let Some(live) = states.iter().find(|state| !state.is_final()) {
            let message = format!("requests that are {} cannot be pruned", live.word());
            let hint = "Name completed, failed or cancelled.";
            return Err(QueueError::new(QueueCode::NotTerminal, message, hint).in_state(*live));
        }
        let rest = format!(
            "WHERE r.finished_at < ?1 AND {} AND NOT EXISTS
               (SELECT 1 FROM run_requests AS later WHERE later.run_id = r.run_id AND later.seq > r.seq)
             ORDER BY r.seq",
            is_in("r.status", states)
        );
        self.read(|db, _| entries(db, &rest, [older_than.map_or(i64::MAX, int)]))
    }
}

fn over(db: &Connection, run_id: &str) -> Result<Vec<RequestEntry>, QueueError> {
    let found = entries(db, "WHERE r.run_id = ?1 ORDER BY r.seq", [run_id])?;
    match found.iter().find(|entry| !entry.is_terminal) {
        None => Ok(found),
        Some(live) => {
            let message = format!("run {run_id} is {}: it cannot be deleted", live.status.word());
            let hint = "Cancel it and wait until it has ended.";
            Err(QueueError::new(QueueCode::NotTerminal, message, hint).in_state(live.status))
        }
    }
}

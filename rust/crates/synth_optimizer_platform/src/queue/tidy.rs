//! Removes requests that are over. The run directories are the caller's.

use rusqlite::Connection;

use super::Queue;
use super::entry::{RequestEntry, entries};
use super::error::{QueueCode, QueueError, sql};
use super::moves::int;
use super::read::is_in;
use crate::model::lifecycle::{Lifecycle, RequestState};

/// Whether to do it or only to say what would be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pruning {
    DryRun,
    Delete,
}

impl Queue {
    /// Removes every request of a run, if all are over, and gives them. A run that nobody knows has none.
    pub fn delete(&self, run_id: &str) -> Result<Vec<RequestEntry>, QueueError> {
        self.write(|db, _| {
            let found = entries(db, "WHERE r.run_id = ?1 ORDER BY r.seq", [run_id])?;
            if let Some(live) = found.iter().find(|entry| !entry.is_terminal) {
                let message = format!("run {run_id} is {}: it cannot be deleted", live.status.word());
                let hint = "Cancel it and wait until it has ended.";
                return Err(QueueError::new(QueueCode::NotTerminal, message, hint).in_state(live.status));
            }
            remove(db, run_id)?;
            Ok(found)
        })
    }

    /// Removes the runs whose latest request is over, in one of these states (any if none is named) and finished before
    /// that moment, in milliseconds since 1970. Gives the latest request of each.
    pub fn prune(
        &self,
        older_than: Option<u64>,
        states: &[RequestState],
        pruning: Pruning,
    ) -> Result<Vec<RequestEntry>, QueueError> {
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
        let before = older_than.map_or(i64::MAX, int);
        match pruning {
            Pruning::DryRun => self.read(|db, _| entries(db, &rest, [before])),
            Pruning::Delete => self.write(|db, _| {
                let found = entries(db, &rest, [before])?;
                for entry in &found {
                    remove(db, &entry.run_id)?;
                }
                Ok(found)
            }),
        }
    }
}

fn remove(db: &Connection, run_id: &str) -> Result<(), QueueError> {
    db.prepare_cached("DELETE FROM run_requests WHERE run_id = ?1")
        .and_then(|mut statement| statement.execute([run_id]))
        .map(|_| ())
        .map_err(sql("delete requests"))
}

//! Runs that were begun and that a request has left as they were: somebody has to end them, or what they started.

use rusqlite::Connection;

use super::Queue;
use super::entry::{RequestEntry, entries};
use super::error::{QueueError, sql};
use super::moves::Standing;

impl Queue {
    /// The requests whose runs are not where they are, the oldest first.
    pub fn loose_ends(&self) -> Result<Vec<RequestEntry>, QueueError> {
        self.read(|db, _| entries(db, "WHERE r.loose_ends = 1 ORDER BY r.seq", []))
    }

    /// The run of a request is where its request is, or never will be.
    pub fn tied(&self, request_id: &str) -> Result<(), QueueError> {
        self.write(|db, _| {
            db.prepare_cached("UPDATE run_requests SET loose_ends = 0 WHERE request_id = ?1")
                .and_then(|mut statement| statement.execute([request_id]))
                .map(|_| ())
                .map_err(sql("note that a run was ended"))
        })
    }
}

/// Notes that a request was moved without its holder. One that was never begun has nothing to end.
pub(super) fn leave_loose(db: &Connection, standing: &Standing) -> Result<(), QueueError> {
    if !standing.has_begun {
        return Ok(());
    }
    db.prepare_cached("UPDATE run_requests SET loose_ends = 1 WHERE seq = ?1")
        .and_then(|mut statement| statement.execute([standing.seq]))
        .map(|_| ())
        .map_err(sql("note that a run has to be ended"))
}

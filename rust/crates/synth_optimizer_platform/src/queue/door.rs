//! What the doors of the queue ask besides: submissions that came before, lanes that are taken, and a file at rest.

use super::Queue;
use super::entry::RequestEntry;
use super::error::{QueueError, sql};
use super::lane::container_lane;
use super::moves::first;
use super::submit::{check_run_id, replay};

impl Queue {
    /// The request of an earlier submit with this key; a conflict when what was sent was something else.
    pub fn submitted(&self, key: &str, body_digest: &str) -> Result<Option<RequestEntry>, QueueError> {
        self.read(|db, _| replay(db, Some(key), body_digest))
    }

    /// Fails when a run of this id cannot be submitted: one is not over, or is completed.
    pub fn check_run_id(&self, run_id: &str) -> Result<(), QueueError> {
        self.read(|db, _| check_run_id(db, run_id))
    }

    /// Whether a request that runs holds this container.
    pub fn is_container_held(&self, url: &str) -> Result<bool, QueueError> {
        let text = "SELECT 1 FROM run_requests WHERE status IN ('leased', 'running') AND container_lane = ?1";
        self.read(|db, _| Ok(first(db, text, [container_lane(url)])?.is_some()))
    }

    /// Brings everything into the file itself, so that it can be copied.
    pub fn checkpoint(&self) -> Result<(), QueueError> {
        let db = self.inner.writer.lend()?;
        db.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).map_err(sql("bring the file to rest"))
    }
}

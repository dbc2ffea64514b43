//! Whether this process still owns its run: no other process has taken the run over, and the lease has not expired.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::artifacts::LockIdentity;
use crate::clock::boot_millis;
use crate::workspace::ownership_lost;
use synth_optimizer_core::model::error::OptimizerError;

/// A lease on a run. The worker renews it with heartbeats, and the run checks it. Clones are the same lease.
///
/// The deadline is a moment of the boot clock, which also advances while the process is stopped or the machine sleeps.
/// A process that continues after such a pause therefore finds its lease expired.
#[derive(Debug, Clone)]
pub struct RunLease {
    /// Milliseconds of the boot clock. 0 means revoked.
    deadline: Arc<AtomicU64>,
}

impl RunLease {
    /// Creates a lease that expires at this moment of the boot clock.
    pub fn until(deadline: u64) -> Self {
        Self { deadline: Arc::new(AtomicU64::new(deadline.max(1))) }
    }

    /// Moves the deadline to this moment of the boot clock. The worker computes the moment from the time at which it sent
    /// the heartbeat, because it may have been stopped since. Returns false if the lease was revoked, which is final.
    pub fn extend_to(&self, moment: u64) -> bool {
        let next = |deadline: u64| (deadline != 0).then_some(moment.max(1));
        self.deadline.fetch_update(Ordering::SeqCst, Ordering::SeqCst, next).is_ok()
    }

    /// Ends the lease immediately.
    pub fn revoke(&self) {
        self.deadline.store(0, Ordering::SeqCst);
    }

    /// Returns whether the lease has expired or was revoked.
    pub fn has_ended(&self) -> bool {
        boot_millis() >= self.deadline.load(Ordering::SeqCst)
    }

    fn check(&self) -> Result<(), OptimizerError> {
        if !self.has_ended() {
            return Ok(());
        }
        let is_revoked = self.deadline.load(Ordering::SeqCst) == 0;
        Err(ownership_lost(if is_revoked {
            "the lease on the run was revoked"
        } else {
            "the lease on the run has expired"
        }))
    }
}

/// The lock and the lease of this process. `check` is called before every write and every outbound call.
#[derive(Debug, Clone)]
pub(super) struct Ownership {
    mark: LockIdentity,
    watch: Option<RunLease>,
}

impl Ownership {
    pub(super) fn new(mark: LockIdentity, watch: Option<RunLease>) -> Self {
        Self { mark, watch }
    }

    /// Fails if this process no longer owns the run.
    pub(super) fn check(&self) -> Result<(), OptimizerError> {
        self.mark.check()?;
        self.watch.as_ref().map_or(Ok(()), RunLease::check)
    }
}

#[cfg(test)]
#[path = "ownership_tests.rs"]
mod tests;

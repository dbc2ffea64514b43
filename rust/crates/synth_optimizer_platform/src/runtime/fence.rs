//! Whether this process may still work on its run: nobody has taken the run over, and the lease on it has not run out.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::artifacts::LockMark;
use crate::clock::boot_millis;
use crate::workspace::fenced;
use synth_optimizer_core::model::error::OptimizerError;

/// A lease on a run, kept up by whoever heartbeats and watched by the run. Clones are the same lease.
///
/// Its deadline is on the clock of the machine, so that a process that was stopped, or a machine that slept, finds it
/// passed.
#[derive(Debug, Clone)]
pub struct LeaseWatch {
    /// Milliseconds of the boot clock; 0 is revoked.
    deadline: Arc<AtomicU64>,
}

impl LeaseWatch {
    /// A lease that ends at this moment of the boot clock.
    pub fn until(deadline: u64) -> Self {
        Self { deadline: Arc::new(AtomicU64::new(deadline.max(1))) }
    }

    /// Lets it last until this moment of the boot clock: whoever renews it knows when it asked, and may have been stopped
    /// since. False when it was revoked, which cannot be undone.
    pub fn extend_to(&self, moment: u64) -> bool {
        let next = |deadline: u64| (deadline != 0).then_some(moment.max(1));
        self.deadline.fetch_update(Ordering::SeqCst, Ordering::SeqCst, next).is_ok()
    }

    /// Ends it at once.
    pub fn revoke(&self) {
        self.deadline.store(0, Ordering::SeqCst);
    }

    /// Whether it has ended.
    pub fn is_over(&self) -> bool {
        boot_millis() >= self.deadline.load(Ordering::SeqCst)
    }

    fn check(&self) -> Result<(), OptimizerError> {
        if !self.is_over() {
            return Ok(());
        }
        let is_revoked = self.deadline.load(Ordering::SeqCst) == 0;
        Err(fenced(if is_revoked { "the lease on the run was revoked" } else { "the lease on the run has run out" }))
    }
}

/// What stands between this process and its run. It is looked at before every write and every call.
#[derive(Debug, Clone)]
pub(super) struct Fence {
    mark: LockMark,
    watch: Option<LeaseWatch>,
}

impl Fence {
    pub(super) fn new(mark: LockMark, watch: Option<LeaseWatch>) -> Self {
        Self { mark, watch }
    }

    /// Fails when this process may not work on the run any more.
    pub(super) fn check(&self) -> Result<(), OptimizerError> {
        self.mark.check()?;
        self.watch.as_ref().map_or(Ok(()), LeaseWatch::check)
    }
}

#[cfg(test)]
#[path = "fence_tests.rs"]
mod tests;

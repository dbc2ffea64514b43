//! Wakes a thread that waits for something to do.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// A bell that is heard once, also by whoever comes to it after it was rung.
#[derive(Debug, Default)]
pub(super) struct Bell {
    has_rung: Mutex<bool>,
    changed: Condvar,
}

impl Bell {
    pub(super) fn ring(&self) {
        *self.has_rung.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_one();
    }

    /// Waits until it is rung, or for this long.
    pub(super) fn wait(&self, time: Duration) {
        let has_rung = self.has_rung.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(has_rung, time, |has_rung| !*has_rung);
        *waited.unwrap_or_else(PoisonError::into_inner).0 = false;
    }
}

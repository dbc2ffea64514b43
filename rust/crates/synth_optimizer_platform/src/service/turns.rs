//! Whose turn it is to start a container at an address: a check that starts one and a run that does must not meet.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::{Notify, OwnedMutexGuard};

use crate::queue::container_lane;

/// How often somebody who has the turn is told that it is wanted.
const REMINDER: Duration = Duration::from_millis(50);

/// One turn for each container that somebody is about to start.
#[derive(Debug, Default)]
pub(super) struct Turns(Mutex<BTreeMap<String, Weak<Turn>>>);

/// Whose turn it is at one address.
#[derive(Debug, Default)]
pub(super) struct Turn {
    lock: Arc<tokio::sync::Mutex<()>>,
    wanted: Notify,
}

impl Turn {
    /// Waits until nobody else has it.
    pub(super) async fn take(&self) -> OwnedMutexGuard<()> {
        Arc::clone(&self.lock).lock_owned().await
    }

    /// The same for somebody who is not kept waiting: whoever has it is told, again and again.
    pub(super) async fn demand(&self) -> OwnedMutexGuard<()> {
        let telling = async {
            loop {
                self.wanted.notify_waiters();
                tokio::time::sleep(REMINDER).await;
            }
        };
        tokio::select! {
            taken = self.take() => taken,
            never = telling => never,
        }
    }

    /// Waits until somebody demands it.
    pub(super) async fn demanded(&self) {
        self.wanted.notified().await;
    }
}

impl Turns {
    /// The turn of the container at this address.
    pub(super) fn of(&self, url: &str) -> Arc<Turn> {
        let mut turns = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        turns.retain(|_, turn| turn.strong_count() > 0);
        let lane = container_lane(url);
        if let Some(turn) = turns.get(&lane).and_then(Weak::upgrade) {
            return turn;
        }
        let turn = Arc::new(Turn::default());
        turns.insert(lane, Arc::downgrade(&turn));
        turn
    }
}

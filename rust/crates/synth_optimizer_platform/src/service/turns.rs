//! Whose turn it is to start a container at an address: a check that starts one and a run that does must not meet.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::queue::container_lane;

/// One lock for each container that somebody is about to start.
#[derive(Debug, Default)]
pub(super) struct Turns(Mutex<BTreeMap<String, Weak<tokio::sync::Mutex<()>>>>);

impl Turns {
    /// The lock of the container at this address.
    pub(super) fn of(&self, url: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut turns = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        turns.retain(|_, turn| turn.strong_count() > 0);
        let lane = container_lane(url);
        if let Some(turn) = turns.get(&lane).and_then(Weak::upgrade) {
            return turn;
        }
        let turn = Arc::new(tokio::sync::Mutex::new(()));
        turns.insert(lane, Arc::downgrade(&turn));
        turn
    }
}

//! What the stub remembers of rollouts by their id.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

/// How far a rollout is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Progress {
    Running,
    /// The whole record.
    Done(Arc<[u8]>),
    /// It ended without a result: the status and the reason.
    Ended(&'static str, &'static str),
}

/// What is known when an id is submitted.
#[derive(Debug)]
pub(super) enum Known {
    /// It was not known and is running now.
    New,
    /// Somebody submitted it before.
    Before(watch::Receiver<Progress>),
    /// It was submitted before for another row or candidate.
    Conflict,
}

/// Records by rollout id.
#[derive(Debug, Default)]
pub(super) struct Records(Mutex<HashMap<String, (String, watch::Sender<Progress>)>>);

impl Records {
    /// Takes an id; the identity tells what is to be run under it.
    pub(super) fn begin(&self, id: &str, identity: String) -> Known {
        let mut records = self.lock();
        match records.get(id) {
            Some((before, progress)) if *before == identity => Known::Before(progress.subscribe()),
            Some(_) => Known::Conflict,
            None => {
                records.insert(id.to_owned(), (identity, watch::Sender::new(Progress::Running)));
                Known::New
            }
        }
    }

    /// Takes an id whether it is known or not.
    pub(super) fn restart(&self, id: &str) {
        let fresh = watch::Sender::new(Progress::Running);
        self.lock().entry(id.to_owned()).or_insert_with(|| (String::new(), fresh)).1.send_replace(Progress::Running);
    }

    /// Ends a running rollout; what has ended stays as it is.
    pub(super) fn end(&self, id: &str, with: Progress) {
        if let Some((_, progress)) = self.lock().get(id) {
            progress.send_if_modified(|now| {
                let running = *now == Progress::Running;
                if running {
                    *now = with;
                }
                running
            });
        }
    }

    pub(super) fn get(&self, id: &str) -> Option<Progress> {
        self.lock().get(id).map(|(_, progress)| progress.borrow().clone())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, (String, watch::Sender<Progress>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

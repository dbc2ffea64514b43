//! The rollouts that the stub remembers, by id.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

/// Progress of a rollout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Progress {
    Running,
    /// Completed, with its record.
    Done(Arc<[u8]>),
    /// Ended without a result: status and reason.
    ProcessOutput(&'static str, &'static str),
}

/// Result of submitting an id.
#[derive(Debug)]
pub(super) enum Submission {
    /// The id is new; its rollout is now running.
    New,
    /// The same rollout was submitted before.
    Repeated(watch::Receiver<Progress>),
    /// The id was submitted before for another row or candidate.
    Conflict,
}

/// Records by rollout id.
#[derive(Debug, Default)]
pub(super) struct RolloutRecords(Mutex<HashMap<String, (String, watch::Sender<Progress>)>>);

impl RolloutRecords {
    /// Registers an id. `identity` identifies its row and candidate.
    pub(super) fn begin(&self, id: &str, identity: String) -> Submission {
        let mut records = self.lock();
        match records.get(id) {
            Some((before, progress)) if *before == identity => Submission::Repeated(progress.subscribe()),
            Some(_) => Submission::Conflict,
            None => {
                records.insert(id.to_owned(), (identity, watch::Sender::new(Progress::Running)));
                Submission::New
            }
        }
    }

    /// Registers an id, even if it is known.
    pub(super) fn restart(&self, id: &str) {
        let fresh = watch::Sender::new(Progress::Running);
        self.lock().entry(id.to_owned()).or_insert_with(|| (String::new(), fresh)).1.send_replace(Progress::Running);
    }

    /// Ends a running rollout. Leaves an ended one unchanged.
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

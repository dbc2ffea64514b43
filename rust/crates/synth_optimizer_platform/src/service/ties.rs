//! Ends runs that were begun and whose requests were ended or set aside while nobody worked on them, with everything that
//! they have left running. Nobody is called for that, and no container is needed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use camino::Utf8Path;

use super::crew::Crew;
use crate::artifacts::{RunDir, RunPaths};
use crate::container::reap_orphans;
use crate::model::error::{ErrorCode, OptimizerError};
use crate::model::lifecycle::RequestState;
use crate::queue::{QueueError, RequestEntry};
use crate::runtime::{Control, Signal};

/// The pause after a run that could not be ended, and how often it is tried.
const AGAIN: Duration = Duration::from_secs(2);
const TRIES: u32 = 30;

/// The runs that are being ended. A run that begins waits for that.
#[derive(Debug, Default)]
pub(super) struct Ties(Mutex<BTreeSet<String>>);

/// What could not be done yet: how often it was tried, and when it is again.
pub(super) type Tried = BTreeMap<String, (u32, Instant)>;

impl Ties {
    fn known(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until nobody ends the run.
    pub(super) async fn free(&self, run_dir: &str) {
        while self.known().contains(run_dir) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

impl Crew {
    /// Ends what was left. It may wait for files and processes.
    pub(super) fn tie(&self, tried: &mut Tried) -> Result<(), QueueError> {
        for entry in self.queue.loose_ends()? {
            let (tries, next) = tried.get(&entry.request_id).copied().unwrap_or((0, Instant::now()));
            if Instant::now() < next {
                continue;
            }
            self.ties.known().insert(entry.run_dir.clone());
            let done = self.tie_one(&entry);
            self.ties.known().remove(&entry.run_dir);
            match done {
                Err(error) if tries < TRIES => {
                    if tries == 0 {
                        self.log.line(&format!("run {} is not ended yet: {error}", entry.run_id));
                    }
                    tried.insert(entry.request_id, (tries + 1, Instant::now() + AGAIN));
                    continue;
                }
                Err(error) => self.log.line(&format!("run {} could not be ended: {error}", entry.run_id)),
                Ok(()) => drop(self.summarized(entry.clone())),
            }
            tried.remove(&entry.request_id);
            self.queue.tied(&entry.request_id)?;
        }
        Ok(())
    }

    fn tie_one(&self, entry: &RequestEntry) -> Result<(), OptimizerError> {
        // Whoever has taken it up again meanwhile ends what there is.
        let latest = self.queue.get(&entry.run_id)?;
        if latest.request_id != entry.request_id || latest.status != entry.status {
            return Ok(());
        }
        let paths = RunPaths::new(Utf8Path::new(&entry.output_dir), &entry.run_id)?;
        if !paths.dir().is_dir() {
            return Ok(());
        }
        if entry.status == RequestState::Paused || !paths.workspace_db().is_file() {
            let dir = RunDir::take_over(paths.output_dir(), &entry.run_id, entry.superseded().as_deref())?;
            return reap_orphans(dir.dir()).map(|_| ());
        }
        let mut request = self.request(self.submitted(entry)?);
        request.takeover = entry.superseded();
        let (control, controlled) = Control::new(1);
        let told = entry.error.as_ref().and_then(|error| error["message"].as_str()).unwrap_or("cancelled");
        control.send(Signal::Cancel { reason: told.to_owned(), grace: Some(Duration::ZERO) });
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| OptimizerError::new(ErrorCode::Io, format!("no runtime for the run: {error}")))?;
        runtime.block_on(self.algorithm.execute(request, controlled)).map(|_| ())
    }
}

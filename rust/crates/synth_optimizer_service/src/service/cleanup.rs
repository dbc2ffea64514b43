//! Cleanup of started runs whose requests ended or were paused without their holder: finalizes the run and ends its leftover
//! processes. Cleanup calls neither the container nor the proposer.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use camino::Utf8Path;
use tokio::sync::watch;
use tracing::warn;

use super::workers::Workers;
use crate::queue::{QueueError, RequestEntry};
use synth_gepa::GepaEngine;
use synth_optimizer_core::model::control::ControlRequest;
use synth_optimizer_core::model::error::OptimizerError;
use synth_optimizer_core::model::lifecycle::RequestState;
use synth_optimizer_platform::artifacts::{RunDir, RunPaths};
use synth_optimizer_platform::container::reap_orphans;
use synth_optimizer_platform::runtime::{RunControl, block_on, execute};

/// How long to wait after a failed cleanup.
pub(super) const RETRY_INTERVAL: Duration = Duration::from_secs(2);
/// How many times a failed cleanup is retried.
const MAX_RETRIES: u32 = 30;

/// The run directories that are being cleaned up. A starting run waits until its directory is free.
#[derive(Debug, Default)]
pub(super) struct Cleanups(watch::Sender<BTreeSet<String>>);

impl Cleanups {
    /// Waits until the run is not being cleaned up.
    pub(super) async fn wait_until_free(&self, run_dir: &str) {
        // The channel cannot be closed, because this struct owns the sender.
        let _ = self.0.subscribe().wait_for(|cleaned| !cleaned.contains(run_dir)).await;
    }
}

/// Failed cleanups by request: the number of failures, and the time of the next attempt.
pub(super) type FailedCleanups = BTreeMap<String, (u32, Instant)>;

impl Workers {
    /// Cleans up every run that needs it. Blocks on files and processes.
    pub(super) fn clean_up(&self, failed: &mut FailedCleanups) -> Result<(), QueueError> {
        let needed = self.queue.needs_cleanup()?;
        failed.retain(|request_id, _| needed.iter().any(|entry| entry.request_id == *request_id));
        for entry in needed {
            let (tries, next) = failed.get(&entry.request_id).copied().unwrap_or((0, Instant::now()));
            if Instant::now() < next {
                continue;
            }
            self.cleanups.0.send_if_modified(|cleaned| cleaned.insert(entry.run_dir.clone()));
            let done = self.clean_up_one(&entry);
            self.cleanups.0.send_if_modified(|cleaned| cleaned.remove(&entry.run_dir));
            match done {
                Err(error) if tries < MAX_RETRIES => {
                    if tries == 0 {
                        warn!(run_id = entry.run_id, %error, "the run of an ended run request has not ended yet");
                    }
                    failed.insert(entry.request_id, (tries + 1, Instant::now() + RETRY_INTERVAL));
                    continue;
                }
                Err(error) => warn!(run_id = entry.run_id, %error, "ending the run of an ended run request failed"),
                Ok(()) => self.add_results(&entry),
            }
            failed.remove(&entry.request_id);
            self.queue.mark_cleaned(&entry.request_id)?;
        }
        Ok(())
    }

    fn clean_up_one(&self, entry: &RequestEntry) -> Result<(), OptimizerError> {
        // If a worker has claimed the request meanwhile, that worker cleans up.
        let latest = self.queue.get(&entry.run_id)?;
        if latest.request_id != entry.request_id || latest.status != entry.status {
            return Ok(());
        }
        let paths = RunPaths::new(Utf8Path::new(&entry.output_dir), &entry.run_id)?;
        if !paths.dir().is_dir() {
            return Ok(());
        }
        if entry.status == RequestState::Paused || !paths.workspace_db().is_file() {
            let dir = RunDir::take_over(paths.output_dir(), &entry.run_id, entry.previous_holder().as_deref())?;
            return reap_orphans(dir.dir()).map(|_| ());
        }
        let mut request = self.run_request(self.submitted_config(entry)?);
        request.takeover = entry.previous_holder();
        let (control, receiver) = RunControl::new(1);
        let reason = entry.error.as_ref().and_then(|error| error["message"].as_str()).unwrap_or("cancelled");
        control.send(ControlRequest::cancel(reason).with_grace(Duration::ZERO));
        block_on("cleanup", || execute::<GepaEngine>(request, receiver)).map(|_| ())
    }
}

//! Ends runs that were begun and whose requests ended or were paused without their holder, with every process that they have
//! left. No container and no proposer is called for that.

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
use synth_optimizer_platform::runtime::{Control, block_on, execute};

/// The pause after a cleanup that failed.
pub(super) const RETRY_INTERVAL: Duration = Duration::from_secs(2);
/// How often a cleanup is tried again.
const MAX_RETRIES: u32 = 30;

/// The run directories that are being cleaned up. A run that begins waits for that.
#[derive(Debug, Default)]
pub(super) struct Cleanups(watch::Sender<BTreeSet<String>>);

impl Cleanups {
    /// Waits until the run is not being cleaned up.
    pub(super) async fn wait_until_free(&self, run_dir: &str) {
        // The sender is here, so that the channel is open.
        let _ = self.0.subscribe().wait_for(|cleaned| !cleaned.contains(run_dir)).await;
    }
}

/// Cleanups that failed, by request: how often, and when they are tried again.
pub(super) type FailedCleanups = BTreeMap<String, (u32, Instant)>;

impl Workers {
    /// Cleans up every run that needs it. It may wait for files and processes.
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
                        warn!(run_id = entry.run_id, %error, "the run of an ended request is not ended yet");
                    }
                    failed.insert(entry.request_id, (tries + 1, Instant::now() + RETRY_INTERVAL));
                    continue;
                }
                Err(error) => warn!(run_id = entry.run_id, %error, "the run of an ended request could not be ended"),
                Ok(()) => self.summarize(&entry),
            }
            failed.remove(&entry.request_id);
            self.queue.mark_cleaned(&entry.request_id)?;
        }
        Ok(())
    }

    fn clean_up_one(&self, entry: &RequestEntry) -> Result<(), OptimizerError> {
        // A worker that has taken it up again meanwhile ends what there is.
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
        let mut request = self.run_request(self.submitted(entry)?);
        request.takeover = entry.superseded();
        let (control, controlled) = Control::new(1);
        let reason = entry.error.as_ref().and_then(|error| error["message"].as_str()).unwrap_or("cancelled");
        control.send(ControlRequest::cancel(reason).within(Duration::ZERO));
        block_on("cleanup", || execute::<GepaEngine>(request, controlled)).map(|_| ())
    }
}

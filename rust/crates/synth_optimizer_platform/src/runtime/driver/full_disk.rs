//! A full disk: the run keeps what it could not store in memory, and stores it once there is room again.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tracing::warn;

use super::{Driver, ownership_loss};
use crate::clock::unix_millis;
use crate::runtime::execute::open_feed_writer;
use crate::workspace::{Batch, StoredEvent};
use synth_optimizer_core::engine::Engine;
use synth_optimizer_core::model::control::ControlAction;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::event::Event;
use synth_optimizer_core::model::event_fields::{Dependency, RunWaiting, WaitingEnded};

/// A wait for room on the disk.
struct DiskWait {
    since: Instant,
    /// Milliseconds since 1970.
    since_millis: u64,
    tries: u32,
    cause: String,
}

impl<E: Engine> Driver<'_, E> {
    /// Commits a batch. While the disk is full, keeps the batch and tries again.
    pub(super) async fn commit_with_room(&mut self, batch: &Arc<Batch>) -> Result<(), OptimizerError> {
        let mut wait = None;
        while let Err(error) = self.workspace.commit(Arc::clone(batch)).await {
            self.wait_for_room(&mut wait, error).await?;
        }
        self.record_wait(wait);
        Ok(())
    }

    /// Appends committed events to the feed. A feed for which the disk had no room is written again from the log.
    pub(super) async fn append_to_feed(&mut self, events: &[StoredEvent]) -> Result<(), OptimizerError> {
        let mut wait = None;
        let mut appended = self.feed_writer.append(events);
        while let Err(error) = appended {
            self.wait_for_room(&mut wait, error).await?;
            appended = open_feed_writer(self.run.dir, &self.workspace).map(|feed| self.feed_writer = feed);
        }
        self.record_wait(wait);
        Ok(())
    }

    /// Pauses before the next try. Returns the error if it has another cause, the run does not wait any longer, or a control
    /// request ends the wait.
    async fn wait_for_room(
        &mut self,
        wait: &mut Option<DiskWait>,
        error: OptimizerError,
    ) -> Result<(), OptimizerError> {
        if error.code != ErrorCode::StorageFull {
            return Err(error);
        }
        let cause = error.message.clone();
        let wait = wait.get_or_insert_with(|| DiskWait {
            since: Instant::now(),
            since_millis: unix_millis(),
            tries: 0,
            cause,
        });
        let settings = &self.run.request.config.run;
        let patience = Duration::from_secs(settings.outage_patience_seconds);
        let waited = wait.since.elapsed();
        if waited >= patience {
            let message = format!("{} (waited {} s)", error.message, waited.as_secs());
            return Err(OptimizerError { message, ..error }.of_outage());
        }
        let longest = Duration::from_secs(settings.outage_retry_max_seconds);
        let pause = Duration::from_millis(settings.outage_retry_ms).saturating_mul(1 << wait.tries.min(16));
        wait.tries += 1;
        let until = Instant::now() + pause.min(longest).min(patience - waited);
        warn!(cause = error.message, tries = wait.tries, pause_ms = pause.as_millis() as u64, "waiting for room");
        loop {
            tokio::select! {
                biased;
                Some(request) = self.requests.recv() => match request.action {
                    ControlAction::Step | ControlAction::Resume => {}
                    // None of them can be stored. The run is saved up to its last commit.
                    ControlAction::Stop
                    | ControlAction::Cancel
                    | ControlAction::Pause
                    | ControlAction::Interrupt
                    | ControlAction::Shutdown => return Err(error.of_outage()),
                },
                lost = ownership_loss(self.run.ownership) => return Err(lost),
                () = tokio::time::sleep_until(until) => return Ok(()),
            }
        }
    }

    /// Records a wait that has ended. During the wait, the disk had no room for an event.
    fn record_wait(&mut self, wait: Option<DiskWait>) {
        let Some(DiskWait { since, since_millis, tries, cause }) = wait else { return };
        let (waited_millis, patience) =
            (since.elapsed().as_millis() as u64, self.run.request.config.run.outage_patience_seconds);
        let waiting_for = Dependency::Disk;
        let waiting = RunWaiting {
            waiting_for,
            cause,
            since: since_millis,
            tries,
            next_try_at: since_millis + waited_millis,
            deadline_at: since_millis + patience.saturating_mul(1000),
        };
        let ended = WaitingEnded { waiting_for, waited_millis };
        self.append_events(vec![Event::RunWaiting(waiting), Event::WaitingEnded(ended)]);
    }
}

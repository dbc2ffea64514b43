//! The workers of a service: fill free places from the queue, keep leases, notice silent runs, and clean up.
//!
//! Each happens on a thread of its own, so that no client and no slow file can hold it up. The threads sleep until the queue
//! changes; one looks for what other processes have written.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tracing::{info, warn};

use super::checks::ContainerLocks;
use super::cleanup::{Cleanups, FailedCleanups, RETRY_INTERVAL};
use super::job::Job;
use super::metrics::Metrics;
use super::settings::Settings;
use super::worker::{Claimant, GIVE_UP};
use crate::Code;
use crate::queue::{Holder, Queue, QueueError, Which};
use synth_optimizer_core::model::control::ControlRequest;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_platform::warn_if_err;

/// A wait that only a change of the queue ends.
const UNTIL_CHANGED: Duration = Duration::from_secs(3600);

/// Everything that a service, or a single worker, carries out, and what that takes.
#[derive(Debug)]
pub struct Workers {
    pub(super) queue: Queue,
    pub(super) metrics: Arc<Metrics>,
    pub(super) container_locks: ContainerLocks,
    pub(super) cleanups: Cleanups,
    pub(super) settings: Settings,
    pub(super) holder: Holder,
    /// By request. Those that are over stay until the next look.
    jobs: Mutex<BTreeMap<String, Arc<Job>>>,
    /// Held while something is claimed, so that nothing is claimed once it says no.
    accepting: Mutex<bool>,
    is_closed: AtomicBool,
    /// What keeps the queue from being worked off.
    pub(super) trouble: Mutex<Option<String>>,
}

impl Workers {
    /// Workers that hold requests as `holder`.
    pub fn new(queue: Queue, settings: Settings, holder: Holder) -> Self {
        Self {
            queue,
            metrics: Arc::new(Metrics::new()),
            container_locks: ContainerLocks::default(),
            cleanups: Cleanups::default(),
            settings,
            holder,
            jobs: Mutex::default(),
            accepting: Mutex::new(true),
            is_closed: AtomicBool::new(false),
            trouble: Mutex::default(),
        }
    }

    pub(super) fn jobs(&self) -> Vec<Arc<Job>> {
        let mut jobs = self.jobs.lock();
        jobs.retain(|_, job| !job.is_over());
        jobs.values().map(Arc::clone).collect()
    }

    /// The job of a request, if this service has it.
    pub(super) fn job(&self, request_id: &str) -> Option<Arc<Job>> {
        self.jobs.lock().get(request_id).filter(|job| !job.is_over()).map(Arc::clone)
    }

    /// Starts the threads.
    pub(super) fn start(self: &Arc<Self>) -> Result<Vec<JoinHandle<()>>, OptimizerError> {
        let thread = |name: &str, work: fn(&Arc<Self>)| {
            let workers = Arc::clone(self);
            std::thread::Builder::new()
                .name(name.into())
                .spawn(move || work(&workers))
                .map_err(|error| OptimizerError::new(ErrorCode::Io, format!("no thread for the workers: {error}")))
        };
        Ok(vec![
            thread("synth-optimizers-claims", Self::fill)?,
            thread("synth-optimizers-pulse", Self::watch)?,
            thread("synth-optimizers-cleanup", Self::clean_up_all)?,
        ])
    }

    /// Ends the threads, once nothing is under way.
    pub(super) fn stop(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
        self.queue.wake();
    }

    /// Claims one request and carries it out, unless all places are taken: the background workers have as many as there are
    /// workers, and what clients ask for one by one has as many again. Nothing when none waits, or nothing is begun any more.
    /// It may wait for a file.
    pub(super) fn begin(
        self: &Arc<Self>,
        which: Which<'_>,
        is_stepped: bool,
        claimant: &Claimant,
    ) -> Result<Option<Arc<Job>>, QueueError> {
        let (accepting, places) = (self.accepting.lock(), self.settings.workers);
        if !*accepting {
            return Ok(None);
        }
        let is_background = which == Which::Background;
        if self.jobs().iter().filter(|job| job.is_background == is_background).count() >= places {
            let message = format!("{places} runs that were asked for one by one are under way");
            return Err(QueueError::new(Code::WorkersBusy, message, Code::WorkersBusy.row().4));
        }
        let Some(job) = self.claim(which, is_stepped, claimant)? else { return Ok(None) };
        self.jobs.lock().insert(job.request.request_id.clone(), Arc::clone(&job));
        // From here on it is given what was asked of its request before.
        self.queue.wake();
        Ok(Some(job))
    }

    /// Fills free places.
    fn fill(self: &Arc<Self>) {
        self.on_changes(|| {
            loop {
                match self.begin(Which::Background, false, &Claimant::default()) {
                    Ok(Some(_)) => self.note(None),
                    Err(error) if error.code != Some(Code::WorkersBusy) => {
                        self.note(Some(&error));
                        return self.pulse();
                    }
                    Ok(None) | Err(_) => {
                        self.note(None);
                        return UNTIL_CHANGED;
                    }
                }
            }
        });
    }

    /// Keeps leases, delivers what was asked of runs, looks for silence and for holders that are gone.
    fn watch(self: &Arc<Self>) {
        let (pulse, mut delivered, mut recovered) = (self.pulse(), None, None::<Instant>);
        self.on_changes(|| {
            if let Err(error) = self.queue.notice_others() {
                self.note(Some(&error));
            }
            let changes = Some(*self.queue.changes.get());
            let jobs = self.jobs();
            jobs.iter().for_each(|job| self.attend(job));
            if delivered != changes {
                match self.deliver(&jobs) {
                    Ok(()) => delivered = changes,
                    Err(error) => self.note(Some(&error)),
                }
            }
            if recovered.is_none_or(|at| at.elapsed() >= pulse) {
                recovered = Some(Instant::now());
                match self.recover() {
                    Ok(_) if self.trouble.lock().is_some() => self.queue.wake(),
                    Ok(_) => {}
                    Err(error) => self.note(Some(&error)),
                }
            }
            pulse
        });
    }

    /// Ends runs whose requests ended without their holder.
    fn clean_up_all(self: &Arc<Self>) {
        let mut failed = FailedCleanups::new();
        self.on_changes(|| match self.clean_up(&mut failed) {
            Ok(()) if failed.is_empty() => UNTIL_CHANGED,
            // The claims tell when the queue cannot be read.
            Ok(()) | Err(_) => RETRY_INTERVAL,
        });
    }

    /// Does something again and again until the service ends: when the queue has changed, and after the time that it returns.
    fn on_changes(&self, mut work: impl FnMut() -> Duration) {
        let changes = &self.queue.changes;
        while !self.is_closed.load(Ordering::SeqCst) {
            let before = *changes.get();
            let pause = work();
            changes.wait_blocking(pause, |now| *now != before);
        }
    }

    /// Ends the work on every run, and waits for them within the grace. Nothing is claimed from here on.
    pub(super) async fn drain(self: &Arc<Self>, grace: Duration) {
        let closing = Arc::clone(self);
        // The closure cannot panic, and nothing else ends it.
        let _ = tokio::task::spawn_blocking(move || *closing.accepting.lock() = false).await;
        let jobs = self.jobs();
        self.shut_down(grace);
        let all = async {
            for job in &jobs {
                job.end().await;
            }
        };
        // A run that is written to disk at this moment may take a little longer than its grace.
        if tokio::time::timeout(grace + GIVE_UP, all).await.is_ok() {
            return;
        }
        self.shut_down(Duration::ZERO);
        for job in jobs {
            if tokio::time::timeout(GIVE_UP, job.end()).await.is_err() {
                job.fence();
                let workers = Arc::clone(self);
                let released = tokio::task::spawn_blocking(move || {
                    let released =
                        workers.queue.release(&job.request.request_id, job.hold(), "the service was shut down");
                    warn_if_err!(released, "a request was not given back; it is recovered when its lease ends");
                });
                warn_if_err!(released.await, "a request was not given back");
            }
        }
    }

    /// Asks every run to save what it has within the grace.
    pub(super) fn shut_down(&self, grace: Duration) {
        let asked = ControlRequest::shutdown("the service is shutting down").within(grace);
        self.jobs().iter().for_each(|job| job.control(asked.clone()));
    }

    /// Remembers and logs what keeps the queue from being worked off, once for each trouble.
    fn note(&self, error: Option<&QueueError>) {
        let found = error.map(|error| error.error.message.clone());
        let mut trouble = self.trouble.lock();
        if *trouble != found {
            match &found {
                Some(error) => warn!(error, "the queue cannot be worked off"),
                None => info!("the queue can be worked off again"),
            }
            *trouble = found;
        }
    }
}

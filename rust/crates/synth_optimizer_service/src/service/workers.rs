//! The workers of a service: fill free places from the queue, keep leases, notice silent runs, and clean up.
//!
//! Each happens on a thread of its own, so that no client and no slow file can hold it up. The threads sleep until the queue
//! changes; one looks for what other processes have written.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tracing::{info, warn};

use super::cleanup::{FailedCleanups, RETRY_INTERVAL};
use super::job::{Job, Manner};
use super::worker::{Claimant, GIVE_UP, WorkerContext};
use crate::queue::{QueueError, RequestEntry, Which};
use synth_optimizer_core::model::control::ControlRequest;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_platform::warn_if_err;

/// A wait that only a change of the queue ends.
const UNTIL_CHANGED: Duration = Duration::from_secs(3600);

/// Everything that this service carries out.
#[derive(Debug)]
pub(super) struct Workers {
    context: Arc<WorkerContext>,
    /// By request. Those that are over stay until the next look.
    jobs: Mutex<BTreeMap<String, Held>>,
    /// Held while something is claimed, so that nothing is claimed once it says no.
    accepting: Mutex<bool>,
    is_closed: AtomicBool,
    /// What keeps the queue from being worked off.
    trouble: Mutex<Option<String>>,
}

#[derive(Debug)]
struct Held {
    job: Arc<Job>,
    place: Place,
}

/// Whose place a job takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Background,
    /// A client has asked for it.
    OnDemand,
}

/// What came of asking for a job.
#[derive(Debug)]
pub(super) enum Begun {
    Job(Arc<Job>),
    /// Nothing waits, or nothing is begun any more.
    Nothing,
    /// As many were asked for as the service has workers.
    Full,
}

impl Workers {
    pub(super) fn new(context: Arc<WorkerContext>) -> Self {
        Self {
            context,
            jobs: Mutex::default(),
            accepting: Mutex::new(true),
            is_closed: AtomicBool::new(false),
            trouble: Mutex::default(),
        }
    }

    pub(super) fn context(&self) -> &Arc<WorkerContext> {
        &self.context
    }

    pub(super) fn places(&self) -> usize {
        self.context.settings.workers
    }

    /// What keeps the queue from being worked off just now.
    pub(super) fn trouble(&self) -> Option<String> {
        lock(&self.trouble).clone()
    }

    pub(super) fn jobs(&self) -> Vec<Arc<Job>> {
        self.held().values().map(|held| Arc::clone(&held.job)).collect()
    }

    /// The job of a request, if this service has it.
    pub(super) fn job(&self, request_id: &str) -> Option<Arc<Job>> {
        self.held().get(request_id).map(|held| Arc::clone(&held.job))
    }

    /// Recovers requests whose holder is gone; returns those that were moved.
    pub(super) fn recover(&self) -> Result<Vec<RequestEntry>, QueueError> {
        self.context.recover()
    }

    /// Starts the threads.
    pub(super) fn start(self: &Arc<Self>) -> Result<Vec<JoinHandle<()>>, OptimizerError> {
        let thread = |name: &str, work: fn(&Self)| {
            let workers = Arc::clone(self);
            std::thread::Builder::new()
                .name(name.into())
                .spawn(move || work(&workers))
                .map_err(|error| OptimizerError::new(ErrorCode::Io, format!("no thread for the workers: {error}")))
        };
        Ok(vec![
            thread("synth-optimizers-claims", Self::fill)?,
            thread("synth-optimizers-pulse", Self::watch)?,
            thread("synth-optimizers-cleanup", Self::clean_up)?,
        ])
    }

    /// Ends the threads, once nothing is under way.
    pub(super) fn stop(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
        self.context.queue.wake();
    }

    /// Claims one request beside the background workers. It may wait for a file.
    pub(super) fn begin(&self, which: Which<'_>, manner: Manner, claimant: &Claimant) -> Result<Begun, QueueError> {
        self.claim(which, manner, claimant, Place::OnDemand)
    }

    /// Fills free places.
    fn fill(&self) {
        self.on_changes(|| {
            loop {
                let claimed = self.claim(Which::Background, Manner::Freely, &Claimant::default(), Place::Background);
                self.note(claimed.as_ref().err());
                match claimed {
                    Ok(Begun::Job(_)) => {}
                    Ok(Begun::Nothing | Begun::Full) => return UNTIL_CHANGED,
                    Err(_) => return self.context.pulse(),
                }
            }
        });
    }

    /// Keeps leases, delivers what was asked of runs, looks for silence and for holders that are gone.
    fn watch(&self) {
        let (pulse, mut delivered, mut recovered) = (self.context.pulse(), None, None::<Instant>);
        self.on_changes(|| {
            if let Err(error) = self.context.queue.notice_others() {
                self.note(Some(&error));
            }
            let changes = Some(*self.context.queue.changes.get());
            let jobs = self.jobs();
            jobs.iter().for_each(|job| self.context.attend(job));
            if delivered != changes {
                match self.context.deliver(&jobs) {
                    Ok(()) => delivered = changes,
                    Err(error) => self.note(Some(&error)),
                }
            }
            if recovered.is_none_or(|at| at.elapsed() >= pulse) {
                recovered = Some(Instant::now());
                match self.recover() {
                    Ok(_) if self.trouble().is_some() => self.context.queue.wake(),
                    Ok(_) => {}
                    Err(error) => self.note(Some(&error)),
                }
            }
            pulse
        });
    }

    /// Ends runs whose requests ended without their holder.
    fn clean_up(&self) {
        let mut failed = FailedCleanups::new();
        self.on_changes(|| match self.context.clean_up(&mut failed) {
            Ok(()) if failed.is_empty() => UNTIL_CHANGED,
            // The claims tell when the queue cannot be read.
            Ok(()) | Err(_) => RETRY_INTERVAL,
        });
    }

    /// Does something again and again until the service ends: when the queue has changed, and after the time that it returns.
    fn on_changes(&self, mut work: impl FnMut() -> Duration) {
        let changes = &self.context.queue.changes;
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
        let _ = tokio::task::spawn_blocking(move || *lock(&closing.accepting) = false).await;
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
                let context = Arc::clone(&self.context);
                let released = tokio::task::spawn_blocking(move || {
                    let released = context.queue.release(job.request_id(), job.hold(), "the service was shut down");
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

    fn claim(&self, which: Which<'_>, manner: Manner, claimant: &Claimant, place: Place) -> Result<Begun, QueueError> {
        let accepting = lock(&self.accepting);
        if !*accepting {
            return Ok(Begun::Nothing);
        }
        if self.held().values().filter(|held| held.place == place).count() >= self.places() {
            return Ok(Begun::Full);
        }
        let Some(job) = self.context.begin(which, manner, claimant)? else { return Ok(Begun::Nothing) };
        self.held().insert(job.request_id().to_owned(), Held { job: Arc::clone(&job), place });
        // From here on it is given what was asked of its request before.
        self.context.queue.wake();
        Ok(Begun::Job(job))
    }

    /// Remembers and logs what keeps the queue from being worked off, once for each trouble.
    fn note(&self, error: Option<&QueueError>) {
        let found = error.map(|error| error.error.message.clone());
        let mut trouble = lock(&self.trouble);
        if *trouble != found {
            match &found {
                Some(error) => warn!(error, "the queue cannot be worked off"),
                None => info!("the queue can be worked off again"),
            }
            *trouble = found;
        }
    }

    fn held(&self) -> MutexGuard<'_, BTreeMap<String, Held>> {
        let mut jobs = lock(&self.jobs);
        jobs.retain(|_, held| !held.job.is_over());
        jobs
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

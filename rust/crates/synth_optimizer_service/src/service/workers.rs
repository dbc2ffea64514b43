//! Takes requests from the queue and carries them out, one thread each. In a service, free places are filled from the queue,
//! leases are kept, silent runs noticed and runs cleaned up. A single worker shares what carries out one request.
//!
//! Each happens on a thread of its own, so that no client and no slow file can hold it up. The threads sleep until the queue
//! changes; one looks for what other processes have written.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use camino::Utf8Path;
use parking_lot::Mutex;
use tracing::{info, warn};

use super::checks::ContainerLocks;
use super::cleanup::{Cleanups, FailedCleanups, RETRY_INTERVAL};
use super::job::Job;
use super::metrics::Metrics;
use super::request_end::silent;
use super::settings::Settings;
use crate::Code;
use crate::queue::{Claim, HeldRequest, Hold, Holder, Queue, QueueError, RequestEntry, Which, random_id};
use synth_optimizer_core::config::{Config, from_stored};
use synth_optimizer_core::model::control::ControlRequest;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_platform::artifacts::RunPaths;
use synth_optimizer_platform::clock::boot_millis;
use synth_optimizer_platform::proposer::Proposer;
use synth_optimizer_platform::runtime::Request;
use synth_optimizer_platform::warn_if_err;
use synth_optimizer_platform::workspace::Reader;

/// A wait that only a change of the queue ends.
const UNTIL_CHANGED: Duration = Duration::from_secs(3600);
/// A request that was recovered this many times without progress has failed.
const MAX_RECOVERIES: i64 = 20;
/// A lease is renewed this often at least, so that readers of the queue see that its holder lives.
const RENEWAL_INTERVAL: Duration = Duration::from_secs(30);
/// How long a run that was cancelled may take to end its container and to store what it has.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(120);
/// How long a run may take to end before its thread is given up.
const GIVE_UP: Duration = Duration::from_secs(5);
/// The pause before a write that the queue could not take is tried again, at first and at most.
const RETRY_PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// Under which name and lease a request is claimed, where not under those of the worker.
#[derive(Debug, Clone, Default)]
pub struct Claimant {
    pub worker_id: Option<String>,
    pub lease: Option<Duration>,
}

/// Makes the proposer of a run, where it is not to be the one that the configuration names. Tests use this.
pub type ProposerFactory = fn(&Config) -> Option<Arc<dyn Proposer>>;

/// Everything that a service, or a single worker, carries out, and what that takes.
#[derive(Debug)]
pub struct Workers {
    pub(super) queue: Queue,
    pub(super) metrics: Arc<Metrics>,
    pub(super) container_locks: ContainerLocks,
    pub(super) cleanups: Cleanups,
    pub(super) settings: Settings,
    holder: Holder,
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
        loop {
            // Read before the flag: `stop` sets the flag and then changes the value, so that one of the two is seen.
            let before = *changes.get();
            if self.is_closed.load(Ordering::SeqCst) {
                return;
            }
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

    /// How often a worker looks at its leases and at what other processes have written to the queue.
    pub fn pulse(&self) -> Duration {
        (self.settings.lease / 3).min(Duration::from_millis(500))
    }

    /// Claims the next request that may run and starts it.
    pub(super) fn claim(
        self: &Arc<Self>,
        which: Which<'_>,
        is_stepped: bool,
        claimant: &Claimant,
    ) -> Result<Option<Arc<Job>>, QueueError> {
        let lease_id = format!("lease_{}", random_id()?);
        let worker_id = Some(claimant.worker_id.as_deref().unwrap_or(&self.settings.worker_id));
        let lease = claimant.lease.unwrap_or(self.settings.lease);
        let claim = Claim { lease_id: &lease_id, worker_id, lease, holder: self.holder.clone(), which };
        let asked_at = boot_millis();
        let Some(entry) = self.queue.claim(&claim)? else { return Ok(None) };
        let (is_stepped, is_background) = (is_stepped || entry.manual_step, which == Which::Background);
        info!(run_id = entry.run_id, request = entry.request_id, attempt = entry.attempts, "run request claimed");
        let (request_id, token) = (entry.request_id.clone(), entry.fencing_token);
        match Job::start(self, entry, is_stepped, is_background, asked_at, lease) {
            Ok(job) => Ok(Some(job)),
            Err(error) => {
                self.queue.release(&request_id, Hold::Token(token), &error.message)?;
                Err(error.into())
            }
        }
    }

    /// Claims the next request, carries it out, and keeps its lease on a thread of its own. For a process that works off a
    /// queue without serving it.
    pub fn begin_next(self: &Arc<Self>) -> Result<Option<Arc<Job>>, QueueError> {
        let Some(job) = self.claim(Which::Any, false, &Claimant::default())? else { return Ok(None) };
        let (worker, kept) = (Arc::clone(self), Arc::clone(&job));
        let pulse = std::thread::Builder::new().name("synth-optimizers-pulse".into()).spawn(move || {
            while kept.wait(worker.pulse()).is_none() {
                worker.attend(&kept);
                if let Err(error) = worker.deliver(std::slice::from_ref(&kept)) {
                    warn!(run_id = kept.request.run_id, %error, "what is asked of the run cannot be read");
                }
            }
        });
        if let Err(error) = pulse {
            job.control(ControlRequest::shutdown("no thread keeps its lease"));
            return Err(OptimizerError::new(ErrorCode::Io, format!("no thread for the worker: {error}")).into());
        }
        Ok(Some(job))
    }

    /// Renews the lease of a job when it is due, and ends one that stores nothing for too long.
    pub(super) fn attend(&self, job: &Arc<Job>) {
        let times = *job.times.lock();
        if job.is_renewal_due(RENEWAL_INTERVAL) {
            let asked_at = boot_millis();
            match self.queue.heartbeat(&job.request.request_id, job.hold(), job.lease_length, times.progress_at) {
                Ok(Some(_)) => job.renew(asked_at),
                Ok(None) => job.fence(),
                // The queue may answer the next time; without an answer the lease runs out by itself.
                Err(_) => {}
            }
        }
        let patience = if job.is_stepped { self.settings.pause_timeout } else { self.settings.silence };
        let (silence, limit) = (job.silence(), times.longest_wait + patience);
        if silence > limit + GIVE_UP || job.since_cancel().is_some_and(|since| since > CANCEL_TIMEOUT + GIVE_UP) {
            self.give_up(job);
        } else if silence > limit && job.is_stepped {
            job.control(ControlRequest::interrupt("nobody asked for a step").within(Duration::ZERO));
        } else if silence > limit {
            job.end_silent();
        }
    }

    /// A thread that does not even end when asked is left behind: its lease is revoked, so that it can do nothing more.
    fn give_up(&self, job: &Arc<Job>) {
        job.fence();
        let (id, hold) = (&job.request.request_id, job.hold());
        let recorded = match job.since_cancel() {
            Some(_) => self.queue.mark_cancelled(id, hold, "cancelled; its thread did not end", None),
            None => self.queue.fail(id, hold, &silent(job), None, None),
        };
        match recorded {
            // What cannot be recorded now is recorded at the next pulse.
            Err(error) if error.may_pass => {}
            Ok(entry) => job.abandon(self, entry),
            Err(error) => {
                warn!(run_id = job.request.run_id, %error, "the end of a run whose thread hangs was not recorded");
                job.abandon(self, self.latest(job));
            }
        }
    }

    /// Gives jobs what was asked of their requests, and fences those whose request another worker holds.
    pub(super) fn deliver(&self, jobs: &[Arc<Job>]) -> Result<(), QueueError> {
        if jobs.is_empty() {
            return Ok(());
        }
        let held = self.queue.held_requests()?;
        for job in jobs.iter().filter(|job| !job.is_over()) {
            let own = |held: &&HeldRequest| {
                held.request_id == job.request.request_id && Hold::Token(held.fencing_token) == job.hold()
            };
            match held.iter().find(own) {
                Some(held) => held.asked.iter().for_each(|asked| job.control(asked.clone())),
                None => job.fence(),
            }
        }
        Ok(())
    }

    /// The request of a job, as far as it is known.
    pub(super) fn latest(&self, job: &Job) -> RequestEntry {
        self.queue.get_request(&job.request.request_id).unwrap_or_else(|_| job.request.clone())
    }

    /// Recovers requests whose holder is gone and ends pauses that are over; returns those that were moved.
    pub(super) fn recover(&self) -> Result<Vec<RequestEntry>, QueueError> {
        let recovered = self.queue.recover(self.holder.instance_id())?;
        self.metrics.recovered.inc_by(recovered.len() as u64);
        for entry in &recovered {
            let (run_id, status) = (&entry.run_id, entry.status.word());
            warn!(run_id, request = entry.request_id, status, "run request recovered from a worker that is gone");
        }
        Ok(recovered)
    }

    /// Writes something about a job to the queue. A queue that cannot be written to just now, because others write to it or
    /// its disk is full, is waited for as long as the lease lasts.
    pub(super) fn persist<T>(
        &self,
        job: &Job,
        write: impl Fn(&Queue) -> Result<T, QueueError>,
    ) -> Result<T, QueueError> {
        let (mut pause, longest) = RETRY_PAUSE;
        loop {
            match write(&self.queue) {
                Err(error) if error.may_pass && !job.is_lease_over() => {
                    std::thread::sleep(pause);
                    pause = (pause * 2).min(longest);
                }
                done => return done,
            }
        }
    }

    /// The configuration of a request, as it was when it was submitted.
    pub(super) fn submitted(&self, request: &RequestEntry) -> Result<Config, QueueError> {
        let (stored, _) = self.queue.config(&request.request_id)?;
        let mut config = from_stored(&stored, "the queue")?.config;
        config.run.run_id = Some(request.run_id.clone());
        Ok(config)
    }

    /// What is to be run.
    pub(super) fn run_request(&self, config: Config) -> Request {
        let proposer = self.settings.proposers.and_then(|make| make(&config));
        Request { proposer, ..self.request(config) }
    }

    /// What is to be run or checked, where this worker may call and with what it has.
    pub(super) fn request(&self, config: Config) -> Request {
        let (reach, codex_runtime) = (self.settings.reach.clone(), self.settings.codex_runtime.clone());
        Request { reach, codex_runtime, ..Request::new(config) }
    }

    /// The configuration of a request that is worked on from here on.
    pub(super) fn configured(&self, job: &Job) -> Result<Config, OptimizerError> {
        let (request, hold) = (&job.request, job.hold());
        let config = self.persist(job, |_| self.submitted(request))?;
        self.persist(job, |queue| queue.start(&request.request_id, hold))?;
        let paths = RunPaths::new(&config.run.output_dir, &request.run_id)?;
        let mark = last_milestone(&paths)?;
        let losses = self.persist(job, |queue| queue.progress(&request.request_id, hold, mark))?;
        if losses >= MAX_RECOVERIES {
            let message = format!("{losses} workers in a row were lost at the same place of run {}", request.run_id);
            return Err(OptimizerError::new(ErrorCode::RunFailed, message)
                .with_hint("Look what ends the workers: memory, or a container that takes the machine down."));
        }
        Ok(config)
    }
}

/// The last event that shows progress; -1 before the first.
fn last_milestone(paths: &RunPaths) -> Result<i64, OptimizerError> {
    let db: &Utf8Path = &paths.workspace_db();
    if !db.is_file() {
        return Ok(-1);
    }
    let last = Reader::open(db.as_std_path())?.last_milestone()?;
    Ok(last.map_or(-1, |last| i64::try_from(last).unwrap_or(i64::MAX)))
}

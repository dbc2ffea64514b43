//! Takes requests from the queue and carries them out, one thread each. The service and a single worker share this.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use camino::Utf8Path;
use tracing::{info, warn};

use super::checks::ContainerLocks;
use super::cleanup::Cleanups;
use super::job::{Job, Manner};
use super::metrics::Metrics;
use super::request_end::silent;
use super::settings::Settings;
use crate::queue::{Claim, HeldRequest, Hold, Holder, Queue, QueueError, RequestEntry, Which, random_id};
use synth_optimizer_core::config::{Config, from_stored};
use synth_optimizer_core::model::control::ControlRequest;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_platform::artifacts::RunPaths;
use synth_optimizer_platform::clock::boot_millis;
use synth_optimizer_platform::proposer::Proposer;
use synth_optimizer_platform::runtime::Request;
use synth_optimizer_platform::workspace::Reader;

/// A request that was recovered this many times without progress has failed.
const MAX_RECOVERIES: i64 = 20;
/// A lease is renewed this often at least, so that readers of the queue see that its holder lives.
const RENEWAL_INTERVAL: Duration = Duration::from_secs(30);
/// How long a run that was cancelled may take to end its container and to store what it has.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(120);
/// How long a run may take to end before its thread is given up.
pub(super) const GIVE_UP: Duration = Duration::from_secs(5);
/// The pause before a write that the queue could not take is tried again, at first and at most.
const RETRY_PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// Under which name and lease a request is claimed, where not under those of the worker.
#[derive(Debug, Clone, Default)]
pub struct Claimant {
    pub worker_id: Option<String>,
    pub lease: Option<Duration>,
}

/// Makes the proposer of a run, where it is not to be the one that the configuration names. Tests use this.
#[derive(Clone, Default)]
pub struct ProposerFactory(Option<Arc<MakeProposer>>);

type MakeProposer = dyn Fn(&Config) -> Option<Arc<dyn Proposer>> + Send + Sync;

impl ProposerFactory {
    pub fn new(make: impl Fn(&Config) -> Option<Arc<dyn Proposer>> + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(make)))
    }
}

impl fmt::Debug for ProposerFactory {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "ProposerFactory({})", if self.0.is_some() { "set" } else { "none" })
    }
}

/// What carrying out a request takes.
#[derive(Debug)]
pub struct WorkerContext {
    pub(super) queue: Queue,
    pub(super) metrics: Arc<Metrics>,
    pub(super) container_locks: ContainerLocks,
    pub(super) cleanups: Cleanups,
    pub(super) settings: Settings,
    holder: Holder,
}

impl WorkerContext {
    /// A worker that holds requests as `holder`.
    pub fn new(queue: Queue, settings: Settings, holder: Holder) -> Self {
        Self {
            queue,
            metrics: Arc::new(Metrics::new()),
            container_locks: ContainerLocks::default(),
            cleanups: Cleanups::default(),
            settings,
            holder,
        }
    }

    /// How often a worker looks at its leases and at what other processes have written to the queue.
    pub fn pulse(&self) -> Duration {
        (self.settings.lease / 3).min(Duration::from_millis(500))
    }

    /// Claims the next request that may run and starts it.
    pub fn begin(
        self: &Arc<Self>,
        which: Which<'_>,
        manner: Manner,
        claimant: &Claimant,
    ) -> Result<Option<Arc<Job>>, QueueError> {
        let lease_id = format!("lease_{}", random_id()?);
        let worker_id = Some(claimant.worker_id.as_deref().unwrap_or(&self.settings.worker_id));
        let lease = claimant.lease.unwrap_or(self.settings.lease);
        let claim = Claim { lease_id: &lease_id, worker_id, lease, holder: self.holder.clone(), which };
        let asked_at = boot_millis();
        let Some(entry) = self.queue.claim(&claim)? else { return Ok(None) };
        let manner = if entry.manual_step { Manner::Stepped } else { manner };
        info!(run_id = entry.run_id, request = entry.request_id, attempt = entry.attempts, "run request claimed");
        let (request_id, token) = (entry.request_id.clone(), entry.fencing_token);
        match Job::start(self, entry, manner, asked_at, lease) {
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
        let Some(job) = self.begin(Which::Any, Manner::Freely, &Claimant::default())? else { return Ok(None) };
        let (worker, kept) = (Arc::clone(self), Arc::clone(&job));
        let pulse = std::thread::Builder::new().name("synth-optimizers-pulse".into()).spawn(move || {
            while kept.wait(worker.pulse()).is_none() {
                worker.attend(&kept);
                if let Err(error) = worker.deliver(std::slice::from_ref(&kept)) {
                    warn!(run_id = kept.run_id(), %error, "what is asked of the run cannot be read");
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
        if job.is_renewal_due(RENEWAL_INTERVAL) {
            let asked_at = boot_millis();
            match self.queue.heartbeat(job.request_id(), job.hold(), job.lease_length, job.progress_at()) {
                Ok(Some(_)) => job.renew(asked_at),
                Ok(None) => job.fence(),
                // The queue may answer the next time; without an answer the lease runs out by itself.
                Err(_) => {}
            }
        }
        let limit = job.longest_wait()
            + match job.manner() {
                Manner::Freely => self.settings.silence,
                Manner::Stepped => self.settings.pause_timeout,
            };
        let silence = job.silence();
        if silence > limit + GIVE_UP || job.since_cancel().is_some_and(|since| since > CANCEL_TIMEOUT + GIVE_UP) {
            self.give_up(job);
        } else if silence > limit {
            match job.manner() {
                Manner::Freely => job.end_silent(),
                Manner::Stepped => {
                    job.control(ControlRequest::interrupt("nobody asked for a step").within(Duration::ZERO));
                }
            }
        }
    }

    /// A thread that does not even end when asked is left behind: its lease is revoked, so that it can do nothing more.
    fn give_up(&self, job: &Arc<Job>) {
        job.fence();
        let (id, hold) = (job.request_id(), job.hold());
        let recorded = match job.since_cancel() {
            Some(_) => self.queue.mark_cancelled(id, hold, "cancelled; its thread did not end"),
            None => self.queue.fail(id, hold, &silent(job), None),
        };
        match recorded {
            // What cannot be recorded now is recorded at the next pulse.
            Err(error) if error.may_pass() => {}
            Ok(entry) => job.abandon(self, entry),
            Err(error) => {
                warn!(run_id = job.run_id(), %error, "the end of a run whose thread hangs was not recorded");
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
                held.request_id == job.request_id() && Hold::Token(held.fencing_token) == job.hold()
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
        self.queue.get_request(job.request_id()).unwrap_or_else(|_| job.request.clone())
    }

    /// Recovers requests whose holder is gone and ends pauses that are over; returns those that were moved.
    pub(super) fn recover(&self) -> Result<Vec<RequestEntry>, QueueError> {
        let recovered = self.queue.recover(self.holder.identity())?;
        self.metrics.recovered(recovered.len());
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
                Err(error) if error.may_pass() && !job.is_lease_over() => {
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
        let proposer = self.settings.proposers.0.as_ref().and_then(|make| make(&config));
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

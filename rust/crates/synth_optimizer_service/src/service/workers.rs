//! Claims run requests from the queue and executes each on its own thread.
//!
//! A service has three threads for this: one claims requests for free worker slots, one renews leases, delivers control
//! requests and ends stalled runs, and one cleans up runs. They are separate from the HTTP threads, so that neither a client
//! nor a slow file can delay them. They sleep until the queue changes; the second one also polls for changes by other
//! processes. A process that executes single requests without serving the queue uses the same code.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use backon::{BlockingRetryable, ExponentialBuilder};
use camino::Utf8Path;
use parking_lot::Mutex;
use tracing::{info, warn};

use super::checks::ContainerLocks;
use super::cleanup::{Cleanups, FailedCleanups, RETRY_INTERVAL};
use super::job::Job;
use super::metrics::Metrics;
use super::request_end::stalled_run_error;
use super::settings::Settings;
use crate::ServiceErrorCode;
use crate::queue::{ActiveRequest, Claim, ClaimFilter, LeaseHolder, LeaseProof, Queue, QueueError, RequestEntry};
use synth_optimizer_core::config::{Config, from_stored};
use synth_optimizer_core::model::control::ControlRequest;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_platform::access::AccessPolicy;
use synth_optimizer_platform::artifacts::RunPaths;
use synth_optimizer_platform::clock::{boot_millis, random_hex};
use synth_optimizer_platform::proposer::Proposer;
use synth_optimizer_platform::runtime::RunSpec;
use synth_optimizer_platform::warn_if_err;
use synth_optimizer_platform::workspace::Reader;

/// How long a thread sleeps if the queue does not change.
const UNTIL_CHANGED: Duration = Duration::from_secs(3600);
/// A request that was recovered this many times without progress has failed.
const MAX_RECOVERIES: i64 = 20;
/// Longest time between two renewals of a lease, so that readers of the queue see that its holder is alive.
const RENEWAL_INTERVAL: Duration = Duration::from_secs(30);
/// How long a cancelled run may take to end its container and to store its results.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(120);
/// How long a run may take to end before its thread is abandoned.
const END_TIMEOUT: Duration = Duration::from_secs(5);
/// First and longest delay before a failed write to the queue is retried.
const RETRY_PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// Worker id and lease duration of a claim, where they differ from the settings.
#[derive(Debug, Clone, Default)]
pub struct ClaimOptions {
    pub worker_id: Option<String>,
    pub lease: Option<Duration>,
}

/// Creates the proposer of a run instead of the one that the configuration names. For tests.
pub type ProposerFactory = fn(&Config) -> Option<Arc<dyn Proposer>>;

/// The workers of a service, or a single worker, with everything that they share.
#[derive(Debug)]
pub struct Workers {
    pub(super) queue: Queue,
    pub(super) metrics: Arc<Metrics>,
    pub(super) container_locks: ContainerLocks,
    pub(super) cleanups: Cleanups,
    pub(super) settings: Settings,
    /// What the configurations of runs may reach and start.
    access: AccessPolicy,
    holder: LeaseHolder,
    /// Jobs by request id. Ended jobs are removed at the next access.
    jobs: Mutex<BTreeMap<String, Arc<Job>>>,
    /// Whether requests are still claimed. Locked during a claim, so that no claim follows once it is false.
    accepting: Mutex<bool>,
    is_closed: AtomicBool,
    /// The error that prevents the workers from claiming requests.
    pub(super) claim_error: Mutex<Option<String>>,
}

impl Workers {
    /// Creates workers that claim requests as `holder`. They execute every configuration in the queue.
    pub fn new(queue: Queue, settings: Settings, holder: LeaseHolder) -> Self {
        Self {
            queue,
            metrics: Arc::new(Metrics::new()),
            container_locks: ContainerLocks::default(),
            cleanups: Cleanups::default(),
            settings,
            access: AccessPolicy::default(),
            holder,
            jobs: Mutex::default(),
            accepting: Mutex::new(true),
            is_closed: AtomicBool::new(false),
            claim_error: Mutex::default(),
        }
    }

    /// Restricts what the configurations of runs may reach and start.
    #[must_use]
    pub(super) fn with_access(self, access: AccessPolicy) -> Self {
        Self { access, ..self }
    }

    pub(super) fn jobs(&self) -> Vec<Arc<Job>> {
        let mut jobs = self.jobs.lock();
        jobs.retain(|_, job| !job.has_ended());
        jobs.values().map(Arc::clone).collect()
    }

    /// Returns the job of a request, if this process executes it.
    pub(super) fn job(&self, request_id: &str) -> Option<Arc<Job>> {
        self.jobs.lock().get(request_id).filter(|job| !job.has_ended()).map(Arc::clone)
    }

    /// Starts the three threads.
    pub(super) fn start(self: &Arc<Self>) -> Result<Vec<JoinHandle<()>>, OptimizerError> {
        let thread = |name: &str, work: fn(&Arc<Self>)| {
            let workers = Arc::clone(self);
            std::thread::Builder::new()
                .name(name.into())
                .spawn(move || work(&workers))
                .map_err(|error| OptimizerError::from_cause(ErrorCode::Io, "cannot start the worker thread", error))
        };
        Ok(vec![
            thread("synth-optimizers-claims", Self::claim_loop)?,
            thread("synth-optimizers-lease", Self::supervise_loop)?,
            thread("synth-optimizers-cleanup", Self::cleanup_loop)?,
        ])
    }

    /// Tells the threads to end. The jobs must have ended before.
    pub(super) fn stop(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
        self.queue.wake();
    }

    /// Claims one request and starts its job, if a slot is free. Background workers have `settings.workers` slots, and jobs
    /// that clients start have as many of their own. Returns `None` when no request can be claimed, or at shutdown. May block
    /// on a file.
    pub(super) fn start_job(
        self: &Arc<Self>,
        filter: ClaimFilter<'_>,
        is_stepped: bool,
        claimant: &ClaimOptions,
    ) -> Result<Option<Arc<Job>>, QueueError> {
        let (accepting, places) = (self.accepting.lock(), self.settings.workers);
        if !*accepting {
            return Ok(None);
        }
        let is_background = filter == ClaimFilter::Background;
        if self.jobs().iter().filter(|job| job.is_background == is_background).count() >= places {
            let message = format!("{places} runs that were started by run-next, tick or step are running");
            return Err(QueueError::new(ServiceErrorCode::WorkersBusy, message, ServiceErrorCode::WorkersBusy.row().4));
        }
        let Some(job) = self.claim(filter, is_stepped, claimant)? else { return Ok(None) };
        self.jobs.lock().insert(job.request.request_id.clone(), Arc::clone(&job));
        // From here on, the job receives the control requests that are already stored for it.
        self.queue.wake();
        Ok(Some(job))
    }

    /// Thread: claims requests while background slots are free.
    fn claim_loop(self: &Arc<Self>) {
        self.run_loop(|| {
            loop {
                match self.start_job(ClaimFilter::Background, false, &ClaimOptions::default()) {
                    Ok(Some(_)) => self.set_claim_error(None),
                    Err(error) if error.code != Some(ServiceErrorCode::WorkersBusy) => {
                        self.set_claim_error(Some(&error));
                        return self.poll_interval();
                    }
                    // Nothing to claim, or all workers are busy: the end of a job changes the queue.
                    Ok(None) | Err(_) => {
                        self.set_claim_error(None);
                        // An error is reported by the next claim.
                        return self.queue.next_retry().ok().flatten().unwrap_or(UNTIL_CHANGED);
                    }
                }
            }
        });
    }

    /// Thread: renews leases, delivers control requests, ends stalled runs, and recovers requests whose holder is gone.
    fn supervise_loop(self: &Arc<Self>) {
        let (interval, mut delivered, mut recovered) = (self.poll_interval(), None, None::<Instant>);
        self.run_loop(|| {
            if let Err(error) = self.queue.poll_external_changes() {
                self.set_claim_error(Some(&error));
            }
            let changes = Some(*self.queue.changes.get());
            let jobs = self.jobs();
            jobs.iter().for_each(|job| self.supervise_job(job));
            if delivered != changes {
                match self.deliver_controls(&jobs) {
                    Ok(()) => delivered = changes,
                    Err(error) => self.set_claim_error(Some(&error)),
                }
            }
            if recovered.is_none_or(|at| at.elapsed() >= interval) {
                recovered = Some(Instant::now());
                match self.recover() {
                    Ok(_) if self.claim_error.lock().is_some() => self.queue.wake(),
                    Ok(_) => {}
                    Err(error) => self.set_claim_error(Some(&error)),
                }
            }
            interval
        });
    }

    /// Thread: cleans up runs whose requests ended without their holder.
    fn cleanup_loop(self: &Arc<Self>) {
        let mut failed = FailedCleanups::new();
        self.run_loop(|| match self.clean_up(&mut failed) {
            Ok(()) if failed.is_empty() => UNTIL_CHANGED,
            // The claiming thread reports when the queue cannot be read.
            Ok(()) | Err(_) => RETRY_INTERVAL,
        });
    }

    /// Repeats `work` until the service ends: after each change of the queue, and after the time that `work` returns.
    fn run_loop(&self, mut work: impl FnMut() -> Duration) {
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

    /// Stops claiming, interrupts every run, and waits for the runs within the grace period.
    pub(super) async fn drain(self: &Arc<Self>, grace: Duration) {
        let closing = Arc::clone(self);
        // Ignored: the closure cannot panic.
        let _ = tokio::task::spawn_blocking(move || *closing.accepting.lock() = false).await;
        let jobs = self.jobs();
        self.shut_down(grace);
        let all = async {
            for job in &jobs {
                job.wait_for_end().await;
            }
        };
        // A run that is being written to disk may take a little longer than the grace period.
        if tokio::time::timeout(grace + END_TIMEOUT, all).await.is_ok() {
            return;
        }
        self.shut_down(Duration::ZERO);
        for job in jobs {
            if tokio::time::timeout(END_TIMEOUT, job.wait_for_end()).await.is_err() {
                job.fence();
                let workers = Arc::clone(self);
                let released = tokio::task::spawn_blocking(move || {
                    let released =
                        workers.queue.release(&job.request.request_id, job.lease_proof(), "the service was shut down");
                    warn_if_err!(released, "releasing a run request failed; it is recovered when its lease ends");
                });
                warn_if_err!(released.await, "releasing a run request failed");
            }
        }
    }

    /// Sends a shutdown request with this grace period to every run.
    pub(super) fn shut_down(&self, grace: Duration) {
        let control = ControlRequest::shutdown("the service is shutting down").with_grace(grace);
        self.jobs().iter().for_each(|job| job.send_control(control.clone()));
    }

    /// Stores the error that prevents claiming, and logs each change of it once.
    fn set_claim_error(&self, error: Option<&QueueError>) {
        let found = error.map(|error| error.error.message.clone());
        let mut claim_error = self.claim_error.lock();
        if *claim_error != found {
            match &found {
                Some(error) => warn!(error, "claiming run requests failed"),
                None => info!("claiming run requests works again"),
            }
            *claim_error = found;
        }
    }

    /// Returns how often a worker checks its leases and polls for changes by other processes.
    pub fn poll_interval(&self) -> Duration {
        (self.settings.lease / 3).min(Duration::from_millis(500))
    }

    /// Claims the next request that matches the filter and starts its job.
    pub(super) fn claim(
        self: &Arc<Self>,
        filter: ClaimFilter<'_>,
        is_stepped: bool,
        claimant: &ClaimOptions,
    ) -> Result<Option<Arc<Job>>, QueueError> {
        let lease_id = format!("lease_{}", random_hex::<16>()?);
        let worker_id = Some(claimant.worker_id.as_deref().unwrap_or(&self.settings.worker_id));
        let lease = claimant.lease.unwrap_or(self.settings.lease);
        let claim = Claim { lease_id: &lease_id, worker_id, lease, holder: self.holder.clone(), filter };
        let requested_at = boot_millis();
        let Some(entry) = self.queue.claim(&claim)? else { return Ok(None) };
        let (is_stepped, is_background) = (is_stepped || entry.manual_step, filter == ClaimFilter::Background);
        info!(run_id = entry.run_id, request = entry.request_id, attempt = entry.attempts, "run request claimed");
        let (request_id, token) = (entry.request_id.clone(), entry.fencing_token);
        match Job::start(self, entry, is_stepped, is_background, requested_at, lease) {
            Ok(job) => Ok(Some(job)),
            Err(error) => {
                self.queue.release(&request_id, LeaseProof::Token(token), &error.message)?;
                Err(error.into())
            }
        }
    }

    /// Claims the next request, starts its job, and renews its lease on another thread. For a process that executes
    /// requests of a queue without serving it.
    pub fn start_next(self: &Arc<Self>) -> Result<Option<Arc<Job>>, QueueError> {
        let Some(job) = self.claim(ClaimFilter::Any, false, &ClaimOptions::default())? else { return Ok(None) };
        let (worker, supervised) = (Arc::clone(self), Arc::clone(&job));
        let interval = std::thread::Builder::new().name("synth-optimizers-lease".into()).spawn(move || {
            while supervised.wait(worker.poll_interval()).is_none() {
                worker.supervise_job(&supervised);
                if let Err(error) = worker.deliver_controls(std::slice::from_ref(&supervised)) {
                    warn!(run_id = supervised.request.run_id, %error, "reading the control request of the run failed");
                }
            }
        });
        if let Err(error) = interval {
            job.send_control(ControlRequest::shutdown("cannot start the lease thread"));
            return Err(OptimizerError::from_cause(ErrorCode::Io, "cannot start the worker thread", error).into());
        }
        Ok(Some(job))
    }

    /// Renews the lease of a job if necessary, and ends a job that stores no event for too long.
    pub(super) fn supervise_job(&self, job: &Arc<Job>) {
        let times = *job.times.lock();
        if job.needs_renewal(RENEWAL_INTERVAL) {
            let requested_at = boot_millis();
            match self.queue.heartbeat(&job.request.request_id, job.lease_proof(), job.lease_length, times.progress_at)
            {
                Ok(Some(_)) => job.renew(requested_at),
                Ok(None) => return job.fence(),
                // The next attempt may succeed. If none does, the lease expires by itself.
                Err(error) => self.set_claim_error(Some(&error)),
            }
        }
        let stall_timeout = self.settings.stall_timeout;
        let patience =
            if job.is_stepped { self.settings.pause_timeout.unwrap_or(stall_timeout) } else { stall_timeout };
        let (idle, limit) = (job.time_since_progress(), times.longest_wait + patience);
        if idle > limit + END_TIMEOUT || job.since_cancel().is_some_and(|since| since > CANCEL_TIMEOUT + END_TIMEOUT) {
            self.abandon_job(job);
        } else if idle > limit && job.is_stepped && job.control_state().ending.is_none() {
            let pause = self.settings.pause_timeout;
            let control = ControlRequest { pause, ..ControlRequest::pause("no step was requested in time") };
            // If the queue does not store the pause, the request is released: a pending stop takes effect, or it waits.
            let stored = self.queue.pause_held(&job.request.request_id, job.lease_proof(), &control);
            warn_if_err!(stored, "storing the pause of an idle run failed");
            job.send_control(control.with_grace(Duration::ZERO));
        } else if idle > limit && !job.is_stepped {
            job.interrupt_stalled();
        }
    }

    /// Abandons a job whose thread does not end. Its lease is revoked, so the thread can write and send nothing more.
    fn abandon_job(&self, job: &Arc<Job>) {
        job.fence();
        let (id, lease_proof) = (&job.request.request_id, job.lease_proof());
        let recorded = match job.since_cancel() {
            Some(_) => {
                self.queue.mark_cancelled(id, lease_proof, "cancelled; the run did not end in time", None, false)
            }
            None => self.queue.fail(id, lease_proof, &stalled_run_error(job), None, None),
        };
        match recorded {
            // The next check of the job records it.
            Err(error) if error.is_transient => {}
            Ok(entry) => job.abandon(self, entry),
            Err(error) => {
                warn!(run_id = job.request.run_id, %error, "recording the end of a run whose thread hangs failed");
                job.abandon(self, self.latest_entry(job));
            }
        }
    }

    /// Delivers pending control requests to the jobs, and fences jobs whose request another worker holds.
    pub(super) fn deliver_controls(&self, jobs: &[Arc<Job>]) -> Result<(), QueueError> {
        if jobs.is_empty() {
            return Ok(());
        }
        let active = self.queue.active_requests()?;
        for job in jobs.iter().filter(|job| !job.has_ended()) {
            let own = |active: &&ActiveRequest| {
                active.request_id == job.request.request_id
                    && LeaseProof::Token(active.fencing_token) == job.lease_proof()
            };
            match active.iter().find(own) {
                Some(active) => active.pending_control.iter().for_each(|control| job.send_control(control.clone())),
                None => job.fence(),
            }
        }
        Ok(())
    }

    /// Returns the request of a job from the queue, or as it was claimed if the queue cannot be read.
    pub(super) fn latest_entry(&self, job: &Job) -> RequestEntry {
        self.queue.get_request(&job.request.request_id).unwrap_or_else(|_| job.request.clone())
    }

    /// Recovers requests whose holder is gone and cancels expired pauses. Returns the requests that were moved.
    pub(super) fn recover(&self) -> Result<Vec<RequestEntry>, QueueError> {
        let recovered = self.queue.recover(self.holder.instance_id())?;
        self.metrics.recovered.inc_by(recovered.len() as u64);
        for entry in &recovered {
            let (run_id, status) = (&entry.run_id, entry.status.as_str());
            warn!(run_id, request = entry.request_id, status, "run request recovered from a lost worker");
        }
        Ok(recovered)
    }

    /// Writes to the queue for a job. Retries transient errors, such as other writers or a full disk, as long as the lease
    /// lasts.
    pub(super) fn write_with_retry<T>(
        &self,
        job: &Job,
        write: impl Fn(&Queue) -> Result<T, QueueError>,
    ) -> Result<T, QueueError> {
        let pauses = ExponentialBuilder::new().with_min_delay(RETRY_PAUSE.0).with_max_delay(RETRY_PAUSE.1);
        let may_succeed = |error: &QueueError| error.is_transient && !job.has_lease_expired();
        let write = (|| write(&self.queue)).retry(pauses.without_max_times());
        write.sleep(std::thread::sleep).when(may_succeed).call()
    }

    /// Returns the configuration of a request, as it was submitted.
    pub(super) fn submitted_config(&self, request: &RequestEntry) -> Result<Config, QueueError> {
        let (stored, _) = self.queue.config(&request.request_id)?;
        let mut config = from_stored(&stored, "the queue")?.config;
        config.run.run_id = Some(request.run_id.clone());
        Ok(config)
    }

    /// Returns the runtime request for a run.
    pub(super) fn run_request(&self, config: Config) -> RunSpec {
        let proposer = self.settings.proposers.and_then(|make| make(&config));
        RunSpec { proposer, ..self.request(config) }
    }

    /// Returns the runtime request for a run or a check, with the access policy and codex binary of this worker.
    pub(super) fn request(&self, config: Config) -> RunSpec {
        let (access, codex_runtime) = (self.access.clone(), self.settings.codex_runtime.clone());
        RunSpec { access, codex_runtime, ..RunSpec::new(config) }
    }

    /// Marks the request of a job as running and returns its configuration. Fails after too many recoveries without progress.
    pub(super) fn start_request(&self, job: &Job) -> Result<Config, OptimizerError> {
        let (request, lease_proof) = (&job.request, job.lease_proof());
        let config = self.write_with_retry(job, |_| self.submitted_config(request))?;
        self.write_with_retry(job, |queue| queue.start(&request.request_id, lease_proof))?;
        let paths = RunPaths::new(&config.run.output_dir, &request.run_id)?;
        let mark = last_milestone(&paths)?;
        let recoveries =
            self.write_with_retry(job, |queue| queue.record_progress(&request.request_id, lease_proof, mark))?;
        if recoveries >= MAX_RECOVERIES {
            let message = format!("run {} lost {recoveries} workers in a row without progress", request.run_id);
            return Err(OptimizerError::new(ErrorCode::RunFailed, message)
                .with_hint("Find out what ends the workers, such as a lack of memory."));
        }
        Ok(config)
    }
}

/// Returns the sequence number of the last event that shows progress; -1 before the first one.
fn last_milestone(paths: &RunPaths) -> Result<i64, OptimizerError> {
    let db: &Utf8Path = &paths.workspace_db();
    if !db.is_file() {
        return Ok(-1);
    }
    let last = Reader::open(db.as_std_path())?.last_milestone()?;
    Ok(last.map_or(-1, |last| i64::try_from(last).unwrap_or(i64::MAX)))
}

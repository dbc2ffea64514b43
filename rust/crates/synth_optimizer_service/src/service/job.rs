//! A job: one claimed run request, executed on its own thread, and the control requests that it receives.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::{broadcast, watch};

use super::workers::Workers;
use crate::queue::{LeaseProof, RequestEntry};
use synth_gepa::GepaEngine;
use synth_optimizer_core::config::Config;
use synth_optimizer_core::config::proposer::ProposerBackend;
use synth_optimizer_core::model::control::{ControlAction, ControlRequest};
use synth_optimizer_core::model::error::OptimizerError;
use synth_optimizer_platform::artifacts::RunPaths;
use synth_optimizer_platform::clock::{boot_millis, unix_millis};
use synth_optimizer_platform::runtime::{
    ControlReceiver, HookPoint, Hooks, Monitor, RunControl, RunLease, RunOutcome, StepReport, catch_panic,
    execute_watched, spawn,
};
use synth_optimizer_platform::workspace::StoredEvent;

/// Grace period for calls in flight when a run is paused, interrupted or cancelled.
const CONTROL_GRACE: Duration = Duration::from_millis(500);
/// How many events a subscriber may fall behind.
const LIVE_BUFFER: u32 = 16_384;
/// A job treats its lease as expired this long before the deadline, because another worker may claim it at the deadline.
const LEASE_MARGIN: Duration = Duration::from_millis(250);

/// A run request that this process has claimed.
#[derive(Debug)]
pub struct Job {
    pub request: RequestEntry,
    /// Whether the run advances only by step requests.
    pub(super) is_stepped: bool,
    /// Whether a background worker claimed it, and not a client.
    pub(super) is_background: bool,
    lease: RunLease,
    pub(super) lease_length: Duration,
    control: RunControl,
    control_state: watch::Sender<ControlState>,
    /// Serializes steps.
    stepping: tokio::sync::Mutex<()>,
    pub(super) times: Mutex<JobTimes>,
    end: Monitor<Option<RequestEnd>>,
}

/// Times of a job.
#[derive(Debug, Clone, Copy)]
pub(super) struct JobTimes {
    /// When the run last stored an event, by the boot clock.
    progress: u64,
    /// The same in milliseconds since 1970; `None` before the first event.
    pub(super) progress_at: Option<u64>,
    /// When the lease was last renewed, by the boot clock.
    renewed: u64,
    /// The longest time that the run may wait for a call; zero before its configuration is read.
    pub(super) longest_wait: Duration,
}

/// The control requests that a run has received so far.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ControlState {
    /// The strongest request to end the run.
    pub(super) ending: Option<ControlAction>,
    pub(super) is_stopped: bool,
    /// Whether it was interrupted because it stored no event for too long.
    pub(super) is_stalled: bool,
    cancelled: Option<Instant>,
}

impl ControlState {
    /// Adds a control request. Returns whether it changes anything.
    fn add(&mut self, action: ControlAction) -> bool {
        match action {
            ControlAction::Step | ControlAction::Resume => false,
            ControlAction::Stop => !std::mem::replace(&mut self.is_stopped, true),
            _ if self.ending >= Some(action) || (self.is_stalled && action != ControlAction::Cancel) => false,
            _ => {
                self.ending = Some(action);
                self.cancelled = (action == ControlAction::Cancel).then(Instant::now);
                true
            }
        }
    }
}

/// The end of a job: the run request as it is in the queue, and a message.
#[derive(Debug, Clone)]
pub struct RequestEnd {
    pub entry: RequestEntry,
    pub message: String,
}

impl Job {
    /// Starts to execute a run request.
    pub(super) fn start(
        worker: &Arc<Workers>,
        request: RequestEntry,
        is_stepped: bool,
        is_background: bool,
        requested_at: u64,
        lease: Duration,
    ) -> Result<Arc<Self>, OptimizerError> {
        let (control, receiver) = RunControl::new(LIVE_BUFFER);
        let job = Arc::new(Self {
            lease: RunLease::until(deadline(requested_at, lease)),
            lease_length: lease,
            control,
            control_state: watch::Sender::default(),
            stepping: tokio::sync::Mutex::new(()),
            times: Mutex::new(JobTimes {
                progress: requested_at,
                progress_at: None,
                renewed: requested_at,
                longest_wait: Duration::ZERO,
            }),
            end: Monitor::default(),
            request,
            is_stepped,
            is_background,
        });
        let (running, ending, worker) = (Arc::clone(&job), Arc::clone(&job), Arc::clone(worker));
        let recording = Arc::clone(&worker);
        let work = move || async move { running.run(&worker, receiver).await };
        spawn("run", work, move |result| {
            // A job always ends, even if recording its end panics.
            let end = catch_panic("end of a run", || Ok(recording.record_end(&ending, result)));
            let lost = |error: OptimizerError| RequestEnd {
                entry: recording.latest_entry(&ending),
                message: error.to_string(),
            };
            ending.finish(&recording, end.unwrap_or_else(lost));
        })?;
        Ok(job)
    }

    /// Returns the proof that this job holds the lease.
    pub(super) fn lease_proof(&self) -> LeaseProof<'static> {
        LeaseProof::Token(self.request.fencing_token)
    }

    /// Returns the time since the run last stored an event.
    pub(super) fn time_since_progress(&self) -> Duration {
        Duration::from_millis(boot_millis().saturating_sub(self.times.lock().progress))
    }

    pub fn has_ended(&self) -> bool {
        self.end.get().is_some()
    }

    /// Waits until the job has ended.
    pub async fn wait_for_end(&self) -> Option<RequestEnd> {
        self.end.wait_for(Option::is_some).await;
        self.end.get().clone()
    }

    /// Blocks until the job has ended. Returns `None` if the time passes first.
    pub fn wait(&self, time: Duration) -> Option<RequestEnd> {
        self.end.wait_blocking(time, Option::is_some);
        self.end.get().clone()
    }

    /// Subscribes to the events of the run. Each is sent as soon as it is stored.
    pub(super) fn subscribe(&self) -> broadcast::Receiver<Arc<StoredEvent>> {
        self.control.subscribe()
    }

    /// Extends the lease, measured from the time at which the renewal was requested.
    pub(super) fn renew(&self, requested_at: u64) {
        self.times.lock().renewed = requested_at;
        self.lease.extend_to(deadline(requested_at, self.lease_length));
    }

    /// Returns whether a third of the lease, or the longest interval between two renewals, has passed.
    pub(super) fn needs_renewal(&self, longest: Duration) -> bool {
        let since = Duration::from_millis(boot_millis().saturating_sub(self.times.lock().renewed));
        since >= (self.lease_length / 3).min(longest)
    }

    pub(super) fn has_lease_expired(&self) -> bool {
        self.lease.has_ended()
    }

    /// Revokes the lease, because another worker holds it: the run writes and sends nothing more.
    pub(super) fn fence(&self) {
        self.lease.revoke();
        self.control.send(ControlRequest::interrupt("another worker holds the lease").with_grace(Duration::ZERO));
    }

    /// Sends a control request to the run. A stronger request to end the run replaces a weaker one. A repeated request with
    /// a grace period of zero ends the wait for calls in flight.
    pub fn send_control(&self, control: ControlRequest) {
        let is_new = self.control_state.send_if_modified(|known| known.add(control.action));
        if is_new || control.grace == Some(Duration::ZERO) {
            let grace = Some(control.grace.unwrap_or(CONTROL_GRACE));
            self.control.send(ControlRequest { grace, ..control });
        }
    }

    /// Interrupts a run that stores no events, unless it is being cancelled.
    pub(super) fn interrupt_stalled(&self) {
        let is_new = self.control_state.send_if_modified(|known| {
            known.ending != Some(ControlAction::Cancel) && !std::mem::replace(&mut known.is_stalled, true)
        });
        if is_new {
            self.control.send(ControlRequest::interrupt("the run made no progress").with_grace(Duration::ZERO));
        }
    }

    pub(super) fn control_state(&self) -> ControlState {
        *self.control_state.borrow()
    }

    /// Returns the time since the run was cancelled, if it was.
    pub(super) fn since_cancel(&self) -> Option<Duration> {
        self.control_state().cancelled.map(|at| at.elapsed())
    }

    /// Marks the job as ended although its thread still runs.
    pub(super) fn abandon(&self, worker: &Workers, entry: RequestEntry) {
        self.finish(worker, RequestEnd { entry, message: "the thread of the run did not end".into() });
    }

    fn finish(&self, worker: &Workers, end: RequestEnd) {
        self.end.update(|known| *known = Some(end));
        worker.queue.wake();
    }

    /// Lets the run send the calls that it wants now, and waits until they are settled.
    pub(super) async fn step(&self) -> Option<StepReport> {
        let _turn = self.stepping.lock().await;
        tokio::select! {
            report = self.control.step() => report.filter(|report| !report.has_ended),
            _ = self.wait_for_end() => None,
        }
    }

    async fn run(&self, worker: &Workers, receiver: ControlReceiver) -> Result<RunOutcome, OptimizerError> {
        let config = worker.start_request(self)?;
        self.times.lock().longest_wait = longest_wait(&config);
        let paths = RunPaths::new(&config.run.output_dir, &self.request.run_id)?;
        worker.cleanups.wait_until_free(&self.request.run_dir).await;
        if !config.container.command.is_empty() {
            self.wait_for_checks(worker, &config.container.url).await;
        }
        let mut request = worker.run_request(config);
        request.takeover = self.request.previous_holder();
        request.lease = Some(self.lease.clone());
        request.stepping = self.is_stepped;
        request.hooks = commit_times(worker);
        let on_event = |stored: &StoredEvent| {
            worker.metrics.count_event(stored);
            let mut times = self.times.lock();
            (times.progress, times.progress_at) = (boot_millis(), Some(unix_millis()));
        };
        let ends = (&self.control, receiver);
        execute_watched::<GepaEngine>(request, ends, &paths, on_event, |control| self.send_control(control)).await
    }

    /// Interrupts a check that has started its own container at the address, and waits until it has ended. No other check
    /// starts one while the request is leased.
    async fn wait_for_checks(&self, worker: &Workers, url: &str) {
        let (lock, mut control) = (worker.container_locks.lock_for(url), self.control_state.subscribe());
        tokio::select! {
            _ = lock.lock_preempting() => {}
            // A run that must end starts no container.
            _ = control.wait_for(|control| control.ending.is_some() || control.is_stalled) => {}
        }
    }
}

fn deadline(from: u64, lease: Duration) -> u64 {
    let lease = lease.saturating_sub(LEASE_MARGIN.min(lease / 4));
    from.saturating_add(u64::try_from(lease.as_millis()).unwrap_or(u64::MAX))
}

/// Returns the longest time that a run may wait for a call without storing an event.
fn longest_wait(config: &Config) -> Duration {
    let Config { container, proposer, gepa, .. } = config;
    let is_codex = proposer.backend == ProposerBackend::CodexAppServer;
    let proposer_startup = if is_codex { proposer.startup_timeout_seconds } else { 0 };
    let waits = [
        container.startup_timeout_seconds,
        container.rollout_timeout_seconds,
        gepa.rollout_async_timeout_seconds,
        proposer.timeout_seconds.saturating_add(proposer_startup),
    ];
    Duration::from_secs(waits.into_iter().max().unwrap_or(0))
}

/// Returns hooks that measure the commits of a run.
fn commit_times(worker: &Workers) -> Hooks {
    let (metrics, started) = (Arc::clone(&worker.metrics), Mutex::new(None::<Instant>));
    Hooks::new(move |boundary| {
        let mut started = started.lock();
        match boundary {
            HookPoint::BeforeCommit => *started = Some(Instant::now()),
            HookPoint::AfterCommit => {
                if let Some(started) = started.take() {
                    metrics.observe_commit("run", started.elapsed());
                }
            }
            HookPoint::AfterFeed | HookPoint::BeforeResults | HookPoint::AfterResults => {}
        }
    })
}

//! One request under way: a run on a thread of its own, and what is asked of it from outside.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::{broadcast, watch};

use super::workers::Workers;
use crate::queue::{Hold, RequestEntry};
use synth_gepa::GepaEngine;
use synth_optimizer_core::config::Config;
use synth_optimizer_core::model::control::{ControlAction, ControlRequest};
use synth_optimizer_core::model::error::OptimizerError;
use synth_optimizer_platform::artifacts::RunPaths;
use synth_optimizer_platform::clock::{boot_millis, unix_millis};
use synth_optimizer_platform::runtime::{
    Boundary, Control, Controlled, Hooks, LeaseWatch, Monitor, Outcome, StepReport, catch, execute_watched, spawn,
};
use synth_optimizer_platform::workspace::Stored;

/// How long a run that is paused, interrupted or cancelled may finish what is under way.
const GRACE: Duration = Duration::from_millis(500);
/// Events of a run that a subscriber may fall behind.
const LIVE_BUFFER: u32 = 16_384;
/// A lease counts as over this much before it is, because others may take it at that moment.
const LEASE_MARGIN: Duration = Duration::from_millis(250);

/// A request that this process holds.
#[derive(Debug)]
pub struct Job {
    pub request: RequestEntry,
    /// Whether it goes on only when a step is asked for.
    pub(super) is_stepped: bool,
    /// Whether a background worker has claimed it, and no client has asked for it.
    pub(super) is_background: bool,
    lease: LeaseWatch,
    pub(super) lease_length: Duration,
    control: Control,
    asked: watch::Sender<Asked>,
    /// One step at a time.
    stepping: tokio::sync::Mutex<()>,
    pub(super) times: Mutex<Times>,
    end: Monitor<Option<RequestEnd>>,
}

/// When something last happened to a run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    /// When it last stored an event, by the boot clock.
    progress: u64,
    /// The same in milliseconds since 1970; nothing before the first.
    pub(super) progress_at: Option<u64>,
    /// When the lease was last renewed, by the boot clock.
    renewed: u64,
    /// The longest that the run may have to wait for a call; zero before its configuration is read.
    pub(super) longest_wait: Duration,
}

/// What was asked of the run so far.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Asked {
    /// The weightiest request to end the work on it.
    pub(super) ending: Option<ControlAction>,
    pub(super) is_stopped: bool,
    /// Whether it was ended because it stored nothing for too long.
    pub(super) is_silent: bool,
    cancelled: Option<Instant>,
}

impl Asked {
    /// Takes a request in; whether it changes anything.
    fn add(&mut self, action: ControlAction) -> bool {
        match action {
            ControlAction::Step | ControlAction::Resume => false,
            ControlAction::Stop => !std::mem::replace(&mut self.is_stopped, true),
            _ if self.ending >= Some(action) || (self.is_silent && action != ControlAction::Cancel) => false,
            _ => {
                self.ending = Some(action);
                self.cancelled = (action == ControlAction::Cancel).then(Instant::now);
                true
            }
        }
    }
}

/// A request whose run has ended, as the queue has it.
#[derive(Debug, Clone)]
pub struct RequestEnd {
    pub entry: RequestEntry,
    pub message: String,
}

impl Job {
    /// Starts to carry a request out.
    pub(super) fn start(
        worker: &Arc<Workers>,
        request: RequestEntry,
        is_stepped: bool,
        is_background: bool,
        asked_at: u64,
        lease: Duration,
    ) -> Result<Arc<Self>, OptimizerError> {
        let (control, controlled) = Control::new(LIVE_BUFFER);
        let job = Arc::new(Self {
            lease: LeaseWatch::until(deadline(asked_at, lease)),
            lease_length: lease,
            control,
            asked: watch::Sender::default(),
            stepping: tokio::sync::Mutex::new(()),
            times: Mutex::new(Times {
                progress: asked_at,
                progress_at: None,
                renewed: asked_at,
                longest_wait: Duration::ZERO,
            }),
            end: Monitor::default(),
            request,
            is_stepped,
            is_background,
        });
        let (running, ending, worker) = (Arc::clone(&job), Arc::clone(&job), Arc::clone(worker));
        let recording = Arc::clone(&worker);
        let work = move || async move { running.run(&worker, controlled).await };
        spawn("run", work, move |result| {
            // A job always ends, also where recording its end fails in a way that nothing foresees.
            let end = catch("end of a run", || Ok(recording.record_end(&ending, result)));
            let lost =
                |error: OptimizerError| RequestEnd { entry: recording.latest(&ending), message: error.to_string() };
            ending.finish(&recording, end.unwrap_or_else(lost));
        })?;
        Ok(job)
    }

    /// By what the queue knows that the request is ours.
    pub(super) fn hold(&self) -> Hold<'static> {
        Hold::Token(self.request.fencing_token)
    }

    /// How long the run has stored nothing.
    pub(super) fn silence(&self) -> Duration {
        Duration::from_millis(boot_millis().saturating_sub(self.times.lock().progress))
    }

    pub fn is_over(&self) -> bool {
        self.end.get().is_some()
    }

    /// Waits for the end.
    pub async fn end(&self) -> Option<RequestEnd> {
        self.end.wait_for(Option::is_some).await;
        self.end.get().clone()
    }

    /// Waits for the end in a thread; nothing when the time is over before.
    pub fn wait(&self, time: Duration) -> Option<RequestEnd> {
        self.end.wait_blocking(time, Option::is_some);
        self.end.get().clone()
    }

    /// Every event of the run from now on, as soon as it is stored.
    pub(super) fn subscribe(&self) -> broadcast::Receiver<Arc<Stored>> {
        self.control.subscribe()
    }

    /// Makes the lease last that long from the moment at which it was renewed.
    pub(super) fn renew(&self, asked_at: u64) {
        self.times.lock().renewed = asked_at;
        self.lease.extend_to(deadline(asked_at, self.lease_length));
    }

    /// Whether a third of the lease is over, or the longest time between two renewals.
    pub(super) fn is_renewal_due(&self, longest: Duration) -> bool {
        let since = Duration::from_millis(boot_millis().saturating_sub(self.times.lock().renewed));
        since >= (self.lease_length / 3).min(longest)
    }

    pub(super) fn is_lease_over(&self) -> bool {
        self.lease.is_over()
    }

    /// Another worker has the request: nothing more may be written or sent.
    pub(super) fn fence(&self) {
        self.lease.revoke();
        self.control.send(ControlRequest::interrupt("another worker holds the request").within(Duration::ZERO));
    }

    /// Gives the run what was asked of it. A weightier request to end it replaces a lighter one; without a grace, the same
    /// again ends the wait for what is under way.
    pub fn control(&self, asked: ControlRequest) {
        let is_new = self.asked.send_if_modified(|known| known.add(asked.action));
        if is_new || asked.grace == Some(Duration::ZERO) {
            let grace = Some(asked.grace.unwrap_or(GRACE));
            self.control.send(ControlRequest { grace, ..asked });
        }
    }

    /// Ends a run that stores nothing, unless it is being cancelled.
    pub(super) fn end_silent(&self) {
        let is_new = self.asked.send_if_modified(|known| {
            known.ending != Some(ControlAction::Cancel) && !std::mem::replace(&mut known.is_silent, true)
        });
        if is_new {
            self.control.send(ControlRequest::interrupt("it tells nothing").within(Duration::ZERO));
        }
    }

    pub(super) fn asked(&self) -> Asked {
        *self.asked.borrow()
    }

    /// How long ago it was cancelled, if it was.
    pub(super) fn since_cancel(&self) -> Option<Duration> {
        self.asked().cancelled.map(|at| at.elapsed())
    }

    /// Counts as ended although its thread is not.
    pub(super) fn abandon(&self, worker: &Workers, entry: RequestEntry) {
        self.finish(worker, RequestEnd { entry, message: "its thread was left behind".into() });
    }

    fn finish(&self, worker: &Workers, end: RequestEnd) {
        self.end.update(|known| *known = Some(end));
        worker.queue.wake();
    }

    /// Sends what the run wants now, and waits until that is settled.
    pub(super) async fn step(&self) -> Option<StepReport> {
        let _turn = self.stepping.lock().await;
        tokio::select! {
            report = self.control.step() => report.filter(|report| !report.has_ended),
            _ = self.end() => None,
        }
    }

    async fn run(&self, worker: &Workers, controlled: Controlled) -> Result<Outcome, OptimizerError> {
        let config = worker.configured(self)?;
        self.times.lock().longest_wait = longest_wait(&config);
        let paths = RunPaths::new(&config.run.output_dir, &self.request.run_id)?;
        worker.cleanups.wait_until_free(&self.request.run_dir).await;
        if !config.container.command.is_empty() {
            self.wait_for_checks(worker, &config.container.url).await;
        }
        let mut request = worker.run_request(config);
        request.takeover = self.request.superseded();
        request.lease = Some(self.lease.clone());
        request.stepping = self.is_stepped;
        request.hooks = commit_times(worker);
        let on_event = |stored: &Stored| {
            worker.metrics.heard(stored);
            let mut times = self.times.lock();
            (times.progress, times.progress_at) = (boot_millis(), Some(unix_millis()));
        };
        let ends = (&self.control, controlled);
        execute_watched::<GepaEngine>(request, ends, &paths, on_event, |asked| self.control(asked)).await
    }

    /// Waits until no check has a container of its own at the address; one that has is broken off. None begins while the
    /// request is held.
    async fn wait_for_checks(&self, worker: &Workers, url: &str) {
        let (lock, mut asked) = (worker.container_locks.of(url), self.asked.subscribe());
        tokio::select! {
            _ = lock.lock_preempting() => {}
            // A run that is asked to end starts nothing.
            _ = asked.wait_for(|asked| asked.ending.is_some() || asked.is_silent) => {}
        }
    }
}

fn deadline(from: u64, lease: Duration) -> u64 {
    let lease = lease.saturating_sub(LEASE_MARGIN.min(lease / 4));
    from.saturating_add(u64::try_from(lease.as_millis()).unwrap_or(u64::MAX))
}

/// The longest that a run may have to wait for a call without storing anything.
fn longest_wait(config: &Config) -> Duration {
    let Config { container, proposer, gepa, .. } = config;
    let waits = [
        container.startup_timeout_seconds,
        container.rollout_timeout_seconds,
        gepa.rollout_async_timeout_seconds,
        proposer.timeout_seconds.saturating_add(proposer.startup_timeout_seconds),
    ];
    Duration::from_secs(waits.into_iter().max().unwrap_or(0))
}

/// Measures the commits of a run.
fn commit_times(worker: &Workers) -> Hooks {
    let (metrics, begun) = (Arc::clone(&worker.metrics), Mutex::new(None::<Instant>));
    Hooks::new(move |boundary| {
        let mut begun = begun.lock();
        match boundary {
            Boundary::BeforeCommit => *begun = Some(Instant::now()),
            Boundary::AfterCommit => {
                if let Some(begun) = begun.take() {
                    metrics.committed("run", begun.elapsed());
                }
            }
            Boundary::AfterFeed | Boundary::BeforeResults | Boundary::AfterResults => {}
        }
    })
}

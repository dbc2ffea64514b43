//! One request under way: a run in a thread of its own, and what it is told from outside.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::broadcast::error::RecvError;
use tokio::sync::watch;

use super::crew::Crew;
use crate::artifacts::RunPaths;
use crate::clock::{boot_millis, unix_millis};
use crate::config::Config;
use crate::model::error::{ErrorCode, OptimizerError};
use crate::queue::{Hold, RequestEntry, Wish, WishKind};
use crate::runtime::{self, Boundary, Control, Controlled, Hooks, LeaseWatch, Outcome, Request, Signal, StepReport};

/// How long a run that is set aside may finish what is under way.
const PAUSE_GRACE: Duration = Duration::from_millis(500);
/// The same for a run that is cancelled.
const CANCEL_GRACE: Duration = Duration::from_millis(500);
/// Events of a run that may wait to be counted.
const NEWS: u32 = 16_384;
/// A lease counts as over this much before it is, because others may take it at that moment.
const MARGIN: Duration = Duration::from_millis(250);

/// How a run is carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    Freely,
    /// It goes on when a step is asked for.
    Stepped,
}

/// Why a run was told to let go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Intent {
    Nothing,
    Shutdown,
    /// Nobody has asked for a step in time, or somebody has asked the run itself to rest.
    Idle,
    Pause,
    Silence,
    Cancel,
}

/// A request that this process holds.
#[derive(Debug)]
pub struct Job {
    request: RequestEntry,
    manner: Manner,
    lease: LeaseWatch,
    lease_length: Duration,
    told: Mutex<Told>,
    stepping: tokio::sync::Mutex<()>,
    /// When the run was last heard of, by the boot clock.
    progress: AtomicU64,
    /// The same as people read it; 0 before it was.
    heard_at: AtomicU64,
    /// When the lease was last renewed, by the boot clock.
    renewed: AtomicU64,
    /// The longest that the run may have to wait for somebody else, in milliseconds.
    longest_wait: AtomicU64,
    ended: watch::Sender<Option<Ended>>,
}

/// What the run has been told.
#[derive(Debug)]
struct Told {
    /// None before the run is about to begin.
    control: Option<Control>,
    intent: Intent,
    is_stopped: bool,
    /// When it was told to end for good.
    cancelled: Option<Instant>,
}

/// How it ended, as the queue has it.
#[derive(Debug, Clone)]
pub struct Ended {
    pub entry: RequestEntry,
    pub message: String,
}

impl Job {
    pub(super) fn new(request: RequestEntry, manner: Manner, asked_at: u64, lease: Duration) -> Arc<Self> {
        Arc::new(Self {
            lease: LeaseWatch::until(deadline(asked_at, lease)),
            lease_length: lease,
            told: Mutex::new(Told { control: None, intent: Intent::Nothing, is_stopped: false, cancelled: None }),
            stepping: tokio::sync::Mutex::new(()),
            progress: AtomicU64::new(asked_at),
            heard_at: AtomicU64::new(0),
            renewed: AtomicU64::new(asked_at),
            longest_wait: AtomicU64::new(0),
            ended: watch::Sender::new(None),
            request,
            manner,
        })
    }

    pub fn request_id(&self) -> &str {
        &self.request.request_id
    }

    pub fn run_id(&self) -> &str {
        &self.request.run_id
    }

    pub(super) fn request(&self) -> &RequestEntry {
        &self.request
    }

    pub(super) fn manner(&self) -> Manner {
        self.manner
    }

    /// By what the queue knows that the request is ours.
    pub(super) fn hold(&self) -> Hold<'static> {
        Hold::Token(self.request.fencing_token)
    }

    /// How long the run has told nothing.
    pub(super) fn silence(&self) -> Duration {
        Duration::from_millis(boot_millis().saturating_sub(self.progress.load(Ordering::Relaxed)))
    }

    /// When the run was last heard of, in milliseconds since 1970.
    pub(super) fn heard_at(&self) -> Option<u64> {
        Some(self.heard_at.load(Ordering::Relaxed)).filter(|at| *at > 0)
    }

    /// The longest that the run may have to wait for its container or proposer; zero before its configuration is read.
    pub(super) fn longest_wait(&self) -> Duration {
        Duration::from_millis(self.longest_wait.load(Ordering::Relaxed))
    }

    /// Whether it is over, for whoever looks in between.
    pub fn is_over(&self) -> bool {
        self.ended.borrow().is_some()
    }

    /// Waits for the end.
    pub async fn end(&self) -> Option<Ended> {
        let mut ended = self.ended.subscribe();
        let found = ended.wait_for(Option::is_some).await.ok()?;
        found.clone()
    }

    /// Waits for the end from a thread that may wait; nothing when the time is over before.
    pub fn wait(&self, time: Duration) -> Option<Ended> {
        let until = Instant::now() + time;
        loop {
            if let Some(ended) = self.ended.borrow().clone() {
                return Some(ended);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            std::thread::sleep(left.min(Duration::from_millis(10)));
        }
    }

    /// The lease lasts that long from the moment at which it was renewed.
    pub(super) fn renew(&self, asked_at: u64) {
        self.renewed.store(asked_at, Ordering::Relaxed);
        self.lease.extend_to(deadline(asked_at, self.lease_length));
    }

    /// Whether a third of the lease is over, or as much time as somebody may wait for a sign of life.
    pub(super) fn is_renewal_due(&self, longest: Duration) -> bool {
        let since = Duration::from_millis(boot_millis().saturating_sub(self.renewed.load(Ordering::Relaxed)));
        since >= (self.lease_length / 3).min(longest)
    }

    pub(super) fn is_lease_over(&self) -> bool {
        self.lease.is_over()
    }

    pub(super) fn lease(&self) -> Duration {
        self.lease_length
    }

    /// The request is somebody else's: nothing more may be written or sent.
    pub(super) fn fence(&self) {
        self.lease.revoke();
        self.tell(Signal::Interrupt { reason: "another worker holds the request".into(), grace: Some(Duration::ZERO) });
    }

    /// Does what the queue says is wished.
    pub(super) fn obey(&self, wish: &Wish) {
        let reason = wish.reason.clone().unwrap_or_else(|| format!("{} was asked for", wish.kind.word()));
        match wish.kind {
            WishKind::Cancel => self.let_go(Intent::Cancel, reason, CANCEL_GRACE),
            WishKind::Pause => self.let_go(Intent::Pause, reason, PAUSE_GRACE),
            WishKind::Stop => self.finish_early(reason),
        }
    }

    /// Does what somebody has asked of the run itself, past the queue.
    fn obey_directly(&self, kind: runtime::WishKind, reason: String) {
        match kind {
            runtime::WishKind::Cancel => self.let_go(Intent::Cancel, reason, CANCEL_GRACE),
            runtime::WishKind::Stop => self.finish_early(reason),
            runtime::WishKind::Interrupt => self.let_go(Intent::Idle, reason, PAUSE_GRACE),
        }
    }

    fn finish_early(&self, reason: String) {
        let mut told = self.told();
        if let Some(control) = told.control.clone().filter(|_| !told.is_stopped) {
            told.is_stopped = true;
            control.send(Signal::Stop { reason });
        }
    }

    /// Lets go of the run. A weightier intent replaces a lighter one.
    pub(super) fn let_go(&self, intent: Intent, reason: String, grace: Duration) {
        let mut told = self.told();
        if told.intent >= intent {
            return;
        }
        told.intent = intent;
        if intent == Intent::Cancel {
            told.cancelled = Some(Instant::now());
        }
        if let Some(control) = &told.control {
            control.send(signal(intent, reason, grace));
        }
    }

    /// Does not wait any longer for what is under way.
    pub(super) fn hurry(&self) {
        self.let_go(Intent::Shutdown, "there is no more time".into(), Duration::ZERO);
        self.tell(Signal::Interrupt { reason: "there is no more time".into(), grace: Some(Duration::ZERO) });
    }

    /// Counts as over although its thread is not.
    pub(super) fn abandon(&self, entry: RequestEntry) {
        self.ended.send_replace(Some(Ended { entry, message: "its thread was left behind".into() }));
    }

    /// Sends what the run wants now, and waits until that is settled. One step at a time.
    pub(super) async fn step(&self) -> Option<StepReport> {
        let _turn = self.stepping.lock().await;
        // The run is not there to hear it before its thread has read the configuration.
        let control = tokio::select! {
            control = self.control() => control,
            _ = self.end() => return None,
        };
        tokio::select! {
            report = control.step() => report.filter(|report| !report.has_ended),
            _ = self.end() => None,
        }
    }

    async fn control(&self) -> Control {
        loop {
            if let Some(control) = self.told().control.clone() {
                return control;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub(super) fn intent(&self) -> Intent {
        self.told().intent
    }

    /// How long ago it was told to end for good, if it was.
    pub(super) fn since_cancel(&self) -> Option<Duration> {
        self.told().cancelled.map(|at| at.elapsed())
    }

    /// Whether it was told to finish early.
    pub(super) fn is_stopped(&self) -> bool {
        self.told().is_stopped
    }

    fn tell(&self, signal: Signal) {
        if let Some(control) = &self.told().control {
            control.send(signal);
        }
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the thread.
    pub(super) fn start(self: &Arc<Self>, crew: &Arc<Crew>) -> Result<(), OptimizerError> {
        let (job, crew) = (Arc::clone(self), Arc::clone(crew));
        let spawned = std::thread::Builder::new().name("synth-optimizers-run".into()).spawn(move || {
            let ending = Ending { job: &job, crew: &crew };
            let result = crew.configured(&job).and_then(|config| job.carry_out(&crew, config));
            let ended = crew.settle(&job, result);
            std::mem::forget(ending);
            job.ended.send_replace(Some(ended));
            crew.bell.ring();
        });
        spawned.map(drop).map_err(|error| OptimizerError::new(ErrorCode::Io, format!("no thread for the run: {error}")))
    }

    fn carry_out(&self, crew: &Crew, config: Config) -> Result<Outcome, OptimizerError> {
        self.longest_wait.store(millis(longest_wait(&config)), Ordering::Relaxed);
        let (control, controlled) = Control::new(NEWS);
        {
            let mut told = self.told();
            if told.intent != Intent::Nothing {
                // Whoever told it so has come before the run was there to hear it.
                control.send(signal(told.intent, "it was asked for before it began".into(), Duration::ZERO));
            }
            told.control = Some(control.clone());
        }
        let mut request = crew.request(config);
        request.takeover = self.request.superseded();
        request.lease = Some(self.lease.clone());
        request.stepping = self.manner == Manner::Stepped;
        request.hooks = commit_times(crew);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| OptimizerError::new(ErrorCode::Io, format!("no runtime for the run: {error}")))?;
        runtime.block_on(self.run(crew, request, &control, controlled))
    }

    async fn run(
        &self,
        crew: &Crew,
        request: Request,
        control: &Control,
        controlled: Controlled,
    ) -> Result<Outcome, OptimizerError> {
        let mut live = control.subscribe();
        let news = async {
            loop {
                match live.recv().await {
                    Ok(stored) => crew.metrics.heard(&stored),
                    Err(RecvError::Lagged(_)) => {}
                    Err(RecvError::Closed) => std::future::pending::<()>().await,
                }
                self.progress.store(boot_millis(), Ordering::Relaxed);
                self.heard_at.store(unix_millis(), Ordering::Relaxed);
            }
        };
        let paths = RunPaths::new(&request.config.run.output_dir, self.run_id())?;
        let wishes = async {
            loop {
                let (kind, reason) = runtime::next_wish(&paths).await;
                self.obey_directly(kind, reason);
            }
        };
        let carrying_out = async {
            crew.ties.free(&self.request.run_dir).await;
            if !request.config.container.command.is_empty() {
                self.wait_for_checks(crew, &request.config.container.url).await;
            }
            crew.algorithm.execute(request, controlled).await
        };
        let outcome = tokio::select! {
            outcome = carrying_out => outcome,
            never = news => never,
            never = wishes => never,
        };
        // What it told last may not have been heard.
        while let Ok(stored) = live.try_recv() {
            crew.metrics.heard(&stored);
        }
        outcome
    }

    /// Waits until no check has a container of its own at the address; one that has is broken off. None begins while the
    /// request is held.
    async fn wait_for_checks(&self, crew: &Crew, url: &str) {
        let turn = crew.turns.of(url);
        let told = async {
            while self.intent() == Intent::Nothing {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::select! {
            _ = turn.demand() => {}
            // A run that is told to end starts nothing.
            () = told => {}
        }
    }
}

/// Whatever happens to the thread of a job, somebody hears of it.
struct Ending<'a> {
    job: &'a Job,
    crew: &'a Crew,
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let broken = OptimizerError::new(ErrorCode::Invariant, "the thread of the run ended without a result");
        let ended = self.crew.settle(self.job, Err(broken));
        self.job.ended.send_replace(Some(ended));
    }
}

/// What an intent says to the run.
fn signal(intent: Intent, reason: String, grace: Duration) -> Signal {
    match intent {
        Intent::Cancel => Signal::Cancel { reason, grace: Some(grace) },
        Intent::Nothing | Intent::Shutdown | Intent::Idle | Intent::Pause | Intent::Silence => {
            Signal::Interrupt { reason, grace: Some(grace) }
        }
    }
}

fn deadline(from: u64, lease: Duration) -> u64 {
    from.saturating_add(millis(lease.saturating_sub(MARGIN.min(lease / 4))))
}

/// The longest that a run may have to wait for somebody else without a word.
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

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Measures the commits of a run.
fn commit_times(crew: &Crew) -> Hooks {
    let (metrics, begun) = (Arc::clone(&crew.metrics), Mutex::new(None::<Instant>));
    Hooks::new(move |boundary| {
        let mut begun = begun.lock().unwrap_or_else(PoisonError::into_inner);
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

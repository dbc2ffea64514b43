//! Takes requests from the queue and carries them out, one thread each. The service and a single worker use the same crew.

use std::sync::Arc;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};

use super::algorithm::Algorithm;
use super::bell::Bell;
use super::job::{Intent, Job, Manner};
use super::log::Log;
use super::metrics::Metrics;
use super::settings::Settings;
use super::ties::Ties;
use super::turns::Turns;
use super::verdict::silent;
use super::workers::GIVE_UP;
use crate::artifacts::RunPaths;
use crate::clock::boot_millis;
use crate::config::{Config, from_stored};
use crate::container::Reach;
use crate::model::error::{ErrorCode, OptimizerError};
use crate::queue::{Claim, Heard, Holder, Queue, QueueError, RequestEntry, ServiceIdentity, Which, random_id};
use crate::runtime::Request;
use crate::workspace::Reader;

/// Taken back this often without a single event in between, a request breaks whoever carries it out.
const HOPELESS: i64 = 20;
/// A lease is renewed this often at least, so that people see that somebody is there.
const RENEWAL: Duration = Duration::from_secs(30);
/// How long a run that was cancelled may take to end its container and to write down what it has.
const LAST_WORDS: Duration = Duration::from_secs(120);
/// The pause before something that the queue could not take is tried again, at first and at most.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// Who takes a request, where it is not the crew as a whole.
#[derive(Debug, Clone, Default)]
pub struct Claimant {
    pub worker_id: Option<String>,
    pub lease: Option<Duration>,
}

/// What carrying out a request takes.
#[derive(Debug)]
pub struct Crew {
    pub(super) queue: Queue,
    pub(super) algorithm: Arc<dyn Algorithm>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) worker_id: String,
    pub(super) lease: Duration,
    pub(super) reach: Reach,
    pub(super) codex_runtime: Option<Utf8PathBuf>,
    pub(super) holder: Holder,
    /// Rung when a job is over or something may be claimed.
    pub(super) bell: Bell,
    pub(super) turns: Turns,
    pub(super) ties: Ties,
    pub(super) patience: Patience,
    pub(super) log: Log,
}

/// How long runs may take over what they should not need long for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    /// A run may tell nothing for this long, on top of its own longest wait.
    pub(super) silence: Duration,
    /// A run that was set aside, or that nobody steps, may rest for this long.
    pub(super) pause: Duration,
}

impl Crew {
    /// A crew of one, for a process that works off a queue without serving it.
    pub fn alone(queue: Queue, algorithm: Arc<dyn Algorithm>, worker_id: &str, lease: Duration) -> Self {
        let known = Settings::new("", "");
        Self {
            queue,
            algorithm,
            metrics: Arc::new(Metrics::new()),
            worker_id: worker_id.to_owned(),
            lease,
            reach: Reach::default(),
            codex_runtime: None,
            holder: Holder::Worker,
            bell: Bell::default(),
            turns: Turns::default(),
            ties: Ties::default(),
            patience: Patience { silence: known.silence, pause: known.pause_timeout },
            log: Log::Nowhere,
        }
    }

    /// The same crew with the codex binary that is installed with the package.
    #[must_use]
    pub fn with_codex(mut self, runtime: Option<Utf8PathBuf>) -> Self {
        self.codex_runtime = runtime;
        self
    }

    /// How often a job hears what is wished of it.
    pub fn pulse(&self) -> Duration {
        (self.lease / 3).min(Duration::from_millis(500))
    }

    /// Claims the next request that may run and starts it.
    pub fn begin(
        self: &Arc<Self>,
        which: Which<'_>,
        manner: Manner,
        claimant: &Claimant,
    ) -> Result<Option<Arc<Job>>, QueueError> {
        let lease_id = format!("lease_{}", random_id()?);
        let worker_id = Some(claimant.worker_id.as_deref().unwrap_or(&self.worker_id));
        let lease = claimant.lease.unwrap_or(self.lease);
        let claim = Claim { lease_id: &lease_id, worker_id, lease, holder: self.holder.clone(), which };
        let asked_at = boot_millis();
        let Some(entry) = self.queue.claim(&claim)? else { return Ok(None) };
        let manner = if entry.manual_step { Manner::Stepped } else { manner };
        let (run_id, attempts) = (entry.run_id.clone(), entry.attempts);
        let job = Job::new(entry, manner, asked_at, lease);
        self.log.line(&format!("run {run_id} claimed, attempt {attempts}"));
        if let Err(error) = job.start(self) {
            self.queue.release(job.request_id(), job.hold(), &error.message)?;
            return Err(error.into());
        }
        Ok(Some(job))
    }

    /// Keeps the lease of a job, tells it what is wished of it, and turns its silence into an end.
    pub(super) fn attend(&self, job: &Arc<Job>) {
        self.beat(job);
        let (limit, intent, why) = match job.manner() {
            Manner::Freely => (self.patience.silence, Intent::Silence, "it tells nothing"),
            Manner::Stepped => (self.patience.pause, Intent::Idle, "nobody asked for a step"),
        };
        let (silence, limit) = (job.silence(), limit + job.longest_wait());
        if silence > limit + GIVE_UP || job.since_cancel().is_some_and(|since| since > LAST_WORDS + GIVE_UP) {
            self.give_up(job);
        } else if silence > limit {
            job.let_go(intent, why.into(), Duration::ZERO);
        }
    }

    /// A thread that does not even let go is left behind: its lease is gone, so that it can do nothing more.
    fn give_up(&self, job: &Arc<Job>) {
        job.fence();
        let told = match job.since_cancel() {
            Some(_) => self.queue.cancelled(job.request_id(), job.hold(), "cancelled; its thread did not end"),
            None => self.fail(job, &silent(job)),
        };
        match told {
            // Whoever cannot write it down now does so at the next pulse.
            Err(error) if error.may_pass() => {}
            Ok(entry) => job.abandon(entry),
            Err(_) => job.abandon(self.latest(job)),
        }
    }

    /// The request of a job, as far as it is known.
    pub(super) fn latest(&self, job: &Job) -> RequestEntry {
        self.queue.get_request(job.request_id()).unwrap_or_else(|_| job.request().clone())
    }

    /// Keeps the lease of a job, and tells the job what is wished of it.
    fn beat(&self, job: &Job) {
        if !job.is_renewal_due(RENEWAL) {
            return self.listen(job);
        }
        let asked_at = boot_millis();
        match self.queue.heartbeat(job.request_id(), job.hold(), job.lease(), job.heard_at()) {
            Ok(Some(beat)) => {
                job.renew(asked_at);
                if let Some(wish) = &beat.wish {
                    job.obey(wish);
                }
            }
            Ok(None) => job.fence(),
            // The queue may answer the next one; without an answer the lease runs out by itself.
            Err(_) => {}
        }
    }

    /// Tells a job what is wished of it.
    pub(super) fn listen(&self, job: &Job) {
        match self.queue.heard(job.request_id(), job.hold()) {
            Ok(Heard::Wish(wish)) => job.obey(&wish),
            Ok(Heard::Fenced) => job.fence(),
            // The queue may answer the next time.
            Ok(Heard::Nothing) | Err(_) => {}
        }
    }

    /// Takes requests back from whoever is gone and ends pauses that are over; tells how many were moved.
    pub(super) fn recover(&self) -> Result<Vec<RequestEntry>, QueueError> {
        let recovered = self.queue.recover(self.identity())?;
        self.metrics.recovered(recovered.len());
        for entry in &recovered {
            self.log.line(&format!("run {} taken back: it is {}", entry.run_id, entry.status.word()));
        }
        Ok(recovered)
    }

    fn identity(&self) -> Option<&ServiceIdentity> {
        match &self.holder {
            Holder::Service(identity) => Some(identity),
            Holder::Worker | Holder::Caller => None,
        }
    }

    /// Writes something about a job to the queue. A queue that cannot be written to just now, because others write to it or
    /// its disk is full, is waited for as long as the lease lasts.
    pub(super) fn persist<T>(
        &self,
        job: &Job,
        write: impl Fn(&Queue) -> Result<T, QueueError>,
    ) -> Result<T, QueueError> {
        let (mut pause, longest) = RETRY;
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

    /// What is to be run, where this crew may call and with what it has.
    pub(super) fn request(&self, config: Config) -> Request {
        let mut request = Request::new(config, self.algorithm.name());
        request.codex_runtime = self.codex_runtime.clone();
        request.reach = self.reach.clone();
        request
    }

    /// The configuration of a request that is worked on from here on.
    pub(super) fn configured(&self, job: &Job) -> Result<Config, OptimizerError> {
        let (request, hold) = (job.request(), job.hold());
        let config = self.persist(job, |_| self.submitted(request))?;
        self.persist(job, |queue| queue.start(&request.request_id, hold))?;
        let paths = RunPaths::new(&config.run.output_dir, &request.run_id)?;
        let mark = last_milestone(&paths)?;
        let losses = self.persist(job, |queue| queue.progress(&request.request_id, hold, mark))?;
        if losses >= HOPELESS {
            let message = format!("{losses} workers in a row were lost at the same place of run {}", request.run_id);
            return Err(OptimizerError::new(ErrorCode::RunFailed, message)
                .with_hint("Look what ends the workers: memory, or a container that takes the machine down."));
        }
        Ok(config)
    }
}

/// The last event that tells of progress; -1 before the first.
fn last_milestone(paths: &RunPaths) -> Result<i64, OptimizerError> {
    let db: &Utf8Path = &paths.workspace_db();
    if !db.is_file() {
        return Ok(-1);
    }
    let last = Reader::open(db.as_std_path())?.last_milestone()?;
    Ok(last.map_or(-1, |last| i64::try_from(last).unwrap_or(i64::MAX)))
}

//! The workers of a service: fill free places from the queue, keep leases alive, and notice runs that have gone silent.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use super::crew::{Claimant, Crew};
use super::job::{Ended, Intent, Job, Manner};
use super::verdict::silent;
use crate::model::error::{ErrorCode, OptimizerError};
use crate::queue::{QueueError, Which};

/// How often the queue is looked at without being told: requests of other processes.
const GLANCE: Duration = Duration::from_millis(500);
/// How long a silent run may take to let go before its thread is given up.
const GIVE_UP: Duration = Duration::from_secs(5);

/// Everything that this service carries out.
#[derive(Debug)]
pub(super) struct Workers {
    crew: Arc<Crew>,
    places: usize,
    silence: Duration,
    pause_timeout: Duration,
    /// By request.
    jobs: Mutex<BTreeMap<String, Held>>,
    changed: Notify,
}

#[derive(Debug)]
struct Held {
    job: Arc<Job>,
    /// Whether it has a place of the background workers; others were asked for one by one.
    in_background: bool,
}

impl Workers {
    pub(super) fn new(crew: Arc<Crew>, places: usize, silence: Duration, pause_timeout: Duration) -> Self {
        Self { crew, places, silence, pause_timeout, jobs: Mutex::default(), changed: Notify::new() }
    }

    pub(super) fn crew(&self) -> &Arc<Crew> {
        &self.crew
    }

    pub(super) fn places(&self) -> usize {
        self.places
    }

    pub(super) fn jobs(&self) -> Vec<Arc<Job>> {
        self.held().values().map(|held| Arc::clone(&held.job)).collect()
    }

    /// The job of a request, if this service has it.
    pub(super) fn job(&self, request_id: &str) -> Option<Arc<Job>> {
        self.held().get(request_id).map(|held| Arc::clone(&held.job))
    }

    /// Says that the queue may have something for a free place.
    pub(super) fn wake(&self) {
        self.changed.notify_one();
    }

    /// Says that something is wished of a request. Who holds it elsewhere hears it from the queue.
    pub(super) async fn heed(&self, request_id: &str) {
        if let Some(job) = self.job(request_id) {
            let crew = Arc::clone(&self.crew);
            // What is not heard now is heard with the next beat.
            let _ = tokio::task::spawn_blocking(move || crew.listen(&job)).await;
        }
        self.wake();
    }

    /// Starts one request beside the background workers.
    pub(super) async fn begin(
        self: &Arc<Self>,
        which: OnDemand,
        manner: Manner,
        claimant: Claimant,
    ) -> Result<Option<Arc<Job>>, QueueError> {
        self.claim(which, manner, claimant, false).await
    }

    /// Fills free places until it is dropped.
    pub(super) async fn work(self: Arc<Self>) {
        loop {
            while self.background() < self.places {
                match self.claim(OnDemand::Background, Manner::Freely, Claimant::default(), true).await {
                    Ok(Some(_)) => {}
                    // What keeps the queue from answering now may be gone at the next look.
                    Ok(None) | Err(_) => break,
                }
            }
            tokio::select! {
                () = self.changed.notified() => {}
                () = tokio::time::sleep(GLANCE) => {}
            }
        }
    }

    /// Keeps leases alive, takes requests back from whoever is gone, and looks for silence, until it is dropped.
    pub(super) async fn watch(self: Arc<Self>) {
        let pulse = self.crew.pulse();
        loop {
            tokio::time::sleep(pulse).await;
            let jobs = self.jobs();
            let (crew, beating) = (Arc::clone(&self.crew), jobs.clone());
            let recovered = tokio::task::spawn_blocking(move || {
                beating.iter().for_each(|job| crew.beat(job));
                // What keeps the queue from answering now may be gone at the next look.
                crew.recover().unwrap_or_default()
            });
            if recovered.await.is_ok_and(|recovered| !recovered.is_empty()) {
                self.wake();
            }
            for job in jobs {
                self.listen(&job).await;
            }
        }
    }

    /// Turns silence into an end.
    async fn listen(&self, job: &Arc<Job>) {
        let silence = job.silence();
        match job.manner() {
            Manner::Stepped if silence > self.pause_timeout + job.longest_wait() => {
                job.let_go(Intent::Idle, "nobody asked for a step".into(), Duration::ZERO);
            }
            Manner::Freely if silence > self.silence + job.longest_wait() + GIVE_UP => self.give_up(job).await,
            Manner::Freely if silence > self.silence + job.longest_wait() => {
                job.let_go(Intent::Silence, "it tells nothing".into(), Duration::ZERO);
            }
            Manner::Freely | Manner::Stepped => {}
        }
    }

    /// A thread that does not even let go is left behind: its lease is gone, so that it can write nothing more.
    async fn give_up(&self, job: &Arc<Job>) {
        let (crew, lost) = (Arc::clone(&self.crew), Arc::clone(job));
        let _ = tokio::task::spawn_blocking(move || {
            lost.fence();
            crew.fail(&lost, &silent(&lost))
        })
        .await;
        self.held().remove(job.request_id());
        self.wake();
    }

    /// Lets go of every run, and waits for them within the grace.
    pub(super) async fn drain(&self, grace: Duration) {
        let jobs = self.jobs();
        for job in &jobs {
            job.let_go(Intent::Shutdown, "the service is shutting down".into(), grace);
        }
        let all = async {
            for job in &jobs {
                job.end().await;
            }
        };
        // A run that is written to disk at this moment may take a little longer than its grace.
        if tokio::time::timeout(grace + GIVE_UP, all).await.is_err() {
            jobs.iter().for_each(|job| job.hurry());
            for job in jobs.iter().filter(|job| !job.is_over()) {
                if tokio::time::timeout(GIVE_UP, job.end()).await.is_err() {
                    job.fence();
                    let _ = self.crew.queue.release(job.request_id(), job.hold(), "the service was shut down");
                }
            }
        }
    }

    /// Does not wait any longer for what is under way.
    pub(super) fn hurry(&self) {
        self.jobs().iter().for_each(|job| job.hurry());
    }

    fn background(&self) -> usize {
        self.held().values().filter(|held| held.in_background).count()
    }

    async fn claim(
        self: &Arc<Self>,
        which: OnDemand,
        manner: Manner,
        claimant: Claimant,
        in_background: bool,
    ) -> Result<Option<Arc<Job>>, QueueError> {
        let workers = Arc::clone(self);
        let begun = tokio::task::spawn_blocking(move || {
            let job: Option<Arc<Job>> = workers.crew.begin(which.which(), manner, &claimant)?;
            if let Some(job) = &job {
                workers.held().insert(job.request_id().to_owned(), Held { job: Arc::clone(job), in_background });
            }
            Ok::<_, QueueError>(job)
        });
        let job: Option<Arc<Job>> = match begun.await {
            Ok(begun) => begun?,
            Err(error) => {
                let message = format!("the claim was broken off: {error}");
                return Err(OptimizerError::new(ErrorCode::Invariant, message).into());
            }
        };
        if let Some(job) = job.clone() {
            let workers = Arc::clone(self);
            tokio::spawn(async move {
                job.end().await;
                workers.forget(&job);
            });
        }
        Ok(job)
    }

    fn forget(&self, job: &Arc<Job>) {
        let mut held = self.held();
        if held.get(job.request_id()).is_some_and(|known| Arc::ptr_eq(&known.job, job)) {
            held.remove(job.request_id());
        }
        drop(held);
        self.wake();
    }

    fn held(&self) -> MutexGuard<'_, BTreeMap<String, Held>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Which request is wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum OnDemand {
    /// One that may start by itself.
    Background,
    Any,
    Request(String),
}

impl OnDemand {
    fn which(&self) -> Which<'_> {
        match self {
            Self::Background => Which::Background,
            Self::Any => Which::Any,
            Self::Request(id) => Which::Request(id),
        }
    }
}

/// Works off the next request in this thread; nothing when there is none. `is_left` tells whether to let go.
pub fn run_next(crew: &Arc<Crew>, mut is_left: impl FnMut() -> bool) -> Result<Option<Ended>, QueueError> {
    let Some(job) = crew.begin(Which::Any, Manner::Freely, &Claimant::default())? else { return Ok(None) };
    loop {
        if let Some(ended) = job.wait(crew.pulse()) {
            return Ok(Some(ended));
        }
        if is_left() {
            job.let_go(Intent::Shutdown, "the worker was interrupted".into(), Duration::from_secs(1));
        }
        crew.beat(&job);
    }
}

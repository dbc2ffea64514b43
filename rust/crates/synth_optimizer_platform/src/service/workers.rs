//! The workers of a service: fill free places from the queue, keep leases alive, and notice runs that have gone silent.
//!
//! Both happen on threads of their own, so that no client and no slow file can hold them up.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::crew::{Claimant, Crew};
use super::job::{Ended, Intent, Job, Manner};
use super::ties::Tried;
use crate::model::error::{ErrorCode, OptimizerError};
use crate::queue::{QueueError, Which};

/// How often the queue is looked at without being told: requests of other processes.
const GLANCE: Duration = Duration::from_millis(500);
/// How long a run may take to let go before its thread is given up.
pub(super) const GIVE_UP: Duration = Duration::from_secs(5);

/// Everything that this service carries out.
#[derive(Debug)]
pub(super) struct Workers {
    crew: Arc<Crew>,
    places: usize,
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
    /// Somebody has asked for it.
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
    pub(super) fn new(crew: Arc<Crew>, places: usize) -> Self {
        Self {
            crew,
            places,
            jobs: Mutex::default(),
            accepting: Mutex::new(true),
            is_closed: AtomicBool::new(false),
            trouble: Mutex::default(),
        }
    }

    pub(super) fn crew(&self) -> &Arc<Crew> {
        &self.crew
    }

    pub(super) fn places(&self) -> usize {
        self.places
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

    /// Says that the queue may have something for a free place.
    pub(super) fn wake(&self) {
        self.crew.bell.ring();
    }

    /// Says that something is wished of a request. Who holds it elsewhere hears it from the queue. It may wait for a file.
    pub(super) fn heed(&self, request_id: &str) {
        if let Some(job) = self.job(request_id) {
            self.crew.listen(&job);
        }
        self.wake();
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
            thread("synth-optimizers-ends", Self::tie)?,
        ])
    }

    /// Ends the threads, once nothing is under way.
    pub(super) fn stop(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
        self.wake();
    }

    /// Claims one request beside the background workers. It may wait for a file.
    pub(super) fn begin(&self, which: Which<'_>, manner: Manner, claimant: &Claimant) -> Result<Begun, QueueError> {
        self.claim(which, manner, claimant, Place::OnDemand)
    }

    /// Fills free places.
    fn fill(&self) {
        while !self.is_closed() {
            loop {
                let claimed = self.claim(Which::Background, Manner::Freely, &Claimant::default(), Place::Background);
                self.note(claimed.as_ref().err());
                if !matches!(claimed, Ok(Begun::Job(_))) {
                    break;
                }
            }
            self.crew.bell.wait(GLANCE);
        }
    }

    /// Keeps leases alive, takes requests back from whoever is gone, and looks for silence.
    fn watch(&self) {
        while !self.is_closed() {
            std::thread::sleep(self.crew.pulse());
            for job in self.jobs() {
                self.crew.attend(&job);
            }
            match self.crew.recover() {
                Ok(recovered) if recovered.is_empty() => {}
                Ok(_) => self.wake(),
                Err(error) => self.note(Some(&error)),
            }
        }
    }

    /// Ends runs whose requests were ended while nobody worked on them.
    fn tie(&self) {
        let mut tried = Tried::new();
        while !self.is_closed() {
            // The claims tell when the queue cannot be read.
            let _ = self.crew.tie(&mut tried);
            std::thread::sleep(self.crew.pulse());
        }
    }

    /// Lets go of every run, and waits for them within the grace. Nothing is claimed from here on.
    pub(super) async fn drain(self: &Arc<Self>, grace: Duration) {
        let closing = Arc::clone(self);
        let _ = tokio::task::spawn_blocking(move || *lock(&closing.accepting) = false).await;
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
        if tokio::time::timeout(grace + GIVE_UP, all).await.is_ok() {
            return;
        }
        self.hurry();
        for job in jobs {
            if tokio::time::timeout(GIVE_UP, job.end()).await.is_err() {
                job.fence();
                let crew = Arc::clone(&self.crew);
                let _ = tokio::task::spawn_blocking(move || {
                    crew.queue.release(job.request_id(), job.hold(), "the service was shut down")
                })
                .await;
            }
        }
    }

    /// Does not wait any longer for what is under way.
    pub(super) fn hurry(&self) {
        self.jobs().iter().for_each(|job| job.hurry());
    }

    fn claim(&self, which: Which<'_>, manner: Manner, claimant: &Claimant, place: Place) -> Result<Begun, QueueError> {
        let accepting = lock(&self.accepting);
        if !*accepting {
            return Ok(Begun::Nothing);
        }
        if self.held().values().filter(|held| held.place == place).count() >= self.places {
            return Ok(Begun::Full);
        }
        let Some(job) = self.crew.begin(which, manner, claimant)? else { return Ok(Begun::Nothing) };
        self.held().insert(job.request_id().to_owned(), Held { job: Arc::clone(&job), place });
        Ok(Begun::Job(job))
    }

    /// Remembers and tells what keeps the queue from being worked off, once for each trouble.
    fn note(&self, error: Option<&QueueError>) {
        let found = error.map(|error| error.error.message.clone());
        let mut trouble = lock(&self.trouble);
        if *trouble != found {
            let text = found.as_deref().unwrap_or("the queue can be worked off again");
            self.crew.log.line(text);
            *trouble = found;
        }
    }

    fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::SeqCst)
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

/// How much of a hurry whoever wants to leave is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Leaving {
    Not,
    /// What is under way may end.
    Soon,
    Now,
}

/// Works off the next request in this thread; nothing when there is none. `leaving` tells whether to let go.
pub fn run_next(crew: &Arc<Crew>, mut leaving: impl FnMut() -> Leaving) -> Result<Option<Ended>, QueueError> {
    let Some(job) = crew.begin(Which::Any, Manner::Freely, &Claimant::default())? else { return Ok(None) };
    loop {
        if let Some(ended) = job.wait(crew.pulse()) {
            return Ok(Some(ended));
        }
        match leaving() {
            Leaving::Not => {}
            Leaving::Soon => job.let_go(Intent::Shutdown, "the worker was interrupted".into(), Duration::from_secs(1)),
            Leaving::Now => job.hurry(),
        }
        crew.attend(&job);
    }
}

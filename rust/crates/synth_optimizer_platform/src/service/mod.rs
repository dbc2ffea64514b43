//! The standing service: a queue of runs over HTTP, and workers that carry them out.
//!
//! `routes` is the table of everything that can be asked. A request passes `guard`, is read by `input`, answered by a
//! handler and written by `api`; `refusal` is the one table of what is refused. `workers` takes requests from the queue
//! and gives each to a `job`.

mod algorithm;
mod api;
mod bell;
mod checking;
mod config_file;
mod context;
mod crew;
mod descriptors;
mod files;
mod guard;
mod handlers;
mod hide;
mod input;
mod job;
mod log;
mod metrics;
mod preflight;
mod readers;
mod refusal;
mod routes;
mod runs;
mod serve;
mod settings;
mod stream;
mod ties;
mod token;
mod turns;
mod verdict;
mod workers;

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use axum::middleware::from_fn_with_state;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::{Mutex, Semaphore, watch};

pub use algorithm::{Algorithm, Local};
pub use checking::Checking;
pub use crew::{Claimant, Crew};
pub use job::{Ended, Job, Manner};
pub use log::Log;
pub use refusal::Code;
pub use settings::Settings;
pub use verdict::completion;
pub use workers::{Leaving, run_next};

use crate::clock::unix_millis;
use crate::model::envelope::rfc3339;
use crate::model::error::{ErrorCode, OptimizerError};
use crate::queue::{Holder, Queue, QueueSettings, ServiceLock};
use bell::Bell;
use context::{CHECKS, Context, Phase};
use crew::Patience;
use guard::Guard;
use metrics::Metrics;
use preflight::sweep;
use readers::Readers;
use settings::Checked;
use ties::Ties;
use turns::Turns;
use workers::Workers;

/// Threads that answer requests.
const THREADS: usize = 2;
/// Threads for what may wait for a file: what clients ask for, and beside it what the service itself needs.
const FILES: usize = context::READS + 8;
/// How long checks under way may take to end what they have started.
const LAST_CHECKS: Duration = Duration::from_secs(10);
/// How long to wait before a queue that cannot be read at the start is tried again.
const PAUSE: Duration = Duration::from_millis(200);
/// How long requests under way may take once the runs have let go.
const LAST_ANSWERS: Duration = Duration::from_secs(2);

/// The description of everything that can be asked, as `GET /openapi.json` gives it.
pub fn openapi() -> Value {
    api::router(routes::routes()).1
}

/// A service in this process. Dropped, it ends in a hurry; `shut_down` lets it take its time.
#[derive(Debug)]
pub struct Service {
    address: SocketAddr,
    wishes: watch::Sender<usize>,
    ended: watch::Receiver<bool>,
    result: Arc<std::sync::Mutex<Option<Result<(), OptimizerError>>>>,
}

impl Service {
    /// Takes the database, opens the port and starts to serve. What is wrong is told before anything is served.
    pub fn start(settings: Settings, algorithm: Arc<dyn Algorithm>) -> Result<Self, OptimizerError> {
        let checked = settings.check()?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(THREADS)
            .max_blocking_threads(FILES)
            .thread_name("synth-optimizers-service")
            .enable_all()
            .build()
            .map_err(|error| OptimizerError::new(ErrorCode::Io, format!("no runtime for the service: {error}")))?;
        let mut lock = ServiceLock::take(settings.db.as_std_path(), &settings.bind)?;
        let patience = QueueSettings { busy_timeout: settings.busy_timeout, ..QueueSettings::default() };
        let queue = Queue::open_with(settings.db.as_std_path(), patience)?;
        let listener = runtime.block_on(serve::listen(checked.address))?;
        let address = listener.local_addr().map_err(|error| {
            OptimizerError::new(ErrorCode::Io, format!("the address that was bound cannot be read: {error}"))
        })?;
        lock.note_bind(&address.to_string())?;
        let (wishes, wished) = watch::channel(0);
        let (end, ended) = watch::channel(false);
        let result = Arc::new(std::sync::Mutex::new(None));
        let outcome = Arc::clone(&result);
        let spawned = std::thread::Builder::new().name("synth-optimizers-service".into()).spawn(move || {
            let parts = Parts { settings, checked, algorithm, queue, lock, listener };
            let done = runtime.block_on(parts.serve(wished));
            runtime.shutdown_timeout(LAST_ANSWERS);
            *outcome.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(done);
            end.send_replace(true);
        });
        spawned.map_err(|error| OptimizerError::new(ErrorCode::Io, format!("no thread for the service: {error}")))?;
        Ok(Self { address, wishes, ended, result })
    }

    /// The address that is served.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Lets runs finish what is under way, saves them and ends. A second call does not wait for them.
    pub fn shut_down(&self) {
        self.wishes.send_modify(|wishes| *wishes += 1);
    }

    /// Waits for the end; nothing when the time is over before.
    pub fn wait(&self, time: Duration) -> Option<Result<(), OptimizerError>> {
        let until = std::time::Instant::now() + time;
        while !*self.ended.borrow() {
            // The thread is gone without a word only when it broke.
            if self.ended.has_changed().is_err() && !*self.ended.borrow() {
                return Some(Err(OptimizerError::new(ErrorCode::Invariant, "the service ended without a word")));
            }
            if std::time::Instant::now() >= until {
                return None;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let result = self.result.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        Some(result.clone().unwrap_or(Ok(())))
    }
}

/// What a service is made of before it serves.
struct Parts {
    settings: Settings,
    checked: Checked,
    algorithm: Arc<dyn Algorithm>,
    queue: Queue,
    lock: ServiceLock,
    listener: TcpListener,
}

impl Parts {
    async fn serve(self, mut wished: watch::Receiver<usize>) -> Result<(), OptimizerError> {
        let Self { settings, checked, algorithm, queue, lock, listener } = self;
        let identity = lock.identity().clone();
        let crew = Arc::new(Crew {
            queue,
            algorithm,
            metrics: Arc::new(Metrics::new()),
            worker_id: settings.worker_id.clone(),
            lease: settings.lease,
            reach: settings.reach.clone(),
            codex_runtime: settings.codex_runtime.clone(),
            holder: Holder::Service(identity.clone()),
            bell: Bell::default(),
            turns: Turns::default(),
            ties: Ties::default(),
            patience: Patience { silence: settings.silence, pause: settings.pause_timeout },
            log: settings.log,
        });
        let address = listener.local_addr().unwrap_or(checked.address);
        let (router, document) = api::router(routes::routes());
        let workers = Arc::new(Workers::new(Arc::clone(&crew), settings.workers));
        let context = Arc::new(Context {
            guard: Guard::new(address, &settings.allow_hosts, checked.token),
            config_root: checked.config_root,
            workers: Arc::clone(&workers),
            hub: stream::Hub::default(),
            readers: Readers::default(),
            checks: Arc::new(Semaphore::new(CHECKS)),
            reads: Arc::new(Semaphore::new(context::READS)),
            phase: watch::Sender::new(Phase::Starting),
            document,
            started_at: rfc3339(unix_millis()),
            instance_id: identity.instance_id().to_owned(),
            ticking: Mutex::new(()),
            settings: settings.clone(),
        });
        let router =
            router.layer(from_fn_with_state(Arc::clone(&context), guard::pass)).with_state(Arc::clone(&context));
        let (close, closing) = watch::channel(false);
        let metrics = Arc::clone(&crew.metrics);
        let serving = async { serve::serve(listener, router, &settings, metrics, closing, LAST_ANSWERS).await };
        let working = async {
            let ended = work(&context, &workers, &lock, &mut wished).await;
            close.send_replace(true);
            ended
        };
        let ((), ended) = tokio::join!(serving, working);
        let tidied = tokio::task::spawn_blocking(move || crew.queue.checkpoint()).await;
        // The lock is the last thing to go: whoever takes it finds the database at rest.
        drop(lock);
        ended?;
        match tidied {
            Ok(tidied) => Ok(tidied?),
            Err(_) => Ok(()),
        }
    }
}

/// Recovers, works, and drains when it is told to end.
async fn work(
    context: &Arc<Context>,
    workers: &Arc<Workers>,
    lock: &ServiceLock,
    wished: &mut watch::Receiver<usize>,
) -> Result<(), OptimizerError> {
    let begun = tokio::select! {
        begun = begin(context, workers) => begun?,
        // An error means that nobody can ask any more, which ends the service as well.
        _ = wished.wait_for(|wishes| *wishes > 0) => Vec::new(),
    };
    let tidying = async {
        loop {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let readers = context.readers.clone();
            let _ = tokio::task::spawn_blocking(move || readers.tidy()).await;
            if let Err(error) = lock.check() {
                return error;
            }
        }
    };
    let lost = tokio::select! {
        lost = tidying => Err(lost),
        _ = wished.wait_for(|wishes| *wishes > 0) => Ok(()),
    };
    context.phase.send_replace(Phase::Draining);
    let hurrying = async {
        let _ = wished.wait_for(|wishes| *wishes > 1).await;
        workers.hurry();
        std::future::pending::<()>().await
    };
    tokio::select! {
        () = workers.drain(context.settings().shutdown_grace) => {}
        () = hurrying => {}
    }
    workers.stop();
    let _ = tokio::task::spawn_blocking(move || begun.into_iter().for_each(|thread| drop(thread.join()))).await;
    // Every check has a place: when all are free, nothing of a check is left.
    let all = u32::try_from(CHECKS).unwrap_or(u32::MAX);
    let _ = tokio::time::timeout(LAST_CHECKS, context.checks.acquire_many(all)).await;
    lost
}

/// Ends what checks of an earlier service have left, takes back what it held, and starts to work.
async fn begin(context: &Arc<Context>, workers: &Arc<Workers>) -> Result<Vec<JoinHandle<()>>, OptimizerError> {
    let (place, crew) = (context.settings().checks_dir(), Arc::clone(workers.crew()));
    let sweeping = context.read(move || {
        sweep(&place, &crew.log);
        Ok::<_, OptimizerError>(())
    });
    sweeping.await?;
    let mut told = String::new();
    loop {
        let crew = Arc::clone(workers.crew());
        match context.read(move || crew.recover()).await {
            Ok(_) => break,
            Err(error) if error.may_pass() => {
                let problem = format!("not ready yet: {error}");
                if problem != told {
                    workers.crew().log.line(&problem);
                    told = problem;
                }
                tokio::time::sleep(PAUSE).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
    let threads = workers.start()?;
    context.phase.send_replace(Phase::Ready);
    Ok(threads)
}

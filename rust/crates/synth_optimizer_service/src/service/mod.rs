//! The standing service: a queue of runs over HTTP, and workers that carry them out.
//!
//! `routes` is the table of everything that can be asked. A request passes `guard` and is answered by a handler, which
//! takes and gives the types of `api`; `refusal` is the one table of what is refused. `workers` takes requests from the
//! queue and gives each to a `job`.

mod api;
mod checks;
mod cleanup;
mod context;
mod follow;
mod guard;
mod handlers;
mod job;
mod metrics;
mod preflight;
mod refusal;
mod request_end;
mod routes;
mod serve;
mod settings;
mod workers;

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use axum::middleware::from_fn_with_state;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc, watch};

pub use checks::Check;
pub use job::{Job, RequestEnd};
pub use request_end::completion;
pub use settings::Settings;
pub use workers::{Claimant, ProposerFactory, Workers};

use tracing::{info, warn};

use crate::queue::{Holder, Queue, ServiceLock, SystemClock};
use context::{CHECKS, Context, Phase, READS, Readers};
use follow::Hub;
use guard::Guard;
use preflight::sweep;
use settings::Checked;
use synth_optimizer_core::model::envelope::rfc3339;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_platform::clock::unix_millis;
use synth_optimizer_platform::runtime::{Monitor, catch};
use synth_optimizer_platform::warn_if_err;

/// Threads that answer requests.
const THREADS: usize = 2;
/// Threads for what may wait for a file: what clients ask for, and beside it what the service itself needs.
const FILES: usize = READS + 8;
/// How long checks under way may take to end what they have started.
const LAST_CHECKS: Duration = Duration::from_secs(10);
/// How long to wait before a queue that cannot be read at the start is tried again.
const PAUSE: Duration = Duration::from_millis(200);
/// How long requests under way may take once the runs have let go.
const LAST_ANSWERS: Duration = Duration::from_secs(2);

/// The description of everything that can be asked, as `GET /openapi.json` gives it.
pub fn openapi() -> Value {
    routes::router().1
}

/// A service in this process. Dropped, it ends in a hurry; `shut_down` lets it take its time.
#[derive(Debug)]
pub struct Service {
    address: SocketAddr,
    requests: mpsc::UnboundedSender<()>,
    end: Arc<Monitor<Option<Result<(), OptimizerError>>>>,
}

impl Service {
    /// Takes the database, opens the port and starts to serve. What is wrong is told before anything is served.
    pub fn start(settings: Settings) -> Result<Self, OptimizerError> {
        let checked = settings.check()?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(THREADS)
            .max_blocking_threads(FILES)
            .thread_name("synth-optimizers-service")
            .enable_all()
            .build()
            .map_err(|error| OptimizerError::new(ErrorCode::Io, format!("no runtime for the service: {error}")))?;
        let mut lock = ServiceLock::take(settings.db.as_std_path(), &settings.bind)?;
        let queue = Queue::open_with(settings.db.as_std_path(), Arc::new(SystemClock), settings.busy_timeout)?;
        let listener = runtime.block_on(serve::listen(checked.address))?;
        let address = listener.local_addr().map_err(|error| {
            OptimizerError::new(ErrorCode::Io, format!("the address that was bound cannot be read: {error}"))
        })?;
        lock.note_bind(&address.to_string())?;
        let (requests, asked) = mpsc::unbounded_channel();
        let end = Arc::new(Monitor::default());
        let ending = Arc::clone(&end);
        let spawned = std::thread::Builder::new().name("synth-optimizers-service".into()).spawn(move || {
            let done = catch("service", || {
                let workers = Workers::new(queue, settings, Holder::Service(lock.instance_id.clone()));
                runtime.block_on(serve_and_work(Arc::new(workers), checked, lock, listener, address, asked))
            });
            runtime.shutdown_timeout(LAST_ANSWERS);
            ending.update(|end| *end = Some(done));
        });
        spawned.map_err(|error| OptimizerError::new(ErrorCode::Io, format!("no thread for the service: {error}")))?;
        Ok(Self { address, requests, end })
    }

    /// The address that is served.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Lets runs finish what is under way, saves them and ends. A second call does not wait for them.
    pub fn shut_down(&self) {
        // A service that has ended needs none.
        let _ = self.requests.send(());
    }

    /// Waits for the end; nothing when the time is over before.
    pub fn wait(&self, time: Duration) -> Option<Result<(), OptimizerError>> {
        self.end.wait_blocking(time, Option::is_some);
        self.end.get().clone()
    }
}

/// Serves clients and carries out runs, until it is asked to shut down.
async fn serve_and_work(
    workers: Arc<Workers>,
    checked: Checked,
    lock: ServiceLock,
    listener: TcpListener,
    address: SocketAddr,
    mut asked: mpsc::UnboundedReceiver<()>,
) -> Result<(), OptimizerError> {
    let (router, document) = routes::router();
    let context = Arc::new(Context {
        guard: Guard::new(address, &workers.settings.allow_hosts, checked.token),
        config_root: checked.config_root,
        workers: Arc::clone(&workers),
        hub: Hub::default(),
        readers: Readers::default(),
        checks: Arc::new(Semaphore::new(CHECKS)),
        reads: Arc::new(Semaphore::new(READS)),
        phase: watch::Sender::new(Phase::Starting),
        document,
        started_at: rfc3339(unix_millis()),
        instance_id: lock.instance_id.clone(),
        ticking: tokio::sync::Mutex::default(),
    });
    let router = router
        .route_layer(from_fn_with_state(Arc::clone(&context), guard::read_body))
        .layer(from_fn_with_state(Arc::clone(&context), guard::pass))
        .with_state(Arc::clone(&context));
    let (close, closing) = watch::channel(false);
    let serving = serve::serve(listener, router, &workers, closing);
    let working = async {
        let ended = work(&context, &lock, &mut asked).await;
        close.send_replace(true);
        ended
    };
    let ((), ended) = tokio::join!(serving, working);
    let tidying = Arc::clone(&workers);
    let tidied = tokio::task::spawn_blocking(move || tidying.queue.checkpoint()).await;
    // The lock goes last: the service that takes it finds the database at rest.
    drop(lock);
    ended?;
    match tidied {
        Ok(tidied) => Ok(tidied?),
        Err(error) => {
            warn!(%error, "the log of the queue stays beside its file");
            Ok(())
        }
    }
}

/// Recovers, works, and drains when it is asked to shut down.
async fn work(
    context: &Arc<Context>,
    lock: &ServiceLock,
    asked: &mut mpsc::UnboundedReceiver<()>,
) -> Result<(), OptimizerError> {
    let (workers, grace) = (&context.workers, context.workers.settings.shutdown_grace);
    let tidying = async {
        loop {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let readers = context.readers.clone();
            warn_if_err!(tokio::task::spawn_blocking(move || readers.tidy()).await, "readers were not closed");
            if let Err(error) = lock.check() {
                return error;
            }
        }
    };
    let mut threads = Vec::new();
    let working = async {
        threads = begin(context).await?;
        Err::<(), _>(tidying.await)
    };
    let (lost, grace) = tokio::select! {
        lost = working => (lost, grace),
        // A channel that is closed has no owner any more, which ends the service in a hurry.
        asked = asked.recv() => (Ok(()), asked.map_or(Duration::ZERO, |()| grace)),
    };
    context.phase.send_replace(Phase::Draining);
    let hurrying = async {
        // A second request and a channel without an owner both hurry.
        let _ = asked.recv().await;
        workers.shut_down(Duration::ZERO);
        std::future::pending::<()>().await
    };
    tokio::select! {
        () = workers.drain(grace) => {}
        () = hurrying => {}
    }
    workers.stop();
    // A thread that has panicked has said so.
    let _ = tokio::task::spawn_blocking(move || threads.into_iter().for_each(|thread| drop(thread.join()))).await;
    // Every check has a place: when all are free, nothing of a check is left.
    let all = u32::try_from(CHECKS).unwrap_or(u32::MAX);
    // A check that hangs is left behind after that time.
    let _ = tokio::time::timeout(LAST_CHECKS, context.checks.acquire_many(all)).await;
    lost
}

/// Ends what checks of an earlier service have left, takes back what it held, and starts to work.
async fn begin(context: &Arc<Context>) -> Result<Vec<JoinHandle<()>>, OptimizerError> {
    let (workers, sweeping) = (&context.workers, Arc::clone(&context.workers));
    let swept = context.read(move || {
        sweep(&sweeping.settings.checks_dir());
        Ok::<_, OptimizerError>(())
    });
    swept.await?;
    let mut told = String::new();
    loop {
        let recovering = Arc::clone(workers);
        match context.read(move || recovering.recover()).await {
            Ok(_) => break,
            Err(error) if error.may_pass => {
                if error.error.message != told {
                    warn!(%error, "the service is not ready yet");
                    told = error.error.message;
                }
                tokio::time::sleep(PAUSE).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
    let threads = workers.start()?;
    context.phase.send_replace(Phase::Ready);
    info!(workers = workers.settings.workers, instance = context.instance_id, "service ready");
    Ok(threads)
}

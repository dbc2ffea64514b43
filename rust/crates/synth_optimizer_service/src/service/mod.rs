//! The HTTP service: a queue of runs, and the workers that execute them.
//!
//! `routes` is the table of all routes. An HTTP request passes `guard` and is answered by a handler of `handlers`, with the
//! request and response types of `api`. `api_error` is the body of every error response. `workers` claims run requests from
//! the queue and executes each as a `job`.

mod api;
mod api_error;
mod checks;
mod cleanup;
mod context;
mod event_stream;
mod guard;
mod handlers;
mod job;
mod metrics;
mod page;
mod preflight;
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
pub use page::{DirectoryRuns, Viewer, ViewerSource};
pub use request_end::completion;
pub use settings::{Settings, time_of_seconds};
pub use workers::{ClaimOptions, ProposerFactory, Workers};

use tracing::{info, warn};

use crate::queue::{LeaseHolder, Queue, ServiceLock, SystemClock};
use context::{Context, MAX_CHECKS, MAX_READS, Phase, ReaderCache};
use event_stream::EventHub;
use guard::Guard;
use page::view_cache::ViewCache;
use preflight::remove_stale_checks;
use settings::CheckedSettings;
use synth_optimizer_core::model::envelope::rfc3339;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_platform::clock::unix_millis;
use synth_optimizer_platform::runtime::{Monitor, catch_panic};

/// Threads that answer HTTP requests.
const HTTP_THREADS: usize = 2;
/// Threads for blocking file access: for the reads of clients, and some for the service itself.
const BLOCKING_THREADS: usize = MAX_READS + 8;
/// How long running checks may take to end the processes that they started.
const CHECKS_TIMEOUT: Duration = Duration::from_secs(10);
/// How long to wait at startup before reading an unavailable queue again.
const START_RETRY_INTERVAL: Duration = Duration::from_millis(200);
/// How long HTTP requests in flight may take after the runs have ended.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Returns the OpenAPI document, as `GET /openapi.json` serves it.
pub fn openapi() -> Value {
    routes::router().1
}

/// A service in this process. `shut_down` ends it gracefully; dropping it ends it without a grace period.
#[derive(Debug)]
pub struct Service {
    address: SocketAddr,
    requests: mpsc::UnboundedSender<()>,
    end: Arc<Monitor<Option<Result<(), OptimizerError>>>>,
}

impl Service {
    /// Locks the database, opens the port and starts to serve. Returns every error before the first client is served.
    pub fn start(settings: Settings) -> Result<Self, OptimizerError> {
        let checked = settings.check()?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(HTTP_THREADS)
            .max_blocking_threads(BLOCKING_THREADS)
            .thread_name("synth-optimizers-service")
            .enable_all()
            .build()
            .map_err(|error| OptimizerError::from_cause(ErrorCode::Io, "cannot start the runtime", error))?;
        let mut lock = ServiceLock::take(settings.db.as_std_path(), &settings.bind)?;
        let queue = Queue::open_with(settings.db.as_std_path(), Arc::new(SystemClock), settings.busy_timeout)?;
        let listener = runtime.block_on(serve::listen(checked.address))?;
        let address = listener
            .local_addr()
            .map_err(|error| OptimizerError::from_cause(ErrorCode::Io, "reading the bound address failed", error))?;
        lock.note_bind(&address.to_string())?;
        let (requests, shutdown_requests) = mpsc::unbounded_channel();
        let end = Arc::new(Monitor::default());
        let ending = Arc::clone(&end);
        let spawned = std::thread::Builder::new().name("synth-optimizers-service".into()).spawn(move || {
            let done = catch_panic("service", || {
                let holder = LeaseHolder::Service(lock.instance_id.clone());
                let workers = Workers::new(queue, settings, holder).with_access(checked.access.clone());
                runtime.block_on(run_service(Arc::new(workers), checked, lock, listener, address, shutdown_requests))
            });
            runtime.shutdown_timeout(CLOSE_TIMEOUT);
            ending.update(|end| *end = Some(done));
        });
        spawned.map_err(|error| OptimizerError::from_cause(ErrorCode::Io, "cannot start the service thread", error))?;
        Ok(Self { address, requests, end })
    }

    /// Returns the address that the service listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Starts a graceful shutdown: runs finish their calls in flight and are saved. A second call ends the grace period.
    pub fn shut_down(&self) {
        // The service may have ended already.
        let _ = self.requests.send(());
    }

    /// Waits for the service to end. Returns `None` if the time passes first.
    pub fn wait(&self, time: Duration) -> Option<Result<(), OptimizerError>> {
        self.end.wait_blocking(time, Option::is_some);
        self.end.get().clone()
    }
}

/// Serves clients and executes runs until a shutdown is requested.
async fn run_service(
    workers: Arc<Workers>,
    checked: CheckedSettings,
    lock: ServiceLock,
    listener: TcpListener,
    address: SocketAddr,
    mut shutdown_requests: mpsc::UnboundedReceiver<()>,
) -> Result<(), OptimizerError> {
    let (router, document) = routes::router();
    let context = Arc::new(Context {
        guard: Guard::new(address, &workers.settings.allow_hosts, checked.token),
        config_root: checked.config_root,
        workers: Arc::clone(&workers),
        hub: EventHub::default(),
        readers: ReaderCache::default(),
        views: ViewCache::default(),
        checks: Arc::new(Semaphore::new(MAX_CHECKS)),
        reads: Arc::new(Semaphore::new(MAX_READS)),
        phase: watch::Sender::new(Phase::Starting),
        document,
        started_at: rfc3339(unix_millis()),
        instance_id: lock.instance_id.clone(),
        ticking: tokio::sync::Mutex::default(),
    });
    let router = router
        .route_layer(from_fn_with_state(Arc::clone(&context), guard::read_body))
        .layer(from_fn_with_state(Arc::clone(&context), guard::check_request))
        .with_state(Arc::clone(&context));
    let (close, closing) = watch::channel(false);
    let serving = serve::serve(listener, router, &workers, closing);
    let working = async {
        let ended = run_workers(&context, &lock, &mut shutdown_requests).await;
        close.send_replace(true);
        ended
    };
    let ((), ended) = tokio::join!(serving, working);
    let maintenance = Arc::clone(&workers);
    let checkpointed = tokio::task::spawn_blocking(move || maintenance.queue.checkpoint()).await;
    // The lock is released last, so that the next service finds a closed database.
    drop(lock);
    ended?;
    match checkpointed {
        Ok(checkpointed) => Ok(checkpointed?),
        Err(error) => {
            warn!(%error, "the WAL of the queue was not checkpointed");
            Ok(())
        }
    }
}

/// Recovers requests, runs the workers, and drains them at shutdown.
async fn run_workers(
    context: &Arc<Context>,
    lock: &ServiceLock,
    shutdown_requests: &mut mpsc::UnboundedReceiver<()>,
) -> Result<(), OptimizerError> {
    let (workers, grace) = (&context.workers, context.workers.settings.shutdown_grace);
    let maintenance = async {
        loop {
            // Another process may replace the lock at any time, so it is polled. The same tick closes idle readers.
            tokio::time::sleep(Duration::from_secs(1)).await;
            context.readers.close_idle().await;
            if let Err(error) = lock.check() {
                return error;
            }
        }
    };
    let mut threads = Vec::new();
    let working = async {
        threads = start_workers(context).await?;
        Err::<(), _>(maintenance.await)
    };
    let (failure, grace) = tokio::select! {
        failure = working => (failure, grace),
        // A closed channel means that the `Service` was dropped: shut down without a grace period.
        shutdown_requests = shutdown_requests.recv() => (Ok(()), shutdown_requests.map_or(Duration::ZERO, |()| grace)),
    };
    context.phase.send_replace(Phase::Draining);
    let forced_shutdown = async {
        // A second shutdown request and a dropped `Service` both end the grace period.
        let _ = shutdown_requests.recv().await;
        workers.shut_down(Duration::ZERO);
        std::future::pending::<()>().await
    };
    tokio::select! {
        () = workers.drain(grace) => {}
        () = forced_shutdown => {}
    }
    workers.stop();
    // A panic of a thread has been logged already.
    let _ = tokio::task::spawn_blocking(move || threads.into_iter().for_each(|thread| drop(thread.join()))).await;
    // Every check holds a permit: when all permits are free, no check is left.
    let all = u32::try_from(MAX_CHECKS).unwrap_or(u32::MAX);
    // A check that hangs is abandoned after this time.
    let _ = tokio::time::timeout(CHECKS_TIMEOUT, context.checks.acquire_many(all)).await;
    failure
}

/// Ends the leftover checks of an earlier service, recovers its requests, and starts the worker threads.
async fn start_workers(context: &Arc<Context>) -> Result<Vec<JoinHandle<()>>, OptimizerError> {
    let (workers, sweeping) = (&context.workers, Arc::clone(&context.workers));
    let swept = context.run_blocking(move || {
        remove_stale_checks(&sweeping.settings.checks_dir());
        Ok::<_, OptimizerError>(())
    });
    swept.await?;
    let mut last_message = String::new();
    loop {
        let recovering = Arc::clone(workers);
        match context.run_blocking(move || recovering.recover()).await {
            Ok(_) => break,
            Err(error) if error.is_transient => {
                if error.error.message != last_message {
                    warn!(%error, "the service is not ready yet");
                    last_message = error.error.message;
                }
                tokio::time::sleep(START_RETRY_INTERVAL).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
    let threads = workers.start()?;
    context.phase.send_replace(Phase::Ready);
    info!(workers = workers.settings.workers, instance = context.instance_id, "service ready");
    Ok(threads)
}

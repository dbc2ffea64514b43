//! What every handler may use: the queue, the workers, the files of runs, and whether the service is open.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::Request;
use axum::http::Method;
use camino::Utf8PathBuf;
use serde_json::Value;
use tokio::sync::{Mutex, Semaphore, watch};

use super::follow::Hub;
use super::guard::Guard;
use super::refusal::Refusal;
use super::runs::{Readers, RunFiles};
use super::settings::Checked;
use super::workers::Workers;
use crate::Code;
use crate::queue::{Queue, QueueError, RequestEntry};
use synth_optimizer_core::model::envelope::rfc3339;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_platform::clock::unix_millis;

/// Checks of submitted configurations that go on at once; each may start a container and a proposer.
pub(super) const CHECKS: usize = 4;
/// Reads of files for clients that go on at once.
pub(super) const READS: usize = 16;

/// How far the service is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Starting,
    Ready,
    Draining,
}

/// The service, as its handlers see it.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) config_root: Utf8PathBuf,
    pub(super) guard: Guard,
    pub(super) workers: Arc<Workers>,
    pub(super) hub: Hub,
    pub(super) readers: Readers,
    pub(super) checks: Arc<Semaphore>,
    reads: Arc<Semaphore>,
    pub(super) phase: watch::Sender<Phase>,
    pub(super) document: Value,
    pub(super) started_at: String,
    pub(super) instance_id: String,
    /// One tick at a time.
    pub(super) ticking: Mutex<()>,
}

impl Context {
    /// A service that is starting.
    pub(super) fn new(
        checked: Checked,
        address: SocketAddr,
        workers: Arc<Workers>,
        document: Value,
        instance_id: String,
    ) -> Self {
        Self {
            guard: Guard::new(address, &workers.settings.allow_hosts, checked.token),
            config_root: checked.config_root,
            workers,
            hub: Hub::default(),
            readers: Readers::default(),
            checks: Arc::new(Semaphore::new(CHECKS)),
            reads: Arc::new(Semaphore::new(READS)),
            phase: watch::Sender::new(Phase::Starting),
            document,
            started_at: rfc3339(unix_millis()),
            instance_id,
            ticking: Mutex::new(()),
        }
    }

    /// Waits until the service shuts down.
    pub(super) async fn closing(&self) {
        let mut phase = self.phase.subscribe();
        // An error means that the service is gone, which is an end as well.
        let _ = phase.wait_for(|phase| *phase == Phase::Draining).await;
    }

    /// Whether the service takes this request now.
    pub(super) fn check_open(&self, request: &Request) -> Result<(), Refusal> {
        let is_probe = matches!(request.uri().path(), "/health" | "/ready");
        match *self.phase.borrow() {
            _ if is_probe => Ok(()),
            Phase::Ready => Ok(()),
            Phase::Starting => Err(Refusal::new(Code::Starting, "the service is starting")),
            Phase::Draining if *request.method() == Method::GET => Ok(()),
            Phase::Draining => Err(Refusal::new(Code::Draining, "the service is shutting down")),
        }
    }

    /// Does something that may wait for a file, beside the requests of others.
    pub(super) async fn read<T, E>(&self, work: impl FnOnce() -> Result<T, E> + Send + 'static) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<OptimizerError> + Send + 'static,
    {
        let place = Arc::clone(&self.reads).acquire_owned().await;
        // Who leaves meanwhile does not free the place: the thread is not.
        let working = move || {
            let _place = place;
            work()
        };
        match tokio::task::spawn_blocking(working).await {
            Ok(done) => done,
            Err(error) => {
                let message = format!("a read was broken off: {error}");
                Err(OptimizerError::new(ErrorCode::Invariant, message).into())
            }
        }
    }

    /// Asks the queue.
    pub(super) async fn ask<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Queue) -> Result<T, QueueError> + Send + 'static,
    ) -> Result<T, Refusal> {
        let context = Arc::clone(self);
        Ok(self.read(move || work(&context.workers.queue)).await?)
    }

    /// Changes the queue, and measures how long that takes.
    pub(super) async fn change<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Queue) -> Result<T, QueueError> + Send + 'static,
    ) -> Result<T, Refusal> {
        let begun = std::time::Instant::now();
        let done = self.ask(work).await;
        self.workers.metrics.committed("queue", begun.elapsed());
        done
    }

    /// The latest request of a run.
    pub(super) async fn entry(self: &Arc<Self>, run_id: &str) -> Result<RequestEntry, Refusal> {
        let run_id = run_id.to_owned();
        self.ask(move |queue| queue.get(&run_id)).await
    }

    /// The files of a run.
    pub(super) async fn run(self: &Arc<Self>, run_id: &str) -> Result<RunFiles, Refusal> {
        let entry = self.entry(run_id).await?;
        Ok(RunFiles::new(&entry, self.readers.clone())?)
    }
}

impl From<QueueError> for Refusal {
    fn from(refused: QueueError) -> Self {
        let Some(code) = refused.code else { return refused.error.into() };
        let refusal = Refusal::of(code, &refused.error);
        match refused.state {
            Some(state) => refusal.in_state(state.word()),
            None => refusal,
        }
    }
}

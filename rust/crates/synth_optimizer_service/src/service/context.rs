//! The shared state of all handlers: the queue, the workers, the files of runs, and the phase of the service. Workspaces of
//! runs stay open for a short time, because clients read the same ones again.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::Method;
use camino::{Utf8Path, Utf8PathBuf};
use futures_util::stream::unfold;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::{Semaphore, watch};

use super::api_error::ApiError;
use super::event_stream::EventHub;
use super::guard::Guard;
use super::page::assets::is_page_path;
use super::page::view_cache::ViewCache;
use super::workers::Workers;
use crate::ServiceErrorCode;
use crate::queue::{Queue, QueueError, RequestEntry};
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::event::message;
use synth_optimizer_platform::artifacts::RunPaths;
use synth_optimizer_platform::logs::in_current_span;
use synth_optimizer_platform::warn_if_err;
use synth_optimizer_platform::workspace::{Reader, StoredEvent};

/// Maximum number of concurrent checks of submitted configurations. Each check may start a container and a proposer.
pub(super) const MAX_CHECKS: usize = 4;
/// Maximum number of concurrent file reads for clients.
pub(super) const MAX_READS: usize = 16;

/// The phase of the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Starting,
    Ready,
    Draining,
}

/// The state that all handlers share.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) config_root: Utf8PathBuf,
    pub(super) guard: Guard,
    pub(super) workers: Arc<Workers>,
    pub(super) hub: EventHub,
    pub(super) readers: ReaderCache,
    pub(super) views: ViewCache,
    pub(super) checks: Arc<Semaphore>,
    pub(super) reads: Arc<Semaphore>,
    pub(super) phase: watch::Sender<Phase>,
    pub(super) document: Value,
    pub(super) started_at: String,
    pub(super) instance_id: String,
    /// Serializes ticks.
    pub(super) ticking: tokio::sync::Mutex<()>,
}

impl Context {
    /// Waits until the service shuts down.
    pub(super) async fn wait_for_shutdown(&self) {
        let mut phase = self.phase.subscribe();
        // An error means that the service is gone, which counts as a shutdown.
        let _ = phase.wait_for(|phase| *phase == Phase::Draining).await;
    }

    /// Checks whether the service accepts this request in its current phase.
    pub(super) fn check_open(&self, request: &Request) -> Result<(), ApiError> {
        let is_probe = matches!(request.uri().path(), "/health" | "/ready");
        match *self.phase.borrow() {
            _ if is_probe || is_page_path(request.uri().path()) => Ok(()),
            Phase::Ready => Ok(()),
            Phase::Starting => Err(ApiError::new(ServiceErrorCode::Starting, "the service is starting")),
            Phase::Draining if *request.method() == Method::GET => Ok(()),
            Phase::Draining => Err(ApiError::new(ServiceErrorCode::Draining, "the service is shutting down")),
        }
    }

    /// Runs work that may block on a file on a blocking thread, so that other requests are not delayed.
    pub(super) async fn run_blocking<T, E>(&self, work: impl FnOnce() -> Result<T, E> + Send + 'static) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<OptimizerError> + Send + 'static,
    {
        let slot = Arc::clone(&self.reads).acquire_owned().await;
        // The permit belongs to the thread, so it is not released when the client disconnects.
        let working = move || {
            let _slot = slot;
            work()
        };
        match tokio::task::spawn_blocking(in_current_span(working)).await {
            Ok(done) => done,
            Err(error) => {
                Err(OptimizerError::from_cause(ErrorCode::Invariant, "a read ended without a result", error).into())
            }
        }
    }

    /// Reads from the workspace of a run. Returns `None` if the run has not started.
    pub(super) async fn read_run<T: Send + 'static, E: Into<ApiError>>(
        &self,
        run: &RunFiles,
        read: impl FnOnce(&Reader) -> Result<T, E> + Send + 'static,
    ) -> Result<Option<T>, ApiError> {
        let run = run.clone();
        self.run_blocking(move || run.reader()?.map(|reader| read(&reader).map_err(E::into)).transpose()).await
    }

    /// Runs a query on the queue.
    pub(super) async fn query<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Queue) -> Result<T, QueueError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let context = Arc::clone(self);
        Ok(self.run_blocking(move || work(&context.workers.queue)).await?)
    }

    /// Changes the queue and records the duration of the commit.
    pub(super) async fn update<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Queue) -> Result<T, QueueError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let started = Instant::now();
        let done = self.query(work).await;
        self.workers.metrics.observe_commit("queue", started.elapsed());
        done
    }

    /// Returns the latest request of a run.
    pub(super) async fn latest_request(self: &Arc<Self>, run_id: &str) -> Result<RequestEntry, ApiError> {
        let run_id = run_id.to_owned();
        self.query(move |queue| queue.get(&run_id)).await
    }

    /// Returns the files of a run.
    pub(super) async fn run_files(self: &Arc<Self>, run_id: &str) -> Result<RunFiles, ApiError> {
        let entry = self.latest_request(run_id).await?;
        Ok(RunFiles::new(&entry, self.readers.clone())?)
    }
}

impl From<QueueError> for ApiError {
    fn from(refused: QueueError) -> Self {
        let Some(code) = refused.code else { return refused.error.into() };
        let refusal = ApiError::from_error(code, &refused.error);
        match refused.state {
            Some(state) => refusal.in_state(state.as_str()),
            None => refusal,
        }
    }
}

/// The files of a run. They do not exist before the run has started.
#[derive(Debug, Clone)]
pub(super) struct RunFiles {
    pub(super) request_id: String,
    pub(super) paths: RunPaths,
    readers: ReaderCache,
}

impl RunFiles {
    pub(super) fn new(entry: &RequestEntry, readers: ReaderCache) -> Result<Self, OptimizerError> {
        let paths = RunPaths::new(Utf8Path::new(&entry.output_dir), &entry.run_id)?;
        Ok(Self { request_id: entry.request_id.clone(), paths, readers })
    }

    /// Opens the workspace. Returns `None` if it does not exist yet.
    pub(super) fn reader(&self) -> Result<Option<Arc<Reader>>, OptimizerError> {
        let path = self.paths.workspace_db();
        if path.is_file() { self.readers.open(&path).map(Some) } else { Ok(None) }
    }

    /// Returns the sequence number of the last event in the log.
    pub(super) fn last_sequence(&self) -> Result<Option<u64>, OptimizerError> {
        self.reader()?.map_or(Ok(None), |reader| reader.last_sequence())
    }

    /// Returns events of the log, starting at a sequence number.
    pub(super) fn events(&self, from: u64, limit: usize) -> Result<Vec<StoredEvent>, OptimizerError> {
        self.reader()?.map_or(Ok(Vec::new()), |reader| reader.events(from, limit))
    }

    /// Formats an event as a line of the feed.
    pub(super) fn line(&self, stored: &StoredEvent) -> Result<String, OptimizerError> {
        let mut line = Vec::new();
        stored.write_line(self.paths.run_id(), &message(&stored.event), &mut line)?;
        String::from_utf8(line)
            .map_err(|error| OptimizerError::from_cause(ErrorCode::Json, "an event is not text", error))
    }

    /// Returns the request of the run.
    pub(super) async fn entry(&self, context: &Arc<Context>) -> Result<RequestEntry, OptimizerError> {
        let (reading, request_id) = (Arc::clone(context), self.request_id.clone());
        context.run_blocking(move || reading.workers.queue.get_request(&request_id).map_err(OptimizerError::from)).await
    }
}

/// Maximum number of open workspaces.
const MAX_OPEN_READERS: usize = 64;
/// How long an unused workspace stays open. An open workspace prevents its run from truncating the write-ahead log.
const IDLE_TIMEOUT: Duration = Duration::from_secs(3);

/// A cache of workspace readers that clients share, by path.
#[derive(Debug, Clone, Default)]
pub(super) struct ReaderCache(Arc<Mutex<BTreeMap<Utf8PathBuf, OpenReader>>>);

/// An open reader.
#[derive(Debug)]
struct OpenReader {
    reader: Arc<Reader>,
    /// Device and inode, to notice when the file is replaced.
    file: Option<(u64, u64)>,
    used: Instant,
}

impl ReaderCache {
    /// Returns the reader of a workspace. Opening a file does not block readers of other files.
    pub(super) fn open(&self, path: &Utf8Path) -> Result<Arc<Reader>, OptimizerError> {
        let file = std::fs::metadata(path).ok().map(|about| (about.dev(), about.ino()));
        if let Some(shared) = self.0.lock().get_mut(path).filter(|shared| shared.file == file) {
            shared.used = Instant::now();
            return Ok(Arc::clone(&shared.reader));
        }
        let reader = Arc::new(Reader::open(path.as_std_path())?);
        let mut readers = self.0.lock();
        let oldest = readers.iter().min_by_key(|(_, shared)| shared.used).map(|(path, _)| path.clone());
        let closed = oldest.filter(|_| readers.len() >= MAX_OPEN_READERS).and_then(|oldest| readers.remove(&oldest));
        let shared = OpenReader { reader: Arc::clone(&reader), file, used: Instant::now() };
        let replaced = readers.insert(path.to_owned(), shared);
        drop(readers);
        drop((closed, replaced));
        Ok(reader)
    }

    /// Closes readers that were not used for `IDLE_TIMEOUT`. Closing may block on a file; without one it costs nothing.
    pub(super) async fn close_idle(&self) {
        let is_idle = |_: &Utf8PathBuf, shared: &mut OpenReader| shared.used.elapsed() >= IDLE_TIMEOUT;
        let idle: Vec<_> = self.0.lock().extract_if(.., is_idle).collect();
        if !idle.is_empty() {
            warn_if_err!(tokio::task::spawn_blocking(move || drop(idle)).await, "readers were not closed");
        }
    }

    /// Closes the reader of a workspace that is deleted.
    pub(super) fn close(&self, path: &Utf8Path) {
        let closed = self.0.lock().remove(path);
        drop(closed);
    }
}

/// Bytes per read.
const CHUNK_BYTES: usize = 64 * 1024;

/// Returns a response body with the first `bytes` of a file, read in chunks as the client consumes them. If the file turns out
/// to be shorter, the response is aborted, which the client notices.
pub(super) fn file_body(file: File, bytes: u64) -> Body {
    Body::from_stream(unfold(Some((file, bytes)), |rest| async move {
        let (file, left) = rest.filter(|(_, left)| *left > 0)?;
        Some(match tokio::task::spawn_blocking(move || read_chunk(file, left)).await {
            Ok(Ok((read, rest))) => (Ok(read), Some(rest)),
            Ok(Err(error)) => (Err(error), None),
            Err(error) => (Err(std::io::Error::other(error)), None),
        })
    }))
}

fn read_chunk(mut file: File, left: u64) -> std::io::Result<(Bytes, (File, u64))> {
    let mut read = vec![0; usize::try_from(left).unwrap_or(CHUNK_BYTES).min(CHUNK_BYTES)];
    file.read_exact(&mut read)?;
    let left = left - read.len() as u64;
    Ok((Bytes::from(read), (file, left)))
}

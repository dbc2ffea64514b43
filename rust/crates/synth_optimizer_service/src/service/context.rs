//! What every handler may use: the queue, the workers, the files of runs, and whether the service is open. Open workspaces of
//! runs are kept for a moment, because clients read the same ones again.

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

use super::follow::Hub;
use super::guard::Guard;
use super::refusal::Refusal;
use super::workers::Workers;
use crate::Code;
use crate::queue::{Queue, QueueError, RequestEntry};
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::event::message;
use synth_optimizer_platform::artifacts::RunPaths;
use synth_optimizer_platform::workspace::{Reader, Stored};

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
    pub(super) reads: Arc<Semaphore>,
    pub(super) phase: watch::Sender<Phase>,
    pub(super) document: Value,
    pub(super) started_at: String,
    pub(super) instance_id: String,
    /// One tick at a time.
    pub(super) ticking: tokio::sync::Mutex<()>,
}

impl Context {
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

    /// Reads something of the workspace of a run; nothing before the run has begun.
    pub(super) async fn look<T: Send + 'static, E: Into<Refusal>>(
        &self,
        run: &RunFiles,
        read: impl FnOnce(&Reader) -> Result<T, E> + Send + 'static,
    ) -> Result<Option<T>, Refusal> {
        let run = run.clone();
        self.read(move || run.reader()?.map(|reader| read(&reader).map_err(E::into)).transpose()).await
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
        let begun = Instant::now();
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

/// The files of a run: none before the run has begun.
#[derive(Debug, Clone)]
pub(super) struct RunFiles {
    pub(super) request_id: String,
    pub(super) paths: RunPaths,
    readers: Readers,
}

impl RunFiles {
    pub(super) fn new(entry: &RequestEntry, readers: Readers) -> Result<Self, OptimizerError> {
        let paths = RunPaths::new(Utf8Path::new(&entry.output_dir), &entry.run_id)?;
        Ok(Self { request_id: entry.request_id.clone(), paths, readers })
    }

    /// The workspace, once there is one.
    pub(super) fn reader(&self) -> Result<Option<Arc<Reader>>, OptimizerError> {
        let path = self.paths.workspace_db();
        if path.is_file() { self.readers.open(&path).map(Some) } else { Ok(None) }
    }

    /// The last event of the log.
    pub(super) fn last_sequence(&self) -> Result<Option<u64>, OptimizerError> {
        self.reader()?.map_or(Ok(None), |reader| reader.last_sequence())
    }

    /// Events of the log from a sequence on.
    pub(super) fn events(&self, from: u64, limit: usize) -> Result<Vec<Stored>, OptimizerError> {
        self.reader()?.map_or(Ok(Vec::new()), |reader| reader.events(from, limit))
    }

    /// An event as a line of the feed.
    pub(super) fn line(&self, stored: &Stored) -> Result<String, OptimizerError> {
        stored.line(self.paths.run_id(), &message(&stored.event))
    }

    /// The request of the run.
    pub(super) async fn entry(&self, context: &Arc<Context>) -> Result<RequestEntry, OptimizerError> {
        let (reading, request_id) = (Arc::clone(context), self.request_id.clone());
        context.read(move || reading.workers.queue.get_request(&request_id).map_err(OptimizerError::from)).await
    }
}

/// Workspaces that are kept open at most.
const MAX_OPEN: usize = 64;
/// How long one stays open without being read: an open one keeps its run from tidying up its files.
const IDLE_TIMEOUT: Duration = Duration::from_secs(3);

/// Readers that clients share, by the file that they read.
#[derive(Debug, Clone, Default)]
pub(super) struct Readers(Arc<Mutex<BTreeMap<Utf8PathBuf, Shared>>>);

/// A reader that is open.
#[derive(Debug)]
struct Shared {
    reader: Arc<Reader>,
    /// Device and inode: another file may have come to its place.
    file: Option<(u64, u64)>,
    used: Instant,
}

impl Readers {
    /// The reader of a workspace. Opening one holds up no read of another.
    pub(super) fn open(&self, path: &Utf8Path) -> Result<Arc<Reader>, OptimizerError> {
        let file = std::fs::metadata(path).ok().map(|about| (about.dev(), about.ino()));
        if let Some(shared) = self.0.lock().get_mut(path).filter(|shared| shared.file == file) {
            shared.used = Instant::now();
            return Ok(Arc::clone(&shared.reader));
        }
        let reader = Arc::new(Reader::open(path.as_std_path())?);
        let mut readers = self.0.lock();
        let oldest = readers.iter().min_by_key(|(_, shared)| shared.used).map(|(path, _)| path.clone());
        let closed = oldest.filter(|_| readers.len() >= MAX_OPEN).and_then(|oldest| readers.remove(&oldest));
        let shared = Shared { reader: Arc::clone(&reader), file, used: Instant::now() };
        let replaced = readers.insert(path.to_owned(), shared);
        drop(readers);
        drop((closed, replaced));
        Ok(reader)
    }

    /// Closes those that were not read for a while. It may wait for a file.
    pub(super) fn tidy(&self) {
        let now = Instant::now();
        let mut readers = self.0.lock();
        let idle: Vec<_> =
            readers.extract_if(.., |_, shared| now.duration_since(shared.used) >= IDLE_TIMEOUT).collect();
        drop(readers);
        drop(idle);
    }

    /// Closes the reader of a workspace that goes away.
    pub(super) fn forget(&self, path: &Utf8Path) {
        let closed = self.0.lock().remove(path);
        drop(closed);
    }
}

/// Bytes that are read at once.
const PIECE: usize = 64 * 1024;

/// The first bytes of a file on their way to a client: read as the client takes them, never as a whole. A file that turns out to be shorter breaks the answer off, which the client notices.
pub(super) fn file_body(file: File, bytes: u64) -> Body {
    Body::from_stream(unfold(Some((file, bytes)), |rest| async move {
        let (file, left) = rest.filter(|(_, left)| *left > 0)?;
        Some(match tokio::task::spawn_blocking(move || piece(file, left)).await {
            Ok(Ok((read, rest))) => (Ok(read), Some(rest)),
            Ok(Err(error)) => (Err(error), None),
            Err(error) => (Err(std::io::Error::other(error)), None),
        })
    }))
}

fn piece(mut file: File, left: u64) -> std::io::Result<(Bytes, (File, u64))> {
    let mut read = vec![0; usize::try_from(left).unwrap_or(PIECE).min(PIECE)];
    file.read_exact(&mut read)?;
    let left = left - read.len() as u64;
    Ok((Bytes::from(read), (file, left)))
}

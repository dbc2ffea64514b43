//! The files of a run, as the service reads them: none before the run has begun. Open workspaces are kept for a moment, because
//! clients read the same ones again.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use camino::{Utf8Path, Utf8PathBuf};
use futures_util::stream::unfold;
use parking_lot::Mutex;

use super::context::Context;
use crate::queue::RequestEntry;
use synth_optimizer_core::model::error::OptimizerError;
use synth_optimizer_core::model::event::message;
use synth_optimizer_platform::artifacts::RunPaths;
use synth_optimizer_platform::workspace::{Reader, Stored};

/// Where a run is.
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

    /// The final status of the request, once it is over.
    pub(super) async fn end(&self, context: &Arc<Context>) -> Result<Option<String>, OptimizerError> {
        let entry = self.entry(context).await?;
        Ok(entry.is_terminal.then(|| entry.status.word().to_owned()))
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

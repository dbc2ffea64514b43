//! Open workspaces of runs, kept for a moment because whoever reads one reads it again.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};

use crate::model::error::OptimizerError;
use crate::workspace::Reader;

/// Workspaces that are kept open at most.
const MOST: usize = 64;
/// How long one stays open that nobody reads: an open one keeps its run from tidying up its files.
const IDLE: Duration = Duration::from_secs(3);

/// Shared readers.
#[derive(Debug, Clone, Default)]
pub(super) struct Readers(Arc<Mutex<Open>>);

/// By the file that they read.
type Open = BTreeMap<Utf8PathBuf, Shared>;

/// A reader that is open.
#[derive(Debug)]
struct Shared {
    reader: Arc<Reader>,
    /// Which file it is: another one may have come to its place.
    file: File,
    /// When somebody last asked for it.
    used: Instant,
}

/// Device and inode.
type File = Option<(u64, u64)>;

fn file_at(path: &Utf8Path) -> File {
    std::fs::metadata(path).ok().map(|about| (about.dev(), about.ino()))
}

impl Readers {
    /// The reader of a workspace. Opening one holds nobody up who reads another.
    pub(super) fn open(&self, path: &Utf8Path) -> Result<Arc<Reader>, OptimizerError> {
        let file = file_at(path);
        if let Some(shared) = self.known().get_mut(path).filter(|shared| shared.file == file) {
            shared.used = Instant::now();
            return Ok(Arc::clone(&shared.reader));
        }
        let reader = Arc::new(Reader::open(path.as_std_path())?);
        let mut readers = self.known();
        let oldest = readers.iter().min_by_key(|(_, shared)| shared.used).map(|(path, _)| path.clone());
        let closed = oldest.filter(|_| readers.len() >= MOST).and_then(|oldest| readers.remove(&oldest));
        let shared = Shared { reader: Arc::clone(&reader), file, used: Instant::now() };
        let replaced = readers.insert(path.to_owned(), shared);
        drop(readers);
        drop((closed, replaced));
        Ok(reader)
    }

    /// Closes those that nobody has read for a while. It may wait for a file.
    pub(super) fn tidy(&self) {
        let now = Instant::now();
        let is_idle = |_: &Utf8PathBuf, shared: &mut Shared| now.duration_since(shared.used) >= IDLE;
        let mut readers = self.known();
        let idle: Open = readers.extract_if(.., is_idle).collect();
        drop(readers);
        drop(idle);
    }

    /// Closes the reader of a workspace that goes away.
    pub(super) fn forget(&self, path: &Utf8Path) {
        let closed = self.known().remove(path);
        drop(closed);
    }

    fn known(&self) -> MutexGuard<'_, Open> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

//! Files that are there as a whole or not at all: written beside their place, synced, and renamed.

use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::{AtomicU64, Ordering};

use camino::{Utf8Path, Utf8PathBuf};

use super::fault;
use synth_optimizer_core::model::error::OptimizerError;

/// How names of unfinished files begin and end.
const UNFINISHED: (&str, &str) = (".", ".tmp");

/// A file that takes its name when it is complete. Dropped before, it leaves nothing.
#[derive(Debug)]
pub struct AtomicFile {
    target: Utf8PathBuf,
    temporary: Utf8PathBuf,
    /// None once it is complete.
    file: Option<BufWriter<File>>,
}

/// Puts bytes under a name, for the owner's eyes only.
pub fn write_atomic(path: &Utf8Path, bytes: &[u8]) -> Result<(), OptimizerError> {
    let mut file = AtomicFile::create(path)?;
    file.write_all(bytes).map_err(fault::io(path, "writing"))?;
    file.commit()
}

/// Removes what a killed process has left unfinished in a directory that nobody else writes to.
pub(super) fn remove_unfinished(dir: &Utf8Path) -> Result<(), OptimizerError> {
    let entries = dir.read_dir_utf8().map_err(fault::io(dir, "listing"))?;
    for entry in entries.flatten() {
        let name = entry.file_name();
        if name.starts_with(UNFINISHED.0) && name.ends_with(UNFINISHED.1) {
            std::fs::remove_file(entry.path()).map_err(fault::io(entry.path(), "removing"))?;
        }
    }
    Ok(())
}

impl AtomicFile {
    pub fn create(target: &Utf8Path) -> Result<Self, OptimizerError> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let name = target.file_name().unwrap_or_default();
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let (begin, end) = UNFINISHED;
        let temporary = target.with_file_name(format!("{begin}{name}.{}.{number}{end}", std::process::id()));
        let opened = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary);
        let file = opened.map_err(fault::io(target, "writing"))?;
        Ok(Self { target: target.to_owned(), temporary, file: Some(BufWriter::new(file)) })
    }

    /// The name that the file will have.
    pub fn target(&self) -> &Utf8Path {
        &self.target
    }

    /// Gives the file its name; after this it survives a loss of power.
    pub fn commit(mut self) -> Result<(), OptimizerError> {
        let target = self.target.clone();
        let failed = fault::io(&target, "writing");
        if let Some(buffered) = self.file.take() {
            let file = buffered.into_inner().map_err(|error| failed(error.into_error()))?;
            file.sync_all().map_err(failed)?;
        }
        std::fs::rename(&self.temporary, &self.target).map_err(failed)?;
        sync_dir(&self.target)
    }
}

impl Write for AtomicFile {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match &mut self.file {
            Some(file) => file.write(bytes),
            None => Err(std::io::ErrorKind::NotConnected.into()),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.file.as_mut().map_or(Ok(()), Write::flush)
    }
}

impl Drop for AtomicFile {
    fn drop(&mut self) {
        // After a rename there is nothing left under this name.
        let _ = std::fs::remove_file(&self.temporary);
    }
}

/// A name is durable when its directory is.
fn sync_dir(path: &Utf8Path) -> Result<(), OptimizerError> {
    let parent = path.parent().filter(|parent| !parent.as_str().is_empty()).unwrap_or(Utf8Path::new("."));
    File::open(parent).and_then(|dir| dir.sync_all()).map_err(fault::io(parent, "syncing"))
}

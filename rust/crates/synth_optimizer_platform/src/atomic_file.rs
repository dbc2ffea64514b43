//! Atomic file writes: a file is written under a temporary name, synced, and renamed.

use std::fs::File;
use std::io::{BufWriter, Write};

use camino::{Utf8Path, Utf8PathBuf};
use tempfile::{Builder, NamedTempFile};

use crate::file_error;
use synth_optimizer_core::model::error::OptimizerError;

/// Prefix and suffix of temporary file names.
const TEMP_FILE_AFFIXES: (&str, &str) = (".", ".tmp");

/// A file, readable only by its owner, that gets its name on `commit`. If it is dropped before, it is removed.
#[derive(Debug)]
pub struct AtomicFile {
    target: Utf8PathBuf,
    file: BufWriter<NamedTempFile>,
}

/// Writes a file atomically, readable only by its owner.
pub fn write_atomic(path: &Utf8Path, bytes: &[u8]) -> Result<(), OptimizerError> {
    let mut file = AtomicFile::create(path)?;
    file.write_all(bytes).map_err(file_error::io(path, "writing"))?;
    file.commit()
}

/// Removes the temporary files of a killed process. No other process may write to the directory.
pub(crate) fn remove_temp_files(dir: &Utf8Path) -> Result<(), OptimizerError> {
    let entries = dir.read_dir_utf8().map_err(file_error::io(dir, "listing"))?;
    for entry in entries.flatten() {
        let name = entry.file_name();
        if name.starts_with(TEMP_FILE_AFFIXES.0) && name.ends_with(TEMP_FILE_AFFIXES.1) {
            std::fs::remove_file(entry.path()).map_err(file_error::io(entry.path(), "removing"))?;
        }
    }
    Ok(())
}

impl AtomicFile {
    pub fn create(target: &Utf8Path) -> Result<Self, OptimizerError> {
        let (begin, end) = TEMP_FILE_AFFIXES;
        let made = Builder::new().prefix(begin).suffix(end).tempfile_in(directory(target));
        let file = BufWriter::new(made.map_err(file_error::io(target, "writing"))?);
        Ok(Self { target: target.to_owned(), file })
    }

    /// Returns the final name of the file.
    pub fn target(&self) -> &Utf8Path {
        &self.target
    }

    /// Renames the file to its final name and makes it durable.
    pub fn commit(self) -> Result<(), OptimizerError> {
        let Self { target, file } = self;
        let failed = file_error::io(&target, "writing");
        let file = file.into_inner().map_err(|error| failed(error.into_error()))?;
        file.as_file().sync_all().map_err(failed)?;
        file.persist(&target).map_err(|error| failed(error.error))?;
        // A rename is durable once its directory is synced.
        let parent = directory(&target);
        File::open(parent).and_then(|dir| dir.sync_all()).map_err(file_error::io(parent, "syncing"))
    }
}

impl Write for AtomicFile {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.file.flush()
    }
}

fn directory(path: &Utf8Path) -> &Utf8Path {
    path.parent().filter(|parent| !parent.as_str().is_empty()).unwrap_or(Utf8Path::new("."))
}

//! Files that are there as a whole or not at all: written beside their place, synced, and renamed.

use std::fs::File;
use std::io::{BufWriter, Write};

use camino::{Utf8Path, Utf8PathBuf};
use tempfile::{Builder, NamedTempFile};

use super::file_error;
use synth_optimizer_core::model::error::OptimizerError;

/// How names of unfinished files begin and end.
const TEMP_FILE_AFFIXES: (&str, &str) = (".", ".tmp");

/// A file for the owner's eyes that takes its name when it is complete. Dropped before, it leaves nothing.
#[derive(Debug)]
pub struct AtomicFile {
    target: Utf8PathBuf,
    file: BufWriter<NamedTempFile>,
}

/// Puts bytes under a name, for the owner's eyes only.
pub fn write_atomic(path: &Utf8Path, bytes: &[u8]) -> Result<(), OptimizerError> {
    let mut file = AtomicFile::create(path)?;
    file.write_all(bytes).map_err(file_error::io(path, "writing"))?;
    file.commit()
}

/// Removes what a killed process has left unfinished in a directory that nobody else writes to.
pub(super) fn remove_temp_files(dir: &Utf8Path) -> Result<(), OptimizerError> {
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

    /// The name that the file will have.
    pub fn target(&self) -> &Utf8Path {
        &self.target
    }

    /// Gives the file its name; after this it survives a loss of power.
    pub fn commit(self) -> Result<(), OptimizerError> {
        let Self { target, file } = self;
        let failed = file_error::io(&target, "writing");
        let file = file.into_inner().map_err(|error| failed(error.into_error()))?;
        file.as_file().sync_all().map_err(failed)?;
        file.persist(&target).map_err(|error| failed(error.error))?;
        // A name is durable when its directory is.
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

//! Tries places on the disk and leaves nothing behind.

use std::fs::{DirBuilder, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};

use camino::{Utf8Path, Utf8PathBuf};

use crate::warn_if_err;
use synth_optimizer_core::model::canonical::hex;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};

/// How often a directory that goes away is made again.
const ATTEMPTS: usize = 50;

/// A directory of its own for processes that are only tried. It is removed with everything in it.
#[derive(Debug)]
pub(super) struct Scratch {
    path: Utf8PathBuf,
}

impl Scratch {
    /// A new one in this directory, which is made if it is not there, or in the one for temporary files.
    pub(super) fn new(place: Option<&Utf8Path>) -> Result<Self, OptimizerError> {
        let root = match place {
            Some(place) => {
                let made = DirBuilder::new().recursive(true).mode(0o700).create(place);
                made.map_err(|error| failed(place, "made", error))?;
                place.to_owned()
            }
            None => Utf8PathBuf::try_from(std::env::temp_dir()).map_err(|error| {
                OptimizerError::from_cause(ErrorCode::Io, "the directory for temporary files", error)
            })?,
        };
        let path = root.join(format!("synth-optimizers-check-{}", random_name()?));
        DirBuilder::new().mode(0o700).create(&path).map_err(|error| failed(&path, "made", error))?;
        Ok(Self { path })
    }

    pub(super) fn path(&self) -> &Utf8Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        warn_if_err!(std::fs::remove_dir_all(&self.path), "the files of a check are left");
    }
}

/// Whether a directory is there or can be made, and can be written to. What is made for this is removed again.
pub(super) fn try_directory(dir: &Utf8Path) -> Result<(), OptimizerError> {
    let is_missing = |place: &&Utf8Path| !place.as_str().is_empty() && !place.exists();
    // The deepest comes first, which is the order in which they can be removed.
    let missing: Vec<&Utf8Path> = dir.ancestors().take_while(is_missing).collect();
    let file = dir.join(format!(".check-{}", random_name()?));
    let attempt = || {
        DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(&file)?;
        std::fs::remove_file(&file)
    };
    let mut tried = attempt();
    // Another check may remove what it has made at the moment at which this one needs it.
    for _ in 0..ATTEMPTS {
        if tried.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound) {
            tried = attempt();
        }
    }
    for made in missing {
        // One that was not made is not there, and one that somebody uses meanwhile is not empty.
        let _ = std::fs::remove_dir(made);
    }
    tried.map_err(|error| failed(dir, "written to", error))
}

fn failed(path: &Utf8Path, done: &str, error: std::io::Error) -> OptimizerError {
    OptimizerError::from_cause(ErrorCode::Io, format!("{path} cannot be {done}"), error)
}

fn random_name() -> Result<String, OptimizerError> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes)
        .map_err(|error| OptimizerError::from_cause(ErrorCode::Io, "no randomness for a name", error))?;
    Ok(hex(&bytes))
}

#[cfg(test)]
#[path = "probe_tests.rs"]
mod tests;

//! The workspace of one turn on disk: the brief goes in, the manifest comes out.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};

use camino::{Utf8Path, Utf8PathBuf};

use super::TurnId;
use super::brief::Brief;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::event_fields::Problem;

/// Directory of all turns' workspaces in the run directory.
pub const WORKSPACES: &str = "proposer_workspaces";
/// Where the manifest is expected, in the workspace.
pub const MANIFEST: &str = "proposal/manifest.json";

/// Mount points that a sandbox leaves behind when it is killed.
const LITTER: [&str; 4] = [".git", ".codex", ".agents", ".aws"];

/// A workspace that is there.
#[derive(Debug)]
pub(super) struct Workdir {
    path: Utf8PathBuf,
}

impl Workdir {
    /// Makes the workspace of a turn anew.
    pub(super) fn create(
        run_dir: &Utf8Path,
        turn: TurnId,
        question: &str,
        brief: &Brief,
    ) -> Result<Self, OptimizerError> {
        let path = run_dir.join(WORKSPACES).join(name_of(turn));
        match fs::remove_dir_all(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(failed("clear", &path, error)),
            _ => {}
        }
        let proposal = path.join("proposal");
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&proposal)
            .map_err(|error| failed("make", &proposal, error))?;
        let names = brief.parts.iter().map(|part| format!("- {}", part.name)).collect::<Vec<_>>().join("\n");
        let readme = format!("# A proposal to write\n\n{question}\n\nRead in this order:\n{names}\n");
        write(&path.join("README.md"), &readme)?;
        for part in &brief.parts {
            write(&path.join(part.name), &part.text)?;
        }
        Ok(Self { path })
    }

    pub(super) fn path(&self) -> &Utf8Path {
        &self.path
    }

    /// The manifest that the turn has written, if it is a file of the workspace and not larger than `most` bytes.
    pub(super) fn manifest(&self, most: u64) -> Result<Option<String>, Problem> {
        let wrong =
            |message: String| Problem { code: "manifest_unreadable".into(), field: Some(MANIFEST.into()), message };
        let path = self.path.join(MANIFEST);
        // Neither the file nor its directory may lead elsewhere.
        let proposal = self.path.join("proposal");
        if !fs::symlink_metadata(&proposal).is_ok_and(|found| found.is_dir()) {
            return if proposal.exists() { Err(wrong("`proposal` is not a directory".into())) } else { Ok(None) };
        }
        match fs::symlink_metadata(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(wrong(format!("it cannot be read: {}", error.kind()))),
            Ok(found) if !found.is_file() => return Err(wrong("it is not a regular file".into())),
            Ok(found) if found.len() > most => {
                return Err(wrong(format!("it has {} bytes; at most {most} are allowed", found.len())));
            }
            Ok(_) => {}
        }
        // A link that is put there meanwhile is not followed, and a pipe is not waited for.
        let flags = (rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK).bits();
        let opened = OpenOptions::new().read(true).custom_flags(flags.cast_signed()).open(&path);
        let file = opened.map_err(|error| wrong(format!("it cannot be read: {}", error.kind())))?;
        if !file.metadata().is_ok_and(|found| found.is_file()) {
            return Err(wrong("it is not a regular file".into()));
        }
        let mut bytes = Vec::new();
        file.take(most + 1)
            .read_to_end(&mut bytes)
            .map_err(|error| wrong(format!("it cannot be read: {}", error.kind())))?;
        if bytes.len() as u64 > most {
            return Err(wrong(format!("it is larger than {most} bytes")));
        }
        String::from_utf8(bytes).map(Some).map_err(|_| wrong("it is not UTF-8 text".into()))
    }

    /// Removes what a killed sandbox leaves.
    pub(super) fn tidy(&self) {
        for name in LITTER {
            // Only empty directories go; whatever else stands there stays.
            // Lost: it is not there, or not empty and then no litter.
            let _ = fs::remove_dir(self.path.join(name));
        }
    }
}

/// The name that a turn's workspace and transcript have.
pub(super) fn name_of(turn: TurnId) -> String {
    format!("turn_{:06}_{}", turn.request.0, turn.attempt)
}

fn write(path: &Utf8Path, text: &str) -> Result<(), OptimizerError> {
    let opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    opened.and_then(|mut file| file.write_all(text.as_bytes())).map_err(|error| failed("write", path, error))
}

fn failed(doing: &str, path: &Utf8Path, error: std::io::Error) -> OptimizerError {
    OptimizerError::from_cause(ErrorCode::Io, format!("cannot {doing} {path}"), error)
}

#[cfg(test)]
#[path = "workdir_tests.rs"]
mod tests;

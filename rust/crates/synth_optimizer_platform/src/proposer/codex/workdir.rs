//! The workspace of one turn on disk: the brief goes in, the manifest comes out, and what stays afterwards holds no
//! credential and leads nowhere.

use std::fs;
use std::io::{self, ErrorKind};

use camino::{Utf8Path, Utf8PathBuf};
use tracing::warn;

use crate::proposer::TurnId;
use crate::proposer::brief::Brief;
use crate::proposer::files::{make_dir, read_text, remove_dir, write_new};
use crate::proposer::transcript::Redactor;
use crate::warn_if_err;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::event_fields::Problem;

/// Directory of all turns' workspaces in the run directory.
const WORKSPACES: &str = "proposer_workspaces";
/// Where the manifest is expected, in the workspace.
pub(super) const MANIFEST: &str = "proposal/manifest.json";

/// Mount points that a sandbox leaves behind when it is killed.
const LITTER: [&str; 4] = [".git", ".codex", ".agents", ".aws"];

/// Larger files are of no use as evidence, and a model may write as many as it likes.
const MOST_BYTES: u64 = 4 * 1024 * 1024;
const MOST_FILES: u64 = 1000;
const MOST_OF_ALL: u64 = 16 * 1024 * 1024;
const DEEPEST: u32 = 8;

/// A workspace that is there.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Workdir {
    pub(super) path: Utf8PathBuf,
}

impl Workdir {
    /// Makes the workspace of a turn anew.
    pub(super) fn create(
        run_dir: &Utf8Path,
        turn: TurnId,
        question: &str,
        brief: &Brief,
    ) -> Result<Self, OptimizerError> {
        let path = run_dir.join(WORKSPACES).join(turn.name());
        remove_dir(&path).map_err(|error| failed("clear", &path, error))?;
        let proposal = path.join("proposal");
        make_dir(&proposal).map_err(|error| failed("make", &proposal, error))?;
        let names = brief.parts.iter().map(|(name, _)| format!("- {name}")).collect::<Vec<_>>().join("\n");
        let readme = format!("# A proposal to write\n\n{question}\n\nRead in this order:\n{names}\n");
        for (name, text) in brief.parts.iter().chain([&("README.md", readme)]) {
            let path = path.join(name);
            write_new(&path, text.as_bytes()).map_err(|error| failed("write", &path, error))?;
        }
        Ok(Self { path })
    }

    /// The manifest that the turn has written, if it is a file of the workspace and not larger than `most` bytes.
    pub(super) fn manifest(&self, most: u64) -> Result<Option<String>, Problem> {
        let wrong =
            |message: String| Problem { code: "manifest_unreadable".into(), field: Some(MANIFEST.into()), message };
        // Neither the file nor its directory may lead elsewhere.
        let proposal = self.path.join("proposal");
        if !fs::symlink_metadata(&proposal).is_ok_and(|found| found.is_dir()) {
            return if proposal.exists() { Err(wrong("`proposal` is not a directory".into())) } else { Ok(None) };
        }
        match read_text(&self.path.join(MANIFEST), most) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            // An error of the system is told by its kind alone.
            Err(error) => Err(wrong(match error.get_ref() {
                Some(problem) => problem.to_string(),
                None => format!("it cannot be read: {}", error.kind()),
            })),
        }
    }

    /// Removes what a killed sandbox leaves.
    pub(super) fn tidy(&self) {
        for name in LITTER {
            // Only empty directories go; whatever else stands there stays.
            // Lost: it is not there, or not empty and then no litter.
            let _ = fs::remove_dir(self.path.join(name));
        }
    }

    /// Redacts every text in the workspace, and removes what is no text, too large or one too many. Nothing may run in it
    /// any more.
    pub(super) fn sweep(&self, redactor: &Redactor) {
        sweep_dir(&self.path, redactor, 0, &mut Room { files: MOST_FILES, bytes: MOST_OF_ALL });
    }
}

/// What may still be kept.
struct Room {
    files: u64,
    bytes: u64,
}

fn sweep_dir(dir: &Utf8Path, redactor: &Redactor, depth: u32, room: &mut Room) {
    let entries = match dir.read_dir_utf8() {
        Ok(entries) => entries,
        Err(error) => return warn!(%dir, %error, "a workspace cannot be gone over"),
    };
    // Listed before anything is put there.
    let entries: Vec<_> = entries.flatten().collect();
    for entry in entries {
        let (path, kind) = (entry.path(), entry.file_type());
        let is_dir = kind.as_ref().is_ok_and(fs::FileType::is_dir);
        if is_dir && depth < DEEPEST && room.files > 0 {
            room.files -= 1;
            sweep_dir(path, redactor, depth + 1, room);
            continue;
        }
        let is_kept = kind.is_ok_and(|kind| kind.is_file()) && has_room(path, room) && is_clean(path, redactor);
        if !is_kept {
            // What cannot be removed is no secret of ours: no command ever saw one.
            let removed = if is_dir { fs::remove_dir_all(path) } else { fs::remove_file(path) };
            warn_if_err!(removed, "a file of a turn stays", %path);
        }
    }
}

fn has_room(path: &Utf8Path, room: &mut Room) -> bool {
    let bytes = fs::symlink_metadata(path).map_or(u64::MAX, |found| found.len());
    if bytes > MOST_BYTES.min(room.bytes) || room.files == 0 {
        return false;
    }
    room.files -= 1;
    room.bytes -= bytes;
    true
}

/// Whether a file can stay, after it was rewritten if it had to be. One that cannot be read is no text.
fn is_clean(path: &Utf8Path, redactor: &Redactor) -> bool {
    let Ok(text) = read_text(path, MOST_BYTES) else { return false };
    let shown = redactor.text(&text);
    shown == text || replace(path, &shown).is_ok()
}

/// Puts another file in the place of this one, so that whatever else has its name or its content stays as it is.
fn replace(path: &Utf8Path, text: &str) -> io::Result<()> {
    let draft = path.with_extension("redacted.new");
    let done = write_new(&draft, text.as_bytes()).and_then(|()| fs::rename(&draft, path));
    // A draft that is there already was made by somebody else.
    if done.as_ref().is_err_and(|error| error.kind() != ErrorKind::AlreadyExists) {
        warn_if_err!(fs::remove_file(&draft), "a draft stays", %draft);
    }
    done
}

fn failed(doing: &str, path: &Utf8Path, error: io::Error) -> OptimizerError {
    OptimizerError::from_cause(ErrorCode::Io, format!("cannot {doing} {path}"), error)
}

#[cfg(test)]
#[path = "workdir_tests.rs"]
mod tests;

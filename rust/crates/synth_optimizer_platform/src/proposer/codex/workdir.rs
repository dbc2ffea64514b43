//! The workspace of one turn on disk: writes the brief, reads the manifest, and removes credentials and links
//! afterwards.

use std::fs;
use std::io::{self, ErrorKind};

use camino::{Utf8Path, Utf8PathBuf};
use tracing::warn;

use crate::file_error;
use crate::proposer::TurnId;
use crate::proposer::brief::Brief;
use crate::proposer::files::{make_dir, read_text, remove_dir, write_new};
use crate::proposer::transcript::Redactor;
use crate::warn_if_err;
use synth_optimizer_core::model::error::OptimizerError;
use synth_optimizer_core::model::event_fields::Problem;

/// Directory of all workspaces in the run directory.
const WORKSPACES: &str = "proposer_workspaces";
/// Path of the manifest in the workspace.
pub(super) const MANIFEST: &str = "proposal/manifest.json";

/// Empty mount points that a killed sandbox leaves behind.
const SANDBOX_LEFTOVERS: [&str; 4] = [".git", ".codex", ".agents", ".aws"];

/// Limits of the files that are kept, because a model may write any number of files of any size.
const MAX_FILE_BYTES: u64 = 4 * 1024 * 1024;
const MAX_FILES: u64 = 1000;
const MAX_TOTAL_BYTES: u64 = 16 * 1024 * 1024;
const MAX_DEPTH: u32 = 8;

/// An existing workspace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Workdir {
    pub(super) path: Utf8PathBuf,
}

impl Workdir {
    /// Creates the workspace of a turn from scratch.
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

    /// Reads the manifest of the turn if it is a regular file in the workspace of at most `most` bytes.
    pub(super) fn manifest(&self, most: u64) -> Result<Option<String>, Problem> {
        let wrong =
            |message: String| Problem { code: "manifest_unreadable".into(), field: Some(MANIFEST.into()), message };
        // Neither the file nor its directory may be a link.
        let proposal = self.path.join("proposal");
        if !fs::symlink_metadata(&proposal).is_ok_and(|found| found.is_dir()) {
            return if proposal.exists() { Err(wrong("`proposal` is not a directory".into())) } else { Ok(None) };
        }
        match read_text(&self.path.join(MANIFEST), most) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            // Report only the kind of a system error.
            Err(error) => Err(wrong(match error.get_ref() {
                Some(problem) => problem.to_string(),
                None => format!("it cannot be read: {}", error.kind()),
            })),
        }
    }

    /// Removes the empty mount points of a killed sandbox.
    pub(super) fn remove_sandbox_leftovers(&self) {
        for name in SANDBOX_LEFTOVERS {
            // Removes only empty directories. Errors are ignored: the directory is missing or not empty.
            let _ = fs::remove_dir(self.path.join(name));
        }
    }

    /// Redacts every text file in the workspace and removes all other files and those beyond the limits. No command may
    /// still run in it.
    pub(super) fn redact(&self, redactor: &Redactor) {
        redact_dir(&self.path, redactor, 0, &mut RetentionBudget { files: MAX_FILES, bytes: MAX_TOTAL_BYTES });
    }
}

/// How many files and bytes may still be kept.
struct RetentionBudget {
    files: u64,
    bytes: u64,
}

fn redact_dir(dir: &Utf8Path, redactor: &Redactor, depth: u32, budget: &mut RetentionBudget) {
    let entries = match dir.read_dir_utf8() {
        Ok(entries) => entries,
        Err(error) => return warn!(%dir, %error, "listing a proposer workspace failed"),
    };
    // List all entries first, because redaction creates files.
    let entries: Vec<_> = entries.flatten().collect();
    for entry in entries {
        let (path, kind) = (entry.path(), entry.file_type());
        let is_dir = kind.as_ref().is_ok_and(fs::FileType::is_dir);
        if is_dir && depth < MAX_DEPTH && budget.files > 0 {
            budget.files -= 1;
            redact_dir(path, redactor, depth + 1, budget);
            continue;
        }
        let is_kept = kind.is_ok_and(|kind| kind.is_file()) && fits_budget(path, budget) && redact_file(path, redactor);
        if !is_kept {
            // A file that cannot be removed contains no secret of ours, because commands never receive one.
            let removed = if is_dir { fs::remove_dir_all(path) } else { fs::remove_file(path) };
            warn_if_err!(removed, "removing a file of a turn failed", %path);
        }
    }
}

fn fits_budget(path: &Utf8Path, budget: &mut RetentionBudget) -> bool {
    let bytes = fs::symlink_metadata(path).map_or(u64::MAX, |found| found.len());
    if bytes > MAX_FILE_BYTES.min(budget.bytes) || budget.files == 0 {
        return false;
    }
    budget.files -= 1;
    budget.bytes -= bytes;
    true
}

/// Redacts a file if necessary. Returns whether it can be kept; an unreadable file or one that is not text cannot.
fn redact_file(path: &Utf8Path, redactor: &Redactor) -> bool {
    let Ok(text) = read_text(path, MAX_FILE_BYTES) else { return false };
    let shown = redactor.text(&text);
    shown == text || replace(path, &shown).is_ok()
}

/// Replaces a file with a new one, so that hard links to the old file keep their content.
fn replace(path: &Utf8Path, text: &str) -> io::Result<()> {
    let draft = path.with_extension("redacted.new");
    let done = write_new(&draft, text.as_bytes()).and_then(|()| fs::rename(&draft, path));
    // An existing draft was not created here, so it is not removed.
    if done.as_ref().is_err_and(|error| error.kind() != ErrorKind::AlreadyExists) {
        warn_if_err!(fs::remove_file(&draft), "removing a draft failed", %draft);
    }
    done
}

fn failed(doing: &str, path: &Utf8Path, error: io::Error) -> OptimizerError {
    file_error::classified(format!("cannot {doing} {path}"), error)
}

#[cfg(test)]
#[path = "workdir_tests.rs"]
mod tests;

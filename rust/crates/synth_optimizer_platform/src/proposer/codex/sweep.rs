//! Goes over a workspace when its turn is over: what stays on disk holds no credential and leads nowhere.

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;

use camino::{Utf8Path, Utf8PathBuf};
use parking_lot::Mutex;
use tracing::warn;

use super::CodexProposer;
use crate::proposer::transcript::Redactor;
use crate::warn_if_err;

/// Larger files are of no use as evidence, and a model may write as many as it likes.
const MOST_BYTES: u64 = 4 * 1024 * 1024;
const MOST_FILES: u64 = 1000;
const MOST_OF_ALL: u64 = 16 * 1024 * 1024;
const DEEPEST: u32 = 8;

/// Workspaces in which something may still run: they are gone over when nothing does any more.
#[derive(Debug, Default)]
pub(super) struct Backlog(Mutex<Vec<(Utf8PathBuf, Redactor)>>);

impl Backlog {
    fn add(&self, workspace: Utf8PathBuf, redactor: Redactor) {
        self.0.lock().push((workspace, redactor));
    }

    /// Goes over all of them. No process may be left.
    pub(super) fn sweep(&self) {
        let left = std::mem::take(&mut *self.0.lock());
        left.iter().for_each(|(workspace, redactor)| sweep(workspace, redactor));
    }
}

/// The workspace of a turn. Dropped, it is left for later; swept, nothing may run in it any more.
#[derive(Debug)]
pub(super) struct Unswept<'a> {
    proposer: &'a CodexProposer,
    workspace: Utf8PathBuf,
    redactor: Redactor,
    is_done: bool,
}

impl<'a> Unswept<'a> {
    pub(super) fn new(proposer: &'a CodexProposer, workspace: &Utf8Path, redactor: &Redactor) -> Self {
        Self { proposer, workspace: workspace.to_owned(), redactor: redactor.clone(), is_done: false }
    }

    pub(super) async fn sweep(mut self) {
        let (workspace, redactor) = (self.workspace.clone(), self.redactor.clone());
        self.is_done = tokio::task::spawn_blocking(move || sweep(&workspace, &redactor)).await.is_ok();
    }
}

impl Drop for Unswept<'_> {
    fn drop(&mut self) {
        if !self.is_done {
            self.proposer.backlog.add(self.workspace.clone(), self.redactor.clone());
        }
    }
}

/// What may still be kept.
struct Room {
    files: u64,
    bytes: u64,
}

/// Redacts every text in the workspace, and removes what is no text, too large or one too many.
fn sweep(workspace: &Utf8Path, redactor: &Redactor) {
    sweep_dir(workspace, redactor, 0, &mut Room { files: MOST_FILES, bytes: MOST_OF_ALL });
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

/// Whether a file can stay, after it was rewritten if it had to be.
fn is_clean(path: &Utf8Path, redactor: &Redactor) -> bool {
    let Ok(text) = read(path) else { return false };
    let shown = redactor.text(&text);
    shown == text || replace(path, &shown).is_ok()
}

/// Reads a file that is one: a link is not followed, and a pipe is not waited for.
fn read(path: &Utf8Path) -> io::Result<String> {
    let flags = (rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK).bits();
    let file = OpenOptions::new().read(true).custom_flags(flags.cast_signed()).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut text = String::new();
    file.take(MOST_BYTES + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MOST_BYTES {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    Ok(text)
}

/// Puts another file in the place of this one, so that whatever else has its name or its content stays as it is.
fn replace(path: &Utf8Path, text: &str) -> io::Result<()> {
    let draft = path.with_extension("redacted.new");
    // A draft that is there already was made by somebody else, and is neither followed nor written.
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
    let done = file.write_all(text.as_bytes()).and_then(|()| fs::rename(&draft, path));
    if done.is_err() {
        warn_if_err!(fs::remove_file(&draft), "a draft stays", %draft);
    }
    done
}

#[cfg(test)]
#[path = "sweep_tests.rs"]
mod tests;

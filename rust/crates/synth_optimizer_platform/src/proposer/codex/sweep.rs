//! Goes over a workspace when its turn is over: what stays on disk holds no credential and leads nowhere.

use std::fs;

use camino::Utf8Path;

use crate::proposer::transcript::Redactor;

/// Larger files are of no use as evidence, and a model may write as many as it likes.
const MOST_BYTES: u64 = 4 * 1024 * 1024;
const MOST_FILES: u32 = 1000;
const DEEPEST: u32 = 8;

/// Redacts every text in the workspace, and removes what is no text, too large or one too many.
pub(super) fn sweep(workspace: &Utf8Path, redactor: &Redactor) {
    let mut left = MOST_FILES;
    sweep_dir(workspace, redactor, 0, &mut left);
}

fn sweep_dir(dir: &Utf8Path, redactor: &Redactor, depth: u32, left: &mut u32) {
    let Ok(entries) = dir.read_dir_utf8() else { return };
    for entry in entries.flatten() {
        let (path, kind) = (entry.path(), entry.file_type());
        let is_dir = kind.as_ref().is_ok_and(fs::FileType::is_dir);
        if is_dir && depth < DEEPEST && *left > 0 {
            sweep_dir(path, redactor, depth + 1, left);
            continue;
        }
        let is_kept = !is_dir && *left > 0 && kind.is_ok_and(|kind| kind.is_file()) && is_clean(path, redactor);
        *left = left.saturating_sub(1);
        if !is_kept {
            // What cannot be removed is no secret of ours: no command ever saw one.
            let _ = if is_dir { fs::remove_dir_all(path) } else { fs::remove_file(path) };
        }
    }
}

/// Whether a file can stay, after it was rewritten if it had to be.
fn is_clean(path: &Utf8Path, redactor: &Redactor) -> bool {
    if fs::metadata(path).map_or(u64::MAX, |found| found.len()) > MOST_BYTES {
        return false;
    }
    let Ok(text) = fs::read_to_string(path) else { return false };
    let shown = redactor.text(&text);
    shown == text || fs::write(path, shown).is_ok()
}

#[cfg(test)]
#[path = "sweep_tests.rs"]
mod tests;

//! The log of a container that a run starts: its last lines, and the exception in them.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

use camino::Utf8Path;

use crate::file_error::if_exists;
use crate::http::shorten;
use crate::warn_if_err;
use synth_optimizer_core::secrets::scrub;

/// Name of the container's log in the run directory.
pub const CONTAINER_LOG_FILE: &str = "container.log";

/// Returns the end of the container's log from an offset on, with secrets removed. `None` if there is none.
fn log_end(run_dir: &Utf8Path, from: u64) -> Option<String> {
    const BYTES: u64 = 8 * 1024;
    let read = || -> std::io::Result<Vec<u8>> {
        let Some(mut log) = if_exists(File::open(run_dir.join(CONTAINER_LOG_FILE)))? else { return Ok(Vec::new()) };
        let from = log.metadata()?.len().saturating_sub(BYTES).max(from);
        log.seek(SeekFrom::Start(from))?;
        let mut bytes = Vec::new();
        log.take(BYTES).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read();
    warn_if_err!(&bytes, "reading the log of the container failed");
    let text = scrub(&String::from_utf8_lossy(&bytes.unwrap_or_default()));
    (!text.trim().is_empty()).then_some(text)
}

/// Returns the last lines of the container's log from an offset on. `None` if there are none.
pub(crate) fn log_tail(run_dir: &Utf8Path, from: u64) -> Option<String> {
    const LINES: usize = 20;
    let text = log_end(run_dir, from)?;
    let lines: Vec<&str> = text.lines().collect();
    Some(lines[lines.len().saturating_sub(LINES)..].join("\n"))
}

/// Returns the last line of the container's log from an offset on that is the end of a Python traceback, such as `KeyError: 'label'`.
pub(crate) fn last_exception(run_dir: &Utf8Path, from: u64) -> Option<String> {
    let text = log_end(run_dir, from)?;
    let is_exception = |line: &&str| {
        let name = line.split_once(": ").map_or(*line, |(name, _)| name);
        let is_name =
            !name.is_empty() && name.chars().all(|letter| letter.is_alphanumeric() || matches!(letter, '_' | '.'));
        is_name && (name.ends_with("Error") || name.ends_with("Exception"))
    };
    text.lines().rev().map(str::trim_end).find(is_exception).map(shorten)
}

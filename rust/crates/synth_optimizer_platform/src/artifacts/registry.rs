//! `run_registry.jsonl`: one line per run and status, for all runs of an output directory.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::time::{Duration, Instant};

use camino::Utf8Path;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::run_dir::RunPaths;
use crate::clock::unix_millis;
use crate::file_error;
use synth_optimizer_core::model::envelope::rfc3339;
use synth_optimizer_core::model::error::OptimizerError;
use synth_optimizer_core::model::usage::Cost;
use synth_optimizer_core::string_enum;

/// How many bytes at the end of the file are searched for an existing line.
const TAIL_BYTES: u64 = 1 << 20;

string_enum! {
    /// The status of a run in a line of the registry.
    RegistryStatus {
        Started = "started",
        /// The run is saved and can be resumed.
        Interrupted = "interrupted",
        Completed = "completed",
        Failed = "failed",
        Cancelled = "cancelled",
    }
}

/// The content of a line, besides the paths. Unknown values are null.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct RegistryEntry {
    pub cache_mode: Option<String>,
    pub cache_namespace: Option<String>,
    pub proposer_backend: Option<String>,
    pub best_candidate_id: Option<String>,
    /// Null is unknown.
    pub cost_usd: Cost,
    pub usage: Option<Value>,
}

/// Appends the line of a run and status, unless it is the last one of the run. Returns whether it was appended. Holds a lock, so that
/// processes of other runs wait.
pub fn register(paths: &RunPaths, status: RegistryStatus, entry: &RegistryEntry) -> Result<bool, OptimizerError> {
    let path = paths.run_registry();
    let failed = file_error::io(&path, "writing");
    let opened = OpenOptions::new().create(true).read(true).write(true).truncate(false).mode(0o600).open(&path);
    let mut file = opened.map_err(failed)?;
    lock_with_timeout(&file).map_err(failed)?;
    let registered = append_line(&mut file, &path, paths, status, entry);
    // An error can be ignored: closing the file releases the lock as well.
    let _ = file.unlock();
    registered
}

/// Acquires the lock. Gives up after a timeout, because its holder may have been stopped.
fn lock_with_timeout(file: &File) -> std::io::Result<()> {
    const LOCK_TIMEOUT: Duration = Duration::from_secs(10);
    let deadline = Instant::now() + LOCK_TIMEOUT;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::Error(error)) => return Err(error),
            Err(TryLockError::WouldBlock) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(5)),
            Err(TryLockError::WouldBlock) => {
                let message = format!("another process has locked it for {} s", LOCK_TIMEOUT.as_secs());
                return Err(std::io::Error::new(std::io::ErrorKind::WouldBlock, message));
            }
        }
    }
}

fn append_line(
    file: &mut File,
    path: &Utf8Path,
    paths: &RunPaths,
    status: RegistryStatus,
    entry: &RegistryEntry,
) -> Result<bool, OptimizerError> {
    let tail = repair_tail(file, path)?;
    let mut keys = tail.lines().rev().filter_map(|line| serde_json::from_str::<RegistryKey>(line).ok());
    if keys.find(|known| known.run_id == paths.run_id()).is_some_and(|last| last.status == status) {
        return Ok(false);
    }
    let line = line(paths, status, entry)? + "\n";
    let written =
        file.seek(SeekFrom::End(0)).and_then(|_| file.write_all(line.as_bytes())).and_then(|()| file.sync_data());
    written.map(|()| true).map_err(file_error::io(path, "writing"))
}

/// The fields that identify a line.
#[derive(Deserialize)]
struct RegistryKey {
    run_id: String,
    status: RegistryStatus,
}

#[derive(Serialize)]
struct RegistryLine<'a> {
    ts: String,
    run_id: &'a str,
    status: RegistryStatus,
    run_dir: &'a str,
    #[serde(flatten)]
    path_fields: Map<String, Value>,
    #[serde(flatten)]
    entry: &'a RegistryEntry,
}

fn line(paths: &RunPaths, status: RegistryStatus, entry: &RegistryEntry) -> Result<String, OptimizerError> {
    let mut path_fields = paths.path_fields();
    path_fields.retain(|name, _| !["score_chart_path", "lineage_path", "run_registry_path"].contains(&name.as_str()));
    let (run_id, run_dir) = (paths.run_id(), paths.dir().as_str());
    let line = RegistryLine { ts: rfc3339(unix_millis()), run_id, status, run_dir, path_fields, entry };
    serde_json::to_string(&line).map_err(file_error::json("the line of a run"))
}

/// Returns the last lines. A last line without a line break is completed if it is valid, and cut off if it is torn.
fn repair_tail(file: &mut File, path: &Utf8Path) -> Result<String, OptimizerError> {
    let failed = file_error::io(path, "reading");
    let length = file.metadata().map_err(failed)?.len();
    let from = length.saturating_sub(TAIL_BYTES);
    file.seek(SeekFrom::Start(from)).map_err(failed)?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(failed)?;
    let last = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    if last < bytes.len() {
        if serde_json::from_slice::<Value>(&bytes[last..]).is_ok() {
            file.seek(SeekFrom::End(0)).and_then(|_| file.write_all(b"\n")).map_err(failed)?;
        } else {
            file.set_len(from + last as u64).map_err(failed)?;
            bytes.truncate(last);
        }
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

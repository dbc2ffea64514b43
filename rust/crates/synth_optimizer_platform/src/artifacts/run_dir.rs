//! The directory of a run: where everything is, and who may write there.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::ops::Deref;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};

use camino::{Utf8Path, Utf8PathBuf};

use super::{atomic, fault};
use crate::clock::unix_millis;
use crate::model::envelope::rfc3339;
use crate::model::error::{ErrorCode, OptimizerError};

/// Where the files of a run are. Reading needs no more than this.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunPaths {
    output_dir: Utf8PathBuf,
    dir: Utf8PathBuf,
    run_id: String,
}

/// The directory of a run that this process alone may write to, as long as it lives.
#[derive(Debug)]
pub struct RunDir {
    paths: RunPaths,
    /// The kernel lets go of the lock when the process ends, however it ends.
    lock: File,
}

macro_rules! files {
    ($($(#[doc = $doc:literal])? $method:ident = $name:literal;)+) => {
        impl RunPaths {
            $($(#[doc = $doc])? pub fn $method(&self) -> Utf8PathBuf { self.dir.join($name) })+
        }
    };
}

files! {
    /// The log and its projections.
    workspace_db = "workspace.sqlite";
    /// The log, one JSON object per line.
    events = "events.jsonl";
    /// The part of the log that two runs of one config have in common.
    normalized_events = "events.normalized.jsonl";
    /// The result, or why there is none. Written last.
    manifest = "result_manifest.json";
    best_candidate = "best_candidate.json";
    candidate_registry = "candidate_registry.json";
    frontier = "frontier.json";
    cache_profile = "cache_profile.json";
    score_chart = "score_chart.svg";
    /// The request cache, unless the config names another place.
    request_cache = "request_cache.sqlite";
    lock = "run.lock";
}

impl RunPaths {
    /// The places of a run. Names that would lead out of the output directory are refused.
    pub fn new(output_dir: &Utf8Path, run_id: &str) -> Result<Self, OptimizerError> {
        const LONGEST: usize = 128;
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
        let dots = run_id.bytes().all(|byte| byte == b'.');
        if dots || run_id.len() > LONGEST || !run_id.bytes().all(allowed) {
            return Err(OptimizerError::new(ErrorCode::Config, format!("{run_id:?} cannot be the name of a run"))
                .with_hint("A run id has letters, digits, `.`, `_` and `-`, at most 128."));
        }
        Ok(Self { output_dir: output_dir.to_owned(), dir: output_dir.join(run_id), run_id: run_id.to_owned() })
    }

    pub fn run_id(&self) -> &str {
        &self.run_id
    }

    /// The directory itself.
    pub fn dir(&self) -> &Utf8Path {
        &self.dir
    }

    /// Whether nobody works on the run just now. Nothing is written.
    pub fn check_free(&self) -> Result<(), OptimizerError> {
        let path = self.lock();
        let failed = |error: std::io::Error| fault::io(&path, "locking", &error);
        let mut file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(failed(error)),
        };
        match file.try_lock_shared() {
            Ok(()) => file.unlock().map_err(failed),
            Err(TryLockError::WouldBlock) => Err(held(self, &mut file)),
            Err(TryLockError::Error(error)) => Err(failed(error)),
        }
    }

    /// The root of all runs.
    pub fn output_dir(&self) -> &Utf8Path {
        &self.output_dir
    }

    /// The index over all runs of the root.
    pub fn run_registry(&self) -> Utf8PathBuf {
        self.output_dir.join("run_registry.jsonl")
    }
}

impl RunDir {
    /// Makes the directory if there is none, and takes it for this process.
    pub fn open(output_dir: &Utf8Path, run_id: &str) -> Result<Self, OptimizerError> {
        let paths = RunPaths::new(output_dir, run_id)?;
        let made = DirBuilder::new().recursive(true).mode(0o700).create(paths.dir());
        made.map_err(|error| fault::io(paths.dir(), "making", &error))?;
        let lock = take(&paths)?;
        atomic::remove_unfinished(paths.dir())?;
        Ok(Self { paths, lock })
    }

    /// The places, for whoever outlives the lock.
    pub fn paths(&self) -> &RunPaths {
        &self.paths
    }
}

impl Deref for RunDir {
    type Target = RunPaths;

    fn deref(&self) -> &RunPaths {
        &self.paths
    }
}

impl Drop for RunDir {
    /// Closing the file is not enough: a child that is being started at this moment has it open as well.
    fn drop(&mut self) {
        let _ = self.lock.unlock();
    }
}

fn take(paths: &RunPaths) -> Result<File, OptimizerError> {
    let path = paths.lock();
    let failed = |error: std::io::Error| fault::io(&path, "locking", &error);
    let opened = OpenOptions::new().create(true).read(true).write(true).truncate(false).mode(0o600).open(&path);
    let mut file = opened.map_err(failed)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(held(paths, &mut file)),
        Err(TryLockError::Error(error)) => return Err(failed(error)),
    }
    let note = format!("pid {} since {}\n", std::process::id(), rfc3339(unix_millis()));
    file.set_len(0).and_then(|()| file.seek(SeekFrom::Start(0))).map_err(failed)?;
    file.write_all(note.as_bytes()).map_err(failed)?;
    Ok(file)
}

fn held(paths: &RunPaths, file: &mut File) -> OptimizerError {
    let mut note = String::new();
    // The holder may not have written its name yet.
    let holder = match file.read_to_string(&mut note) {
        Ok(_) if !note.trim().is_empty() => note.trim(),
        _ => "another process",
    };
    OptimizerError::new(ErrorCode::Io, format!("run {} in {} is held by {holder}", paths.run_id, paths.dir))
        .with_hint("Wait for that process to end or cancel it, or give this run another run.run_id.")
}

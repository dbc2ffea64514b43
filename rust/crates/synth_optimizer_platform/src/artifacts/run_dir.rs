//! The directory of a run: the paths of its files, and the lock that allows one process to write there.

use std::fs::DirBuilder;
use std::ops::Deref;
use std::os::unix::fs::DirBuilderExt;

use camino::{Utf8Path, Utf8PathBuf};
use serde_json::{Map, Value};

use super::lock::{FileLock, LockIdentity, held_error, lock_run};
use crate::warn_if_err;
use crate::{atomic_file, file_error};
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};

/// Directory of the proposer transcripts in the run directory.
pub const TRANSCRIPTS: &str = "proposer_transcripts";

/// The paths of a run's files. Sufficient for reading.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunPaths {
    output_dir: Utf8PathBuf,
    dir: Utf8PathBuf,
    run_id: String,
}

/// The locked directory of a run. Only this process may write to it until this is dropped.
#[derive(Debug)]
pub struct RunDir {
    paths: RunPaths,
    lock: FileLock,
}

macro_rules! files {
    ($($(#[doc = $doc:literal])? $method:ident = $name:literal;)+) => {
        impl RunPaths {
            $($(#[doc = $doc])? pub fn $method(&self) -> Utf8PathBuf { self.dir.join($name) })+
        }
    };
}

files! {
    /// The event log and its projections.
    workspace_db = "workspace.sqlite";
    /// The event log, one JSON object per line.
    events = "events.jsonl";
    /// The normalized log, which is equal for two runs of one config.
    normalized_events = "events.normalized.jsonl";
    /// The result, or the reason why there is none. Written last.
    manifest = "result_manifest.json";
    best_candidate = "best_candidate.json";
    candidate_registry = "candidate_registry.json";
    frontier = "frontier.json";
    cache_profile = "cache_profile.json";
    score_chart = "score_chart.svg";
    lineage = "lineage.svg";
    /// The result for people, in one file.
    report = "report.html";
    /// The request cache, unless the config names another path.
    request_cache = "request_cache.sqlite";
    lock = "run.lock";
    /// A control request from another process.
    control_file = "control.json";
}

impl RunPaths {
    /// Returns the paths of a run. Rejects run ids that would lead out of the output directory.
    pub fn new(output_dir: &Utf8Path, run_id: &str) -> Result<Self, OptimizerError> {
        const MAX_RUN_ID_LENGTH: usize = 128;
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
        let dots = run_id.bytes().all(|byte| byte == b'.');
        if dots || run_id.len() > MAX_RUN_ID_LENGTH || !run_id.bytes().all(allowed) {
            return Err(OptimizerError::new(ErrorCode::Config, format!("{run_id:?} is not a valid run id"))
                .with_hint("Use at most 128 letters, digits, `.`, `_` and `-`."));
        }
        Ok(Self { output_dir: output_dir.to_owned(), dir: output_dir.join(run_id), run_id: run_id.to_owned() })
    }

    /// Returns the paths of the run in an existing run directory.
    pub fn of_dir(dir: &Utf8Path) -> Result<Self, OptimizerError> {
        let none = |why: &str| {
            OptimizerError::new(ErrorCode::Io, format!("{dir} {why}"))
                .with_hint("Name a run directory: it contains workspace.sqlite.")
        };
        let absolute = dir.canonicalize_utf8().map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => none("does not exist"),
            _ => none(&format!("cannot be opened: {error}")).caused_by(error),
        })?;
        let (Some(root), Some(run_id)) = (absolute.parent(), absolute.file_name()) else {
            return Err(none("is not a run directory"));
        };
        let paths = Self { output_dir: root.to_owned(), run_id: run_id.to_owned(), dir: absolute.clone() };
        if paths.workspace_db().is_file() || paths.manifest().is_file() {
            return Ok(paths);
        }
        Err(none("is not a run directory"))
    }

    pub fn run_id(&self) -> &str {
        &self.run_id
    }

    /// Returns the run directory.
    pub fn dir(&self) -> &Utf8Path {
        &self.dir
    }

    /// Fails if the directory contains files that are not of a run, because deleting the run would delete them too.
    pub fn check_is_run_dir(&self) -> Result<(), OptimizerError> {
        let is_file = |entry: std::fs::DirEntry| !entry.file_name().as_encoded_bytes().starts_with(b".");
        let has_files = std::fs::read_dir(&self.dir).is_ok_and(|entries| entries.flatten().any(is_file));
        if !has_files || self.is_run() {
            return Ok(());
        }
        let message = format!("{} contains files and is not a run directory", self.dir);
        Err(OptimizerError::new(ErrorCode::Config, message)
            .with_hint("Choose another run.run_id or run.output_dir, or move the files away."))
    }

    fn is_run(&self) -> bool {
        self.workspace_db().is_file() || self.manifest().is_file() || self.lock().is_file()
    }

    /// Fails if a process holds the lock of the run. Writes nothing.
    pub fn check_unlocked(&self) -> Result<(), OptimizerError> {
        match FileLock::holder(&self.lock())? {
            Some(holder) => Err(held_error(&self.lock_label(), &holder)),
            None => Ok(()),
        }
    }

    /// Acquires the lock and deletes the directory with its contents. Leaves a directory alone that is not of a run.
    pub fn remove(&self) -> Result<(), OptimizerError> {
        // Renamed first, because a process that reads the run could create files in it during the deletion.
        let away = self.output_dir.join(format!(".{}.deleted", self.run_id));
        let is_directory = std::fs::symlink_metadata(&self.dir).is_ok_and(|found| found.is_dir());
        let mut _held = None;
        if self.is_run() && is_directory {
            _held = Some(lock_run(&self.lock(), &self.lock_label(), None)?);
            remove_dir_if_exists(&away)?;
            std::fs::rename(&self.dir, &away).map_err(file_error::io(&self.dir, "removing"))?;
        }
        remove_dir_if_exists(&away)
    }

    /// Returns the name of the locked run for messages.
    fn lock_label(&self) -> String {
        format!("run {} in {}", self.run_id, self.dir)
    }

    /// Returns every path, by its field name in documents.
    pub(super) fn path_fields(&self) -> Map<String, Value> {
        let path_fields = [
            ("manifest_path", self.manifest()),
            ("event_feed_path", self.events()),
            ("normalized_event_feed_path", self.normalized_events()),
            ("cache_profile_path", self.cache_profile()),
            ("best_candidate_path", self.best_candidate()),
            ("candidate_registry_path", self.candidate_registry()),
            ("frontier_path", self.frontier()),
            ("score_chart_path", self.score_chart()),
            ("lineage_path", self.lineage()),
            ("report_path", self.report()),
            ("run_registry_path", self.run_registry()),
            ("workspace_db_path", self.workspace_db()),
        ];
        path_fields.into_iter().map(|(name, path)| (name.to_owned(), path.into_string().into())).collect()
    }

    /// Returns the directory of all runs.
    pub fn output_dir(&self) -> &Utf8Path {
        &self.output_dir
    }

    /// Returns the path of the registry of all runs.
    pub fn run_registry(&self) -> Utf8PathBuf {
        self.output_dir.join("run_registry.jsonl")
    }
}

/// Removes a directory with its contents, if it exists.
fn remove_dir_if_exists(dir: &Utf8Path) -> Result<(), OptimizerError> {
    file_error::if_exists(std::fs::remove_dir_all(dir)).map(drop).map_err(file_error::io(dir, "removing"))
}

impl RunDir {
    /// Creates the directory if it is missing, and locks it for this process.
    pub fn open(output_dir: &Utf8Path, run_id: &str) -> Result<Self, OptimizerError> {
        Self::take_over(output_dir, run_id, None)
    }

    /// Like `open`, but takes the lock from the named process if that one holds it: `pid N`, or its whole note in the
    /// lock. Any other holder keeps it.
    pub fn take_over(output_dir: &Utf8Path, run_id: &str, superseded: Option<&str>) -> Result<Self, OptimizerError> {
        let paths = RunPaths::new(output_dir, run_id)?;
        let made = DirBuilder::new().recursive(true).mode(0o700).create(paths.dir());
        made.map_err(file_error::io(paths.dir(), "making"))?;
        paths.check_is_run_dir()?;
        let lock = lock_run(&paths.lock(), &paths.lock_label(), superseded)?;
        atomic_file::remove_temp_files(paths.dir())?;
        Ok(Self { paths, lock })
    }

    /// Points the link `latest` in the output directory at this run. Does nothing if links are not supported.
    pub fn mark_latest(&self) {
        let latest = self.output_dir.join("latest");
        let is_ours = std::fs::symlink_metadata(&latest).map_or(true, |found| found.is_symlink());
        let new = self.output_dir.join(format!(".latest.{}", self.run_id));
        if is_ours && self.run_id != "latest" && std::os::unix::fs::symlink(&self.run_id, &new).is_ok() {
            warn_if_err!(std::fs::rename(&new, &latest), "updating the link `latest` failed");
        }
    }

    /// Returns the identity of the lock, for later checks that this process still holds it.
    pub fn identity(&self) -> &LockIdentity {
        self.lock.identity()
    }

    /// Returns the paths, for callers that need them after the lock is released.
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

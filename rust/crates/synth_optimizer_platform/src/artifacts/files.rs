//! The artifacts of a run directory: lists them and opens one by its known name, never by a path.

use std::collections::BTreeMap;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{ErrorKind, Read, Seek};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

use camino::{Utf8Path, Utf8PathBuf};
use parking_lot::Mutex;
use rustix::fs::OFlags;
use schemars::JsonSchema;
use serde::Serialize;

use super::run_dir::TRANSCRIPTS;
use crate::digest::Sha256;
use crate::workspace::Reader;
use crate::workspace::error::io;
use crate::workspace::models::ReadError;
use synth_optimizer_core::model::canonical::hex;
use synth_optimizer_core::model::error::OptimizerError;

/// The files of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Artifacts {
    /// The files that exist now.
    pub items: Vec<ArtifactEntry>,
}

/// A file of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ArtifactEntry {
    /// Its name. The name of a transcript begins with its directory.
    pub name: String,
    /// Its kind, such as `frontier` or `events_jsonl`.
    pub kind: String,
    /// Its media type.
    pub media_type: String,
    /// Its size.
    pub bytes: u64,
    /// SHA-256 of its content. Null while the file still grows.
    pub sha256: Option<String>,
}

/// A file name that is an artifact.
#[derive(Debug)]
struct ArtifactKind {
    name: String,
    /// Another name under which clients may request it.
    alias: Option<&'static str>,
    kind: &'static str,
    media_type: &'static str,
    /// Whether it is appended to during the run. Any other artifact is replaced as a whole.
    grows: bool,
}

fn known(name: impl Into<String>, kind: &'static str, media_type: &'static str) -> ArtifactKind {
    ArtifactKind { name: name.into(), alias: None, kind, media_type, grows: false }
}

const JSON: &str = "application/json";
const SVG: &str = "image/svg+xml";
const HTML: &str = "text/html; charset=utf-8";
const LINES: &str = "application/x-ndjson";
const WORKSPACE: &str = "workspace.sqlite";

/// Returns the artifacts that every run can have. Locks, control files, caches and the WAL are not artifacts.
fn common_artifacts() -> Vec<ArtifactKind> {
    vec![
        ArtifactKind { alias: Some("manifest.json"), ..known("result_manifest.json", "result_manifest", JSON) },
        known("best_candidate.json", "best_candidate", JSON),
        known("candidate_registry.json", "candidate_registry", JSON),
        known("frontier.json", "frontier", JSON),
        known("cache_profile.json", "cache_profile", JSON),
        known("score_chart.svg", "score_chart_svg", SVG),
        known("lineage.svg", "lineage_svg", SVG),
        known("report.html", "report_html", HTML),
        ArtifactKind { alias: Some("event_feed.jsonl"), grows: true, ..known("events.jsonl", "events_jsonl", LINES) },
        known("events.normalized.jsonl", "events_normalized_jsonl", LINES),
        ArtifactKind { grows: true, ..known(WORKSPACE, "workspace_sqlite", "application/vnd.sqlite3") },
    ]
}

/// Returns every artifact that may exist: those of every run, and the transcript of each proposer turn.
fn all(dir: &Utf8Path) -> Result<Vec<ArtifactKind>, OptimizerError> {
    let mut found = common_artifacts();
    let place = dir.join(TRANSCRIPTS);
    // Symbolic links are not followed.
    if std::fs::symlink_metadata(&place).is_ok_and(|about| about.is_dir()) {
        let failed = || io("list", place.as_std_path());
        let mut turns = Vec::new();
        for entry in place.read_dir_utf8().map_err(failed())? {
            turns.push(entry.map_err(failed())?.file_name().to_owned());
        }
        turns.retain(|name| name.ends_with(".jsonl.zst") && !name.starts_with('.'));
        turns.sort_unstable();
        let said = |name: String| known(format!("{TRANSCRIPTS}/{name}"), "proposer_transcript", "application/zstd");
        found.extend(turns.into_iter().map(said));
    }
    Ok(found)
}

/// Lists the artifacts in a run directory. `reader` is `None` for a run that failed before it had a workspace.
pub fn artifacts(dir: &Utf8Path, reader: Option<&Reader>) -> Result<Artifacts, ReadError> {
    let mut items = Vec::new();
    for known in all(dir)? {
        items.extend(open(dir, reader, &known)?.map(|opened| opened.entry));
    }
    Ok(Artifacts { items })
}

/// An artifact that is open for reading.
#[derive(Debug)]
pub struct ArtifactFile {
    /// What it is.
    pub entry: ArtifactEntry,
    /// The open file, at its beginning. Read `entry.bytes` bytes of it, because it may have grown since.
    pub file: File,
}

/// Opens an artifact of a run directory by its name. Only regular files with a known name are found.
pub fn open_artifact(dir: &Utf8Path, reader: Option<&Reader>, name: &str) -> Result<ArtifactFile, ReadError> {
    let found = all(dir)?.into_iter().find(|known| known.name == name || known.alias == Some(name));
    let opened = match found {
        Some(known) => open(dir, reader, &known)?,
        None => None,
    };
    opened.ok_or_else(|| ReadError::no_artifact(name))
}

/// Opens an artifact. Returns `None` if it does not exist, is not a regular file, or is a database in use.
fn open(dir: &Utf8Path, reader: Option<&Reader>, known: &ArtifactKind) -> Result<Option<ArtifactFile>, OptimizerError> {
    let path = dir.join(&known.name);
    if known.name == WORKSPACE && !is_at_rest(dir, reader)? {
        return Ok(None);
    }
    // Symbolic links are not followed, and opening a pipe does not block.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened = OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(&path);
    let mut file = match opened {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound || is_link(&error) => return Ok(None),
        Err(error) => return Err(io("open", path.as_std_path())(error)),
    };
    let about = file.metadata().map_err(io("read", path.as_std_path()))?;
    if !about.is_file() {
        return Ok(None);
    }
    let bytes = about.len();
    let sha256 = match reader.map_or(Ok(None), |reader| reader.recorded_digest(&known.name, bytes))? {
        Some(sha256) => Some(sha256),
        // The workspace is only opened once no process writes to it, so it has a digest.
        None if known.grows && known.name != WORKSPACE => None,
        None => Some(digest(&path, &about, &mut file).map_err(io("read", path.as_std_path()))?),
    };
    let entry = ArtifactEntry {
        name: known.name.clone(),
        kind: known.kind.to_owned(),
        media_type: known.media_type.to_owned(),
        bytes,
        sha256,
    };
    Ok(Some(ArtifactFile { entry, file }))
}

fn is_link(error: &std::io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error())
}

/// Returns whether the database file is complete without its WAL: the run has ended and the WAL is empty.
fn is_at_rest(dir: &Utf8Path, reader: Option<&Reader>) -> Result<bool, OptimizerError> {
    let over = reader.map(Reader::totals).transpose()?.is_some_and(|totals| totals.is_terminal());
    let unwritten = std::fs::symlink_metadata(dir.join("workspace.sqlite-wal")).is_ok_and(|log| log.len() > 0);
    Ok(over && !unwritten)
}

/// Computed digests, by path, size and modification time of the file.
static DIGESTS: Mutex<BTreeMap<(Utf8PathBuf, u64, i64, i64), String>> = Mutex::new(BTreeMap::new());
/// The most digests that are kept in memory.
const MAX_CACHED_DIGESTS: usize = 1000;

fn digest(path: &Utf8Path, about: &Metadata, file: &mut File) -> std::io::Result<String> {
    let key = (path.to_owned(), about.len(), about.mtime(), about.mtime_nsec());
    if let Some(known) = DIGESTS.lock().get(&key) {
        return Ok(known.clone());
    }
    let (found, _) = hash(file)?;
    let mut digests = DIGESTS.lock();
    if digests.len() >= MAX_CACHED_DIGESTS {
        digests.clear();
    }
    digests.insert(key, found.clone());
    Ok(found)
}

/// Returns the SHA-256 of a file and its size.
pub(crate) fn hash(file: &mut File) -> std::io::Result<(String, u64)> {
    let (mut hash, mut bytes, mut buffer) = (Sha256::new(), 0, vec![0; 1 << 16]);
    loop {
        let read = file.read(&mut buffer)?;
        if read == 0 {
            break;
        }
        hash.update(&buffer[..read]);
        bytes += read as u64;
    }
    file.rewind()?;
    Ok((hex(&hash.finish()), bytes))
}

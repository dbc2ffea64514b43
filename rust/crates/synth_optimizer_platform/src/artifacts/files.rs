//! The files that a run leaves behind: which files of its directory are artifacts, and how one is opened: by its known
//! name, never by a path.

use std::collections::BTreeMap;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{ErrorKind, Read, Seek};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

use camino::{Utf8Path, Utf8PathBuf};
use parking_lot::Mutex;
use rustix::fs::OFlags;
use schemars::JsonSchema;
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::proposer::TRANSCRIPTS;
use crate::workspace::Reader;
use crate::workspace::error::io;
use crate::workspace::models::ReadError;
use synth_optimizer_core::model::canonical::hex;
use synth_optimizer_core::model::error::OptimizerError;

/// The files of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Artifacts {
    /// Those that are there now.
    pub items: Vec<ArtifactEntry>,
}

/// A file of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ArtifactEntry {
    /// Its name; that of a transcript begins with its directory.
    pub name: String,
    /// What it is, such as `frontier` or `events_jsonl`.
    pub kind: String,
    /// Its media type.
    pub media_type: String,
    /// Its size.
    pub bytes: u64,
    /// SHA-256 of its content; null while it still grows.
    pub sha256: Option<String>,
}

/// A file that people may have.
#[derive(Debug)]
struct ArtifactKind {
    name: String,
    /// Another name that it is asked for by.
    alias: Option<&'static str>,
    kind: &'static str,
    media_type: &'static str,
    /// Whether it is written to as long as the run goes on; any other is replaced as a whole.
    grows: bool,
}

fn known(name: impl Into<String>, kind: &'static str, media_type: &'static str) -> ArtifactKind {
    ArtifactKind { name: name.into(), alias: None, kind, media_type, grows: false }
}

const JSON: &str = "application/json";
const LINES: &str = "application/x-ndjson";
const WORKSPACE: &str = "workspace.sqlite";

/// The artifacts of every run. Locks, control files, caches and the log of the database are none.
fn common_artifacts() -> Vec<ArtifactKind> {
    vec![
        ArtifactKind { alias: Some("manifest.json"), ..known("result_manifest.json", "result_manifest", JSON) },
        known("best_candidate.json", "best_candidate", JSON),
        known("candidate_registry.json", "candidate_registry", JSON),
        known("frontier.json", "frontier", JSON),
        known("cache_profile.json", "cache_profile", JSON),
        known("score_chart.svg", "score_chart_svg", "image/svg+xml"),
        ArtifactKind { alias: Some("event_feed.jsonl"), grows: true, ..known("events.jsonl", "events_jsonl", LINES) },
        known("events.normalized.jsonl", "events_normalized_jsonl", LINES),
        ArtifactKind { grows: true, ..known(WORKSPACE, "workspace_sqlite", "application/vnd.sqlite3") },
    ]
}

/// Every artifact that may be there: those of every run, and what was said in each turn of the proposer.
fn all(dir: &Utf8Path) -> Result<Vec<ArtifactKind>, OptimizerError> {
    let mut found = common_artifacts();
    let place = dir.join(TRANSCRIPTS);
    // A link is not followed.
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

/// The artifacts in a run directory; a run that failed before it had a workspace has some too.
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
    /// Its content, at the beginning. Read `entry.bytes` of it: a file that grows may have more by then.
    pub file: File,
}

/// Opens an artifact of a run directory by its name. Anything but a regular file with a known name is not there.
pub fn open_artifact(dir: &Utf8Path, reader: Option<&Reader>, name: &str) -> Result<ArtifactFile, ReadError> {
    let found = all(dir)?.into_iter().find(|known| known.name == name || known.alias == Some(name));
    let opened = match found {
        Some(known) => open(dir, reader, &known)?,
        None => None,
    };
    opened.ok_or_else(|| ReadError::no_artifact(name))
}

/// None where the file is not there, or is not one to give away.
fn open(dir: &Utf8Path, reader: Option<&Reader>, known: &ArtifactKind) -> Result<Option<ArtifactFile>, OptimizerError> {
    let path = dir.join(&known.name);
    if known.name == WORKSPACE && !is_at_rest(dir, reader)? {
        return Ok(None);
    }
    // A link is not followed, and a pipe is not waited for.
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
        // A database is only given away when nobody writes to it any more.
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

/// Whether the database is whole without the log beside it: the run is over and everything is in the file.
fn is_at_rest(dir: &Utf8Path, reader: Option<&Reader>) -> Result<bool, OptimizerError> {
    let over = reader.map(Reader::totals).transpose()?.is_some_and(|totals| totals.is_over());
    let unwritten = std::fs::symlink_metadata(dir.join("workspace.sqlite-wal")).is_ok_and(|log| log.len() > 0);
    Ok(over && !unwritten)
}

/// Digests that were computed, by the file as it was: place, size and time of the last change.
static DIGESTS: Mutex<BTreeMap<(Utf8PathBuf, u64, i64, i64), String>> = Mutex::new(BTreeMap::new());
/// Digests that are kept.
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

/// The SHA-256 of a file and its size.
pub(super) fn hash(file: &mut File) -> std::io::Result<(String, u64)> {
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
    Ok((hex(&hash.finalize()), bytes))
}

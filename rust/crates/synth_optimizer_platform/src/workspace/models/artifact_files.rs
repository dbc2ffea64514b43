//! Which files of a run directory are artifacts, and how one is opened: by its known name, never by a path.

use std::collections::BTreeMap;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{ErrorKind, Read, Seek};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

use camino::{Utf8Path, Utf8PathBuf};
use parking_lot::Mutex;
use rustix::fs::OFlags;
use sha2::{Digest, Sha256};

use super::super::error::io;
use super::super::reader::Reader;
use super::artifacts::ArtifactEntry;
use super::query::first;
use super::refusal::{ReadError, quoted};
use crate::proposer::TRANSCRIPTS;
use synth_optimizer_core::model::canonical::hex;
use synth_optimizer_core::model::error::OptimizerError;

/// A file that people may have.
#[derive(Debug)]
pub(super) struct Known {
    name: String,
    /// Another name that it is asked for by.
    alias: Option<&'static str>,
    kind: &'static str,
    media_type: &'static str,
    /// Whether it is written to as long as the run goes on; any other is replaced as a whole.
    grows: bool,
}

fn known(name: impl Into<String>, kind: &'static str, media_type: &'static str) -> Known {
    Known { name: name.into(), alias: None, kind, media_type, grows: false }
}

const JSON: &str = "application/json";
const LINES: &str = "application/x-ndjson";
const WORKSPACE: &str = "workspace.sqlite";

/// The artifacts of every run. Locks, control files, caches and the log of the database are none.
fn of_every_run() -> Vec<Known> {
    vec![
        Known { alias: Some("manifest.json"), ..known("result_manifest.json", "result_manifest", JSON) },
        known("best_candidate.json", "best_candidate", JSON),
        known("candidate_registry.json", "candidate_registry", JSON),
        known("frontier.json", "frontier", JSON),
        known("cache_profile.json", "cache_profile", JSON),
        known("score_chart.svg", "score_chart_svg", "image/svg+xml"),
        Known { alias: Some("event_feed.jsonl"), grows: true, ..known("events.jsonl", "events_jsonl", LINES) },
        known("events.normalized.jsonl", "events_normalized_jsonl", LINES),
        Known { grows: true, ..known(WORKSPACE, "workspace_sqlite", "application/vnd.sqlite3") },
    ]
}

/// Every artifact that may be there: those of every run, and what was said in each turn of the proposer.
pub(super) fn all(dir: &Utf8Path) -> Result<Vec<Known>, OptimizerError> {
    let mut found = of_every_run();
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
    opened.ok_or_else(|| {
        let message = format!("the run has no artifact {}", quoted(name));
        ReadError::not_found("artifact_not_found", "name", message, "List the artifacts of the run.")
    })
}

/// None where the file is not there, or is not one to give away.
pub(super) fn open(
    dir: &Utf8Path,
    reader: Option<&Reader>,
    known: &Known,
) -> Result<Option<ArtifactFile>, OptimizerError> {
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
    let sha256 = match recorded(reader, &known.name, bytes)? {
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

/// The digest that was written down when the file was; a file of another size has been written to since.
fn recorded(reader: Option<&Reader>, name: &str, bytes: u64) -> Result<Option<String>, OptimizerError> {
    let Some(reader) = reader else { return Ok(None) };
    let sql = "SELECT sha256 FROM artifacts WHERE path = ?1 AND bytes = ?2";
    let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
    reader.with(|db| first(db, "read the artifacts", sql, rusqlite::params![name, bytes], |row| row.get(0)))
}

/// Digests that were computed, by the file as it was: place, size and time of the last change.
static DIGESTS: Mutex<BTreeMap<(Utf8PathBuf, u64, i64, i64), String>> = Mutex::new(BTreeMap::new());
/// Digests that are kept.
const KEPT: usize = 1000;

fn digest(path: &Utf8Path, about: &Metadata, file: &mut File) -> std::io::Result<String> {
    let key = (path.to_owned(), about.len(), about.mtime(), about.mtime_nsec());
    if let Some(known) = DIGESTS.lock().get(&key) {
        return Ok(known.clone());
    }
    let found = hash(file)?;
    let mut digests = DIGESTS.lock();
    if digests.len() >= KEPT {
        digests.clear();
    }
    digests.insert(key, found.clone());
    Ok(found)
}

fn hash(file: &mut File) -> std::io::Result<String> {
    let (mut hash, mut buffer) = (Sha256::new(), vec![0; 1 << 16]);
    loop {
        let read = file.read(&mut buffer)?;
        if read == 0 {
            break;
        }
        hash.update(&buffer[..read]);
    }
    file.rewind()?;
    Ok(hex(&hash.finalize()))
}

//! The request cache: answers of container and proposer by the exact key of their request.
//!
//! `writer` stores entries in batches on its own thread, `reader` looks them up on its own connection, and `database`
//! contains the file format.

mod database;
mod reader;
mod writer;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use camino::{Utf8Path, Utf8PathBuf};
use parking_lot::Mutex;
use serde::Serialize;

use self::database::{EntryKey, FAILURE_SUFFIX};
use self::reader::CacheReader;
use self::writer::Writer;
use crate::file_error;
use crate::reply::Reply;
use crate::warn_if_err;
use synth_optimizer_core::config::sections::{CacheMode, CacheSection};
use synth_optimizer_core::model::cache_key::CacheBoundary;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};

/// The request cache of a run. All methods can be called from any thread.
#[derive(Debug)]
pub struct Cache {
    settings: CacheSettings,
    counters: Arc<Counters>,
    /// `None` if the mode is `off`.
    reader: Option<CacheReader>,
    /// Set if the mode is `readwrite`. Dropping it stores all queued entries first.
    writer: Option<Writer>,
}

/// Result of a lookup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lookup {
    Hit(Reply),
    Miss,
    /// The entry does not match its checksum. Repeat the call and `put` its answer, which replaces the entry.
    Damaged,
}

impl Cache {
    /// Opens the cache. A missing file is created in `readwrite` mode; in `readonly` mode every lookup misses.
    pub fn open(settings: &CacheSettings) -> Result<Self, OptimizerError> {
        let counters = Arc::new(Counters::default());
        let writer = match settings.mode {
            CacheMode::Readwrite => Some(Writer::start(settings, Arc::clone(&counters))?),
            CacheMode::Readonly | CacheMode::Off => None,
        };
        let reader = match settings.mode {
            CacheMode::Readwrite | CacheMode::Readonly => Some(settings.reader(writer.is_some())?),
            CacheMode::Off => None,
        };
        Ok(Self { settings: settings.clone(), counters, reader, writer })
    }

    /// Checks without writing whether the file, if it exists, can be used in this mode.
    pub fn check_file(settings: &CacheSettings) -> Result<(), OptimizerError> {
        let (path, size) = (&settings.path, database::size_on_disk(&settings.path));
        if settings.mode == CacheMode::Off || size == 0 {
            return Ok(());
        }
        settings.reader(false)?;
        if settings.mode == CacheMode::Readonly {
            return Ok(());
        }
        let opened = std::fs::OpenOptions::new().append(true).open(path);
        opened.map_err(file_error::io(path, "opening"))?;
        if size >= settings.max_bytes { Err(database::full_error(path, size, 1, settings.max_bytes)) } else { Ok(()) }
    }

    pub fn mode(&self) -> CacheMode {
        self.settings.mode
    }

    /// Returns the namespace, which is part of every key.
    pub fn namespace(&self) -> &str {
        &self.settings.namespace
    }

    /// Looks up the answer to a call. Sees every earlier `put` of this process, committed or not.
    ///
    /// A damaged entry is an error in `readonly` mode, where it cannot be replaced. The caller reports a miss in
    /// `readonly` mode with `miss_error`.
    pub fn get(&self, boundary: CacheBoundary, key: &str) -> Result<Lookup, OptimizerError> {
        self.lookup(EntryKey::of_answer(boundary, key))
    }

    /// Queues an answer for storing. The first answer of a key is kept, unless it is damaged. For setup replies, the
    /// latest one is kept.
    ///
    /// Does nothing unless the mode is `readwrite`. Once storing has failed, every further call returns that error.
    pub fn put(&self, boundary: CacheBoundary, key: &str, response: Reply) -> Result<(), OptimizerError> {
        self.store(EntryKey::of_answer(boundary, key), response)
    }

    /// Marks a stored answer that matches its checksum and cannot be used: the next `put` replaces it.
    pub fn replace_later(&self, boundary: CacheBoundary, key: &str) {
        let name = EntryKey::of_answer(boundary, key);
        self.counters.count(&name, |of_boundary| of_boundary.damaged += 1);
        if let Some(writer) = &self.writer {
            writer.replace_later(name);
        }
    }

    /// Looks up the failure of an attempt, for replay.
    pub fn get_failure(&self, boundary: CacheBoundary, key: &str, attempt: u32) -> Result<Lookup, OptimizerError> {
        Ok(match self.lookup(EntryKey::of_failure(boundary, key, attempt))? {
            Lookup::Hit(response) if response.is_empty() => Lookup::Miss,
            found => found,
        })
    }

    /// Removes the failure of an attempt that was answered later. Otherwise a replay would find the failure before the
    /// answer.
    pub fn forget_failure(&self, boundary: CacheBoundary, key: &str, attempt: u32) -> Result<(), OptimizerError> {
        match self.get_failure(boundary, key, attempt)? {
            Lookup::Miss => Ok(()),
            Lookup::Hit(_) | Lookup::Damaged => self.put_failure(boundary, key, attempt, Bytes::new().into()),
        }
    }

    /// Queues the failure of an attempt for storing, for replay.
    pub fn put_failure(
        &self,
        boundary: CacheBoundary,
        key: &str,
        attempt: u32,
        response: Reply,
    ) -> Result<(), OptimizerError> {
        self.store(EntryKey::of_failure(boundary, key, attempt), response)
    }

    /// Waits until every earlier `put` is committed.
    pub async fn flush(&self) -> Result<(), OptimizerError> {
        match &self.writer {
            Some(writer) => writer.flush().await,
            None => Ok(()),
        }
    }

    /// Creates the error for a miss in `readonly` mode. `what` names the call, such as `rollout of gepa_0a1b on row 7`.
    pub fn miss_error(&self, boundary: CacheBoundary, key: &str, what: &str) -> OptimizerError {
        let CacheSettings { path, namespace, .. } = &self.settings;
        let place = match &self.reader {
            Some(reader) if reader.file_is_missing() => format!("the cache {path} does not exist"),
            _ => format!("the cache {path} has no entry for it in namespace {namespace:?}"),
        };
        OptimizerError::new(ErrorCode::CacheMiss, format!("{what} is not cached: {place}"))
            .with_detail(format!("boundary {}, key {key}", boundary.as_str()))
    }

    /// Returns the current state of the cache. Expensive, because it counts the entries of the namespace.
    pub fn profile(&self) -> CacheProfile {
        let mut by_boundary = self.counters.by_boundary.lock().clone();
        let counted = self.reader.as_ref().map_or(Ok(Vec::new()), CacheReader::count);
        warn_if_err!(&counted, "counting the entries of the cache failed");
        let counted = counted.ok();
        for (boundary, entries) in counted.iter().flatten() {
            by_boundary.entry(boundary.clone().into()).or_default().entries = Some(*entries);
        }
        if counted.is_some() {
            for known in by_boundary.values_mut() {
                known.entries.get_or_insert(0);
            }
        }
        // `entries` counts only answers; all other counts include failures.
        let answers = |(boundary, _): &&(String, u64)| !boundary.ends_with(FAILURE_SUFFIX);
        let entries = counted.as_ref().map(|rows| rows.iter().filter(answers).map(|(_, entries)| entries).sum());
        let mut totals = BoundaryProfile { entries, ..BoundaryProfile::default() };
        for BoundaryProfile { entries: _, hits, misses, writes, damaged } in by_boundary.values() {
            totals.hits += hits;
            totals.misses += misses;
            totals.writes += writes;
            totals.damaged += damaged;
        }
        let size_bytes = match self.settings.mode {
            CacheMode::Off => 0,
            CacheMode::Readwrite | CacheMode::Readonly => database::size_on_disk(&self.settings.path),
        };
        let transactions = self.counters.transactions.load(Ordering::Relaxed);
        CacheProfile { settings: self.settings.clone(), size_bytes, totals, transactions, by_boundary }
    }

    fn lookup(&self, name: EntryKey) -> Result<Lookup, OptimizerError> {
        let Some(reader) = &self.reader else { return Ok(Lookup::Miss) };
        let CacheSettings { path, namespace, mode, .. } = &self.settings;
        let pending = self.writer.as_ref().and_then(|writer| writer.pending(&name));
        let found = match pending {
            Some(response) => Some(Some(response)),
            None => reader.lookup(&name)?.map(|record| record.open(namespace, &name)),
        };
        match found {
            Some(Some(response)) => {
                self.counters.count(&name, |of_boundary| of_boundary.hits += 1);
                Ok(Lookup::Hit(response))
            }
            Some(None) => {
                self.counters.count(&name, |of_boundary| of_boundary.damaged += 1);
                if *mode != CacheMode::Readonly {
                    return Ok(Lookup::Damaged);
                }
                let EntryKey { boundary, key } = name;
                let message = format!("the cached answer of {boundary} under {key} does not match its checksum");
                Err(OptimizerError::new(ErrorCode::CacheCorrupt, message)
                    .with_detail(format!("cache {path}, namespace {namespace:?}")))
            }
            None => {
                // A missing failure is not a miss.
                if !name.is_failure() {
                    self.counters.count(&name, |of_boundary| of_boundary.misses += 1);
                }
                Ok(Lookup::Miss)
            }
        }
    }

    fn store(&self, name: EntryKey, response: Reply) -> Result<(), OptimizerError> {
        self.writer.as_ref().map_or(Ok(()), |writer| writer.put(name, response))
    }
}

/// `cache_profile.json`: the state of the cache and the counts of this process.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CacheProfile {
    #[serde(flatten)]
    pub settings: CacheSettings,
    /// Size of the file and its write-ahead log.
    pub size_bytes: u64,
    #[serde(flatten)]
    pub totals: BoundaryProfile,
    /// Number of commits; one commit may contain many writes.
    pub transactions: u64,
    /// Failures are listed under their boundary with the suffix `.failure`.
    pub by_boundary: BTreeMap<Cow<'static, str>, BoundaryProfile>,
}

/// Counts of the whole cache or of one boundary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct BoundaryProfile {
    /// Answers in the namespace; null if the file could not be read.
    pub entries: Option<u64>,
    pub hits: u64,
    pub misses: u64,
    pub writes: u64,
    /// Entries that did not match their checksum or could not be used.
    pub damaged: u64,
}

/// Counts of this process.
#[derive(Debug, Default)]
struct Counters {
    by_boundary: Mutex<BTreeMap<Cow<'static, str>, BoundaryProfile>>,
    transactions: AtomicU64,
}

impl Counters {
    fn count(&self, name: &EntryKey, add: impl FnOnce(&mut BoundaryProfile)) {
        add(self.by_boundary.lock().entry(name.boundary.clone()).or_default());
    }
}

const DEFAULT_FILE_NAME: &str = "request_cache.sqlite";

/// Cache settings of one run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CacheSettings {
    pub mode: CacheMode,
    pub path: Utf8PathBuf,
    /// Runs with the same file and namespace share their answers.
    pub namespace: String,
    /// Maximum size of the file and its write-ahead log.
    pub max_bytes: u64,
}

impl CacheSettings {
    /// Returns the settings of a run. Defaults depend on the run's id and directory.
    pub fn of(section: &CacheSection, run_dir: &Utf8Path, run_id: &str) -> Self {
        Self {
            mode: section.mode,
            path: section.path.clone().unwrap_or_else(|| run_dir.join(DEFAULT_FILE_NAME)),
            namespace: section.namespace_of(run_id),
            max_bytes: section.max_mb.saturating_mul(1024 * 1024),
        }
    }

    /// Opens a reader. `is_own` is true if this process has the file open for writing.
    fn reader(&self, is_own: bool) -> Result<CacheReader, OptimizerError> {
        CacheReader::open(self.path.clone(), self.namespace.clone(), is_own)
    }
}

//! What the cache did for a run, in numbers.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use serde::Serialize;

use super::record::RowName;
use crate::config::sections::CacheMode;

/// `cache_profile.json`: the cache at one moment, and what this process did with it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CacheProfile {
    pub mode: CacheMode,
    pub path: String,
    pub namespace: String,
    /// The file with its write-ahead log.
    pub size_bytes: u64,
    pub max_bytes: u64,
    /// Answers in the namespace; null where the file could not be read.
    pub entries: Option<u64>,
    pub hits: u64,
    pub misses: u64,
    pub writes: u64,
    /// Rows that did not match their checksum.
    pub damaged: u64,
    /// Commits; many writes share one.
    pub transactions: u64,
    pub by_boundary: BTreeMap<String, BoundaryProfile>,
}

/// The part of one boundary. Failures that are kept for replay stand under the boundary with the suffix `.failure`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct BoundaryProfile {
    pub entries: Option<u64>,
    pub hits: u64,
    pub misses: u64,
    pub writes: u64,
    pub damaged: u64,
}

/// What happened to a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tally {
    Hit,
    Miss,
    Write,
    Damaged,
}

/// Counts of this process, by boundary.
#[derive(Debug, Default)]
pub(super) struct Counters(Mutex<BTreeMap<String, BoundaryProfile>>);

impl Counters {
    pub(super) fn count(&self, name: &RowName, what: Tally) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !counts.contains_key(&name.boundary) {
            counts.insert(name.boundary.clone(), BoundaryProfile::default());
        }
        if let Some(of_boundary) = counts.get_mut(&name.boundary) {
            match what {
                Tally::Hit => of_boundary.hits += 1,
                Tally::Miss => of_boundary.misses += 1,
                Tally::Write => of_boundary.writes += 1,
                Tally::Damaged => of_boundary.damaged += 1,
            }
        }
    }

    pub(super) fn snapshot(&self) -> BTreeMap<String, BoundaryProfile> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

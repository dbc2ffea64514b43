//! One row of the cache as bytes: compressed, with a checksum that covers its place as well.

use bytes::Bytes;
use sha2::{Digest, Sha256};

use crate::unpack::unpack;
use synth_optimizer_core::model::cache_key::Boundary;

/// Fast; answers are JSON, which shrinks well at any level.
const LEVEL: i32 = 1;

pub(super) const FAILURE: &str = ".failure";

/// The name of a row. Two names are never the same row.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct RowName {
    /// The boundary's word; with a suffix for failures.
    pub(super) boundary: String,
    pub(super) key: String,
}

impl RowName {
    /// What the container tells about itself is as it was told last, and so is how an attempt failed; a measured answer
    /// stays as it was measured.
    pub(super) fn latest_wins(&self) -> bool {
        use Boundary::{Dataset, DatasetRows, Metadata, Program, TaskInfo};
        let told = [Metadata, Program, TaskInfo, Dataset, DatasetRows];
        self.is_failure() || told.iter().any(|told| told.word() == self.boundary)
    }

    /// Failures have keys of their own: an attempt is no part of the key of an answer.
    pub(super) fn of_failure(boundary: Boundary, key: &str, attempt: u32) -> Self {
        Self { boundary: format!("{}{FAILURE}", boundary.word()), key: format!("{key}#{attempt}") }
    }

    pub(super) fn is_failure(&self) -> bool {
        self.boundary.ends_with(FAILURE)
    }
}

/// What is stored under a name.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) size: i64,
    pub(super) checksum: Vec<u8>,
    pub(super) response: Vec<u8>,
}

impl Record {
    pub(super) fn seal(namespace: &str, name: &RowName, response: &[u8]) -> std::io::Result<Self> {
        Ok(Self {
            size: i64::try_from(response.len()).unwrap_or(i64::MAX),
            checksum: checksum(namespace, name, response),
            response: zstd::bulk::compress(response, LEVEL)?,
        })
    }

    /// The response, or nothing where the row is not what was stored under this name.
    pub(super) fn open(&self, namespace: &str, name: &RowName) -> Option<Bytes> {
        let plain = unpack(&self.response, u64::try_from(self.size).ok()?)?;
        (checksum(namespace, name, &plain) == self.checksum).then(|| Bytes::from(plain))
    }

    /// Bytes that the row takes in the file, roughly.
    pub(super) fn footprint(&self, namespace: &str, name: &RowName) -> u64 {
        /// Checksum, time, size and the row's share of the tree; namespace and key stand in the index as well.
        const FIXED: usize = 128;
        (self.response.len() + 2 * (namespace.len() + name.key.len()) + name.boundary.len() + FIXED) as u64
    }
}

fn checksum(namespace: &str, name: &RowName, response: &[u8]) -> Vec<u8> {
    let mut hash = Sha256::new();
    for part in [namespace.as_bytes(), name.key.as_bytes(), name.boundary.as_bytes(), response] {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().to_vec()
}

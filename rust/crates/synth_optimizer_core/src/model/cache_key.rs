//! Keys of the request cache. Two calls with the same key have the same answer.

use serde::Serialize;

use super::canonical::canonical_digest;
use crate::string_enum;

string_enum! {
    /// The kinds of calls whose answers are cached.
    CacheBoundary {
        Metadata = "container.metadata",
        Program = "container.program",
        TaskInfo = "container.task_info",
        Dataset = "container.dataset",
        DatasetRows = "container.dataset_rows",
        Rollout = "container.rollout",
        Proposer = "proposer",
    }
}

/// Version of the key's shape. After a change, older entries are cache misses instead of wrong hits.
const SCHEMA: &str = "synth_optimizers.request_cache.v1";

/// Returns the key of one call. The run id, its directory, ports, times and attempts are not part of it.
pub fn cache_key<R: Serialize>(namespace: &str, boundary: CacheBoundary, request: &R) -> String {
    #[derive(Serialize)]
    struct Key<'a, R> {
        schema: &'a str,
        namespace: &'a str,
        boundary: CacheBoundary,
        request: &'a R,
    }
    canonical_digest(&Key { schema: SCHEMA, namespace, boundary, request })
}

/// Everything that determines the answer of a rollout. Large parts are represented by digests, which many rollouts share.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RolloutRequest<'a> {
    pub task_id: &'a str,
    /// Digest of the program's modules, whose fixed texts also affect the answer.
    pub program: &'a str,
    /// Digest of the candidate's texts.
    pub candidate: &'a str,
    /// Digest of the row as the container returned it.
    pub row: &'a str,
    /// Digest of the policy as it is sent.
    pub policy: &'a str,
    /// Distinguishes repeated measurements of one candidate on one row.
    pub replicate: u32,
}

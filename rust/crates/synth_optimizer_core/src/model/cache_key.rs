//! Keys of the request cache: what makes two calls the same call.

use serde::Serialize;

use super::canonical::canonical_digest;
use crate::string_enum;

string_enum! {
    /// The calls whose answers are cached.
    Boundary {
        Metadata = "container.metadata",
        Program = "container.program",
        TaskInfo = "container.task_info",
        Dataset = "container.dataset",
        DatasetRows = "container.dataset_rows",
        Rollout = "container.rollout",
        Proposer = "proposer",
    }
}

/// Version of the key's shape; a change makes every older entry a miss instead of a wrong hit.
const SCHEMA: &str = "synth_optimizers.request_cache.v1";

/// The key of one call. The run, its directory, ports, times and attempts are no part of it.
pub fn cache_key<R: Serialize>(namespace: &str, boundary: Boundary, request: &R) -> String {
    #[derive(Serialize)]
    struct Key<'a, R> {
        schema: &'a str,
        namespace: &'a str,
        boundary: Boundary,
        request: &'a R,
    }
    canonical_digest(&Key { schema: SCHEMA, namespace, boundary, request })
}

/// What identifies a rollout's answer. Large parts are named by their digests, which are the same for many rollouts.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RolloutRequest<'a> {
    pub task_id: &'a str,
    /// Digest of the program's modules: their fixed texts change answers too.
    pub program: &'a str,
    /// Digest of the candidate's texts.
    pub candidate: &'a str,
    /// Digest of the row as the container gave it.
    pub row: &'a str,
    /// Digest of the policy as it is sent.
    pub policy: &'a str,
    /// Distinguishes repeated measurements of one candidate on one row.
    pub replicate: u32,
}

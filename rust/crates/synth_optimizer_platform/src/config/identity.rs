//! What makes two configurations the same search: everything that can change a decision, and nothing else.

use super::sections::{CacheSection, Config, ContainerSection, DiskBudgetSection, RunSection};
use crate::config::gepa::{AdaptiveConcurrency, Workers};
use crate::model::canonical::digest_of;

/// A digest of the parts of a configuration that can change a decision. Names, places, the cache, the transport and the
/// number of workers are no part of it: runs that differ in them only must give the same log. Where time is limited, the
/// workers are a part: how long the held-out evaluation takes, and so when the search must end, depends on them.
pub fn search_digest(config: &Config) -> String {
    let mut config = config.clone();
    config.run = RunSection { seed: config.run.seed, ..RunSection::default() };
    config.container = ContainerSection::default();
    config.cache = CacheSection::default();
    config.disk_budget = DiskBudgetSection::default();
    if config.gepa.max_time_seconds.is_none() {
        config.gepa.pipeline.workers = Workers::default();
    }
    config.gepa.pipeline.adaptive_rollout_concurrency = AdaptiveConcurrency::default();
    let defaults = Config::default().gepa;
    config.gepa.rollout_submission_mode = defaults.rollout_submission_mode;
    config.gepa.rollout_poll_interval_ms = defaults.rollout_poll_interval_ms;
    config.gepa.rollout_async_timeout_seconds = defaults.rollout_async_timeout_seconds;
    config.gepa.rollout_chunk_size = None;
    digest_of(&config)
}

#[cfg(test)]
#[path = "identity_tests.rs"]
mod tests;

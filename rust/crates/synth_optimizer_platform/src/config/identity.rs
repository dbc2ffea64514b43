//! What makes two configurations the same search: everything that can change a decision, and nothing else.

use std::collections::BTreeSet;

use serde::Deserialize as _;
use serde_json::{Map, Value, json};

use super::proposer::ProposerSection;
use super::secrets::redact;
use super::sections::{CacheSection, Config, ContainerSection, DiskBudgetSection, RunSection};
use crate::config::gepa::{AdaptiveConcurrency, Workers};
use crate::model::canonical::digest_of;

/// A digest of the parts of a configuration that can change a decision. Names, places, the cache, the transport and the
/// number of workers are no part of it: runs that differ in them only must give the same log. Where time is limited, the
/// workers are a part: how long the held-out evaluation takes, and so when the search must end, depends on them.
pub fn search_digest(config: &Config) -> String {
    digest_of(&search_part(config))
}

/// The configuration as it may be shown and stored: everything but secrets.
pub fn shown(config: &Config) -> Value {
    serde_json::to_value(config).map_or(Value::Null, |value| redacted(&value))
}

/// A document as it may be shown and stored.
pub fn redacted(document: &Value) -> Value {
    redact("", document)
}

/// The fields that make another search of this configuration than of the one that was stored by `shown`, with both
/// values.
pub fn search_differences(stored: &Value, config: &Config) -> Vec<String> {
    let part = |value: &Value| Config::deserialize(value).map(|config| json!(search_part(&config)));
    let (old, new) = match (part(stored), part(&shown(config))) {
        (Ok(old), Ok(new)) => (old, new),
        (Err(error), _) | (_, Err(error)) => return vec![format!("the stored configuration cannot be read: {error}")],
    };
    let mut found = Vec::new();
    differences("", &old, &new, &mut found);
    found
}

fn differences(path: &str, old: &Value, new: &Value, found: &mut Vec<String>) {
    match (old, new) {
        (Value::Object(before), Value::Object(after)) => {
            let names: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
            for name in names {
                let inner = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                let value = |entries: &Map<String, Value>| entries.get(name).cloned().unwrap_or(Value::Null);
                differences(&inner, &value(before), &value(after), found);
            }
        }
        _ if old == new => {}
        _ => found.push(format!("{path}: {old} -> {new}")),
    }
}

fn search_part(config: &Config) -> Config {
    let mut config = config.clone();
    config.run = RunSection { seed: config.run.seed, ..RunSection::default() };
    config.container = ContainerSection::default();
    config.cache = CacheSection::default();
    config.disk_budget = DiskBudgetSection::default();
    if config.gepa.max_time_seconds.is_none() {
        config.gepa.pipeline.workers = Workers::default();
    }
    config.gepa.pipeline.adaptive_rollout_concurrency = AdaptiveConcurrency::default();
    // Where the proposer is found, how it signs in and how patiently it is waited for.
    let defaults = ProposerSection::default();
    config.proposer = ProposerSection {
        base_url: None,
        command: defaults.command,
        auth_mode: defaults.auth_mode,
        codex_home: None,
        api_key_env: None,
        startup_timeout_seconds: defaults.startup_timeout_seconds,
        rpc_timeout_seconds: defaults.rpc_timeout_seconds,
        interrupt_timeout_seconds: defaults.interrupt_timeout_seconds,
        request_retries: defaults.request_retries,
        idle_timeout_seconds: defaults.idle_timeout_seconds,
        backoff_ms: defaults.backoff_ms,
        backoff_max_seconds: defaults.backoff_max_seconds,
        max_concurrent_requests: defaults.max_concurrent_requests,
        ..config.proposer
    };
    let defaults = Config::default().gepa;
    config.gepa.rollout_submission_mode = defaults.rollout_submission_mode;
    config.gepa.rollout_poll_interval_ms = defaults.rollout_poll_interval_ms;
    config.gepa.rollout_async_timeout_seconds = defaults.rollout_async_timeout_seconds;
    config.gepa.rollout_chunk_size = None;
    config
}

#[cfg(test)]
#[path = "identity_tests.rs"]
mod tests;

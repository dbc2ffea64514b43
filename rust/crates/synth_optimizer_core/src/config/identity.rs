//! The identity of a search: a digest of exactly those settings that can change a decision.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::gepa::{Pipeline, PipelineMode, SearchMode};
use super::proposer::{EARLIER_MAX_CONCURRENT_REQUESTS, ProposalEdits};
use super::sections::Config;
use super::tree::join;
use super::values::{read_stored, redacted_config};
use crate::model::canonical::canonical_digest;

/// Fields and sections that change no decision: names, directories, the cache, the transport, and the proposer's address,
/// sign-in and timeouts.
const NOT_SEARCH_FIELDS: &[&str] = &[
    "/run/run_id",
    "/run/output_dir",
    "/run/durability",
    "/run/interrupt_grace_seconds",
    "/run/cancel_grace_seconds",
    "/run/outage_patience_seconds",
    "/run/outage_retry_ms",
    "/run/outage_retry_max_seconds",
    "/run/feed_buffer",
    "/container",
    "/candidate/sources",
    "/cache",
    "/disk_budget",
    "/proposer/base_url",
    "/proposer/command",
    "/proposer/auth_mode",
    "/proposer/codex_home",
    "/proposer/api_key_env",
    "/proposer/startup_timeout_seconds",
    "/proposer/rpc_timeout_seconds",
    "/proposer/interrupt_timeout_seconds",
    "/proposer/request_retries",
    "/proposer/idle_timeout_seconds",
    "/proposer/backoff_ms",
    "/proposer/backoff_max_seconds",
    "/proposer/max_concurrent_requests",
    "/gepa/pipeline/adaptive_rollout_concurrency",
    "/gepa/rollout_submission_mode",
    "/gepa/rollout_poll_interval_ms",
    "/gepa/rollout_async_timeout_seconds",
    "/gepa/rollout_chunk_size",
];

/// Returns a digest of the settings that can change a decision. Names, directories, the cache, the transport and the number
/// of workers are excluded: runs that differ only in these have the same log. What follows from the number of workers is
/// included: the mode and the window, unless they are set. With a time limit, the number itself is included too, because the
/// duration of the held-out evaluation, and so the deadline of the search, depends on it.
pub fn search_digest(config: &Config) -> String {
    let mut fields = search_fields(config);
    // Runs of the time when there were no edits have the same digest.
    if let Some(proposer) = fields.get_mut("proposer").and_then(Value::as_object_mut)
        && config.proposer.edits == ProposalEdits::Auto
    {
        proposer.shift_remove("edits");
    }
    canonical_digest(&fields)
}

/// Returns the search settings in which this configuration differs from a stored one, with both values. The stored one was
/// written by `redacted_config`.
pub fn search_differences(stored: &Value, config: &Config) -> Vec<String> {
    let part = |value: &Value| read_stored(value).map(|config| search_fields(&config));
    let mut found = Vec::new();
    match (part(stored), part(&redacted_config(config))) {
        (Ok(old), Ok(new)) => differences("", &old, &new, &mut found),
        (Err(error), _) | (_, Err(error)) => found.push(format!("the stored configuration cannot be read: {error}")),
    }
    found
}

fn differences(path: &str, old: &Value, new: &Value, found: &mut Vec<String>) {
    match (old, new) {
        (Value::Object(before), Value::Object(after)) => {
            for name in before.keys().chain(after.keys()).collect::<BTreeSet<_>>() {
                differences(&join(path, name), &old[name], &new[name], found);
            }
        }
        _ if old == new => {}
        _ => found.push(format!("{path}: {old} -> {new}")),
    }
}

/// Returns the configuration with default values for all fields that change no decision.
fn search_fields(config: &Config) -> Value {
    let (mut part, mut usual) = (json!(config), json!(Config::default()));
    name_rows(config, &mut part);
    // Runs of the time when there was only the reference search have the same digest.
    if let Some(gepa) = part.get_mut("gepa").and_then(Value::as_object_mut)
        && config.gepa.search == SearchMode::Reference
    {
        gepa.shift_remove("search");
        gepa.shift_remove("sprint");
    }
    // Only the reference search with several open generations has late changes.
    if let Some(gepa) = part.get_mut("gepa").and_then(Value::as_object_mut)
        && (config.gepa.search == SearchMode::Sprint || config.gepa.pipeline.is_serial())
    {
        gepa.shift_remove("rebase");
    }
    let workers = config.gepa.max_time_seconds.is_none().then_some("/gepa/pipeline/workers");
    restore_earlier_defaults(&mut usual);
    if let Some(workers) = part.pointer_mut("/gepa/pipeline/workers").and_then(Value::as_object_mut) {
        workers.insert("propose".to_owned(), config.gepa.proposer_turns().into());
    }
    if let Some(pipeline) = part.pointer_mut("/gepa/pipeline").and_then(Value::as_object_mut) {
        let (mode, window) = schedule(&config.gepa.pipeline);
        pipeline.insert("mode".to_owned(), json!(mode));
        pipeline.insert("max_in_flight_candidates".to_owned(), window.into());
    }
    for path in NOT_SEARCH_FIELDS.iter().copied().chain(workers) {
        let Some((section, name)) = path.rsplit_once('/') else { continue };
        if let Some(section) = part.pointer_mut(section).and_then(Value::as_object_mut) {
            match usual.pointer(path) {
                Some(usual) => section.insert(name.to_owned(), usual.clone()),
                None => section.shift_remove(name),
            };
        }
    }
    part
}

/// Returns how generations are scheduled: the mode and the number of candidates that follow from the number of workers, where
/// the configuration does not set them.
fn schedule(pipeline: &Pipeline) -> (PipelineMode, u32) {
    match pipeline.is_serial() {
        true => (PipelineMode::SyncSerial, pipeline.max_in_flight_candidates.unwrap_or(EARLIER_CANDIDATES_IN_FLIGHT)),
        false => (PipelineMode::AsyncPipelined, pipeline.candidates_in_flight()),
    }
}

/// The value of `max_in_flight_candidates` before it followed from the number of workers. It matters for no serial run.
const EARLIER_CANDIDATES_IN_FLIGHT: u32 = 8;

/// Sets the defaults of fields that change no decision as they were before they followed from `workers.rollout`: runs of that
/// time have the same digest.
fn restore_earlier_defaults(usual: &mut Value) {
    let earlier = [
        ("/proposer", "max_concurrent_requests", EARLIER_MAX_CONCURRENT_REQUESTS),
        ("/gepa/pipeline/adaptive_rollout_concurrency", "max", 120),
        ("/gepa/pipeline/workers", "propose", 1),
    ];
    for (section, name, value) in earlier {
        if let Some(section) = usual.pointer_mut(section).and_then(Value::as_object_mut) {
            section.insert(name.to_owned(), value.into());
        }
    }
}

/// Replaces ranges by the rows that they name: a range and a list of the same rows are the same search.
fn name_rows(config: &Config, part: &mut Value) {
    let mut set = |path: &str, rows: Option<Value>| {
        if let (Some(slot), Some(rows)) = (part.pointer_mut(path), rows) {
            *slot = rows;
        }
    };
    if let Some(rows) = &config.dataset {
        set("/dataset/train_seeds", rows.train_seeds.listed().map(|rows| json!(rows)));
        set("/dataset/heldout_seeds", rows.heldout_seeds.listed().map(|rows| json!(rows)));
    }
    if let Some(rows) = &config.taskset {
        set("/taskset/train_ids", rows.train_ids.listed().map(|rows| json!(rows)));
        set("/taskset/heldout_ids", rows.heldout_ids.listed().map(|rows| json!(rows)));
    }
}

#[cfg(test)]
#[path = "identity_tests.rs"]
mod tests;

//! Changes every field once and checks that the digest depends on exactly those that can change a decision.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use serde_json::{Value, json};

use super::{Config, redacted_config, search_differences, search_digest};
use crate::config::gepa::{PipelineMode, SearchMode};
use crate::config::shape::{Shape, root};

/// Fields, and sections of fields, that change no decision.
const NOT_SEARCH_FIELDS: &[&str] = &[
    "run.run_id",
    "run.output_dir",
    "run.durability",
    "run.interrupt_grace_seconds",
    "run.cancel_grace_seconds",
    "run.outage_patience_seconds",
    "run.outage_retry_ms",
    "run.outage_retry_max_seconds",
    "run.feed_buffer",
    "container",
    "candidate.sources",
    "cache",
    "disk_budget",
    "proposer.base_url",
    "proposer.command",
    "proposer.auth_mode",
    "proposer.codex_home",
    "proposer.api_key_env",
    "proposer.startup_timeout_seconds",
    "proposer.rpc_timeout_seconds",
    "proposer.interrupt_timeout_seconds",
    "proposer.request_retries",
    "proposer.idle_timeout_seconds",
    "proposer.backoff_ms",
    "proposer.backoff_max_seconds",
    "proposer.max_concurrent_requests",
    "gepa.pipeline.workers",
    "gepa.pipeline.adaptive_rollout_concurrency",
    "gepa.rollout_submission_mode",
    "gepa.rollout_poll_interval_ms",
    "gepa.rollout_async_timeout_seconds",
    "gepa.rollout_chunk_size",
];

/// Returns another value of the field, unless it has only one.
fn other(shape: &Shape, value: &Value) -> Option<Value> {
    Some(match shape {
        Shape::Flag => json!(!value.as_bool().unwrap()),
        Shape::Integer { .. } => json!(value.as_i64().unwrap_or(1) + 1),
        Shape::Number { .. } => match value.as_f64().unwrap_or(0.0) {
            0.5 => json!(0.75),
            known => json!(known / 2.0 + 0.25),
        },
        Shape::Word { words, .. } => json!(words.iter().find(|word| value.as_str() != Some(word))?),
        Shape::Rows { .. } => json!("40..49"),
        Shape::Text | Shape::Anything => json!("another"),
        Shape::List(inner) => json!([other(inner, &Value::Null)?]),
        Shape::Map(inner) => json!({"name": other(inner, &Value::Null)?}),
        Shape::Table(_) => return None,
    })
}

fn read(config: &Value) -> Config {
    serde_json::from_value(config.clone()).unwrap()
}

/// Returns each field that can change, with a changed configuration.
fn changes(config: &Config) -> Vec<(String, Config)> {
    let whole = serde_json::to_value(config).unwrap();
    let changed = root().leaves().into_iter().filter_map(|(path, field)| {
        let mut whole = whole.clone();
        let location = path.split('.').fold(&mut whole, |value, name| &mut value[name]);
        *location = other(&field.shape, location)?;
        Some((path, read(&whole)))
    });
    changed.collect()
}

fn is_below(path: &str, section: &str) -> bool {
    path.strip_prefix(section).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Returns a configuration in which every field of the search counts, and nothing follows from the number of workers.
fn in_sprints() -> Config {
    let mut config = Config::default();
    config.gepa.search = SearchMode::Sprint;
    config.gepa.pipeline.mode = PipelineMode::AsyncPipelined;
    config.gepa.pipeline.max_in_flight_candidates = Some(8);
    config.gepa.pipeline.workers.propose = Some(1);
    config
}

#[test]
fn a_schedule_that_follows_from_the_workers_is_part_of_the_digest() {
    let with_workers = |workers: u32| {
        let mut config = Config::default();
        config.gepa.pipeline.workers.rollout = workers;
        config
    };
    let few = search_digest(&with_workers(8));
    assert_eq!(few, search_digest(&with_workers(1)), "one generation at a time");
    assert_ne!(few, search_digest(&with_workers(64)));
    assert_ne!(search_digest(&with_workers(32)), search_digest(&with_workers(64)), "a window for each worker");
    let mut stated = with_workers(16);
    stated.gepa.pipeline.mode = PipelineMode::AsyncPipelined;
    stated.gepa.pipeline.max_in_flight_candidates = Some(64);
    assert_eq!(search_digest(&stated), search_digest(&with_workers(64)), "a stated value and one that follows");
    let found = search_differences(&redacted_config(&with_workers(8)), &with_workers(64));
    let expected = [
        "gepa.pipeline.max_in_flight_candidates: 8 -> 64",
        "gepa.pipeline.mode: \"sync_serial\" -> \"async_pipelined\"",
        "gepa.rebase: null -> true",
    ];
    assert_eq!(found, expected);
}

#[test]
fn constants_of_sprints_do_not_change_the_reference_search() {
    let mut config = Config::default();
    config.gepa.search = SearchMode::Reference;
    let mut other = config.clone();
    other.gepa.sprint.adopt = 0.9;
    assert_eq!(search_digest(&config), search_digest(&other));
    let mut sprints = config.clone();
    sprints.gepa.search = SearchMode::Sprint;
    assert_ne!(search_digest(&config), search_digest(&sprints));
    // A stored configuration without the setting is one of the reference search.
    let mut stored = redacted_config(&config);
    stored["gepa"].as_object_mut().unwrap().shift_remove("search");
    assert!(search_differences(&stored, &config).is_empty());
    assert_eq!(search_differences(&stored, &sprints).len(), 2, "the search, and its constants");
}

/// Returns whether a field can change a decision of a search in sprints, which has no use for `gepa.rebase`.
fn is_part(path: &str) -> bool {
    path != "gepa.rebase" && !NOT_SEARCH_FIELDS.iter().any(|section| is_below(path, section))
}

#[test]
fn the_digest_follows_what_can_change_a_decision() {
    let config = in_sprints();
    let digest = search_digest(&config);
    let changes = changes(&config);
    for (path, changed) in &changes {
        assert_ne!(*changed, config, "{path}");
        let is_part = is_part(path);
        assert_eq!(search_digest(changed) != digest, is_part, "{path}");
    }
    let names = NOT_SEARCH_FIELDS.iter().chain(&["run.seed", "gepa.minibatch_size", "policy.model", "proposer.model"]);
    for name in names {
        assert!(changes.iter().any(|(path, _)| is_below(path, name)), "{name} was not changed");
    }
}

#[test]
fn differences_name_every_field_of_the_search_that_changed() {
    let config = in_sprints();
    for (path, changed) in changes(&config) {
        let found = search_differences(&redacted_config(&config), &changed);
        let is_part = is_part(&path);
        assert_eq!(!found.is_empty(), is_part, "{path}");
        // A new section is named as a whole. `gepa.rebase` counts in some searches and modes only.
        let names = |line: &String| {
            line.split_once(": ").is_some_and(|(at, _)| {
                let follows = at == "gepa.rebase" && ["gepa.search", "gepa.pipeline.mode"].contains(&path.as_str());
                follows || is_below(at, &path) || is_below(&path, at)
            })
        };
        assert!(found.iter().all(|line| names(line) && line.contains(" -> ")), "{path}: {found:?}");
    }
    assert!(search_differences(&json!("no config"), &config)[0].contains("cannot be read"));
}

#[test]
fn rebase_is_part_of_the_digest_of_a_reference_search_with_a_window() {
    let mut config = Config::default();
    config.gepa.search = SearchMode::Reference;
    let digests = |config: &Config| {
        let mut other = config.clone();
        other.gepa.rebase = !config.gepa.rebase;
        (search_digest(config), search_digest(&other))
    };
    let (one, other) = digests(&config);
    assert_eq!(one, other, "a serial search has no late changes");
    config.gepa.pipeline.mode = PipelineMode::AsyncPipelined;
    let (one, other) = digests(&config);
    assert_ne!(one, other);
}

#[test]
fn workers_are_part_of_the_digest_with_a_time_limit() {
    let mut config = Config::default();
    config.gepa.max_time_seconds = Some(3600);
    let digest = search_digest(&config);
    let (mut workers, mut adaptive) = (0, 0);
    for (path, changed) in changes(&config) {
        if is_below(&path, "gepa.pipeline.workers") {
            assert_ne!(search_digest(&changed), digest, "{path}");
            workers += 1;
        } else if is_below(&path, "gepa.pipeline.adaptive_rollout_concurrency") {
            assert_eq!(search_digest(&changed), digest, "{path}");
            adaptive += 1;
        }
    }
    assert_eq!((workers, adaptive), (3, 8));
}

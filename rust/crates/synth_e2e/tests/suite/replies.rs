//! Complete runs against containers whose replies are wrong, unreadable or stored for another request.

use std::collections::BTreeSet;

use serde_json::Value;
use synth_e2e::cpu::peak_memory_bytes;
use synth_e2e::run_files::COMPARED_FILES;
use synth_e2e::stub::FIELDS;
use synth_e2e::wait::{WAIT_TIMEOUT, wait_for};
use synth_e2e::{RowNames, RunFiles, read_bill, run_to_end, small_config};
use synth_optimizer_core::config::Config;
use synth_optimizer_core::config::gepa::SubmissionMode;
use synth_optimizer_core::config::sections::CacheMode;
use synth_optimizer_core::model::answer::FailureClass;
use synth_optimizer_core::model::cache_key::CacheBoundary;
use synth_optimizer_core::model::error::ErrorCode;
use synth_optimizer_core::model::event::Event;
use synth_optimizer_core::model::ids::CallId;
use synth_optimizer_platform::cache::{Cache, CacheSettings};
use synth_optimizer_platform::workspace::Reader;
use synth_optimizer_platform::workspace::models::RolloutQuery;

use crate::harness::run_thread::execute_to_end;
use crate::harness::{TestDir, assert_consistent, count, finished, stub};

/// Values of a reply that some JSON readers refuse.
fn unreadable_values() -> [(&'static str, Vec<u8>); 5] {
    [
        ("a lone surrogate", br#""cut: \ud83d""#.to_vec()),
        ("bytes that are not UTF-8", b"\"\xff\xfe\"".to_vec()),
        ("deep nesting", [b"[".repeat(300), b"]".repeat(300)].concat()),
        ("a number beyond range", b"[1e999, -1e999]".to_vec()),
        ("no number", b"[NaN, Infinity]".to_vec()),
    ]
}

fn config(url: &str, place: &TestDir) -> Config {
    let mut config = small_config(url, RowNames::TaskIds, 6, 3, &FIELDS[..1]);
    config.run.output_dir = place.path().join("runs");
    config.run.run_id = Some("e2e-one".into());
    config.gepa.max_generations = Some(2);
    config
}

/// Executes a run that completes.
fn complete(config: &Config) -> RunFiles {
    let outcome = execute_to_end(config.clone()).unwrap();
    assert_eq!(outcome.end.as_str(), "completed", "{:?}", outcome.end.error());
    let files = RunFiles::new(&config.run.output_dir, config.run.run_id.as_ref().unwrap());
    assert_consistent(&files);
    files
}

fn best_score(files: &RunFiles, split: &str) -> f64 {
    let scores = finished(files).scores;
    scores.iter().find(|known| known.role == "best" && known.split == split).unwrap().score.mean
}

#[test]
fn the_same_run_id_with_another_model_gets_new_scores() {
    for mode in [SubmissionMode::Sync, SubmissionMode::Async] {
        let container = stub(&["--bad-model", "weak"]);
        let [weak, strong] = ["weak", "strong"].map(|model| {
            let place = TestDir::new();
            let mut config = config(&container.url(), &place);
            config.gepa.rollout_submission_mode = mode;
            config.policy.get_or_insert_default().model = Some(model.into());
            best_score(&complete(&config), "heldout")
        });
        assert_eq!(weak, 0.0);
        assert!(strong > 0.0, "the container answered with the scores of another model");
    }
}

#[test]
fn the_same_run_id_in_another_mode_collides_with_no_known_id() {
    let container = stub(&["--memory", "strict"]);
    for mode in [SubmissionMode::Sync, SubmissionMode::Async, SubmissionMode::Sync] {
        let place = TestDir::new();
        let mut config = config(&container.url(), &place);
        config.gepa.rollout_submission_mode = mode;
        complete(&config);
    }
}

#[test]
fn a_run_that_is_resumed_in_another_mode_finds_its_rollouts() {
    for hook_point in [4, 7, 10] {
        let place = TestDir::new();
        let bill = place.path().join("bill");
        let container = stub(&["--memory", "strict", "--bill", bill.as_str()]);
        synth_e2e::write_config(&place.config(), &config(&container.url(), &place)).unwrap();
        let mut command = place.command("e2e-one", &["--set", "gepa.rollout_submission_mode=sync"]);
        command.env("SYNTH_OPTIMIZERS_TEST_KILL_AT", hook_point.to_string());
        assert!(!run_to_end(command, WAIT_TIMEOUT).unwrap().status.success());
        let files = place.finish("e2e-one", &["--set", "gepa.rollout_submission_mode=async"]);
        assert_consistent(&files);
        let bill = read_bill(&bill).unwrap();
        let unique: BTreeSet<&str> = bill.iter().map(|line| line.rollout_id.as_str()).collect();
        assert_eq!(bill.len(), unique.len(), "a rollout was run twice");
    }
}

#[test]
fn a_reply_of_another_model_is_a_contract_error() {
    let (container, place) = (stub(&["--policy-echo", "gpt-other"]), TestDir::new());
    let outcome = execute_to_end(config(&container.url(), &place)).unwrap();
    let error = outcome.end.error().unwrap();
    assert_eq!(error.code, ErrorCode::Container);
    assert!(error.message.contains("the reply is of model gpt-other, but the policy has"), "{}", error.message);
}

#[test]
fn unreadable_parts_of_replies_are_altered_recorded_and_replayed() {
    for (what, value) in unreadable_values() {
        let place = TestDir::new();
        let extra = place.path().join("extra");
        std::fs::write(&extra, value).unwrap();
        let container = stub(&["--extra", extra.as_str()]);
        let mut config = config(&container.url(), &place);
        config.cache.path = Some(place.path().join("cache.sqlite"));
        config.cache.namespace = Some("shared".into());
        let first = complete(&config);
        assert!(count(&first, "container.reply.altered") > 0, "{what}: the change is not recorded");
        assert_traces_are_readable(&first);
        config.cache.mode = CacheMode::Off;
        config.run.run_id = Some("e2e-async".into());
        config.gepa.rollout_submission_mode = SubmissionMode::Async;
        assert!(count(&complete(&config), "container.reply.altered") > 0, "{what}");
        // The stored replies serve a run against a healthy container, and one without any.
        let healthy = stub(&[]);
        config.container.url = healthy.url();
        for (mode, run_id) in [(CacheMode::Readwrite, "e2e-cached"), (CacheMode::Readonly, "e2e-readonly")] {
            (config.cache.mode, config.run.run_id) = (mode, Some(run_id.into()));
            let files = complete(&config);
            assert_eq!(count(&files, "cache.damaged"), 0, "{what}");
            for name in COMPARED_FILES {
                assert!(files.comparable(name).unwrap() == first.comparable(name).unwrap(), "{what}: {name} differs");
            }
            assert_traces_are_readable(&files);
        }
    }
}

/// Asserts that every rollout of a run shows its reply as a JSON object.
fn assert_traces_are_readable(files: &RunFiles) {
    let reader = Reader::open(files.path("workspace.sqlite").as_std_path()).unwrap();
    let page = reader.rollout_page(&RolloutQuery { limit: Some(200), ..RolloutQuery::default() }).unwrap();
    assert!(!page.items.is_empty());
    for rollout in page.items {
        let trace = reader.rollout(&rollout.call_id.to_string(), true).unwrap().trace.unwrap();
        assert!(trace.reply.as_ref().is_some_and(Value::is_object), "{trace:?}");
        let stored = reader.reply(CallId(rollout.call_id)).unwrap().unwrap();
        assert!(serde_json::from_slice::<Value>(&stored).unwrap()["rollout_id"].is_string());
    }
}

#[test]
fn a_cache_entry_that_cannot_be_used_is_sent_again_and_replaced() {
    let (container, place) = (stub(&[]), TestDir::new());
    let mut config = config(&container.url(), &place);
    config.cache.path = Some(place.path().join("cache.sqlite"));
    config.cache.namespace = Some("shared".into());
    let first = complete(&config);
    let settings = CacheSettings::of(&config.cache, &first.directory, "e2e-one");
    let wrong_model = br#"{"status":"completed","reward":1.0,"policy":{"model":"gpt-other"}}"#;
    for (run_id, entry) in [("e2e-two", &b"{\"status\":"[..]), ("e2e-three", &wrong_model[..])] {
        let cache = Cache::open(&settings).unwrap();
        let keys = rollout_keys(settings.path.as_str());
        for key in &keys {
            cache.replace_later(CacheBoundary::Rollout, key);
            cache.put(CacheBoundary::Rollout, key, entry.to_vec().into()).unwrap();
        }
        drop(cache);
        config.run.run_id = Some(run_id.into());
        let files = complete(&config);
        assert_eq!(count(&files, "cache.damaged"), keys.len());
        config.run.run_id = Some(format!("{run_id}-again"));
        let again = complete(&config);
        assert_eq!(count(&again, "cache.damaged"), 0, "the entries were not replaced");
        for name in COMPARED_FILES {
            assert!(again.comparable(name).unwrap() == first.comparable(name).unwrap(), "{name} differs");
        }
    }
}

fn rollout_keys(path: &str) -> Vec<String> {
    let db = rusqlite::Connection::open(path).unwrap();
    let mut rows = db.prepare("SELECT cache_key FROM request_response_cache WHERE boundary = ?1").unwrap();
    let keys = rows.query_map([CacheBoundary::Rollout.as_str()], |row| row.get(0)).unwrap();
    keys.collect::<Result<_, _>>().unwrap()
}

#[test]
fn extreme_rewards_leave_a_readable_log() {
    for reward in ["1e100", "-1e100"] {
        let (container, place) = (stub(&["--reward", reward]), TestDir::new());
        let files = complete(&config(&container.url(), &place));
        assert_eq!(best_score(&files, "train"), reward.parse::<f64>().unwrap());
    }
    for reward in ["1e308", "-1e101"] {
        let (container, place) = (stub(&["--reward", reward]), TestDir::new());
        let config = config(&container.url(), &place);
        assert_eq!(execute_to_end(config.clone()).unwrap().end.as_str(), "failed");
        // Reading the events fails if one of their numbers is null.
        let events = RunFiles::new(&config.run.output_dir, "e2e-one").events().unwrap();
        let refused = |event: &Event| match event {
            Event::RolloutFailed(failed) => {
                assert_eq!(failed.class, FailureClass::InvalidScore);
                assert!(failed.message.contains(&reward.replace("1e", "1e+")), "{}", failed.message);
                true
            }
            _ => false,
        };
        assert!(events.iter().filter(|event| refused(event)).count() > 0);
    }
}

#[test]
fn usage_that_cannot_be_true_is_reported_once_and_never_counted() {
    let usage = r#"{"prompt_tokens":-5,"completion_tokens":18446744073709551615,"total_tokens":380,"cost_usd":1e300}"#;
    let (container, place) = (stub(&["--usage", usage]), TestDir::new());
    let files = complete(&config(&container.url(), &place));
    assert_eq!(count(&files, "container.usage.refused"), 1);
    let manifest: Value = serde_json::from_str(&files.read("result_manifest.json").unwrap()).unwrap();
    let rollouts = &manifest["usage"]["rollouts"];
    assert_eq!((&rollouts["prompt_tokens"], &rollouts["completion_tokens"]), (&0.into(), &0.into()));
    assert_eq!(rollouts["total_tokens"].as_u64().unwrap(), 380 * rollouts["sent_calls"].as_u64().unwrap());
    assert!(rollouts["cost_usd"].is_null());
}

/// Runs to its end and returns the largest resident memory that was seen.
fn peak_memory(place: &TestDir, run_id: &str) -> u64 {
    let mut command = place.command(run_id, &[]);
    command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
    let mut child = command.spawn().unwrap();
    let mut peak = 0;
    wait_for("the end of the run", || {
        peak = peak.max(peak_memory_bytes(child.id()).unwrap_or_default());
        child.try_wait().unwrap()
    });
    peak
}

#[test]
fn endless_replies_stay_within_64_mb() {
    // A run sends its first rollout alone.
    let (endless, healthy) = (stub(&["--train", "17", "--endless", "--free", "1"]), stub(&["--train", "17"]));
    let [peak, usual] = [&endless, &healthy].map(|container| {
        let place = TestDir::new();
        let mut config = small_config(&container.url(), RowNames::TaskIds, 17, 3, &FIELDS[..1]);
        config.gepa.pipeline.workers.rollout = 8;
        config.gepa.max_generations = Some(1);
        config.run.output_dir = place.path().join("runs");
        synth_e2e::write_config(&place.config(), &config).unwrap();
        peak_memory(&place, "e2e-one")
    });
    let growth = peak.saturating_sub(usual);
    assert!(growth < 64 << 20, "8 endless replies at once: {growth} bytes more than a healthy run");
}

//! Outages: a container or a proposer that is unavailable pauses a run. The run continues by itself, or resumes with the same
//! command, and ends like a run without an outage.

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::harness::run_thread::execute_to_end;
use crate::harness::{TestDir, assert_consistent, finished, stub};
use serde_json::Value;
use synth_e2e::model_server::{ModelReply, chat, proposed};
use synth_e2e::run_files::COMPARED_FILES;
use synth_e2e::stub::FIELDS;
use synth_e2e::wait::wait_until;
use synth_e2e::{ModelServer, RowNames, RunFiles, ServerProcess, read_bill, small_config, write_config};
use synth_gepa::GepaEngine;
use synth_optimizer_core::config::Config;
use synth_optimizer_core::config::gepa::PipelineMode;
use synth_optimizer_core::config::proposer::ProposerBackend;
use synth_optimizer_core::config::sections::CacheMode;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::event::Event;
use synth_optimizer_core::model::event_fields::{Dependency, StopKind};
use synth_optimizer_platform::runtime::{RunControl, RunOutcome, RunSpec, execute};
use synth_optimizer_platform::workspace::Reader;

/// A container that can be stopped and started again at the same address, and a config for it.
struct OutageFixture {
    test_dir: TestDir,
    stub: ServerProcess,
    memory: &'static str,
}

impl OutageFixture {
    fn new(memory: &'static str, change: impl FnOnce(&mut Config)) -> Self {
        let test_dir = TestDir::new();
        let bill = test_dir.path().join("bill");
        let stub = stub(&["--memory", memory, "--latency-ms", "40", "--bill", bill.as_str()]);
        let mut config = small_config(&stub.url(), RowNames::TaskIds, 6, 3, &FIELDS[..1]);
        config.cache.mode = CacheMode::Off;
        config.container.connect_retries = 0;
        config.run.outage_retry_ms = 5;
        change(&mut config);
        write_config(&test_dir.config(), &config).unwrap();
        Self { test_dir, stub, memory }
    }

    fn start_container(&mut self) {
        let (port, bill) = (self.stub.port.to_string(), self.test_dir.path().join("bill"));
        self.stub = stub(&["--port", &port, "--memory", self.memory, "--latency-ms", "40", "--bill", bill.as_str()]);
    }

    fn spawn(&self, run_id: &str) -> Child {
        let mut command: Command = self.test_dir.command(run_id, &["--workers", "4"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    }

    fn count(&self, run_id: &str, event: &str) -> usize {
        let feed = self.test_dir.files(run_id).read("events.jsonl").unwrap_or_default();
        feed.matches(&format!("\"type\":\"{event}\"")).count()
    }

    fn wait_for_events(&self, run_id: &str, event: &str, count: usize) {
        wait_until(event, || self.count(run_id, event) >= count);
    }

    /// Checks that a run ended like an undisturbed one, and that it counts the rollouts of unknown outcome.
    fn assert_equal_to_undisturbed(&mut self, run_id: &str) -> u64 {
        let files = self.test_dir.files(run_id);
        let clean = self.test_dir.finish("e2e-undisturbed", &["--workers", "4"]);
        assert_consistent(&files);
        let (counts, expected) = (finished(&files).rollouts, finished(&clean).rollouts);
        assert_eq!(counts.train + counts.heldout, expected.train + expected.heldout + counts.unknown_outcomes);
        for name in COMPARED_FILES {
            assert_eq!(files.comparable(name).unwrap(), clean.comparable(name).unwrap(), "{name}");
        }
        let billed = read_bill(&self.test_dir.path().join("bill")).unwrap().len() as u64;
        assert!(billed <= counts.train + counts.heldout + expected.train + expected.heldout);
        counts.unknown_outcomes
    }
}

fn try_run(config: &Config) -> Result<RunOutcome, OptimizerError> {
    let (_control, receiver) = RunControl::new(100_000);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(execute::<GepaEngine>(RunSpec::new(config.clone()), receiver))
}

#[test]
fn a_run_waits_for_a_container_that_restarts_and_ends_as_if_nothing_had_happened() {
    for memory in ["ended", "forget"] {
        let mut fixture = OutageFixture::new(memory, |_| {});
        let mut run = fixture.spawn("e2e-outage");
        fixture.wait_for_events("e2e-outage", "rollout.finished", 3);
        fixture.stub.stop();
        fixture.wait_for_events("e2e-outage", "run.waiting", 2);
        let totals = Reader::open(fixture.test_dir.files("e2e-outage").path("workspace.sqlite").as_std_path())
            .unwrap()
            .totals()
            .unwrap();
        let waiting = &totals.waiting[0];
        assert_eq!(waiting.waiting_for, Dependency::Container);
        assert!(waiting.cause.contains("does not answer") && waiting.next_try_at >= waiting.since, "{waiting:?}");
        fixture.start_container();
        assert!(run.wait().unwrap().success());
        assert_eq!(fixture.count("e2e-outage", "run.waiting.ended"), 1);
        assert_eq!(fixture.count("e2e-outage", "rollout.failed"), 0);
        fixture.assert_equal_to_undisturbed("e2e-outage");
    }
}

#[test]
fn an_outage_beyond_the_patience_interrupts_the_run_and_the_same_command_resumes_it() {
    let mut fixture = OutageFixture::new("ended", |config| config.run.outage_patience_seconds = 0);
    let mut run = fixture.spawn("e2e-outage");
    fixture.wait_for_events("e2e-outage", "rollout.finished", 3);
    fixture.stub.stop();
    assert!(!run.wait().unwrap().success());
    let files = fixture.test_dir.files("e2e-outage");
    let manifest: Value = serde_json::from_str(&files.read("result_manifest.json").unwrap()).unwrap();
    assert_eq!((&manifest["status"], &manifest["failure"]["is_outage"]), (&"interrupted".into(), &true.into()));
    assert!(manifest["failure"]["message"].as_str().unwrap().contains("does not answer"), "{manifest}");
    assert!(manifest["usage"]["sent_calls"].as_u64().unwrap() >= 3, "what was measured is counted");
    assert_eq!(fixture.count("e2e-outage", "run.interrupted"), 1);
    let registry = std::fs::read_to_string(fixture.test_dir.path().join("runs/run_registry.jsonl")).unwrap();
    let entry: Value = serde_json::from_str(registry.lines().last().unwrap()).unwrap();
    assert_eq!((&entry["run_id"], &entry["status"]), (&"e2e-outage".into(), &"interrupted".into()));
    // While the container is gone, the command fails again and loses nothing.
    assert!(!fixture.spawn("e2e-outage").wait().unwrap().success());
    fixture.start_container();
    fixture.test_dir.finish("e2e-outage", &["--workers", "4"]);
    fixture.assert_equal_to_undisturbed("e2e-outage");
}

/// Runs with an endpoint that answers the first turns with these replies and then works.
fn run_with_endpoint(
    run_id: &str,
    replies: Vec<ModelReply>,
) -> (Result<RunOutcome, OptimizerError>, RunFiles, TestDir) {
    let (test_dir, turn) = (TestDir::new(), Arc::new(AtomicU32::new(0)));
    let server = ModelServer::start(move |request| {
        let nth = turn.fetch_add(1, Ordering::SeqCst) as usize;
        let answer = || chat("toy", proposed(&request.text()).to_string());
        replies.get(nth).cloned().unwrap_or_else(answer)
    })
    .unwrap();
    let stub = stub(&[]);
    let mut config = small_config(&stub.url(), RowNames::TaskIds, 6, 3, &FIELDS[..1]);
    config.run.output_dir = test_dir.path().join("runs");
    config.run.run_id = Some(run_id.into());
    config.run.outage_retry_ms = 1;
    config.cache.mode = CacheMode::Off;
    config.proposer.backend = ProposerBackend::OpenaiCompatible;
    config.proposer.base_url = Some(server.base_url());
    config.proposer.model = Some("toy".into());
    config.proposer.request_retries = 0;
    let outcome = try_run(&config);
    let files = RunFiles::new(&config.run.output_dir, run_id);
    (outcome, files, test_dir)
}

#[test]
fn a_run_waits_for_a_proposer_that_is_overloaded_or_rejects_the_key() {
    let (clean, clean_files, _clean_dir) = run_with_endpoint("e2e-clean", Vec::new());
    assert_eq!(clean.unwrap().end.as_str(), "completed");
    let status = |code| ModelReply::Status { code, retry_after: None, message: "not now".into() };
    for code in [401, 404, 429, 500, 503, 529] {
        let (outcome, files, _dir) = run_with_endpoint("e2e-outage", vec![status(code), status(code)]);
        assert_eq!(outcome.unwrap().end.as_str(), "completed", "{code}");
        let events = files.events().unwrap();
        let causes: Vec<&String> = events
            .iter()
            .filter_map(|event| match event {
                Event::RunWaiting(waiting) if waiting.waiting_for == Dependency::Proposer => Some(&waiting.cause),
                _ => None,
            })
            .collect();
        assert_eq!(causes.len(), 2, "{code}: {causes:?}");
        assert!(causes[0].contains(&format!("answered {code}: not now")), "{causes:?}");
        for name in COMPARED_FILES {
            assert_eq!(files.comparable(name).unwrap(), clean_files.comparable(name).unwrap(), "{code}: {name}");
        }
    }
}

#[test]
fn a_failing_task_is_reported_with_its_cause_and_is_no_outage() {
    let test_dir = TestDir::new();
    let server = stub(&["--train", "12", "--reward", "\"0.5\""]);
    let mut config = small_config(&server.url(), RowNames::TaskIds, 12, 3, &FIELDS[..1]);
    config.run.output_dir = test_dir.path().join("runs");
    config.run.run_id = Some("e2e-task".into());
    config.cache.mode = CacheMode::Off;
    let run = || execute_to_end(config.clone()).unwrap().end.error().cloned().unwrap();
    let error = run();
    assert_eq!((error.code, error.is_outage), (ErrorCode::Container, false));
    assert!(error.message.contains("not a number") && error.message.contains("for example row"), "{error}");
    assert!(error.hint.starts_with("Return") && error.hint.contains("finite number"), "{}", error.hint);
    // The same command shows the stored failure, and says so.
    let stored = run();
    assert_eq!(stored.message, error.message);
    assert!(
        stored.hint.contains("nothing was tried again") && stored.hint.contains("finite number"),
        "{}",
        stored.hint
    );
}

#[test]
fn the_hint_of_a_failed_task_names_the_cache_only_if_another_run_can_use_it() {
    let (test_dir, server) = (TestDir::new(), stub(&["--train", "12", "--fail-every", "1"]));
    let mut config = small_config(&server.url(), RowNames::TaskIds, 12, 3, &FIELDS[..1]);
    config.run.output_dir = test_dir.path().join("runs");
    for (mode, is_shared) in [(CacheMode::Off, false), (CacheMode::Readwrite, false), (CacheMode::Readwrite, true)] {
        config.run.run_id = Some(format!("e2e-{}-{is_shared}", mode.as_str()));
        config.cache.mode = mode;
        config.cache.path = is_shared.then(|| test_dir.path().join("cache.sqlite"));
        config.cache.namespace = is_shared.then(|| "shared".to_owned());
        let outcome = execute_to_end(config.clone()).unwrap();
        let error = outcome.end.error().unwrap();
        // An error of the task is a failure of the run, not an unreachable container.
        assert_eq!((error.code, error.code.row().exit), (ErrorCode::RunFailed, 1), "{error}");
        assert!(error.hint.contains("its task fails"), "{}", error.hint);
        assert_eq!(error.hint.contains("cache"), is_shared, "{}", error.hint);
    }
}

#[test]
fn an_overload_that_becomes_an_outage_halves_the_concurrency() {
    let test_dir = TestDir::new();
    let server = stub(&["--train", "40", "--overload-every", "16"]);
    let mut config = small_config(&server.url(), RowNames::TaskIds, 40, 3, &FIELDS[..1]);
    config.run.output_dir = test_dir.path().join("runs");
    config.run.run_id = Some("e2e-overload".into());
    config.run.outage_retry_ms = 1;
    config.cache.mode = CacheMode::Off;
    config.container.overload_retries = 0;
    config.gepa.pipeline.workers.rollout = 8;
    config.gepa.pipeline.adaptive_rollout_concurrency.initial = 8;
    let outcome = execute_to_end(config.clone()).unwrap();
    assert_eq!(outcome.end.as_str(), "completed", "{:?}", outcome.end.error());
    let events = RunFiles::new(&config.run.output_dir, "e2e-overload").events().unwrap();
    let adjusted = events.iter().find_map(|event| match event {
        Event::ConcurrencyAdjusted(adjusted) => Some(adjusted),
        _ => None,
    });
    let adjusted = adjusted.unwrap();
    assert_eq!((adjusted.old_limit, adjusted.new_limit, adjusted.status), (8, 4, Some(429)));
    assert!(events.iter().any(|event| matches!(event, Event::RunWaiting(_))));
    assert_eq!(outcome.totals.counts.rollouts_failed, 0);
}

#[test]
fn estimates_that_were_too_low_are_reported_in_the_manifest_with_the_amount_spent() {
    let test_dir = TestDir::new();
    let usage = r#"{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2,"cost_usd":0.01}"#;
    let server = stub(&["--usage", usage]);
    let mut config = small_config(&server.url(), RowNames::TaskIds, 6, 3, &FIELDS[..1]);
    config.cache.mode = CacheMode::Off;
    config.gepa.max_cost_usd = 0.05;
    config.gepa.rollout_estimated_cost_usd = Some(0.002);
    config.gepa.proposer_estimated_cost_usd = Some(0.001);
    write_config(&test_dir.config(), &config).unwrap();
    let files = test_dir.finish("e2e-low", &["--workers", "4"]);
    let manifest: Value = serde_json::from_str(&files.read("result_manifest.json").unwrap()).unwrap();
    let (shortfall, rollouts) = (&manifest["shortfalls"][0], &manifest["rollouts"]);
    let sent = rollouts["train"].as_u64().unwrap() + rollouts["heldout"].as_u64().unwrap();
    let spent = manifest["cost_usd"].as_f64().unwrap();
    assert!(spent > 0.05 && (spent - 0.01 * sent as f64).abs() < 1e-6, "{manifest}");
    assert!((shortfall["spent"].as_f64().unwrap() - spent).abs() < 1e-6, "{manifest}");
    assert_eq!((&shortfall["limit"], &shortfall["kind"]), (&0.05.into(), &"max_cost_usd".into()), "{manifest}");
}

#[test]
fn rows_that_fail_within_the_tolerance_do_not_end_the_run() {
    // Every fourth execution fails, and its row succeeds at the second attempt.
    let test_dir = TestDir::new();
    let server = stub(&["--train", "40", "--heldout", "4", "--fail-every", "4"]);
    let mut config = small_config(&server.url(), RowNames::TaskIds, 40, 4, &FIELDS[..1]);
    config.run.output_dir = test_dir.path().join("runs");
    config.run.run_id = Some("e2e-tolerant".into());
    config.cache.mode = CacheMode::Off;
    config.gepa.max_total_rollouts = 200;
    config.proposer.max_attempts = 1;
    let outcome = execute_to_end(config.clone()).unwrap();
    assert_eq!(outcome.end.as_str(), "completed", "{:?}", outcome.end.error());
    assert!(outcome.totals.counts.rollouts_failed >= 8);
    // A server error of the task is no overload.
    assert!(
        !RunFiles::new(&config.run.output_dir, "e2e-tolerant").read("events.jsonl").unwrap().contains("concurrency")
    );
}

#[test]
fn the_time_that_is_set_aside_is_used_for_the_heldout_evaluation() {
    let test_dir = TestDir::new();
    let server = stub(&["--latency-ms", "20"]);
    let mut config = small_config(&server.url(), RowNames::TaskIds, 6, 3, &FIELDS[..1]);
    config.cache.mode = CacheMode::Off;
    config.gepa.max_generations = Some(10_000);
    config.gepa.max_total_rollouts = 100_000;
    config.gepa.skip_perfect_score = false;
    config.proposer.timeout_seconds = 1;
    config.gepa.max_time_seconds = Some(4);
    config.gepa.rollout_estimated_wall_seconds = Some(0.5);
    config.gepa.pipeline.mode = PipelineMode::SyncSerial;
    write_config(&test_dir.config(), &config).unwrap();
    let files = test_dir.finish("e2e-timed", &["--workers", "2"]);
    let run = finished(&files);
    assert_eq!(run.stopped_by.kind, StopKind::MaxTime);
    assert_eq!(run.scores.iter().filter(|score| score.split == "heldout").count(), 2, "{:?}", run.scores);
}

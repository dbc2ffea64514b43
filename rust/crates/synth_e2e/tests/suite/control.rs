//! Control requests, exhausted resources and failures: each run ends in bounded time, keeps the answers of sent calls, and
//! can be resumed where possible.

use crate::harness;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::harness::run_thread::{
    bill, count, execute_to_end, is_abandoned, is_scored, is_withdrawn, on_event, run_with_control, start, world,
};
use crate::harness::{TestDir, assert_consistent, stub};
use serde_json::Value;
use synth_e2e::run_files::COMPARED_FILES;
use synth_e2e::stub::FIELDS;
use synth_e2e::wait::FOREVER;
use synth_e2e::{RowNames, ScriptedProposer, small_config};
use synth_gepa::GepaEngine;
use synth_optimizer_core::config::gepa::SubmissionMode;
use synth_optimizer_core::config::sections::CacheMode;
use synth_optimizer_core::model::answer::FailureClass;
use synth_optimizer_core::model::control::ControlRequest;
use synth_optimizer_core::model::error::ErrorCode;
use synth_optimizer_core::model::event::Event;
use synth_optimizer_core::model::event_fields::StopKind;
use synth_optimizer_platform::artifacts::RunPaths;
use synth_optimizer_platform::runtime::{HookPoint, Hooks, RunControl, RunSpec, block_on, execute_watched};
use synth_optimizer_platform::workspace::StoredEvent;

#[test]
fn a_cancel_ends_slow_rollouts_immediately() {
    for mode in [SubmissionMode::Sync, SubmissionMode::Async] {
        let gate = tempfile::tempdir().unwrap();
        let gate = gate.path().join("open");
        let (_stub, test_dir, mut config) = world(&["--gate", gate.to_str().unwrap()]);
        config.gepa.rollout_submission_mode = mode;
        let mut next = config.clone();
        let wanted: fn(&Event) -> bool = |event| matches!(event, Event::RolloutsRequested(_));
        let signal = ControlRequest::cancel("enough");
        let outcome = run_with_control(&test_dir, config, ScriptedProposer::default(), wanted, signal).unwrap();
        assert_eq!(outcome.end.as_str(), "cancelled");
        let files = test_dir.files("steered");
        assert_consistent(&files);
        let sent = bill(&test_dir).len();
        assert_eq!(count(&files, is_scored), 0, "the container has not answered yet");
        assert_eq!((count(&files, is_abandoned), count(&files, is_withdrawn)), (sent, 12 - sent));
        let manifest: Value = serde_json::from_str(&files.read("result_manifest.json").unwrap()).unwrap();
        assert_eq!(manifest["status"], "cancelled");
        // While another run completes on the same container, this one sends nothing more.
        std::fs::write(&gate, "").unwrap();
        next.run.run_id = Some("next".into());
        execute_to_end(next).unwrap();
        let later: BTreeSet<String> = bill(&test_dir).split_off(sent).into_iter().collect();
        assert_eq!(later, test_dir.files("next").ledger().unwrap().live, "something was sent after the end");
    }
}

#[test]
fn a_cancel_ends_a_proposer_turn() {
    let (_stub, test_dir, config) = world(&[]);
    let proposer = ScriptedProposer { latency: FOREVER, ..ScriptedProposer::default() };
    let wanted: fn(&Event) -> bool = |event| matches!(event, Event::ProposerStarted(_));
    let outcome = run_with_control(&test_dir, config, proposer, wanted, ControlRequest::cancel("enough")).unwrap();
    assert_eq!(outcome.end.as_str(), "cancelled");
    assert_consistent(&test_dir.files("steered"));
}

#[test]
fn a_proposer_that_does_not_answer_times_out() {
    let (_stub, test_dir, mut config) = world(&[]);
    config.proposer.timeout_seconds = 1;
    config.proposer.max_attempts = 1;
    config.proposer.max_consecutive_invalid = 1;
    let proposer = ScriptedProposer { latency: FOREVER, ..ScriptedProposer::default() };
    let outcome = start(config, proposer, Hooks::default()).end().unwrap();
    assert_eq!((outcome.end.as_str(), outcome.end.error().unwrap().code), ("failed", ErrorCode::Proposer));
    let files = test_dir.files("steered");
    let timeouts: fn(&Event) -> bool =
        |event| matches!(event, Event::ProposerFailed(failed) if failed.class == FailureClass::Timeout);
    assert_eq!(count(&files, timeouts), 1);
    assert_consistent(&files);
}

#[test]
fn a_stop_withdraws_waiting_rollouts_and_evaluates_the_best() {
    let (_stub, test_dir, mut config) = world(&["--latency-ms", "40"]);
    config.gepa.pipeline.workers.rollout = 2;
    config.gepa.max_generations = Some(50);
    // During a minibatch evaluation: some rollouts are in flight, others wait for a worker.
    let wanted: fn(&Event) -> bool =
        |event| matches!(event, Event::CandidateRegistered(one) if one.generation.is_some());
    let signal = ControlRequest::parse("stop", "enough").unwrap();
    let outcome = run_with_control(&test_dir, config, ScriptedProposer::default(), wanted, signal).unwrap();
    assert_eq!(outcome.end.as_str(), "completed");
    let files = test_dir.files("steered");
    let finished = harness::finished(&files);
    assert_eq!(finished.stopped_by.kind, StopKind::External);
    assert!(count(&files, is_withdrawn) > 0, "nothing waited");
    assert_eq!(bill(&test_dir).len(), count(&files, is_scored), "withdrawn rollouts were sent");
    let heldout: fn(&Event) -> bool = |event| matches!(event, Event::HeldoutCompleted(_));
    assert!(count(&files, heldout) > 0);
    assert_consistent(&files);
}

#[test]
fn a_stop_during_the_held_out_evaluation_changes_nothing() {
    let (_stub, test_dir, mut config) = world(&["--latency-ms", "20"]);
    config.gepa.pipeline.workers.rollout = 1;
    let wanted: fn(&Event) -> bool = |event| matches!(event, Event::HeldoutStarted(_));
    let signal = ControlRequest::parse("stop", "late").unwrap();
    let outcome = run_with_control(&test_dir, config, ScriptedProposer::default(), wanted, signal).unwrap();
    assert_eq!(outcome.end.as_str(), "completed");
    let files = test_dir.files("steered");
    assert_eq!(count(&files, is_withdrawn), 0);
    assert!(harness::finished(&files).heldout_gain.is_some());
}

#[test]
fn a_resumed_run_equals_an_uninterrupted_one() {
    for (mode, memory) in [(SubmissionMode::Sync, "remember"), (SubmissionMode::Async, "forget")] {
        let (_stub, test_dir, mut config) = world(&["--latency-ms", "30", "--memory", memory]);
        config.gepa.rollout_submission_mode = mode;
        config.gepa.pipeline.workers.rollout = 4;
        let mut clean = config.clone();
        clean.run.run_id = Some("clean".into());
        execute_to_end(clean).unwrap();
        let before = bill(&test_dir).len();
        // Without a grace period, the calls in flight are abandoned.
        config.run.interrupt_grace_seconds = 0;
        let wanted: fn(&Event) -> bool = |event| matches!(event, Event::ProposerCompleted(_));
        let signal = ControlRequest::interrupt("away");
        let outcome = run_with_control(&test_dir, config.clone(), ScriptedProposer::default(), wanted, signal).unwrap();
        assert_eq!(outcome.end.as_str(), "interrupted");
        let files = test_dir.files("steered");
        assert_consistent(&files);
        assert_eq!(execute_to_end(config.clone()).unwrap().end.as_str(), "completed");
        for name in COMPARED_FILES {
            assert_eq!(files.comparable(name).unwrap(), test_dir.files("clean").comparable(name).unwrap(), "{name}");
        }
        let ours = bill(&test_dir).split_off(before);
        assert_eq!(ours.len(), ours.iter().collect::<BTreeSet<_>>().len(), "a rollout was run twice");
        assert_consistent(&files);
        // A completed run returns the same outcome again and writes nothing new.
        let manifest = files.read("result_manifest.json").unwrap();
        assert_eq!(execute_to_end(config).unwrap().end.as_str(), "completed");
        assert_eq!(files.read("result_manifest.json").unwrap(), manifest);
    }
}

#[test]
fn the_report_of_a_paused_run_has_its_state() {
    let (_stub, test_dir, config) = world(&["--latency-ms", "30"]);
    let wanted: fn(&Event) -> bool = |event| matches!(event, Event::SeedEvaluated(_));
    let pause = ControlRequest::pause("later");
    let outcome = run_with_control(&test_dir, config, ScriptedProposer::default(), wanted, pause).unwrap();
    assert_eq!(outcome.end.as_str(), "paused");
    let report = test_dir.files("steered").read("report.html").unwrap();
    assert!(report.contains("badge-wait\">paused"), "{report}");
}

#[test]
fn a_resumed_run_that_cannot_be_prepared_says_why_in_its_manifest_and_report() {
    let (mut stub, test_dir, mut config) = world(&["--latency-ms", "30"]);
    let wanted: fn(&Event) -> bool = |event| matches!(event, Event::SeedEvaluated(_));
    let signal = ControlRequest::interrupt("away");
    run_with_control(&test_dir, config.clone(), ScriptedProposer::default(), wanted, signal).unwrap();
    stub.stop();
    config.run.outage_patience_seconds = 0;
    let error = execute_to_end(config).unwrap_err();
    let files = test_dir.files("steered");
    let manifest: Value = serde_json::from_str(&files.read("result_manifest.json").unwrap()).unwrap();
    assert_eq!(
        (manifest["status"].as_str(), manifest["failure"]["message"].as_str()),
        (Some("interrupted"), Some(error.message.as_str()))
    );
    assert!(files.read("report.html").unwrap().contains("No result: "));
}

#[test]
fn a_full_cache_interrupts_the_run_until_there_is_space() {
    let test_dir = TestDir::new();
    let bill_file = test_dir.path().join("bill");
    let stub = stub(&["--train", "150", "--heldout", "6", "--reply-bytes", "4000", "--bill", bill_file.as_str()]);
    let mut config = small_config(&stub.url(), RowNames::TaskIds, 150, 6, &FIELDS[..1]);
    config.run.output_dir = test_dir.path().join("runs");
    config.run.run_id = Some("steered".into());
    config.cache.max_mb = 1;
    config.gepa.max_generations = Some(20);
    config.gepa.minibatch_size = Some(20);
    let error = execute_to_end(config.clone()).unwrap_err();
    assert_eq!(error.code, ErrorCode::CacheFull);
    let files = test_dir.files("steered");
    assert_consistent(&files);
    let manifest: Value = serde_json::from_str(&files.read("result_manifest.json").unwrap()).unwrap();
    assert_eq!(manifest["failure"]["error_code"], ErrorCode::CacheFull.as_str());
    config.cache.max_mb = 100;
    assert_eq!(execute_to_end(config).unwrap().end.as_str(), "completed");
    let bill = bill(&test_dir);
    assert_eq!(bill.len(), bill.iter().collect::<BTreeSet<_>>().len(), "a rollout was run twice");
    assert_consistent(&files);
}

#[test]
fn a_disk_limit_interrupts_the_run_until_it_is_raised() {
    let (_stub, test_dir, mut config) = world(&["--latency-ms", "60"]);
    config.gepa.pipeline.workers.rollout = 1;
    config.disk_budget.soft_limit_gb = 0.000_2;
    config.disk_budget.hard_limit_gb = 0.000_3;
    let error = execute_to_end(config.clone()).unwrap_err();
    assert_eq!(error.code, ErrorCode::DiskBudget);
    config.disk_budget.hard_limit_gb = 1.0;
    assert_eq!(execute_to_end(config).unwrap().end.as_str(), "completed", "the soft limit is for new runs");
    assert_consistent(&test_dir.files("steered"));
}

#[test]
fn a_readonly_miss_names_the_call_and_the_run_is_resumable() {
    let (mut stub, test_dir, mut config) = world(&[]);
    config.cache.path = Some(test_dir.path().join("cache.sqlite"));
    config.cache.namespace = Some("shared".into());
    config.cache.mode = CacheMode::Readwrite;
    config.gepa.max_generations = Some(1);
    config.run.run_id = Some("recorded".into());
    execute_to_end(config.clone()).unwrap();
    stub.stop();
    config.run.run_id = Some("steered".into());
    config.cache.mode = CacheMode::Readonly;
    config.gepa.max_generations = Some(3);
    let error = execute_to_end(config.clone()).unwrap_err();
    assert_eq!(error.code, ErrorCode::CacheMiss);
    assert!(error.message.contains("proposer") || error.message.contains("rollout"), "{error}");
    assert_consistent(&test_dir.files("steered"));
}

#[test]
fn a_changed_search_config_is_refused_with_the_differences() {
    let (_stub, _place, mut config) = world(&[]);
    execute_to_end(config.clone()).unwrap();
    config.gepa.minibatch_size = Some(2);
    config.run.seed = 8;
    config.gepa.pipeline.workers.rollout = 3;
    let error = execute_to_end(config).unwrap_err();
    assert_eq!(error.code, ErrorCode::Config);
    assert!(error.message.contains("gepa.minibatch_size: 3 -> 2"), "{error}");
    assert!(error.message.contains("run.seed: 7 -> 8"), "{error}");
    assert!(!error.message.contains("workers"), "{error}");
}

#[test]
fn only_one_process_executes_a_run() {
    let (_stub, test_dir, config) = world(&["--latency-ms", "200"]);
    let second = config.clone();
    let (send, receive) = std::sync::mpsc::channel();
    let wanted: fn(&Event) -> bool = |event| matches!(event, Event::RolloutsRequested(_));
    let hooks =
        on_event(&test_dir, "steered", wanted, move || send.send(execute_to_end(second.clone()).unwrap_err()).unwrap());
    assert_eq!(start(config, ScriptedProposer::default(), hooks).end().unwrap().end.as_str(), "completed");
    let error = receive.recv().unwrap();
    assert!(error.message.contains(&format!("pid {}", std::process::id())), "{error}");
}

#[test]
fn subscribers_receive_every_event_in_order_and_the_live_workspace_is_consistent() {
    let (_stub, test_dir, config) = world(&["--latency-ms", "2"]);
    let (files, checks) = (test_dir.files("steered"), Arc::new(AtomicU64::new(0)));
    let counted = Arc::clone(&checks);
    let hooks = Hooks::new(move |hook_point| {
        if hook_point == HookPoint::AfterFeed && counted.fetch_add(1, Ordering::SeqCst).is_multiple_of(8) {
            assert_consistent(&files);
        }
    });
    let running = start(config, ScriptedProposer::default(), hooks);
    let mut feed = running.control.subscribe();
    running.end().unwrap();
    let mut seen = Vec::new();
    while let Ok(stored) = feed.try_recv() {
        seen.push(stored.sequence);
    }
    let logged = test_dir.files("steered").events().unwrap().len() as u64;
    assert_eq!(seen, (logged - seen.len() as u64..logged).collect::<Vec<_>>());
    assert!(seen.len() as u64 > logged / 2 && checks.load(Ordering::SeqCst) > 8);
}

#[test]
fn a_listener_that_falls_behind_reads_what_it_missed_from_the_log() {
    let (_stub, test_dir, config) = world(&[]);
    let paths = RunPaths::new(&config.run.output_dir, "steered").unwrap();
    // Almost every commit stores more events than this broadcast holds.
    let (control, receiver) = RunControl::new(1);
    let spec = RunSpec { proposer: Some(Arc::new(ScriptedProposer::default())), ..RunSpec::new(config) };
    let seen = Arc::new(Mutex::new(Vec::new()));
    let collected = Arc::clone(&seen);
    let work = || async move {
        let on_event = |stored: &StoredEvent| collected.lock().unwrap().push(stored.clone());
        execute_watched::<GepaEngine>(spec, (&control, receiver), &paths, on_event, |_| {}).await
    };
    block_on("test", work).unwrap();
    let (seen, logged) = (seen.lock().unwrap(), test_dir.files("steered").events().unwrap());
    let first = seen[0].sequence as usize;
    assert!(first < logged.len() / 2, "{first}");
    assert_eq!(seen.iter().map(|stored| stored.event.clone()).collect::<Vec<_>>(), logged[first..]);
}

#[test]
fn a_managed_container_is_started_and_stopped_and_its_exit_interrupts_the_run() {
    let (_stub, test_dir, mut config) = world(&[]);
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let bill_file = test_dir.path().join("own-bill").to_string();
    let flags =
        ["--port", &port.to_string(), "--train", "12", "--heldout", "6", "--latency-ms", "50", "--bill", &bill_file];
    config.container.url = format!("http://127.0.0.1:{port}");
    config.container.command =
        [&[env!("CARGO_BIN_EXE_stub_container")], &flags[..]].concat().into_iter().map(str::to_owned).collect();
    config.container.health_interval_ms = 20;
    let lease = test_dir.files("steered").path("container.lease.json");
    let wanted: fn(&Event) -> bool = |event| matches!(event, Event::SeedEvaluated(_));
    let killed = on_event(&test_dir, "steered", wanted, move || {
        let lease: Value = serde_json::from_str(&std::fs::read_to_string(&lease).unwrap()).unwrap();
        let pid = rustix::process::Pid::from_raw(i32::try_from(lease["pid"].as_i64().unwrap()).unwrap()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    });
    let error = start(config.clone(), ScriptedProposer::default(), killed).end().unwrap_err();
    assert_eq!(error.code, ErrorCode::Container);
    assert!(error.message.contains("the container exited"), "{error}");
    assert_consistent(&test_dir.files("steered"));
    // The same command starts the container again and resumes the run.
    assert_eq!(execute_to_end(config).unwrap().end.as_str(), "completed");
    assert!(std::net::TcpStream::connect(("127.0.0.1", port)).is_err(), "the container still listens");
}

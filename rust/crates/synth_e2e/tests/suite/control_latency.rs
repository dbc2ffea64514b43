//! Control requests take effect immediately: pause, cancel and stop do not wait for calls in flight. Manually stepped runs
//! have the same results as continuous ones.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::harness::run_thread::{
    RunThread, bill, count, execute_to_end, is_abandoned, is_scored, is_withdrawn, start, start_spec, world,
};
use crate::harness::{assert_consistent, finished};
use synth_e2e::run_files::COMPARED_FILES;
use synth_e2e::wait::{FOREVER, WAIT_TIMEOUT, wait_until};
use synth_e2e::{RunFiles, ScriptedProposer};
use synth_optimizer_core::config::Config;
use synth_optimizer_core::config::gepa::SubmissionMode;
use synth_optimizer_core::model::answer::FailureClass;
use synth_optimizer_core::model::control::ControlRequest;
use synth_optimizer_core::model::event::Event;
use synth_optimizer_core::model::event_fields::StopKind;
use synth_optimizer_core::model::lifecycle::RunState;
use synth_optimizer_platform::runtime::{Hooks, RunSpec, StepReport};

fn slow_proposer() -> ScriptedProposer {
    ScriptedProposer { latency: FOREVER, ..ScriptedProposer::default() }
}

fn has(files: &RunFiles, wanted: fn(&Event) -> bool) -> bool {
    files.events().is_ok_and(|events| events.iter().any(wanted))
}

/// The events before the held-out evaluation.
fn before_heldout(files: &RunFiles) -> Vec<Event> {
    files.events().unwrap().into_iter().take_while(|event| !matches!(event, Event::HeldoutStarted(_))).collect()
}

fn is_turn(event: &Event) -> bool {
    matches!(event, Event::ProposerStarted(_))
}

fn end_after(running: RunThread, signal: ControlRequest) -> &'static str {
    assert!(running.control.send(signal));
    running.end().unwrap().end.as_str()
}

#[test]
fn a_pause_and_a_cancel_do_not_wait_for_a_batch() {
    for mode in [SubmissionMode::Sync, SubmissionMode::Async] {
        for (signal, expected) in
            [(ControlRequest::pause("later"), "paused"), (ControlRequest::cancel("enough"), "cancelled")]
        {
            let (_stub, test_dir, mut config) = world(&["--hang"]);
            config.gepa.rollout_submission_mode = mode;
            let running = start(config, ScriptedProposer::default(), Hooks::default());
            wait_until("a rollout is in flight", || !bill(&test_dir).is_empty());
            assert_eq!(end_after(running, signal), expected);
            let files = test_dir.files("steered");
            assert_eq!(count(&files, is_scored), 0, "the container never answers");
            assert_consistent(&files);
        }
    }
}

#[test]
fn a_pause_and_a_cancel_do_not_wait_for_a_turn() {
    for (signal, expected) in
        [(ControlRequest::pause("later"), "paused"), (ControlRequest::cancel("enough"), "cancelled")]
    {
        let (_stub, test_dir, config) = world(&[]);
        let files = test_dir.files("steered");
        let running = start(config, slow_proposer(), Hooks::default());
        wait_until("a turn is in flight", || has(&files, is_turn));
        assert_eq!(end_after(running, signal), expected);
        assert_consistent(&files);
    }
}

#[test]
fn a_stop_or_cancel_during_the_grace_of_an_interrupt_takes_effect() {
    let stopped: fn(&Event) -> bool = |event| matches!(event, Event::StopDecided(_));
    let cancelled: fn(&Event) -> bool = |event| matches!(event, Event::RunCancelled(_));
    for (signal, expected, wanted) in [
        (ControlRequest::parse("stop", "enough").unwrap(), "interrupted", stopped),
        (ControlRequest::cancel("enough").with_grace(Duration::ZERO), "cancelled", cancelled),
    ] {
        let (_stub, test_dir, config) = world(&["--hang"]);
        let running = start(config, ScriptedProposer::default(), Hooks::default());
        wait_until("a rollout is in flight", || !bill(&test_dir).is_empty());
        assert!(running.control.send(ControlRequest::interrupt("away").with_grace(FOREVER)));
        assert_eq!(end_after(running, signal), expected);
        let files = test_dir.files("steered");
        assert_eq!(count(&files, wanted), 1);
        assert_consistent(&files);
    }
}

#[test]
fn a_run_paused_in_a_batch_and_in_a_turn_equals_an_uninterrupted_one() {
    let (_stub, test_dir, mut config) = world(&["--latency-ms", "200", "--memory", "remember"]);
    config.gepa.max_generations = Some(1);
    let mut clean = config.clone();
    clean.run.run_id = Some("clean".into());
    execute_to_end(clean).unwrap();
    let (settled, files) = (bill(&test_dir).len(), test_dir.files("steered"));
    let running = start(config.clone(), ScriptedProposer::default(), Hooks::default());
    wait_until("a batch is in flight", || bill(&test_dir).len() > settled + 1);
    assert_eq!(end_after(running, ControlRequest::pause("later")), "paused");
    let running = start(config.clone(), slow_proposer(), Hooks::default());
    wait_until("a turn is in flight", || has(&files, is_turn));
    assert_eq!(end_after(running, ControlRequest::pause("later")), "paused");
    assert_eq!(execute_to_end(config).unwrap().end.as_str(), "completed");
    for name in COMPARED_FILES {
        assert_eq!(files.comparable(name).unwrap(), test_dir.files("clean").comparable(name).unwrap(), "{name}");
    }
    let ours = bill(&test_dir).split_off(settled);
    assert_eq!(ours.len(), ours.iter().collect::<BTreeSet<_>>().len(), "a rollout was run twice");
    assert_consistent(&files);
}

#[test]
fn a_stop_aborts_a_turn_and_starts_the_held_out_evaluation() {
    let (_stub, test_dir, config) = world(&[]);
    let files = test_dir.files("steered");
    let running = start(config, slow_proposer(), Hooks::default());
    wait_until("a turn is in flight", || has(&files, is_turn));
    assert!(running.control.send(ControlRequest::parse("stop", "enough").unwrap()));
    wait_until("the held-out evaluation has started", || {
        has(&files, |event| matches!(event, Event::HeldoutStarted(_)))
    });
    assert_eq!(running.end().unwrap().end.as_str(), "completed");
    assert_eq!(finished(&files).stopped_by.kind, StopKind::External);
    let broken_off: fn(&Event) -> bool =
        |event| matches!(event, Event::ProposerFailed(failed) if failed.class == FailureClass::Abandoned);
    assert_eq!(count(&files, broken_off), 1);
    assert_consistent(&files);
}

#[test]
fn a_stop_during_a_batch_is_logged_immediately_and_waits_for_sent_rollouts() {
    let gate = tempfile::tempdir().unwrap();
    let gate = gate.path().join("open");
    // The initial evaluation is free: without it there is no result.
    let (_stub, test_dir, mut config) = world(&["--gate", gate.to_str().unwrap(), "--free", "12"]);
    config.gepa.pipeline.workers.rollout = 2;
    let files = test_dir.files("steered");
    let running = start(config, ScriptedProposer::default(), Hooks::default());
    let sent = 14;
    wait_until("a batch is in flight", || bill(&test_dir).len() == sent);
    assert!(running.control.send(ControlRequest::parse("stop", "enough").unwrap()));
    wait_until("the stop is in the log", || has(&files, |event| matches!(event, Event::StopDecided(_))));
    assert_eq!(count(&files, is_scored), 12, "the container still has the batch");
    std::fs::write(&gate, "").unwrap();
    assert_eq!(running.end().unwrap().end.as_str(), "completed");
    let before = before_heldout(&files);
    let counted = |wanted: fn(&Event) -> bool| before.iter().filter(|event| wanted(event)).count();
    assert_eq!((counted(is_scored), counted(is_abandoned)), (sent, 0), "every sent rollout has its score");
    assert!(counted(is_withdrawn) > 0);
    assert_consistent(&files);
}

fn start_stepped(config: Config) -> RunThread {
    let mut spec = RunSpec::new(config);
    spec.proposer = Some(Arc::new(ScriptedProposer::default()));
    spec.stepping = true;
    start_spec(spec)
}

fn step(running: &RunThread) -> Option<StepReport> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(WAIT_TIMEOUT, running.control.step()).await.unwrap() })
}

#[test]
fn a_stepped_run_has_the_same_log_as_a_continuous_one() {
    for workers in [1, 8] {
        let (_stub, test_dir, mut config) = world(&["--latency-ms", "2"]);
        config.gepa.pipeline.workers.rollout = workers;
        let mut free = config.clone();
        free.run.run_id = Some("continuous".into());
        execute_to_end(free).unwrap();
        let settled = bill(&test_dir).len();
        let running = start_stepped(config);
        let (files, mut steps) = (test_dir.files("steered"), 0);
        let (mut last, mut sent) = (None, settled);
        loop {
            assert_eq!(bill(&test_dir).len(), sent, "something was sent without a step");
            let Some(report) = step(&running) else { break };
            steps += 1;
            sent = bill(&test_dir).len();
            assert!(report.last_sequence > last, "a step adds events to the log");
            last = report.last_sequence;
            if report.has_ended {
                assert_eq!(report.state, Some(RunState::Completed));
                break;
            }
            assert_eq!((report.steps_done, report.is_waiting), (steps, true));
            assert_eq!(files.events().unwrap().len() as u64, report.last_sequence.unwrap() + 1);
            assert_consistent(&files);
        }
        assert!(steps > 4, "{steps}");
        assert_eq!(running.end().unwrap().end.as_str(), "completed");
        for name in COMPARED_FILES {
            assert_eq!(
                files.comparable(name).unwrap(),
                test_dir.files("continuous").comparable(name).unwrap(),
                "{name}"
            );
        }
        assert_eq!(bill(&test_dir).len() - settled, settled);
    }
}

#[test]
fn a_stepped_run_can_be_stopped_cancelled_and_interrupted() {
    for (signal, expected) in [
        (ControlRequest::pause("later"), "paused"),
        (ControlRequest::cancel("enough"), "cancelled"),
        (ControlRequest::parse("stop", "enough").unwrap(), "completed"),
    ] {
        let (_stub, test_dir, config) = world(&[]);
        let running = start_stepped(config.clone());
        let report = step(&running).unwrap();
        assert!(report.is_waiting && report.steps_done == 1, "{report:?}");
        let (files, sent) = (test_dir.files("steered"), bill(&test_dir).len());
        if expected == "completed" {
            assert!(running.control.send(signal));
            wait_until("the stop is in the log", || has(&files, |event| matches!(event, Event::StopDecided(_))));
            assert_eq!(bill(&test_dir).len(), sent);
            while step(&running).is_some_and(|report| !report.has_ended) {}
            assert_eq!(running.end().unwrap().end.as_str(), expected);
            assert_eq!(finished(&files).stopped_by.kind, StopKind::External);
        } else {
            assert_eq!(end_after(running, signal), expected);
            assert_eq!(bill(&test_dir).len(), sent);
        }
        if expected == "interrupted" {
            // A stepped run can be resumed in continuous mode.
            assert_eq!(execute_to_end(config).unwrap().end.as_str(), "completed");
        }
        assert_consistent(&files);
    }
}

//! Runs that obey at once: pause, cancel and stop wait for nothing that is under way, and held runs that go step by step
//! still come to the same end.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::harness::steered::{
    Running, begin, bill, count, is_abandoned, is_scored, is_withdrawn, start, whole, world,
};
use crate::harness::{assert_sound, finished};
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

fn obeys(running: Running, signal: ControlRequest) -> &'static str {
    assert!(running.control.send(signal));
    running.end().unwrap().end.as_str()
}

#[test]
fn a_pause_and_a_cancel_do_not_wait_for_a_batch() {
    for mode in [SubmissionMode::Sync, SubmissionMode::Async] {
        for (signal, expected) in
            [(ControlRequest::pause("later"), "interrupted"), (ControlRequest::cancel("enough"), "cancelled")]
        {
            let (_stub, place, mut config) = world(&["--hang"]);
            config.gepa.rollout_submission_mode = mode;
            let running = start(config, ScriptedProposer::default(), Hooks::default());
            wait_until("a rollout is under way", || !bill(&place).is_empty());
            assert_eq!(obeys(running, signal), expected);
            let files = place.files("steered");
            assert_eq!(count(&files, is_scored), 0, "the container never answers");
            assert_sound(&files);
        }
    }
}

#[test]
fn a_pause_and_a_cancel_do_not_wait_for_a_turn() {
    for (signal, expected) in
        [(ControlRequest::pause("later"), "interrupted"), (ControlRequest::cancel("enough"), "cancelled")]
    {
        let (_stub, place, config) = world(&[]);
        let files = place.files("steered");
        let running = start(config, slow_proposer(), Hooks::default());
        wait_until("a turn is under way", || has(&files, is_turn));
        assert_eq!(obeys(running, signal), expected);
        assert_sound(&files);
    }
}

#[test]
fn a_stop_or_a_cancel_during_the_grace_of_an_interrupt_is_obeyed() {
    let stopped: fn(&Event) -> bool = |event| matches!(event, Event::StopDecided(_));
    let cancelled: fn(&Event) -> bool = |event| matches!(event, Event::RunCancelled(_));
    for (signal, expected, wanted) in [
        (ControlRequest::stop("enough"), "interrupted", stopped),
        (ControlRequest::cancel("enough").with_grace(Duration::ZERO), "cancelled", cancelled),
    ] {
        let (_stub, place, config) = world(&["--hang"]);
        let running = start(config, ScriptedProposer::default(), Hooks::default());
        wait_until("a rollout is under way", || !bill(&place).is_empty());
        assert!(running.control.send(ControlRequest::interrupt("away").with_grace(FOREVER)));
        assert_eq!(obeys(running, signal), expected);
        let files = place.files("steered");
        assert_eq!(count(&files, wanted), 1);
        assert_sound(&files);
    }
}

#[test]
fn a_run_that_was_paused_in_a_batch_and_in_a_turn_ends_as_if_nothing_had_happened() {
    let (_stub, place, mut config) = world(&["--latency-ms", "200", "--memory", "remember"]);
    config.gepa.max_generations = 1;
    let mut clean = config.clone();
    clean.run.run_id = Some("clean".into());
    whole(clean).unwrap();
    let (settled, files) = (bill(&place).len(), place.files("steered"));
    let running = start(config.clone(), ScriptedProposer::default(), Hooks::default());
    wait_until("a batch is under way", || bill(&place).len() > settled + 1);
    assert_eq!(obeys(running, ControlRequest::pause("later")), "interrupted");
    let running = start(config.clone(), slow_proposer(), Hooks::default());
    wait_until("a turn is under way", || has(&files, is_turn));
    assert_eq!(obeys(running, ControlRequest::pause("later")), "interrupted");
    assert_eq!(whole(config).unwrap().end.as_str(), "completed");
    for name in COMPARED_FILES {
        assert_eq!(files.comparable(name).unwrap(), place.files("clean").comparable(name).unwrap(), "{name}");
    }
    let ours = bill(&place).split_off(settled);
    assert_eq!(ours.len(), ours.iter().collect::<BTreeSet<_>>().len(), "a rollout was run twice");
    assert_sound(&files);
}

#[test]
fn a_stop_breaks_a_turn_off_and_begins_the_held_out_evaluation() {
    let (_stub, place, config) = world(&[]);
    let files = place.files("steered");
    let running = start(config, slow_proposer(), Hooks::default());
    wait_until("a turn is under way", || has(&files, is_turn));
    assert!(running.control.send(ControlRequest::stop("enough")));
    wait_until("the held-out evaluation has begun", || has(&files, |event| matches!(event, Event::HeldoutStarted(_))));
    assert_eq!(running.end().unwrap().end.as_str(), "completed");
    assert_eq!(finished(&files).stopped_by.kind, StopKind::External);
    let broken_off: fn(&Event) -> bool =
        |event| matches!(event, Event::ProposerFailed(failed) if failed.class == FailureClass::Abandoned);
    assert_eq!(count(&files, broken_off), 1);
    assert_sound(&files);
}

#[test]
fn a_stop_during_a_batch_is_told_at_once_and_waits_for_what_was_sent() {
    let gate = tempfile::tempdir().unwrap();
    let gate = gate.path().join("open");
    let (_stub, place, mut config) = world(&["--gate", gate.to_str().unwrap(), "--free", "1"]);
    config.gepa.pipeline.workers.rollout = 2;
    let files = place.files("steered");
    let running = start(config, ScriptedProposer::default(), Hooks::default());
    // The first one is sent alone, and then as many as there are workers.
    let sent = 3;
    wait_until("a batch is under way", || bill(&place).len() == sent);
    assert!(running.control.send(ControlRequest::stop("enough")));
    wait_until("the stop is told", || has(&files, |event| matches!(event, Event::StopDecided(_))));
    assert_eq!(count(&files, is_scored), 1, "the container still has the batch");
    std::fs::write(&gate, "").unwrap();
    assert_eq!(running.end().unwrap().end.as_str(), "completed");
    let before = before_heldout(&files);
    let counted = |wanted: fn(&Event) -> bool| before.iter().filter(|event| wanted(event)).count();
    assert_eq!((counted(is_scored), counted(is_abandoned)), (sent, 0), "what was sent is paid for");
    assert!(counted(is_withdrawn) > 0);
    assert_sound(&files);
}

fn held(config: Config) -> Running {
    let mut request = RunSpec::new(config);
    request.proposer = Some(Arc::new(ScriptedProposer::default()));
    request.stepping = true;
    begin(request)
}

fn step(running: &Running) -> Option<StepReport> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(WAIT_TIMEOUT, running.control.step()).await.unwrap() })
}

#[test]
fn a_run_that_is_stepped_to_its_end_has_the_log_of_a_free_one() {
    for workers in [1, 8] {
        let (_stub, place, mut config) = world(&["--latency-ms", "2"]);
        config.gepa.pipeline.workers.rollout = workers;
        let mut free = config.clone();
        free.run.run_id = Some("free".into());
        whole(free).unwrap();
        let settled = bill(&place).len();
        let running = held(config);
        let (files, mut steps) = (place.files("steered"), 0);
        let (mut last, mut sent) = (None, settled);
        loop {
            assert_eq!(bill(&place).len(), sent, "something was sent without a step");
            let Some(report) = step(&running) else { break };
            steps += 1;
            sent = bill(&place).len();
            assert!(report.last_sequence > last, "a step leaves something in the log");
            last = report.last_sequence;
            if report.has_ended {
                assert_eq!(report.state, Some(RunState::Completed));
                break;
            }
            assert_eq!((report.steps_done, report.is_waiting), (steps, true));
            assert_eq!(files.events().unwrap().len() as u64, report.last_sequence.unwrap() + 1);
            assert_sound(&files);
        }
        assert!(steps > 4, "{steps}");
        assert_eq!(running.end().unwrap().end.as_str(), "completed");
        for name in COMPARED_FILES {
            assert_eq!(files.comparable(name).unwrap(), place.files("free").comparable(name).unwrap(), "{name}");
        }
        assert_eq!(bill(&place).len() - settled, settled);
    }
}

#[test]
fn a_held_run_can_be_stopped_cancelled_and_let_go() {
    for (signal, expected) in [
        (ControlRequest::pause("later"), "interrupted"),
        (ControlRequest::cancel("enough"), "cancelled"),
        (ControlRequest::stop("enough"), "completed"),
    ] {
        let (_stub, place, config) = world(&[]);
        let running = held(config.clone());
        let report = step(&running).unwrap();
        assert!(report.is_waiting && report.steps_done == 1, "{report:?}");
        let (files, sent) = (place.files("steered"), bill(&place).len());
        if expected == "completed" {
            assert!(running.control.send(signal));
            wait_until("the stop is told", || has(&files, |event| matches!(event, Event::StopDecided(_))));
            assert_eq!(bill(&place).len(), sent);
            while step(&running).is_some_and(|report| !report.has_ended) {}
            assert_eq!(running.end().unwrap().end.as_str(), expected);
            assert_eq!(finished(&files).stopped_by.kind, StopKind::External);
        } else {
            assert_eq!(obeys(running, signal), expected);
            assert_eq!(bill(&place).len(), sent);
        }
        if expected == "interrupted" {
            // What was held goes on free.
            assert_eq!(whole(config).unwrap().end.as_str(), "completed");
        }
        assert_sound(&files);
    }
}

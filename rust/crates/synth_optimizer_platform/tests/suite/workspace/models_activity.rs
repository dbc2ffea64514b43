//! What a run does now: work in progress agrees with the log and the calls at every moment, and an ended run has none.

use serde_json::json;
use synth_optimizer_core::config::sections::Durability;
use synth_optimizer_core::model::answer::{Answer, CallFailure, FailureClass};
use synth_optimizer_core::model::event::Event;
use synth_optimizer_core::model::event_effects::CallKind;
use synth_optimizer_core::model::event_fields::{
    Problem, ProposerStarted, RolloutFailed, RolloutsRequested, Stage, StateTransitioned,
};
use synth_optimizer_core::model::ids::{CallId, RowId};
use synth_optimizer_core::model::lifecycle::{RunState, RunTrigger};
use synth_optimizer_core::model::run_view::RunView;
use synth_optimizer_core::model::usage::Usage;
use synth_optimizer_platform::workspace::models::RunActivity;
use synth_optimizer_platform::workspace::{AnsweredCall, Batch, Reader, StoredEvent, Workspace};

use super::models::finished_run;
use super::models_lineage::stored;
use super::script::{START, Script, create, id, whole_run};

#[test]
fn work_in_progress_agrees_with_the_log_at_every_moment() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("workspace.sqlite");
    let workspace = create(&path);
    let reader = Reader::open(&path).unwrap();
    let (mut view, mut seen) = (RunView::default(), (0, 0, 0));
    for batch in whole_run() {
        for stored in &batch.events {
            view.apply(stored.sequence, stored.unix_millis, &stored.event);
        }
        workspace.commit_blocking(batch).unwrap();
        let activity = reader.activity().unwrap();
        for evaluation in &activity.evaluations {
            let known = view.in_flight.evaluations.values().rfind(|known| {
                known.candidate_id.as_str() == evaluation.candidate_id && known.stage == evaluation.stage
            });
            let known = known.unwrap();
            assert_eq!((u64::from(known.total), u64::from(known.done)), (evaluation.total, evaluation.done));
            assert!(evaluation.done + evaluation.answered + evaluation.running <= evaluation.total);
        }
        let turns: Vec<(u32, bool)> = activity.turns.iter().map(|turn| (turn.generation, turn.is_repair)).collect();
        let known = view.in_flight.turns.values().map(|turn| (turn.generation, turn.is_repair));
        assert_eq!(turns, known.collect::<Vec<_>>());
        let unanswered: u64 = activity.unanswered.iter().map(|calls| calls.count).sum();
        assert_eq!(unanswered, reader.unanswered().unwrap().len() as u64);
        assert_eq!(activity.waiting_answers, reader.inbox_len().unwrap());
        seen = (
            seen.0.max(activity.evaluations.len()),
            seen.1.max(activity.turns.len()),
            seen.2.max(activity.waiting_answers),
        );
    }
    assert_eq!(seen, (1, 1, 1), "the run had every kind of work");
    assert_eq!(finished_run().1.activity().unwrap(), RunActivity::default());
}

/// Adds an event to a batch.
fn add(batch: &mut Batch, sequence: u64, event: Event) {
    batch.events.push(StoredEvent::new(sequence, START + sequence, event));
}

fn withdrawn(call_id: u64, row: &str) -> Event {
    Event::RolloutFailed(RolloutFailed {
        call_id: CallId(call_id),
        candidate_id: id("c1"),
        row_id: RowId::new(row),
        stage: Stage::SeedFullTrain,
        attempt: 1,
        class: FailureClass::Withdrawn,
        message: "the failed rows are retried first".into(),
        usage: Usage::default(),
        cached: false,
        retried: true,
    })
}

#[test]
fn every_rollout_of_an_evaluation_is_counted_once() {
    let mut script = Script::default();
    script.register("c1", &[], None);
    let rows: Vec<String> = (1..=5).map(|row| format!("train:{row}")).collect();
    script.request_rollouts("c1", Stage::SeedFullTrain, &rows, 1);
    script.finish(0, "c1", "train:1", Stage::SeedFullTrain, 0.5);
    let (directory, reader) = stored(script);
    let path = directory.path().join("workspace.sqlite");
    let workspace = Workspace::open(&path, Durability::Process).unwrap();
    let mut batch = Batch::default();
    add(&mut batch, 3, withdrawn(4, "train:5"));
    // A retry belongs to the evaluation of its first attempt.
    let retry = RolloutsRequested {
        first_call_id: CallId(5),
        evaluation: CallId(0),
        candidate_id: id("c1"),
        stage: Stage::SeedFullTrain,
        generation: None,
        row_ids: vec![RowId::new("train:5")],
        attempt: 2,
        replicate: 0,
    };
    add(&mut batch, 4, Event::RolloutsRequested(retry));
    let problem = Problem { code: "x".into(), field: None, message: "not JSON".into() };
    let turn = ProposerStarted {
        call_id: CallId(6),
        generation: 3,
        attempt: 1,
        proposal_count: 1,
        carried_failures: Vec::new(),
        problems: vec![problem],
    };
    add(&mut batch, 5, Event::ProposerStarted(turn));
    batch.answered.push(AnsweredCall {
        call_id: CallId(2),
        kind: CallKind::Rollout,
        unix_millis: START,
        answer: Answer::Failed(CallFailure::new(FailureClass::Timeout, "no answer")),
        retired: false,
        cache: None,
        reply: None,
    });
    workspace.commit_blocking(batch).unwrap();
    // Calls 1, 3 and 4 were sent and have no answer; call 4 was withdrawn, and the retry waits to be sent.
    let expected = json!({
        "evaluations": [{
            "candidate_id": "c1", "stage": "seed_full_train", "total": 5, "done": 1, "failed": 0, "answered": 1,
            "running": 2, "since": "2023-11-14T22:13:20.001Z",
        }],
        "turns": [{"turn": 1, "generation": 3, "is_repair": true, "since": "2023-11-14T22:13:20.005Z"}],
        "unanswered": [{"kind": "rollout", "count": 2, "oldest_sent_at": "2023-11-14T22:13:20.001Z"}],
        "waiting_answers": 1,
    });
    assert_eq!(json!(reader.activity().unwrap()), expected);
    let mut end = Batch::default();
    let (from, to) = (RunState::RolloutRunning, RunState::Cancelled);
    add(&mut end, 6, Event::StateTransitioned(StateTransitioned { from, to, trigger: RunTrigger::CancelRequested }));
    workspace.commit_blocking(end).unwrap();
    assert_eq!(reader.activity().unwrap(), RunActivity::default());
}

#[test]
fn a_run_without_events_does_nothing() {
    let (_directory, reader) = stored(Script::default());
    let limits = RunActivity { rollout_limit: 8, turn_limit: 1, ..RunActivity::default() };
    assert_eq!(reader.activity().unwrap(), limits);
}

//! A model server that breaks in every way: the turn ends in time, with an error that says what it was.

use std::time::{Duration, Instant};

use serde_json::json;
use synth_e2e::model_server::{Reply, manifest, patch, run, say, write_rules};
use synth_optimizer_core::config::proposer::AnswerMode;
use synth_optimizer_core::model::answer::{CallFailure, FailureClass};
use synth_optimizer_platform::proposer::TurnFailure;

use super::world::{World, items, texts};

fn failed(world: &World) -> TurnFailure {
    *world.turn().unwrap_err()
}

/// A failure that may pass.
fn passing(world: &World) -> CallFailure {
    let TurnFailure { failure, fatal } = failed(world);
    assert!(fatal.is_none() && failure.retryable, "{failure:?} {fatal:?}");
    assert_eq!(failure.models.as_ref().unwrap().effective.as_deref(), Some("stub-model"));
    failure
}

#[test]
fn a_server_that_dies_in_the_middle_of_an_answer() {
    let world = World::new(|_| Reply::GoDown);
    assert_eq!(passing(&world).class, FailureClass::Failed);
}

#[test]
fn a_server_that_dies_after_the_first_answer_keeps_what_was_used() {
    let world = World::new(|asked| if asked.outputs.is_empty() { items(vec![run("true")]) } else { Reply::GoDown });
    let failure = passing(&world);
    assert_eq!((failure.class, failure.usage.total_tokens), (FailureClass::Failed, Some(120)));
}

#[test]
fn a_server_that_never_answers() {
    let mut world = World::new(|_| Reply::NoHeaders);
    world.config.proposer.timeout_seconds = 2;
    assert_eq!(passing(&world).class, FailureClass::Timeout);
}

#[test]
fn a_server_that_falls_silent() {
    let mut world = World::new(|_| Reply::Silence);
    world.config.proposer.idle_timeout_seconds = 1;
    let failure = passing(&world);
    assert!(failure.message.contains("idle timeout"), "{failure:?}");
    assert_eq!(world.server.asked().len(), 2);
}

#[test]
fn an_overloaded_server_is_waited_for() {
    let busy = |message: &str| Reply::Status { code: 429, retry_after: Some(1), message: message.to_owned() };
    let world = World::new(move |asked| if asked.number == 0 { busy("later") } else { write_rules(asked) });
    let began = Instant::now();
    assert_eq!(texts(&world.turn().unwrap()), ["Rules: r0 r3"]);
    assert!(began.elapsed() > Duration::from_secs(1), "it was not waited for");
    let world = World::new(move |_| busy("never"));
    assert_eq!(passing(&world).class, FailureClass::Failed);
    assert_eq!(world.server.asked().len(), 2);
}

#[test]
fn garbage() {
    let pages: [&[u8]; 3] =
        [b"event: response.created\ndata: {not json\n\nevent: what\ndata: 17\n\n", b"<html>a portal</html>", b""];
    for page in pages {
        let world = World::new(move |_| Reply::Raw(page.to_vec()));
        assert_eq!(passing(&world).class, FailureClass::Failed);
    }
}

#[test]
fn a_refused_key_and_a_missing_model_stop_the_run() {
    for code in [401, 404] {
        let world = World::new(move |_| Reply::Status { code, retry_after: None, message: "no".into() });
        let TurnFailure { failure, fatal } = failed(&world);
        assert!(fatal.is_some() && !failure.retryable, "{code} {failure:?}");
    }
}

#[test]
fn answers_that_are_too_large() {
    let world = World::new(|asked| {
        items(vec![match asked.outputs.len() {
            0 => run("head -c 3000000 /dev/zero | tr '\\0' 'x' > proposal/manifest.json"),
            _ => say("done"),
        }])
    });
    let answer = world.turn().unwrap();
    assert_eq!((answer.proposals.len(), answer.problems[0].code.as_str()), (0, "manifest_unreadable"));
    assert!(answer.usage.total_tokens.is_some());
    let mut world = World::new(|_| items(vec![say("x".repeat(3_000_000))]));
    world.config.proposer.answer = AnswerMode::Structured;
    let answer = world.turn().unwrap();
    assert_eq!(answer.problems[0].code, "answer_too_large");
}

#[test]
fn answers_that_are_none() {
    let world = World::new(|_| items(Vec::new()));
    assert_eq!(world.turn().unwrap().problems[0].code, "no_proposal");
    let world = World::new(|_| items(vec![say("I would rather not.")]));
    let answer = world.turn().unwrap();
    assert_eq!((answer.proposals.len(), answer.problems[0].code.as_str()), (0, "manifest_unreadable"));
}

#[test]
fn a_model_that_loops_is_stopped_by_commands_and_by_tokens() {
    let mut world = World::new(|_| items(vec![run("true")]));
    world.config.proposer.max_commands = 3;
    let TurnFailure { failure, fatal } = failed(&world);
    assert!(fatal.is_none() && !failure.retryable && failure.message.contains("3 commands"), "{failure:?}");
    assert!(failure.usage.total_tokens >= Some(360), "{failure:?}");
    assert!(world.server.asked().len() <= 6);
    let mut world = World::new(|_| items(vec![run("true")]));
    world.config.proposer.max_turn_tokens = 300;
    let TurnFailure { failure, .. } = failed(&world);
    assert!(failure.message.contains("300 tokens") && failure.usage.total_tokens >= Some(360), "{failure:?}");
}

#[test]
fn tools_that_do_not_exist_and_patches_that_do_not_fit_are_told_to_the_model() {
    let text = manifest(json!({ "notes": "Rules: r0 r9" })).to_string();
    let world = World::new(move |asked| {
        items(vec![match asked.outputs.len() {
            0 => {
                json!({ "type": "function_call", "id": "f", "call_id": "a", "name": "no_such_tool", "arguments": "{}" })
            }
            1 => {
                json!({ "type": "function_call", "id": "g", "call_id": "b", "name": "exec_command", "arguments": "{" })
            }
            2 => patch("proposal/manifest.json", &text),
            _ => say("done"),
        }])
    });
    assert_eq!(texts(&world.turn().unwrap()), ["Rules: r0 r9"]);
}

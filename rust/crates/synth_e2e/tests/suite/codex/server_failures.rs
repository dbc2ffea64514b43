//! Failures of the model server: the turn ends in time with a specific error.

use serde_json::json;
use synth_e2e::model_server::{ModelReply, manifest, patch, run, say, write_rules};
use synth_optimizer_core::config::proposer::AnswerMode;
use synth_optimizer_core::model::answer::{CallFailure, FailureClass};
use synth_optimizer_platform::proposer::TurnFailure;

use super::fixture::{CodexFixture, items, texts};

fn failed(fixture: &CodexFixture) -> TurnFailure {
    *fixture.turn().unwrap_err()
}

/// Runs a turn that must fail, and that may succeed later.
fn passing(fixture: &CodexFixture) -> CallFailure {
    let TurnFailure { failure, fatal, outage } = failed(fixture);
    assert!(fatal.is_none() && (failure.retryable || outage.is_some()), "{failure:?} {fatal:?}");
    assert_eq!(failure.models.as_ref().unwrap().effective.as_deref(), Some("stub-model"));
    failure
}

#[test]
fn a_server_that_dies_during_an_answer_is_a_retryable_failure() {
    let fixture = CodexFixture::new(|_| ModelReply::ShutDown);
    assert_eq!(passing(&fixture).class, FailureClass::Failed);
}

#[test]
fn a_server_that_dies_after_the_first_answer_keeps_the_usage() {
    let fixture =
        CodexFixture::new(
            |request| if request.outputs.is_empty() { items(vec![run("true")]) } else { ModelReply::ShutDown },
        );
    let failure = passing(&fixture);
    assert_eq!((failure.class, failure.usage.total_tokens), (FailureClass::Failed, Some(120)));
}

#[test]
fn a_server_that_never_answers_is_a_timeout() {
    let mut fixture = CodexFixture::new(|_| ModelReply::NoHeaders);
    fixture.config.proposer.timeout_seconds = 2;
    assert_eq!(passing(&fixture).class, FailureClass::Timeout);
}

#[test]
fn a_silent_server_is_stopped_by_the_idle_timeout() {
    let mut fixture = CodexFixture::new(|_| ModelReply::Silence);
    fixture.config.proposer.idle_timeout_seconds = 1;
    let failure = passing(&fixture);
    assert!(failure.message.contains("idle timeout"), "{failure:?}");
    assert_eq!(fixture.server.requests().len(), 2);
}

#[test]
fn an_overloaded_server_is_retried() {
    let busy = |message: &str| ModelReply::Status { code: 429, retry_after: Some(1), message: message.to_owned() };
    let fixture =
        CodexFixture::new(move |request| if request.number == 0 { busy("later") } else { write_rules(request) });
    assert_eq!(texts(&fixture.turn().unwrap()), ["Rules: r0 r3"]);
    assert!(fixture.server.requests().len() > 1, "it was not asked again");
    let fixture = CodexFixture::new(move |_| busy("never"));
    assert_eq!(passing(&fixture).class, FailureClass::Failed);
    assert_eq!(fixture.server.requests().len(), 2);
}

#[test]
fn an_invalid_response_is_a_retryable_failure() {
    let pages: [&[u8]; 3] =
        [b"event: response.created\ndata: {not json\n\nevent: what\ndata: 17\n\n", b"<html>a portal</html>", b""];
    for page in pages {
        let fixture = CodexFixture::new(move |_| ModelReply::Raw(page.to_vec()));
        assert_eq!(passing(&fixture).class, FailureClass::Failed);
    }
}

#[test]
fn a_refused_key_and_a_missing_model_are_outages() {
    for code in [401, 404] {
        let fixture = CodexFixture::new(move |_| ModelReply::Status { code, retry_after: None, message: "no".into() });
        let TurnFailure { failure, fatal, outage } = failed(&fixture);
        assert!(fatal.is_none() && outage.is_some_and(|outage| outage.cause.contains("no")), "{code} {failure:?}");
    }
}

#[test]
fn an_answer_that_is_too_large_is_a_problem() {
    let fixture = CodexFixture::new(|request| {
        items(vec![match request.outputs.len() {
            0 => run("head -c 3000000 /dev/zero | tr '\\0' 'x' > proposal/manifest.json"),
            _ => say("done"),
        }])
    });
    let answer = fixture.turn().unwrap();
    assert_eq!((answer.proposals.len(), answer.problems[0].code.as_str()), (0, "manifest_unreadable"));
    assert!(answer.usage.total_tokens.is_some());
    let mut fixture = CodexFixture::new(|_| items(vec![say("x".repeat(3_000_000))]));
    fixture.config.proposer.answer = AnswerMode::Structured;
    let answer = fixture.turn().unwrap();
    assert_eq!(answer.problems[0].code, "answer_too_large");
}

#[test]
fn a_missing_answer_is_a_problem() {
    let fixture = CodexFixture::new(|_| items(Vec::new()));
    assert_eq!(fixture.turn().unwrap().problems[0].code, "no_proposal");
    let fixture = CodexFixture::new(|_| items(vec![say("I would rather not.")]));
    let answer = fixture.turn().unwrap();
    assert_eq!((answer.proposals.len(), answer.problems[0].code.as_str()), (0, "manifest_unreadable"));
}

#[test]
fn a_model_that_loops_is_stopped_by_commands_and_by_tokens() {
    let mut fixture = CodexFixture::new(|_| items(vec![run("true")]));
    fixture.config.proposer.max_commands = 3;
    let TurnFailure { failure, fatal, .. } = failed(&fixture);
    assert!(fatal.is_none() && !failure.retryable && failure.message.contains("3 commands"), "{failure:?}");
    assert!(failure.usage.total_tokens >= Some(360), "{failure:?}");
    assert!(fixture.server.requests().len() <= 6);
    let mut fixture = CodexFixture::new(|_| items(vec![run("true")]));
    fixture.config.proposer.max_turn_tokens = 300;
    let TurnFailure { failure, .. } = failed(&fixture);
    assert!(failure.message.contains("300 tokens") && failure.usage.total_tokens >= Some(360), "{failure:?}");
}

#[test]
fn errors_of_tools_are_returned_to_the_model() {
    let text = manifest(json!({ "notes": "Rules: r0 r9" })).to_string();
    let fixture = CodexFixture::new(move |request| {
        items(vec![match request.outputs.len() {
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
    assert_eq!(texts(&fixture.turn().unwrap()), ["Rules: r0 r9"]);
}

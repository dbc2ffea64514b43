//! The state after notifications, and the consequences of codex errors.

use serde_json::json;

use super::*;

fn state_after(notes: &[Value]) -> TurnState {
    let mut state = TurnState::default();
    notes.iter().for_each(|note| state.fold(note, "m"));
    state
}

fn usage(input: u64, cached: u64, output: u64) -> Value {
    let total = json!({
        "totalTokens": 258_400, "inputTokens": input, "cachedInputTokens": cached, "outputTokens": output,
    });
    json!({ "method": "thread/tokenUsage/updated", "params": { "tokenUsage": { "total": total } } })
}

fn message_item(text: &str, phase: Value) -> Value {
    let item = json!({ "type": "agentMessage", "id": "i", "text": text, "phase": phase });
    json!({ "method": "item/completed", "params": { "item": item } })
}

#[test]
fn the_last_token_total_is_used() {
    let state = state_after(&[usage(10, 0, 1), usage(30, 8, 3)]);
    assert_eq!(state.tokens, Some(Tokens { prompt: 30, cached_prompt: 8, completion: 3 }));
    assert_eq!(state_after(&[]).tokens, None);
}

#[test]
fn token_counts_that_cannot_be_true_are_not_counted() {
    let mut impossible = usage(40, 0, 4);
    impossible["params"]["tokenUsage"]["total"]["outputTokens"] = json!(u64::MAX);
    let state = state_after(&[usage(10, 0, 1), impossible.clone()]);
    assert_eq!(state.tokens, Some(Tokens { prompt: 10, cached_prompt: 0, completion: 1 }));
    assert_eq!(state_after(&[impossible]).tokens, None);
}

#[test]
fn commands_are_counted_once_even_if_codex_does_not_report_them() {
    let command = |method: &str, id: &str| json!({ "method": method, "params": { "item": { "type": "commandExecution", "id": id } } });
    let notes = [command("item/started", "a"), command("item/completed", "a"), command("item/started", "b")];
    assert_eq!(state_after(&notes).commands(), 2);
    assert_eq!(state_after(&[usage(1, 0, 1), usage(2, 0, 2), usage(3, 0, 3), usage(4, 0, 4)]).commands(), 3);
}

#[test]
fn a_final_answer_is_preferred_over_remarks() {
    let state = state_after(&[
        message_item("thinking", json!("commentary")),
        message_item("final", json!("final_answer")),
        message_item("plain", Value::Null),
    ]);
    assert_eq!(state.answer(), Some("final"));
    assert_eq!(
        state_after(&[message_item("one", Value::Null), message_item("two", Value::Null)]).answer(),
        Some("two")
    );
    assert_eq!(state_after(&[message_item("thinking", json!("commentary"))]).answer(), None);
}

#[test]
fn the_end_of_a_turn_and_another_model_are_recorded() {
    let ended = |status: &str| {
        let turn = json!({ "id": "u", "status": status, "error": { "message": "why" } });
        state_after(&[json!({ "method": "turn/completed", "params": { "turn": turn } })]).ended
    };
    let failed = |message: &str| Some(Err((FailureClass::Failed, message.to_owned(), FailureAction::Retry)));
    assert_eq!(ended("completed"), Some(Ok(())));
    assert_eq!(ended("interrupted"), failed("codex interrupted the turn"));
    assert_eq!(ended("failed"), failed("the turn failed: why"));
    assert_eq!(ended("something new"), failed("the turn failed: why"));
    let rerouted = |to: &str| json!({ "method": "model/rerouted", "params": { "fromModel": "m", "toModel": to } });
    assert_eq!(state_after(&[rerouted("n")]).other_model.as_deref(), Some("n"));
    assert_eq!(state_after(&[rerouted("m")]).other_model, None);
    let settings = json!({ "method": "thread/settings/updated", "params": { "threadSettings": { "model": "n" } } });
    assert_eq!(state_after(&[settings]).other_model.as_deref(), Some("n"));
}

#[test]
fn every_codex_error_maps_to_its_action() {
    let http = |name: &str, status: Value| json!({ name: { "httpStatusCode": status } });
    for (info, expected) in [
        (http("httpConnectionFailed", Value::Null), WAIT),
        (http("httpConnectionFailed", json!(503)), WAIT),
        (http("httpConnectionFailed", json!(401)), WAIT),
        (http("httpConnectionFailed", json!(404)), WAIT),
        (http("httpConnectionFailed", json!(422)), FailureAction::GiveUp),
        (http("responseStreamDisconnected", Value::Null), WAIT),
        (http("responseTooManyFailedAttempts", json!(429)), WAIT),
        (json!("internalServerError"), WAIT),
        (json!("rateLimitExceeded"), WAIT),
        (json!("contextWindowExceeded"), FailureAction::Retry),
        (json!("usageLimitExceeded"), WAIT),
        (json!("unauthorized"), WAIT),
        (json!("sandboxError"), FailureAction::Stop(HINT)),
        (json!("cyberPolicy"), FailureAction::GiveUp),
        (json!("other"), FailureAction::Retry),
        (json!("not known yet"), FailureAction::Retry),
        (json!({ "notKnownYet": 3 }), WAIT),
        (Value::Null, FailureAction::Retry),
    ] {
        assert_eq!(failure_action(&json!({ "message": "m", "codexErrorInfo": info })), expected, "{info}");
    }
    let missing = json!({ "message": "Missing environment variable: `X`.", "codexErrorInfo": "other" });
    assert_eq!(
        (failure_action(&missing), message(&missing)),
        (FailureAction::Stop(HINT), "Missing environment variable: `X`.")
    );
    assert_eq!(message(&Value::Null), "codex reported no reason");
}

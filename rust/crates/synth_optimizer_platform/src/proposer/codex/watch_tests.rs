//! Notifications and what is known after them; errors of codex and what they lead to.

use serde_json::json;

use super::*;

fn watched(notes: &[Value]) -> Watch {
    let mut watch = Watch::default();
    notes.iter().for_each(|note| watch.fold(note, "m"));
    watch
}

fn usage(input: u64, cached: u64, output: u64) -> Value {
    let total = json!({
        "totalTokens": 258_400, "inputTokens": input, "cachedInputTokens": cached, "outputTokens": output,
    });
    json!({ "method": "thread/tokenUsage/updated", "params": { "tokenUsage": { "total": total } } })
}

fn said(text: &str, phase: Value) -> Value {
    let item = json!({ "type": "agentMessage", "id": "i", "text": text, "phase": phase });
    json!({ "method": "item/completed", "params": { "item": item } })
}

#[test]
fn the_last_total_counts_and_its_parts_are_summed() {
    let watch = watched(&[usage(10, 0, 1), usage(30, 8, 3)]);
    assert_eq!(watch.tokens, Some(Tokens { prompt: 30, cached_prompt: 8, completion: 3 }));
    assert_eq!(watched(&[]).tokens, None);
}

#[test]
fn commands_are_counted_once_and_also_where_they_are_not_told_of() {
    let command = |method: &str, id: &str| json!({ "method": method, "params": { "item": { "type": "commandExecution", "id": id } } });
    let notes = [command("item/started", "a"), command("item/completed", "a"), command("item/started", "b")];
    assert_eq!(watched(&notes).commands(), 2);
    assert_eq!(watched(&[usage(1, 0, 1), usage(2, 0, 2), usage(3, 0, 3), usage(4, 0, 4)]).commands(), 3);
}

#[test]
fn a_final_answer_is_told_apart_from_remarks() {
    let watch = watched(&[
        said("thinking", json!("commentary")),
        said("final", json!("final_answer")),
        said("plain", Value::Null),
    ]);
    assert_eq!(watch.answer(), Some("final"));
    assert_eq!(watched(&[said("one", Value::Null), said("two", Value::Null)]).answer(), Some("two"));
    assert_eq!(watched(&[said("thinking", json!("commentary"))]).answer(), None);
}

#[test]
fn ends_and_other_models_are_seen() {
    let ended = |status: &str| {
        let turn = json!({ "id": "u", "status": status, "error": { "message": "why" } });
        watched(&[json!({ "method": "turn/completed", "params": { "turn": turn } })]).ended
    };
    let failed = |message: &str| Some(Err((FailureClass::Failed, message.to_owned(), Verdict::Retry)));
    assert_eq!(ended("completed"), Some(Ok(())));
    assert_eq!(ended("interrupted"), failed("codex broke the turn off by itself"));
    assert_eq!(ended("failed"), failed("the turn failed: why"));
    assert_eq!(ended("something new"), failed("the turn failed: why"));
    let rerouted = |to: &str| json!({ "method": "model/rerouted", "params": { "fromModel": "m", "toModel": to } });
    assert_eq!(watched(&[rerouted("n")]).other_model.as_deref(), Some("n"));
    assert_eq!(watched(&[rerouted("m")]).other_model, None);
    let settings = json!({ "method": "thread/settings/updated", "params": { "threadSettings": { "model": "n" } } });
    assert_eq!(watched(&[settings]).other_model.as_deref(), Some("n"));
}

#[test]
fn errors_lead_to_what_they_mean() {
    let http = |name: &str, status: Value| json!({ name: { "httpStatusCode": status } });
    for (info, expected) in [
        (http("httpConnectionFailed", Value::Null), Verdict::Retry),
        (http("httpConnectionFailed", json!(503)), Verdict::Retry),
        (http("httpConnectionFailed", json!(401)), Verdict::Stop(HINT)),
        (http("httpConnectionFailed", json!(404)), Verdict::Stop(HINT)),
        (http("httpConnectionFailed", json!(422)), Verdict::GiveUp),
        (http("responseStreamDisconnected", Value::Null), Verdict::Retry),
        (http("responseTooManyFailedAttempts", json!(429)), Verdict::Retry),
        (json!("internalServerError"), Verdict::Retry),
        (json!("rateLimitExceeded"), Verdict::Retry),
        (json!("contextWindowExceeded"), Verdict::Retry),
        (json!("usageLimitExceeded"), Verdict::Stop(HINT)),
        (json!("unauthorized"), Verdict::Stop(HINT)),
        (json!("sandboxError"), Verdict::Stop(HINT)),
        (json!("cyberPolicy"), Verdict::GiveUp),
        (json!("other"), Verdict::Retry),
        (json!("not known yet"), Verdict::Retry),
        (json!({ "notKnownYet": 3 }), Verdict::Retry),
        (Value::Null, Verdict::Retry),
    ] {
        assert_eq!(verdict(&json!({ "message": "m", "codexErrorInfo": info })), expected, "{info}");
    }
    let missing = json!({ "message": "Missing environment variable: `X`.", "codexErrorInfo": "other" });
    assert_eq!((verdict(&missing), message(&missing)), (Verdict::Stop(HINT), "Missing environment variable: `X`."));
    assert_eq!(message(&Value::Null), "codex gives no reason");
}

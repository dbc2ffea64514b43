//! Reading of replies of both API families, and classification of error responses of real servers.

use serde_json::{Value, json};

use super::{ModelOutput, RefusalAction, classify_refusal, hidden_error, is_unbilled, read, strip_reasoning, words};
use crate::proposer::openai::endpoint::RequestStyle;
use crate::proposer::prices::Tokens;
use synth_optimizer_core::config::proposer::StructuredOutput;
use synth_optimizer_core::config::sections::ApiFamily::{ChatCompletions, Responses};

fn chat(choice: Value) -> Option<ModelOutput> {
    read(ChatCompletions, &json!({ "choices": [choice] })).map(|reply| reply.output)
}

#[test]
fn a_chat_completion_is_read_as_text_or_failure() {
    let text = |text: &str| Some(ModelOutput::Text(text.to_owned()));
    assert_eq!(chat(json!({ "message": { "content": "hi" } })), text("hi"));
    assert_eq!(
        chat(json!({ "message": { "content": [{ "type": "text", "text": "a" }, "b", { "x": 1 }] } })),
        text("ab")
    );
    assert_eq!(chat(json!({ "message": { "content": null, "refusal": "" }, "finish_reason": "stop" })), text(""));
    assert_eq!(chat(json!({ "message": { "content": "{" }, "finish_reason": "length" })), Some(ModelOutput::CutOff));
    let filtered = chat(json!({ "message": { "content": "" }, "finish_reason": "content_filter" }));
    assert!(matches!(filtered, Some(ModelOutput::Refused(_))));
    let broken = chat(json!({ "message": { "content": "" }, "error": { "code": 502, "message": "upstream" } }));
    assert_eq!(broken, Some(ModelOutput::Failed { message: "upstream".into(), may_pass: true }));
    for other in [json!({ "text": "an old completion" }), json!({ "message": "hi" }), json!(null)] {
        assert_eq!(chat(other), None);
    }
}

#[test]
fn a_response_is_read_as_text_or_failure() {
    let output = |document: Value| read(Responses, &document).map(|reply| reply.output);
    let message = |part: Value| json!({ "status": "completed", "output": [{ "type": "message", "content": [part] }] });
    assert_eq!(output(message(json!({ "type": "output_text", "text": "hi" }))), Some(ModelOutput::Text("hi".into())));
    assert_eq!(output(message(json!({ "type": "refusal", "refusal": "no" }))), Some(ModelOutput::Refused("no".into())));
    assert_eq!(output(json!({ "status": "incomplete", "output": [] })), Some(ModelOutput::CutOff));
    let filtered = output(json!({ "status": "incomplete", "incomplete_details": { "reason": "content_filter" } }));
    assert!(matches!(filtered, Some(ModelOutput::Refused(_))));
    let vain = output(json!({ "status": "failed", "error": { "code": "invalid_prompt", "message": "no" } }));
    assert_eq!(vain, Some(ModelOutput::Failed { message: "no".into(), may_pass: false }));
    assert_eq!(output(json!({ "choices": [] })), None);
}

#[test]
fn token_usage_of_both_api_families_is_read() {
    let expected = Some(Tokens { prompt: 9, cached_prompt: 2, completion: 4 });
    let chat = json!({ "choices": [{ "message": {} }], "usage": {
        "prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": { "cached_tokens": 2 }, "cost": 0.5 } });
    let reply = read(ChatCompletions, &chat).unwrap();
    assert_eq!((reply.tokens, reply.cost_usd, reply.model), (expected, Some(0.5), None));
    let response = json!({ "output": [], "model": " m ", "usage": {
        "input_tokens": 9, "output_tokens": 4, "input_tokens_details": { "cached_tokens": 2 } } });
    let reply = read(Responses, &response).unwrap();
    assert_eq!((reply.tokens, reply.cost_usd, reply.model.as_deref()), (expected, None, Some("m")));
}

#[test]
fn an_error_inside_a_success_has_a_status() {
    assert_eq!(hidden_error(&json!({ "error": { "code": 402 } })), Some(402));
    assert_eq!(hidden_error(&json!({ "error": { "code": "bad", "message": "x" } })), Some(500));
    assert_eq!(hidden_error(&json!({ "error": { "code": 200 } })), Some(500));
    assert_eq!(hidden_error(&json!({ "error": "broken" })), Some(500));
    assert_eq!(hidden_error(&json!({ "error": null, "output": [] })), None);
    assert_eq!(hidden_error(&json!({ "error": { "message": "x" }, "output": [] })), None);
    assert_eq!(hidden_error(&json!([])), None);
}

#[test]
fn reasoning_before_an_answer_is_removed() {
    for (text, answer) in [
        ("<think>a {b}</think>\n{\"x\":1}", "{\"x\":1}"),
        ("a</think>{\"x\":1}", "{\"x\":1}"),
        ("<thinking>a</thinking> {\"x\":1}", "{\"x\":1}"),
        (" {\"x\":\"</think>\"}", "{\"x\":\"</think>\"}"),
        ("```json\n{\"x\":\"</think>{\"}\n```", "```json\n{\"x\":\"</think>{\"}\n```"),
        ("<think>never ends {\"x\":1}", "<think>never ends {\"x\":1}"),
        ("plain", "plain"),
        ("", ""),
    ] {
        assert_eq!(strip_reasoning(text), answer, "{text}");
    }
}

const STRUCTURED: RequestStyle = RequestStyle { structured: true, newer_limit: false };
const PLAIN: RequestStyle = RequestStyle { structured: false, newer_limit: false };

fn verdict(status: u16, body: &str) -> RefusalAction {
    classify_refusal(status, body.as_bytes(), STRUCTURED, StructuredOutput::Auto)
}

#[test]
fn rejections_of_the_schema_are_recognized() {
    for (status, body) in [
        (
            400,
            r#"{"error":{"message":"Invalid parameter: 'response_format' of type 'json_schema' is not supported with this model.","param":"response_format"}}"#,
        ),
        (
            400,
            r#"{"object":"error","message":"[{'type': 'literal_error', 'loc': ('body', 'response_format', 'type')}]","code":400}"#,
        ),
        (400, r#"{"error":{"message":"Failed to parse grammar","code":400}}"#),
        (
            422,
            r#"{"detail":[{"type":"extra_forbidden","loc":["body","text"],"msg":"Extra inputs are not permitted"}]}"#,
        ),
        (404, r#"{"error":{"message":"No endpoints found that support the requested parameters","code":404}}"#),
        (400, r#"json: unknown field "json_schema""#),
        (501, "structured output is not implemented"),
        (400, r#"{"error":{"message":"Invalid schema for text","param":"text.format.schema"}}"#),
    ] {
        assert_eq!(verdict(status, body), RefusalAction::Unstructured, "{body}");
        // Without a schema in the request, the schema cannot be the cause.
        let plain = classify_refusal(status, body.as_bytes(), PLAIN, StructuredOutput::Auto);
        assert!(matches!(plain, RefusalAction::Fatal { .. } | RefusalAction::Unavailable { .. }), "{body}: {plain:?}");
        let required = classify_refusal(status, body.as_bytes(), STRUCTURED, StructuredOutput::Required);
        assert!(matches!(required, RefusalAction::Fatal { .. }), "{body}: {required:?}");
    }
}

#[test]
fn other_errors_are_not_attributed_to_the_schema() {
    for (status, body) in [
        (
            400,
            r#"{"error":{"message":"Unsupported value: 'reasoning_effort' does not support 'xhigh'","param":"reasoning_effort"}}"#,
        ),
        (400, r#"{"error":{"message":"unknown parameter: reasoning"}}"#),
        (404, r#"{"error":{"message":"The model `x` does not exist","code":"model_not_found"}}"#),
        (401, r#"{"error":{"message":"response_format needs a key"}}"#),
        (418, "{}"),
    ] {
        let is_outage = matches!(status, 401 | 404);
        let found = verdict(status, body);
        assert_eq!(matches!(found, RefusalAction::Unavailable { .. }), is_outage, "{body}");
        assert_eq!(matches!(found, RefusalAction::Fatal { .. }), !is_outage, "{body}");
    }
}

#[test]
fn temporary_errors_are_retried_outages_wait_and_permanent_errors_are_fatal() {
    for status in [408, 409, 425, 429, 500, 502, 503, 504, 520, 529] {
        assert_eq!(verdict(status, "busy"), RefusalAction::Later, "{status}");
    }
    for status in [401, 402, 403, 404, 405] {
        assert!(matches!(verdict(status, "no"), RefusalAction::Unavailable { .. }), "{status}");
    }
    for status in [301, 400, 413, 422] {
        assert!(matches!(verdict(status, "no"), RefusalAction::Fatal { .. }), "{status}");
    }
    let poor = json!({ "error": { "message": "You exceeded your current quota", "code": "insufficient_quota" } });
    assert!(matches!(verdict(429, &poor.to_string()), RefusalAction::Unavailable { .. }));
    assert_eq!([429, 503, 529, 400, 500, 502, 524].map(is_unbilled), [true, true, true, true, false, false, false]);
}

#[test]
fn the_error_text_is_short_and_contains_no_key() {
    for body in [
        r#"{"error":{"message":"it says\nno"}}"#,
        r#"{"error":"it says no"}"#,
        r#"{"detail":"it says no"}"#,
        r#"{"message":"it says no"}"#,
        "it says no",
    ] {
        assert_eq!(words(body.as_bytes()), "it says no");
    }
    assert_eq!(words(b""), "(empty)");
    let long = words(format!(r#"{{"error":{{"message":"sk-canary0123456789 {}"}}}}"#, "x".repeat(999)).as_bytes());
    assert!(long.chars().count() <= 201 && !long.contains("canary"), "{long}");
}

//! How replies of both families are read.

use serde_json::{Value, json};

use super::{Said, hidden_error, read, without_thoughts};
use crate::proposer::prices::Tokens;
use synth_optimizer_core::config::sections::ApiFamily::{ChatCompletions, Responses};

fn chat(choice: Value) -> Option<Said> {
    read(ChatCompletions, &json!({ "choices": [choice] })).map(|reply| reply.said)
}

#[test]
fn a_chat_completion_says_text_or_why_not() {
    let text = |text: &str| Some(Said::Text(text.to_owned()));
    assert_eq!(chat(json!({ "message": { "content": "hi" } })), text("hi"));
    assert_eq!(
        chat(json!({ "message": { "content": [{ "type": "text", "text": "a" }, "b", { "x": 1 }] } })),
        text("ab")
    );
    assert_eq!(chat(json!({ "message": { "content": null, "refusal": "" }, "finish_reason": "stop" })), text(""));
    assert_eq!(chat(json!({ "message": { "content": "{" }, "finish_reason": "length" })), Some(Said::CutOff));
    let filtered = chat(json!({ "message": { "content": "" }, "finish_reason": "content_filter" }));
    assert!(matches!(filtered, Some(Said::Refused(_))));
    let broken = chat(json!({ "message": { "content": "" }, "error": { "code": 502, "message": "upstream" } }));
    assert_eq!(broken, Some(Said::Failed { message: "upstream".into(), may_pass: true }));
    for other in [json!({ "text": "an old completion" }), json!({ "message": "hi" }), json!(null)] {
        assert_eq!(chat(other), None);
    }
}

#[test]
fn a_response_says_text_or_why_not() {
    let said = |document: Value| read(Responses, &document).map(|reply| reply.said);
    let message = |part: Value| json!({ "status": "completed", "output": [{ "type": "message", "content": [part] }] });
    assert_eq!(said(message(json!({ "type": "output_text", "text": "hi" }))), Some(Said::Text("hi".into())));
    assert_eq!(said(message(json!({ "type": "refusal", "refusal": "no" }))), Some(Said::Refused("no".into())));
    assert_eq!(said(json!({ "status": "incomplete", "output": [] })), Some(Said::CutOff));
    let filtered = said(json!({ "status": "incomplete", "incomplete_details": { "reason": "content_filter" } }));
    assert!(matches!(filtered, Some(Said::Refused(_))));
    let vain = said(json!({ "status": "failed", "error": { "code": "invalid_prompt", "message": "no" } }));
    assert_eq!(vain, Some(Said::Failed { message: "no".into(), may_pass: false }));
    assert_eq!(said(json!({ "choices": [] })), None);
}

#[test]
fn tokens_are_counted_under_the_names_of_both_families() {
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
fn an_error_in_place_of_an_answer_has_a_status() {
    assert_eq!(hidden_error(&json!({ "error": { "code": 402 } })), Some(402));
    assert_eq!(hidden_error(&json!({ "error": { "code": "bad", "message": "x" } })), Some(500));
    assert_eq!(hidden_error(&json!({ "error": { "code": 200 } })), Some(500));
    assert_eq!(hidden_error(&json!({ "error": "broken" })), Some(500));
    assert_eq!(hidden_error(&json!({ "error": null, "output": [] })), None);
    assert_eq!(hidden_error(&json!({ "error": { "message": "x" }, "output": [] })), None);
    assert_eq!(hidden_error(&json!([])), None);
}

#[test]
fn thoughts_before_an_answer_are_left_out() {
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
        assert_eq!(without_thoughts(text), answer, "{text}");
    }
}

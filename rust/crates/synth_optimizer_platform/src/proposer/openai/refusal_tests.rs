//! What refusals of real servers mean.

use serde_json::json;

use super::{Answer, is_free, judge, words};
use crate::proposer::openai::endpoint::Manner;
use synth_optimizer_core::config::proposer::StructuredOutput;

const STRUCTURED: Manner = Manner { structured: true, newer_limit: false };
const PLAIN: Manner = Manner { structured: false, newer_limit: false };

fn verdict(status: u16, body: &str) -> Answer {
    judge(status, body.as_bytes(), STRUCTURED, StructuredOutput::Auto)
}

#[test]
fn a_server_that_knows_no_schemas_is_understood() {
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
        assert_eq!(verdict(status, body), Answer::Unstructured, "{body}");
        // Once it is asked plainly, the schema is no excuse.
        let plain = judge(status, body.as_bytes(), PLAIN, StructuredOutput::Auto);
        assert!(matches!(plain, Answer::Fatal { .. }), "{body}: {plain:?}");
        let required = judge(status, body.as_bytes(), STRUCTURED, StructuredOutput::Required);
        assert!(matches!(required, Answer::Fatal { .. }), "{body}: {required:?}");
    }
}

#[test]
fn other_refusals_are_not_blamed_on_the_schema() {
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
        assert!(matches!(verdict(status, body), Answer::Fatal { .. }), "{body}");
    }
}

#[test]
fn what_may_pass_is_told_from_what_does_not() {
    for status in [408, 409, 425, 429, 500, 502, 503, 504, 520, 529] {
        assert_eq!(verdict(status, "busy"), Answer::Later, "{status}");
    }
    for status in [301, 400, 401, 402, 403, 404, 405, 413, 422] {
        assert!(matches!(verdict(status, "no"), Answer::Fatal { .. }), "{status}");
    }
    let poor = json!({ "error": { "message": "You exceeded your current quota", "code": "insufficient_quota" } });
    assert!(matches!(verdict(429, &poor.to_string()), Answer::Fatal { .. }));
    assert_eq!([429, 503, 529, 400, 500, 502, 524].map(is_free), [true, true, true, true, false, false, false]);
}

#[test]
fn the_words_of_a_refusal_are_short_and_hold_no_key() {
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

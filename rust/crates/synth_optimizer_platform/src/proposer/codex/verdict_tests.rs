//! Errors of codex and what they lead to.

use serde_json::json;

use super::*;

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

//! Excerpts of replies in errors.

use super::{excerpt, summary};

#[test]
fn pydantic_errors_are_shown_without_the_input() {
    let body =
        br#"{"detail":[{"type":"extra_forbidden","loc":["body","task_ids",0],"msg":"Extra inputs are not permitted",
        "input":{"candidate":{"prompt":"the whole text"}},"ctx":{"error":{"text":"inner"}}}]}"#;
    assert_eq!(excerpt(body), "extra_forbidden at body.task_ids.0: Extra inputs are not permitted");
}

#[test]
fn a_long_or_cut_echo_is_not_shown_either() {
    let echo = "secret text ".repeat(20_000);
    let body = format!(r#"{{"detail":[{{"type":"t","loc":[],"msg":"m","input":"{echo}"}}]}}"#);
    assert_eq!(excerpt(body.as_bytes()), "t at : m");
    let cut = excerpt(&body.as_bytes()[..100]);
    assert!(cut.contains("\"msg\":\"m\"") && !cut.contains("secret"), "{cut}");
}

#[test]
fn echoes_and_credentials_are_removed_from_details() {
    let body = br#"{"detail":{"error":"bad","input":"the whole text","api_key":"abc","note":"sk-12345678901234"}}"#;
    let shown = excerpt(body);
    assert!(shown.contains("bad"), "{shown}");
    for secret in ["whole text", "abc", "12345678901234"] {
        assert!(!shown.contains(secret), "{shown}");
    }
}

#[test]
fn an_excerpt_is_one_short_line() {
    let shown = excerpt(format!("<html>\n\x1b[31m{}", "x".repeat(1000)).as_bytes());
    assert!(shown.starts_with("<html> [31mxxx") && shown.chars().count() == 201, "{shown}");
    assert_eq!(excerpt(b""), "(empty)");
    assert_eq!(excerpt(&[0xff, 0xfe]), "\u{fffd}\u{fffd}");
    assert!(summary(b"Authorization: Bearer abcdefgh").contains("[hidden]"));
}

//! A token is never printed, and is hidden in replies.

#![allow(clippy::unwrap_used)]

use bytes::Bytes;

use super::ContainerToken;
use synth_optimizer_core::model::error::ErrorCode;
use synth_optimizer_core::secrets::Secret;

fn token(value: &str) -> ContainerToken {
    ContainerToken::new("MY_TOKEN", Secret::new(value)).unwrap()
}

#[test]
fn a_missing_or_invalid_token_is_an_error_without_its_value() {
    let error = ContainerToken::read("NO_SUCH_TOKEN_IN_THIS_TEST").unwrap_err();
    assert_eq!(error.code, ErrorCode::Container);
    assert!(error.message.contains("container.token_env") && error.hint.contains("NO_SUCH_TOKEN"), "{error:?}");
    let error = ContainerToken::new("MY_TOKEN", Secret::new("canary\nvalue")).unwrap_err();
    assert!(error.message.contains("MY_TOKEN") && !format!("{error:?}").contains("canary"), "{error:?}");
    assert!(!format!("{:?}", token("canary-value")).contains("canary"));
}

#[test]
fn a_repeated_token_is_hidden_in_a_reply() {
    let reply = |text: &'static str| Bytes::from_static(text.as_bytes());
    let shown = token("canary-value").hide_in(reply("canary-value is not xcanary-valuecanary-value."));
    assert_eq!(shown, "[hidden] is not x[hidden][hidden].");
    let other = reply("{\"reward\": 1}");
    assert_eq!(token("canary-value").hide_in(other.clone()), other);
    assert_eq!(token("reward").hide_in(reply("")), "");
    assert_eq!(token("e").hide_in(other.clone()), other);
}

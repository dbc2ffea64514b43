//! Tests of credentials that are recognized by name and by shape, and of similar ordinary words.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use serde_json::json;

use super::{Secret, is_credential_name, looks_like_key, redact, scrub};

#[test]
fn a_secret_cannot_be_printed() {
    let secret = Secret::new("canary");
    let shown = format!("{secret} {secret:?} {:?} {:#?}", Some(&secret), vec![secret.clone()]);
    assert!(!shown.contains("canary") && shown.starts_with("[hidden] [hidden] Some([hidden])"), "{shown}");
    assert_eq!(secret.expose(), "canary");
}

#[test]
fn credential_names_are_recognized() {
    for name in [
        "api_key",
        "apiKey",
        "x-api-key",
        "OPENAI_API_KEY",
        "token",
        "access_token",
        "authToken",
        "secret",
        "client_secret",
        "password",
        "Authorization",
        "bearer",
        "--api-key",
        "auth",
        "credentials",
        "session_cookie",
        "auth_tokens",
        "key",
        "Key",
        "openai_key",
        "openaiKey",
        "x-key",
        "--key",
        "ssh.key",
        "pwd",
        "db_pwd",
        "pat",
        "github-pat",
    ] {
        assert!(is_credential_name(name), "{name}");
    }
    for name in [
        "max_tokens",
        "prompt_tokens",
        "proposer_estimated_total_tokens",
        "api_key_env",
        "auth_bearer_env",
        "credential_mode",
        "auth_mode",
        "copy_host_auth",
        "author",
        "tokenizer",
        "openai_key_env",
        "keys",
        "objective_keys",
        "key_count",
        "monkey",
        "pattern",
        "path",
        "compat",
        "run_id",
        "",
    ] {
        assert!(!is_credential_name(name), "{name}");
    }
}

#[test]
fn keys_are_recognized_by_their_shape() {
    for word in [
        "sk-abcdefgh12",
        "ghp_abcdefgh1234",
        "AKIAABCDEFGH1234",
        "eyJhbGciOiJIUzI1NiJ9.e30.x",
        "aB3dE5gH7jK9mN1pQ3sT5",
        "9f8a7c6b5d4e3f2a1b0c9d8e7f6a5b4c",
        "9F8A7C6B5D4E3F2A1B0C9D8E7F6A5B4C",
        "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    ] {
        assert!(looks_like_key(word), "{word}");
    }
    for word in [
        "gepa_0123456789abcdef0123456789abcdef",
        "BankingSeventySevenExperiment7",
        "Run-2026-01-02-Banking77-Final-Attempt",
        "sk-learn",
        "metadata.difficulty",
        "9f8a7c6b5d4e3f2a1b0c9d8e7f6a5b4",
        "12345678901234567890123456789012",
        "abcdefabcdefabcdefabcdefabcdefab",
        "550e8400-e29b-41d4-a716-446655440000",
        "gpt-5.4-mini",
    ] {
        assert!(!looks_like_key(word), "{word}");
    }
}

#[test]
fn text_keeps_everything_but_its_secrets() {
    assert_eq!(scrub("use sk-abcdefgh1234, please"), "use [hidden], please");
    assert_eq!(scrub("http://me:pw@host/a?token=abc&x=1"), "http://[hidden]@host/a?token=[hidden]&x=1");
    assert_eq!(scrub("Authorization: Bearer abcdef"), "Authorization: Bearer [hidden]");
    assert_eq!(scrub("Reply with one label."), "Reply with one label.");
    assert_eq!(scrub("größe = ünïcode"), "größe = ünïcode");
}

#[test]
fn values_are_hidden_by_name_at_any_depth() {
    let value = json!({"a": [{"api_key": "x", "n": 1}], "args": ["--token", "x", "y"], "max_tokens": 5});
    let shown = json!({"a": [{"api_key": "[hidden]", "n": 1}], "args": ["--token", "[hidden]", "y"], "max_tokens": 5});
    assert_eq!(redact("config", &value), shown);
}

#[test]
fn a_key_behind_an_escape_is_hidden() {
    const KEY: &str = "sk-canary0123456789abcdef";
    for before in ["\\n", "\\t", "\\r", "\\u2014", "\\\\n", "x\\n", "\\\\", "\\"] {
        let text = format!("{{\"rules\":\"Use{before}{KEY}\\nand more\"}} é\\");
        let shown = super::scrub(&text);
        assert!(!shown.contains("canary") && shown.contains("and more") && shown.ends_with("é\\"), "{shown}");
    }
    assert_eq!(super::scrub("C:\\new\\u12 \\"), "C:\\new\\u12 \\");
}

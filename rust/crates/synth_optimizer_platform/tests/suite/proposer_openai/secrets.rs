//! Keys are sent only to their endpoint, and appear in no file and no message.

use serde_json::json;
use synth_optimizer_core::config::proposer::AuthMode;
use synth_optimizer_core::model::answer::FailureClass;
use synth_optimizer_core::model::error::ErrorCode;
use synth_optimizer_platform::proposer::Proposer;

use super::{CHAT, KEY, MODEL, ProposerFixture, chat, end, good, rules};
use crate::container::server::{Server, json as reply, text};

/// A key-like text that the model invents.
const SHAPED: &str = "sk-canary0123456789abcdef";

#[tokio::test]
async fn an_unset_key_variable_is_reported_before_the_run() {
    for name in ["MISSING_KEY", "BLANK_KEY"] {
        let server = Server::start(|_| good());
        let fixture = ProposerFixture::of(&server, |section| section.api_key_env = Some(name.to_owned()));
        let error = fixture.proposer.prepare().await.unwrap_err();
        assert_eq!(error.code, ErrorCode::Proposer);
        assert!(error.message.contains(name) && error.hint.contains(name), "{error:?}");
        let outcome = fixture.propose().await;
        assert_eq!(end(&outcome), (FailureClass::NotSent, false, true));
        // Only the list of models is requested, without a key.
        assert_eq!(server.lines(), ["GET /v1/models"]);
        assert_eq!(server.seen()[0].headers.get("authorization"), None);
    }
}

#[tokio::test]
async fn a_key_is_sent_only_to_the_endpoint_it_is_configured_for() {
    let server = Server::start(|_| good());
    let fixture = ProposerFixture::of(&server, |section| section.api_key_env = None);
    assert_eq!(fixture.proposer.prepare().await.unwrap().unwrap().auth, "none");
    fixture.propose().await.unwrap();
    assert_eq!(server.lines(), ["GET /v1/models", CHAT]);
    for sent in &server.seen() {
        assert_eq!(sent.headers.get("authorization"), None);
        assert!(!format!("{:?}{}", sent.headers, String::from_utf8_lossy(&sent.body)).contains(KEY));
    }
    let fixture = ProposerFixture::of(&server, |section| {
        section.api_key_env = None;
        section.auth_mode = AuthMode::ApiKey;
    });
    assert!(fixture.proposer.prepare().await.unwrap_err().hint.contains("api_key_env"));
}

#[tokio::test]
async fn no_transcript_or_message_contains_a_key() {
    let echo = format!("your key Bearer {KEY} is wrong, {SHAPED} is not");
    let long = format!("{}{KEY}", "x".repeat(190));
    let echoed = chat(MODEL, format!("The key is {KEY}, that is {SHAPED}."));
    let named = chat(&format!("model-{KEY}"), "x");
    let mut thrown = chat(MODEL, "x");
    thrown["choices"][0]["message"]["refusal"] = json!(echo);
    let scripts: Vec<(u16, String)> = vec![
        (401, json!({ "error": { "message": echo } }).to_string()),
        (500, echo.clone()),
        (200, format!("<html>{echo}")),
        (400, json!({ "error": long }).to_string()),
        (200, long),
        (200, echoed.to_string()),
        (200, named.to_string()),
        (200, thrown.to_string()),
    ];
    for (status, body) in scripts {
        let shown = body.clone();
        let server = Server::start(move |_| text(status, "application/json", &body));
        let fixture = ProposerFixture::of(&server, |_| {});
        let outcome = fixture.propose().await;
        let told = format!("{outcome:?}{}{:?}", fixture.transcripts(), fixture.proposer);
        assert!(fixture.transcripts().contains("endpoint"), "{shown}");
        for secret in [KEY, &KEY[..9], SHAPED] {
            assert!(!told.contains(secret), "{secret} of {shown} stands in {told}");
        }
    }
}

#[tokio::test]
async fn a_key_that_the_model_repeats_in_a_proposal_is_hidden() {
    let manifest =
        json!({ "proposals": [{ "rationale": KEY, "proposed_payload": { "rules": format!("Use {KEY}.") } }] });
    let document = chat(MODEL, manifest.to_string());
    let server = Server::start(move |_| reply(200, &document));
    let fixture = ProposerFixture::of(&server, |_| {});
    let answer = fixture.propose().await.unwrap();
    assert_eq!(rules(&answer), "Use [hidden].");
    assert!(!format!("{answer:?}{}", fixture.transcripts()).contains(KEY));
    // A key that the model invents is a problem to repair.
    let manifest = json!({ "proposals": [{ "proposed_payload": { "rules": format!("Use\n{SHAPED}") } }] });
    let document = chat(MODEL, manifest.to_string());
    let server = Server::start(move |_| reply(200, &document));
    let fixture = ProposerFixture::of(&server, |_| {});
    let answer = fixture.propose().await.unwrap();
    assert_eq!((answer.proposals.len(), answer.problems[0].code.as_str()), (0, "manifest_invalid"));
    assert!(!format!("{answer:?}{}", fixture.transcripts()).contains(SHAPED));
}

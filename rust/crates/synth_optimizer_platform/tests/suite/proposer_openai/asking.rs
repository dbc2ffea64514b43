//! Requests to the endpoint, and their adaptation to the endpoint.

use serde_json::json;
use synth_optimizer_core::config::proposer::{ReasoningEffort, StructuredOutput};
use synth_optimizer_core::config::sections::ApiFamily;
use synth_optimizer_core::model::answer::FailureClass;
use synth_optimizer_core::model::error::ErrorCode;
use synth_optimizer_platform::proposer::Proposer;

use super::{CHAT, MODEL, ProposerFixture, end, good, is_structured, manifest, message, request, rules};
use crate::container::server::{Server, json as reply};

#[tokio::test]
async fn a_chat_completion_is_requested_with_a_schema() {
    let server = Server::start(|_| good());
    let fixture = ProposerFixture::of(&server, |section| {
        section.max_output_tokens = Some(900);
        section.reasoning_effort = Some(ReasoningEffort::Low);
    });
    let answer = fixture.propose().await.unwrap();
    assert_eq!(rules(&answer), "Route {text} to billing.");
    assert_eq!(answer.proposals[0].rationale, "clearer");
    assert_eq!((answer.requested_model.as_str(), answer.effective_model.as_str()), (MODEL, MODEL));
    assert_eq!(server.lines(), [CHAT]);
    let sent = &server.seen()[0];
    assert_eq!(sent.headers["authorization"], format!("Bearer {}", super::KEY));
    let body = sent.json();
    assert_eq!((&body["model"], &body["max_tokens"]), (&json!(MODEL), &json!(900)));
    assert_eq!(body["reasoning_effort"], "low");
    assert_eq!(body.get("stream"), None);
    let format = &body["response_format"];
    assert_eq!((&format["type"], &format["json_schema"]["name"]), (&json!("json_schema"), &json!("gepa_proposal")));
    assert_eq!(format["json_schema"]["strict"], true);
    let schema = &format["json_schema"]["schema"];
    assert!(schema.pointer("/properties/proposals/items/properties/proposed_payload/properties/rules").is_some());
    assert_eq!(body["messages"][0]["role"], "system");
    let shown = body["messages"][1]["content"].as_str().unwrap();
    for part in ["Route {text} well.", "should be billing", "row-1", "proposal_schema.md"] {
        assert!(shown.contains(part), "{part}");
    }
    let transcripts = fixture.transcripts();
    assert!(transcripts.contains("should be billing") && transcripts.contains("Route {text} to billing."));
}

#[tokio::test]
async fn a_response_is_requested_with_a_schema() {
    let server = Server::start(|_| {
        let part = |text: &str| json!({ "type": "output_text", "text": text });
        let whole = manifest();
        let (first, rest) = whole.split_at(20);
        reply(
            200,
            &json!({
                "model": "gpt-4.1-mini-2025-04-14", "status": "completed", "error": null,
                "output": [{ "type": "reasoning", "summary": [] },
                           { "type": "message", "content": [part(first), part(rest)] }],
                "usage": { "input_tokens": 10, "output_tokens": 5, "input_tokens_details": { "cached_tokens": 1 } },
            }),
        )
    });
    let fixture = ProposerFixture::of(&server, |section| {
        section.api_family = ApiFamily::Responses;
        section.max_output_tokens = Some(900);
        section.reasoning_effort = Some(ReasoningEffort::High);
    });
    let answer = fixture.propose().await.unwrap();
    assert_eq!(rules(&answer), "Route {text} to billing.");
    assert_eq!(answer.effective_model, "gpt-4.1-mini-2025-04-14");
    assert_eq!((answer.usage.prompt_tokens, answer.usage.completion_tokens), (Some(10), Some(5)));
    assert_eq!(server.lines(), ["POST /v1/responses"]);
    let body = server.seen()[0].json();
    assert_eq!((&body["store"], &body["max_output_tokens"]), (&json!(false), &json!(900)));
    assert_eq!(body["reasoning"], json!({ "effort": "high" }));
    assert_eq!(body["text"]["format"]["name"], "gepa_proposal");
    assert!(body["input"].as_str().unwrap().contains("should be billing"));
    assert!(body["instructions"].as_str().unwrap().contains("JSON"));
}

#[tokio::test]
async fn an_endpoint_that_rejects_schemas_gets_none_from_then_on() {
    let server = Server::start(|request| {
        if is_structured(request) {
            reply(400, &json!({ "error": { "message": "response_format type json_schema is not supported" } }))
        } else {
            good()
        }
    });
    // The rejected schema does not count as a retry.
    let fixture = ProposerFixture::of(&server, |section| section.request_retries = 0);
    let first = fixture.turn(1).await.unwrap();
    assert_eq!(rules(&first), "Route {text} to billing.");
    assert_eq!(first.usage.prompt_tokens, Some(1000));
    assert_eq!(rules(&fixture.turn(2).await.unwrap()), "Route {text} to billing.");
    assert_eq!(server.seen().iter().map(is_structured).collect::<Vec<_>>(), [true, false, false]);
    assert!(fixture.transcripts().contains("later requests leave out what the endpoint rejects"));
}

#[tokio::test]
async fn a_rejected_required_schema_ends_the_run() {
    let server = Server::start(|_| {
        reply(
            422,
            &json!({ "detail": [{ "type": "extra_forbidden", "loc": ["body", "response_format"], "msg": "Extra inputs are not permitted" }] }),
        )
    });
    let fixture = ProposerFixture::of(&server, |section| section.structured_output = StructuredOutput::Required);
    let outcome = fixture.propose().await;
    assert_eq!(end(&outcome), (FailureClass::Contract, false, true));
    assert!(message(&outcome).contains("response_format"), "{outcome:?}");
    let fatal = outcome.unwrap_err().fatal.unwrap();
    assert_eq!(fatal.code, ErrorCode::Proposer);
    assert!(fatal.hint.contains("structured_output"), "{}", fatal.hint);
    assert_eq!(server.count(CHAT), 1);
}

#[tokio::test]
async fn no_schema_is_sent_if_structured_output_is_off() {
    let server = Server::start(|_| good());
    let fixture = ProposerFixture::of(&server, |section| section.structured_output = StructuredOutput::Off);
    fixture.propose().await.unwrap();
    assert!(!is_structured(&server.seen()[0]));
}

#[tokio::test]
async fn max_completion_tokens_is_used_if_the_endpoint_requires_it() {
    let server = Server::start(|request| {
        if request.json().get("max_tokens").is_some() {
            let message = "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.";
            reply(400, &json!({ "error": { "message": message, "param": "max_tokens" } }))
        } else {
            good()
        }
    });
    let fixture = ProposerFixture::of(&server, |section| section.max_output_tokens = Some(7));
    fixture.propose().await.unwrap();
    let sent = server.seen();
    assert_eq!((sent.len(), &sent[1].json()["max_completion_tokens"]), (2, &json!(7)));
    assert!(is_structured(&sent[1]));
}

#[tokio::test]
async fn the_identity_contains_all_settings_that_affect_answers_and_no_url() {
    let server = Server::start(|_| good());
    let identity = ProposerFixture::of(&server, |_| {}).proposer.identity();
    assert_eq!(
        identity,
        json!({
            "backend": "openai_compatible", "model": MODEL, "api_family": "chat_completions", "reasoning_effort": null,
            "structured_output": "auto", "max_output_tokens": null, "max_evidence_kb": 128, "brief": 2, "instructions": null,
        })
    );
    assert_ne!(identity, ProposerFixture::of(&server, |section| section.max_evidence_kb = 4).proposer.identity());
}

#[tokio::test]
async fn prepare_asks_only_for_the_models() {
    let server = Server::start(|_| good());
    let fixture = ProposerFixture::of(&server, |_| {});
    let ready = fixture.proposer.prepare().await.unwrap().unwrap();
    assert_eq!(
        (ready.backend.as_str(), ready.model.as_str(), ready.auth.as_str()),
        ("openai_compatible", MODEL, "api_key")
    );
    assert_eq!((ready.program, ready.source.as_str()), (format!("{}/v1/", server.url()), "proposer.base_url"));
    assert_eq!(server.lines(), ["GET /v1/models"]);
    // The request does not depend on time, because its digest is a cache key.
    assert_eq!(request(), request());
}

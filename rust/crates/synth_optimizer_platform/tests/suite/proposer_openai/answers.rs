//! Reading of answers: their format, model, usage and cost.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use synth_optimizer_core::config::proposer::ModelPrice;
use synth_optimizer_core::config::sections::ApiFamily;
use synth_optimizer_core::model::answer::{FailureClass, ProposalAnswer};
use synth_optimizer_core::model::usage::{Cost, NanoUsd, Usage};
use synth_optimizer_platform::proposer::TurnFailure;

use super::{MODEL, ProposerFixture, answered, chat, end, manifest, message, rules};
use crate::container::server::{Server, json as reply, text};

async fn said(content: impl Into<Value>) -> Result<ProposalAnswer, TurnFailure> {
    let document = chat(MODEL, content);
    answered(move || reply(200, &document)).await
}

async fn replied(change: impl FnOnce(&mut Value)) -> Result<ProposalAnswer, TurnFailure> {
    let mut document = chat(MODEL, manifest());
    change(&mut document);
    answered(move || reply(200, &document)).await
}

#[tokio::test]
async fn a_manifest_is_found_inside_other_text() {
    let manifest = manifest();
    for content in [
        format!("Here it is:\n```json\n{manifest}\n```\nI hope it helps."),
        format!("Sure! {manifest} Done."),
        format!("<think>\nMaybe {{\"proposals\": []}}?\n</think>\n\n{manifest}"),
        format!("Maybe {{\"proposals\": []}}?\n</think>\n{manifest}"),
    ] {
        assert_eq!(rules(&said(content.as_str()).await.unwrap()), "Route {text} to billing.", "{content}");
    }
    let parts = json!([{ "type": "text", "text": manifest[..9] }, { "type": "text", "text": manifest[9..] }]);
    assert_eq!(rules(&said(parts).await.unwrap()), "Route {text} to billing.");
}

#[tokio::test]
async fn half_an_emoji_does_not_cost_the_answer() {
    // In the text of the model, and in the document of the endpoint.
    let written = manifest().replace("billing", "billing \\ud83d");
    assert_eq!(rules(&said(written.as_str()).await.unwrap()), "Route {text} to billing \u{fffd}.");
    let body = chat(MODEL, manifest()).to_string().replace("billing", "billing \\ud83d");
    assert_eq!(
        rules(&answered(move || text(200, "application/json", &body)).await.unwrap()),
        "Route {text} to billing \u{fffd}."
    );
}

#[tokio::test]
async fn usage_that_cannot_be_true_is_unknown() {
    for (name, value) in
        [("prompt_tokens", json!(-1)), ("completion_tokens", json!(u64::MAX)), ("prompt_tokens", json!(0.5))]
    {
        let answer = replied(|reply| reply["usage"][name] = value).await.unwrap();
        assert_eq!(answer.usage, Usage::default());
    }
    let answer = replied(|reply| reply["usage"]["cost"] = json!(-3.0)).await.unwrap();
    assert_eq!(answer.usage.total_tokens, Some(1500));
}

#[tokio::test]
async fn an_unreadable_answer_is_an_answer_with_problems() {
    for content in [json!("I cannot think of anything."), json!(""), Value::Null] {
        let answer = said(content).await.unwrap();
        assert_eq!((answer.proposals.len(), answer.problems[0].code.as_str()), (0, "manifest_unreadable"));
        assert_eq!(answer.usage.total_tokens, Some(1500));
    }
    let answer = said(r#"{ "proposals": [{ "proposed_payload": { "rules": 7 } }] }"#).await.unwrap();
    assert_eq!(answer.problems[0].field.as_deref(), Some("proposals[0].proposed_payload.rules"));
}

#[tokio::test]
async fn a_refusal_is_a_failure_and_a_truncated_answer_can_be_repaired() {
    let refused = replied(|reply| reply["choices"][0]["message"]["refusal"] = json!("I will not.")).await;
    assert_eq!(end(&refused), (FailureClass::Failed, false, false));
    assert!(message(&refused).contains("I will not."));
    let cut = replied(|reply| reply["choices"][0]["finish_reason"] = json!("length")).await;
    let cut = cut.unwrap();
    assert_eq!((cut.problems[0].code.as_str(), cut.proposals.len()), ("answer_cut_off", 0));
    assert!(cut.problems[0].message.contains("max_output_tokens"));
    let failure = refused.unwrap_err().failure;
    assert_eq!((failure.usage.total_tokens, cut.usage.total_tokens), (Some(1500), Some(1500)));
    assert_eq!(failure.models.unwrap().effective.as_deref(), Some(MODEL));
}

#[tokio::test]
async fn a_failed_or_incomplete_response_keeps_its_usage() {
    for (status, rest) in [("incomplete", json!({ "reason": "max_output_tokens" })), ("failed", json!(null))] {
        let document = json!({
            "model": MODEL, "status": status, "incomplete_details": rest, "output": [],
            "error": if status == "failed" { json!({ "code": "server_error", "message": "it broke" }) } else { Value::Null },
            "usage": { "input_tokens": 3, "output_tokens": 4 },
        });
        let server = Server::start(move |_| reply(200, &document));
        let outcome = ProposerFixture::of(&server, |section| section.api_family = ApiFamily::Responses).propose().await;
        let used = if status == "failed" {
            assert_eq!(end(&outcome), (FailureClass::Failed, true, false), "{outcome:?}");
            outcome.unwrap_err().failure.usage
        } else {
            let answer = outcome.unwrap();
            assert_eq!(answer.problems[0].code, "answer_cut_off");
            answer.usage
        };
        assert_eq!(used.total_tokens, Some(7));
    }
}

#[tokio::test]
async fn another_model_ends_the_run_and_its_usage_is_kept() {
    let outcome = replied(|reply| reply["model"] = json!("gpt-4.1-nano")).await;
    assert_eq!(end(&outcome), (FailureClass::Contract, false, true));
    let TurnFailure { failure, fatal, .. } = outcome.unwrap_err();
    assert_eq!(failure.message, "model gpt-4.1-mini was requested, and gpt-4.1-nano answered");
    assert_eq!(failure.usage.total_tokens, Some(1500));
    assert_eq!(failure.models.unwrap().effective.as_deref(), Some("gpt-4.1-nano"));
    assert!(fatal.unwrap().hint.contains("proposer.model"));
}

#[tokio::test]
async fn a_dated_or_unnamed_model_is_accepted() {
    for (model, stored) in [
        (json!("gpt-4.1-mini-2025-04-14"), "gpt-4.1-mini-2025-04-14"),
        (json!("openai/gpt-4.1-mini"), "openai/gpt-4.1-mini"),
        (Value::Null, "unknown"),
    ] {
        let answer = replied(|reply| reply["model"] = model).await.unwrap();
        assert_eq!((answer.requested_model.as_str(), answer.effective_model.as_str()), (MODEL, stored));
    }
}

#[tokio::test]
async fn unreported_usage_is_unknown() {
    for usage in
        [Value::Null, json!({}), json!({ "prompt_tokens": 3 }), json!({ "prompt_tokens": -1, "completion_tokens": 2 })]
    {
        assert_eq!(replied(|reply| reply["usage"] = usage).await.unwrap().usage, Usage::default());
    }
}

#[tokio::test]
async fn the_cost_comes_from_the_endpoint_or_the_config_or_is_unknown() {
    // List prices do not apply to a custom server.
    assert_eq!(replied(|_| {}).await.unwrap().usage.cost, Cost::Unknown);
    let told = replied(|reply| reply["usage"]["cost"] = json!(0.0125)).await.unwrap();
    assert_eq!(told.usage.cost, Cost::Known(NanoUsd(12_500_000)));
    let price = ModelPrice {
        prompt_usd: Some(1.0),
        cached_prompt_usd: Some(0.5),
        completion_usd: Some(2.0),
        ..ModelPrice::default()
    };
    // The price of the requested name also applies to its dated name.
    for (model, name) in
        [(MODEL, MODEL), ("gpt-4.1-mini-2025-04-14", MODEL), ("openai/gpt-4.1-mini", "openai/gpt-4.1-mini")]
    {
        let document = chat(model, manifest());
        let server = Server::start(move |_| reply(200, &document));
        let fixture =
            ProposerFixture::of(&server, |section| section.prices = BTreeMap::from([(name.to_owned(), price)]));
        let cost = fixture.propose().await.unwrap().usage.cost;
        assert_eq!(cost, Cost::Known(NanoUsd(600_000 + 200_000 + 1_000_000)), "{model}");
    }
}

#[tokio::test]
async fn an_invalid_completion_is_a_retryable_contract_failure() {
    let page = "<html><body>Sign in to the network</body></html>";
    let outcome = answered(move || text(200, "text/html", page)).await;
    assert_eq!(end(&outcome), (FailureClass::Contract, true, false));
    assert!(message(&outcome).contains("Sign in to the network") && message(&outcome).contains("text/html"));
    assert_eq!(outcome.unwrap_err().failure.usage, Usage::default());
    for body in ["", "null", "[]", "{}", r#"{"choices":[]}"#, r#"{"choices":[{"text":"x"}]}"#, r#"{"choices":{"#] {
        let outcome = answered(move || text(200, "application/json", body)).await;
        assert_eq!(end(&outcome), (FailureClass::Contract, true, false), "{body}");
    }
}

//! Servers that answer with another model than the requested one, and what codex reports about it.

use synth_e2e::model_server::{ModelReply, write_rules};
use synth_optimizer_core::config::proposer::ModelPrice;
use synth_optimizer_core::model::answer::FailureClass;
use synth_optimizer_core::model::usage::Cost;

use super::fixture::{CodexFixture, texts};

/// Returns a fixture whose model has these names in the bodies and headers of its responses.
fn named(model: &'static str, header: Option<&'static str>) -> CodexFixture {
    let mut fixture = CodexFixture::new(move |request| match write_rules(request) {
        ModelReply::Items(items) => {
            ModelReply::FromModel { model: model.into(), header: header.map(str::to_owned), items }
        }
        reply => reply,
    });
    price(&mut fixture);
    fixture
}

fn price(fixture: &mut CodexFixture) {
    let price = ModelPrice {
        prompt_usd: Some(1.0),
        cached_prompt_usd: None,
        completion_usd: Some(1.0),
        ..ModelPrice::default()
    };
    fixture.config.proposer.prices.insert("stub-model".into(), price);
}

/// Returns a fixture whose first response has the requested model name, and all later ones another name.
fn turns_into(model: &'static str, header: &'static str) -> CodexFixture {
    let mut fixture = CodexFixture::new(move |request| match write_rules(request) {
        ModelReply::Items(items) if !request.outputs.is_empty() => {
            ModelReply::FromModel { model: model.into(), header: Some(header.into()), items }
        }
        reply => reply,
    });
    price(&mut fixture);
    fixture
}

#[test]
fn another_model_in_a_header_stops_the_run() {
    for model in ["stub-model", "other-model"] {
        let fixture = turns_into(model, "other-model");
        let turn = *fixture.turn().unwrap_err();
        assert_eq!((turn.failure.class, turn.failure.retryable), (FailureClass::Contract, false));
        assert_eq!(turn.failure.models.unwrap().effective.as_deref(), Some("other-model"));
        // The usage of the first response is always reported; the second one may be interrupted before it is counted.
        assert!(turn.failure.usage.total_tokens >= Some(120), "{:?}", turn.failure.usage);
        // The price of the requested model does not apply to another one.
        assert_eq!(turn.failure.usage.cost, Cost::Unknown);
        assert!(turn.fatal.unwrap().message.contains("other-model"));
        assert!(fixture.transcript().contains("model/rerouted"));
    }
}

#[test]
fn a_dated_name_in_a_header_is_the_same_model() {
    let fixture = named("stub-model-2026-03-17", Some("stub-model-2026-03-17"));
    let answer = fixture.turn().unwrap();
    assert_eq!(texts(&answer), ["Rules: r0 r3"]);
    let models = (answer.requested_model.as_str(), answer.effective_model.as_str());
    assert_eq!(models, ("stub-model", "stub-model-2026-03-17"));
    assert!(answer.usage.cost.known().is_some(), "{:?}", answer.usage);
}

#[test]
fn codex_does_not_report_another_model_in_a_response_body() {
    let fixture = named("other-model", None);
    let answer = fixture.turn().unwrap();
    // This fails if codex starts to report the model of the body.
    assert_eq!(answer.effective_model, "stub-model");
    assert!(!fixture.transcript().contains("other-model"));
}

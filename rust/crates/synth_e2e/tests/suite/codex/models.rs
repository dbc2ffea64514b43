//! Servers that answer with another model than the one that was asked for, and what the real codex tells of it.

use synth_e2e::model_server::{ModelReply, write_rules};
use synth_optimizer_core::config::proposer::ModelPrice;
use synth_optimizer_core::model::answer::FailureClass;
use synth_optimizer_core::model::usage::Cost;

use super::fixture::{CodexFixture, texts};

/// A model that does its work under this name in the bodies of its responses, and under that one in their headers.
fn named(model: &'static str, header: Option<&'static str>) -> CodexFixture {
    let mut fixture = CodexFixture::new(move |asked| match write_rules(asked) {
        ModelReply::Items(items) => ModelReply::FromModel { model: model.into(), header: header.map(str::to_owned), items },
        reply => reply,
    });
    price(&mut fixture);
    fixture
}

fn price(fixture: &mut CodexFixture) {
    let price = ModelPrice { prompt_usd: Some(1.0), cached_prompt_usd: None, completion_usd: Some(1.0) };
    fixture.config.proposer.prices.insert("stub-model".into(), price);
}

/// Answers under the name it was asked for once, and from then on under another one.
fn turns_into(model: &'static str, header: &'static str) -> CodexFixture {
    let mut fixture = CodexFixture::new(move |asked| match write_rules(asked) {
        ModelReply::Items(items) if !asked.outputs.is_empty() => {
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
        // The first response is told before the second is asked for; the second may be broken off before it is counted.
        assert!(turn.failure.usage.total_tokens >= Some(120), "{:?}", turn.failure.usage);
        // The price of the model that was asked for says nothing about another.
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
fn another_model_in_a_body_alone_is_not_told_by_codex() {
    let fixture = named("other-model", None);
    let answer = fixture.turn().unwrap();
    // Should codex begin to tell it, this is where it shows.
    assert_eq!(answer.effective_model, "stub-model");
    assert!(!fixture.transcript().contains("other-model"));
}

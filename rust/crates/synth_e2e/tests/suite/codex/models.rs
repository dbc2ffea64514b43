//! Servers that answer with another model than the requested one, and what codex reports about it.

use synth_e2e::model_server::{ModelReply, write_rules};
use synth_optimizer_core::config::proposer::ModelPrice;
use synth_optimizer_core::model::answer::FailureClass;
use synth_optimizer_core::model::error::ErrorCode;
use synth_optimizer_core::model::usage::Cost;
use synth_optimizer_platform::proposer::Proposer;

use super::fixture::{CodexFixture, request, texts, turn_id};
use super::hostile::{redefine, use_fake_codex};

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

#[test]
fn without_a_model_codex_chooses_one_and_the_run_records_it() {
    let mut fixture = CodexFixture::new(write_rules);
    fixture.config.proposer.model = None;
    let proposer = fixture.proposer();
    let (ready, answer) = fixture.runtime.block_on(async {
        let ready = proposer.prepare().await.unwrap().unwrap();
        let answer = proposer.propose(turn_id(1), request()).await;
        proposer.close().await;
        (ready, answer.map_err(|turn| turn.failure).unwrap())
    });
    fixture.assert_clean();
    let asked = fixture.server.requests()[0].body["model"].clone();
    assert_eq!(asked, ready.model, "codex asks for the model that it names");
    assert_ne!(ready.model, "stub-model");
    assert_eq!((&answer.requested_model, &answer.effective_model), (&ready.model, &ready.model));
    let recorded = format!("\"model\":{:?}", ready.model);
    assert!(fixture.transcript().contains(&recorded), "{}", fixture.transcript());
    // Neither the key of the cache nor the configuration of codex names a model.
    assert!(proposer.identity()["model"].is_null());
}

#[test]
fn a_model_that_codex_chose_is_the_model_of_every_later_turn_and_process() {
    // The thread of the check names the default model; that of the turn does not.
    let mut fixture = CodexFixture::new(write_rules);
    fixture.config.proposer.model = None;
    use_fake_codex(&mut fixture, &redefine("thread", "if 'turn_' in params['cwd']: result['model'] = 'other-model'"));
    let turn = *fixture.turn().unwrap_err();
    let models = turn.failure.models.unwrap();
    assert_eq!((models.requested.as_str(), models.effective.as_deref()), ("default-model", Some("other-model")));
    let fatal = turn.fatal.unwrap();
    assert!(fatal.message.contains("\"other-model\", not \"default-model\""), "{fatal}");
    // A resumed run compares with the model of its first process.
    use_fake_codex(&mut fixture, "");
    for (model, is_same) in [("default-model", true), ("earlier-model", false)] {
        let proposer = fixture.proposer();
        assert!(proposer.adopt_model(model));
        let prepared = fixture.runtime.block_on(async {
            let prepared = proposer.prepare().await;
            proposer.close().await;
            prepared
        });
        match prepared {
            Ok(ready) => assert!(is_same && ready.unwrap().model == model),
            Err(error) => {
                assert!(!is_same && error.code == ErrorCode::Proposer, "{error}");
                assert!(error.message.contains("\"default-model\", not \"earlier-model\""), "{error}");
                assert!(error.message.contains("proposer.model is not set"), "{error}");
            }
        }
        assert_eq!(proposer.adopt_model("default-model"), is_same, "the model of the run does not change");
    }
    // The run requests the configured model, even if codex had chosen another one.
    fixture.config.proposer.model = Some("stub-model".into());
    assert!(!fixture.proposer().adopt_model("earlier-model"));
}

#[test]
fn a_thread_that_names_no_model_cannot_be_used() {
    let mut fixture = CodexFixture::new(write_rules);
    fixture.config.proposer.model = None;
    use_fake_codex(&mut fixture, &redefine("thread", "del result['model']"));
    let proposer = fixture.proposer();
    let error = fixture.runtime.block_on(proposer.prepare()).unwrap_err();
    assert!(error.message.contains("the thread has no model"), "{error}");
    fixture.assert_clean();
}

//! The check before the first rollout: it asks for the list of models, reports every clear problem, and bills nothing.

use serde_json::{Value, json};
use synth_optimizer_core::model::answer::FailureClass;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_platform::access::EgressPolicy;
use synth_optimizer_platform::proposer::Proposer;

use super::{KEY, MODEL, ProposerFixture, end, good};
use crate::container::server::{Server, ServerAction, json as reply, text, unused_address};

const LIST: &str = "GET /v1/models";

async fn problems(fixture: &ProposerFixture) -> Vec<OptimizerError> {
    fixture.proposer.check().await.err().unwrap_or_default()
}

fn models(ids: &[&str]) -> Value {
    json!({ "object": "list", "data": ids.iter().map(|id| json!({ "id": id })).collect::<Vec<_>>() })
}

#[tokio::test]
async fn every_clear_problem_of_the_endpoint_is_reported() {
    let no_key = "{\"error\": \"bad key canary-Key-0451-not-shaped-like-one\"}";
    let cases: [(u16, String, &str, &str); 3] = [
        (401, no_key.into(), "rejected the key of the proposer with 401", "proposer.api_key_env"),
        (403, no_key.into(), "rejected the key of the proposer with 403", "proposer.api_key_env"),
        (200, models(&["gpt-4.1-nano", "o3"]).to_string(), "does not serve proposer.model", "gpt-4.1-nano, o3"),
    ];
    for (status, body, message, hint) in cases {
        let server = Server::start(move |_| text(status, "application/json", &body));
        let found = problems(&ProposerFixture::of(&server, |_| {})).await;
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].code, ErrorCode::Proposer);
        assert!(found[0].message.contains(message) && found[0].hint.contains(hint), "{found:?}");
        assert!(!format!("{found:?}").contains(KEY), "{found:?}");
        assert_eq!(server.lines(), [LIST], "nothing else is asked");
        assert_eq!(server.seen()[0].headers["authorization"], format!("Bearer {KEY}"));
    }
    let server = Server::start(|_| reply(401, &json!({})));
    let found = problems(&ProposerFixture::of(&server, |section| section.api_key_env = None)).await;
    assert!(found[0].message.contains("without a key") && found[0].hint.contains("proposer.api_key_env"), "{found:?}");
}

#[tokio::test]
async fn a_missing_key_and_an_unreachable_endpoint_are_reported_together() {
    let dead = format!("http://{}/v1", unused_address());
    let fixture = ProposerFixture::at(&dead, |section| section.api_key_env = Some("MISSING_KEY".into()));
    let found = problems(&fixture).await;
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].message.contains("MISSING_KEY"), "{found:?}");
    assert!(found[1].message.contains("cannot be reached") && found[1].hint.contains("proposer.base_url"), "{found:?}");
    let joined = fixture.proposer.prepare().await.unwrap_err();
    assert!(found.iter().all(|problem| joined.message.contains(&problem.message)), "{joined}");
    // An endpoint that rejects a request without a key is no second problem; an unknown model is one.
    let server = Server::start(|_| reply(401, &json!({})));
    let missing =
        |server: &Server| ProposerFixture::of(server, |section| section.api_key_env = Some("MISSING_KEY".into()));
    assert_eq!(problems(&missing(&server)).await.len(), 1);
    let server = Server::start(|_| reply(200, &models(&["other"])));
    assert_eq!(problems(&missing(&server)).await.len(), 2);
}

#[tokio::test]
async fn unclear_answers_are_no_problems() {
    let partial = json!({ "data": [{ "id": "other" }], "has_more": true });
    let pattern = models(&["openai/*", "other"]);
    let native = json!({ "models": [{ "name": "other" }] });
    let lists =
        [models(&[]), partial, pattern, native, json!({ "data": [{ "name": "other" }] }), json!([]), json!("x")];
    let known = [models(&[MODEL]), models(&["openai/gpt-4.1-mini"]), models(&["gpt-4.1-mini-2025-04-14"])];
    for document in lists.into_iter().chain(known) {
        let shown = document.to_string();
        let server = Server::start(move |_| reply(200, &document));
        assert_eq!(problems(&ProposerFixture::of(&server, |_| {})).await, [], "{shown}");
    }
    for status in [302, 400, 404, 405, 429, 500, 501, 503] {
        let server = Server::start(move |_| text(status, "text/plain", "no"));
        assert_eq!(problems(&ProposerFixture::of(&server, |_| {})).await, [], "{status}");
    }
    for action in [|| ServerAction::Close, || ServerAction::Raw(b"garbage".to_vec())] {
        let server = Server::start(move |_| action());
        assert_eq!(problems(&ProposerFixture::of(&server, |_| {})).await, []);
    }
}

#[tokio::test]
async fn the_announced_end_of_the_model_is_a_warning() {
    let entries = [
        (json!({ "id": MODEL, "shutdown_date": "2999-12-31" }), Some(("shutdown_date", "2999-12-31", false))),
        (json!({ "id": MODEL, "expiration_date": "2020-01-31" }), Some(("expiration_date", "2020-01-31", true))),
        (
            json!({ "id": MODEL, "deprecation": "2999-08-31T12:00:00Z", "deprecation_replacement_model": "other" }),
            Some(("deprecation", "2999-08-31", false)),
        ),
        (
            json!({ "id": "openai/gpt-4.1-mini", "shutdown_date": "2020-01-31" }),
            Some(("shutdown_date", "2020-01-31", true)),
        ),
        (json!({ "id": MODEL, "shutdown_date": null, "expiration_date": null, "deprecation": null }), None),
        (
            json!({ "id": MODEL, "deprecation": { "date": 5 }, "shutdown_date": "soon", "expiration_date": 20_300_101 }),
            None,
        ),
        (json!({ "id": MODEL, "shutdown_date": "2020-01-3é1", "expiration_date": "2020/01/31" }), None),
        (json!({ "id": MODEL }), None),
    ];
    for (entry, expected) in entries {
        // The entry of another model does not matter, even if it has a similar name.
        let other = json!({ "id": "gpt-4.1", "shutdown_date": "2020-01-01" });
        let dated = json!({ "id": format!("{MODEL}-2025-04-14"), "shutdown_date": "2020-01-02" });
        let is_exact = entry["id"] == MODEL;
        let list =
            json!({ "data": if is_exact { vec![other, dated, entry.clone()] } else { vec![other, entry.clone()] } });
        let server = Server::start(move |_| reply(200, &list));
        let fixture = ProposerFixture::of(&server, |_| {});
        let ready = fixture.proposer.check().await.unwrap().unwrap();
        let found = ready.model_shutdown.as_ref();
        let found = found.map(|end| (end.field.as_str(), end.date.as_str(), end.is_past));
        assert_eq!(found, expected, "{entry}");
        let warning = ready.shutdown_warning();
        assert_eq!(warning.is_some(), expected.is_some());
        if let (Some(warning), Some((field, date, is_past))) = (warning, expected) {
            assert!([MODEL, field, date].iter().all(|word| warning.contains(word)), "{warning}");
            assert_eq!(warning.contains("which is past"), is_past, "{warning}");
        }
    }
}

#[tokio::test]
async fn a_restricted_proposer_is_not_connected() {
    let egress_policy = EgressPolicy::proposers();
    let server = Server::start(|_| good());
    let here = ProposerFixture::restricted(&format!("{}/v1", server.url()), &egress_policy, |_| {});
    assert_eq!(problems(&here).await, []);
    here.propose().await.unwrap();
    // 0.0.0.0 reaches this machine, and is not loopback.
    let other = format!("http://0.0.0.0:{}/v1", server.address.port());
    let fixture = ProposerFixture::restricted(&other, &egress_policy, |_| {});
    let found = problems(&fixture).await;
    assert_eq!(found.len(), 1);
    assert!(found[0].message.starts_with("proposer_not_allowed: "), "{found:?}");
    assert_eq!(end(&fixture.propose().await), (FailureClass::NotSent, false, true));
    assert_eq!(server.lines().len(), 2, "only the allowed proposer called");
}

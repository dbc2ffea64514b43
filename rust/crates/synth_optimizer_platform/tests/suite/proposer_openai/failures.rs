//! Endpoints that fail, are overloaded, silent or unreachable, and which requests are retried.

use std::time::Duration;

use serde_json::json;
use synth_optimizer_core::model::answer::FailureClass;
use synth_optimizer_core::model::error::ErrorCode;
use synth_optimizer_core::model::usage::Cost;
use synth_optimizer_core::model::usage::Usage;

use super::{CHAT, ProposerFixture, answered, chat, end, good, manifest, message, nothing_used, rules};
use crate::container::server::{Server, ServerAction, json as reply, text, unused_address};
use crate::pauses::with_pauses;
use crate::waiting::with_timeout;

fn overloaded(status: u16, retry_after: &str) -> ServerAction {
    let headers = vec![("retry-after", retry_after.to_owned())];
    ServerAction::Reply { status, headers, body: br#"{"error":{"message":"slow down"}}"#.to_vec() }
}

#[tokio::test]
async fn an_overloaded_request_is_retried_after_retry_after() {
    let server = Server::start(|request| match request.nth {
        0 => overloaded(429, "1"),
        1 => overloaded(529, "0"),
        _ => good(),
    });
    let fixture = ProposerFixture::of(&server, |_| {});
    let (answer, pauses) = with_pauses(fixture.propose()).await;
    let answer = answer.unwrap();
    assert_eq!(rules(&answer), "Route {text} to billing.");
    assert_eq!(answer.usage.prompt_tokens, Some(1000));
    assert_eq!(server.count(CHAT), 3);
    assert_eq!(pauses, [1000, 2]);
}

#[tokio::test]
async fn a_long_pause_is_left_to_the_run_and_kept() {
    let server = Server::start(|request| if request.nth == 0 { overloaded(503, "3600") } else { good() });
    let fixture = ProposerFixture::of(&server, |_| {});
    let (outcome, pauses) = with_pauses(with_timeout(fixture.propose())).await;
    let asked = outcome.unwrap_err().outage.unwrap().retry_after;
    assert_eq!((asked, pauses, server.count(CHAT)), (Some(Duration::from_secs(3600)), vec![], 1));
    // No delay starts that would end after the deadline.
    let server = Server::start(|_| overloaded(503, "3600"));
    let fixture = ProposerFixture::of(&server, |section| {
        section.backoff_max_seconds = 100;
        section.timeout_seconds = 2;
    });
    assert_eq!(
        end(&with_timeout(fixture.propose()).await),
        (FailureClass::Failed, true, false),
        "the deadline was met"
    );
    assert_eq!(server.count(CHAT), 1);
}

#[tokio::test]
async fn a_persistently_failing_endpoint_is_a_failure_in_bounded_time() {
    let server = Server::start(|_| text(500, "text/plain", "oh no"));
    let outcome = ProposerFixture::of(&server, |_| {}).propose().await;
    assert_eq!(end(&outcome), (FailureClass::Failed, true, false));
    assert_eq!(message(&outcome), "the endpoint answered 500: oh no (tried 3 times)");
    // It is unknown whether the requests were billed.
    assert_eq!(outcome.unwrap_err().failure.usage, Usage::default());
    assert_eq!(server.count(CHAT), 3);
}

#[tokio::test]
async fn rejected_requests_have_zero_usage() {
    let outcome = answered(|| overloaded(429, "0")).await;
    assert_eq!(end(&outcome), (FailureClass::Failed, true, false));
    assert_eq!(outcome.unwrap_err().failure.usage, nothing_used());
}

#[tokio::test]
async fn an_error_inside_a_success_response_is_an_error() {
    let server = Server::start(|request| match request.nth {
        0 => reply(200, &json!({ "error": { "code": 429, "message": "rate limited upstream" } })),
        _ => good(),
    });
    assert_eq!(rules(&ProposerFixture::of(&server, |_| {}).propose().await.unwrap()), "Route {text} to billing.");
    let outcome = answered(|| reply(200, &json!({ "error": { "code": 401, "message": "no user" } }))).await;
    assert_eq!(end(&outcome), (FailureClass::Failed, true, false));
}

#[tokio::test]
async fn a_silent_endpoint_is_stopped_at_the_deadline() {
    for act in [
        || ServerAction::Hang,
        || ServerAction::Drip(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n".to_vec()),
    ] {
        let server = Server::start(move |_| act());
        let fixture = ProposerFixture::of(&server, |section| section.timeout_seconds = 1);
        let outcome = with_timeout(fixture.propose()).await;
        assert_eq!(end(&outcome), (FailureClass::Timeout, true, false));
        assert_eq!(outcome.unwrap_err().failure.usage, Usage::default());
        assert_eq!(server.count(CHAT), 1);
        assert!(fixture.transcripts().contains("timeout_seconds"));
    }
}

#[tokio::test]
async fn an_incomplete_answer_has_an_unknown_outcome() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let kept = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        // An answer before the request would close the connection before the request is sent.
        while stream.try_read(&mut [0; 1 << 16]).is_err() {
            stream.readable().await.unwrap();
        }
        stream.writable().await.unwrap();
        stream.try_write(b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{").unwrap();
        std::future::pending::<()>().await;
        drop(stream);
    });
    let fixture = ProposerFixture::at(&format!("http://{address}/v1"), |section| {
        section.idle_timeout_seconds = 1;
        section.request_retries = 0;
    });
    assert_eq!(end(&fixture.propose().await), (FailureClass::UnknownOutcome, true, false));
    kept.abort();
}

#[tokio::test]
async fn an_unreachable_endpoint_counts_as_not_sent() {
    let outcome = ProposerFixture::at(&format!("http://{}/v1", unused_address()), |_| {}).propose().await;
    assert_eq!(end(&outcome), (FailureClass::NotSent, true, false));
    assert!(message(&outcome).contains("(tried 3 times)"), "{outcome:?}");
    assert_eq!(outcome.unwrap_err().failure.usage, nothing_used());
}

#[tokio::test]
async fn a_lost_request_makes_the_usage_unknown_even_after_an_answer() {
    let cut = || b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{\"choices\"".to_vec();
    let server = Server::start(move |request| match request.nth {
        0 => ServerAction::Close,
        1 => ServerAction::Raw(cut()),
        _ => good(),
    });
    let answer = ProposerFixture::of(&server, |_| {}).propose().await.unwrap();
    assert_eq!(rules(&answer), "Route {text} to billing.");
    assert_eq!(answer.usage, Usage::default());
    let outcome = answered(|| ServerAction::Close).await;
    assert_eq!(end(&outcome), (FailureClass::UnknownOutcome, true, false));
}

#[tokio::test]
async fn a_rejected_key_model_or_account_is_an_outage_and_a_rejected_request_ends_the_run() {
    for (status, code, class, hint) in [
        (401, "invalid_api_key", FailureClass::Failed, "api_key_env"),
        (403, "forbidden", FailureClass::Failed, "api_key_env"),
        (402, "payment", FailureClass::Failed, "Add credit"),
        (429, "insufficient_quota", FailureClass::Failed, "Add credit"),
        (404, "model_not_found", FailureClass::Failed, "proposer.model"),
        (400, "context_length_exceeded", FailureClass::Contract, "max_evidence_kb"),
        (422, "bad_request", FailureClass::Contract, "endpoint's message"),
        (301, "moved", FailureClass::Contract, "redirects"),
    ] {
        let server =
            Server::start(move |_| reply(status, &json!({ "error": { "message": "it says no", "code": code } })));
        let outcome = ProposerFixture::of(&server, |_| {}).propose().await;
        let is_outage = class == FailureClass::Failed;
        assert_eq!(end(&outcome), (class, is_outage, !is_outage), "{status}");
        assert_eq!(message(&outcome), format!("the endpoint answered {status}: it says no"));
        let failure = outcome.unwrap_err();
        assert_eq!(failure.failure.usage, nothing_used());
        let shown = match (failure.fatal, failure.outage) {
            (Some(fatal), None) => {
                assert_eq!(fatal.code, ErrorCode::Proposer);
                fatal.hint
            }
            (None, Some(outage)) => {
                assert!(outage.cause.contains("it says no"), "{outage:?}");
                outage.hint.unwrap().into_owned()
            }
            other => panic!("{other:?}"),
        };
        assert!(shown.contains(hint), "{shown}");
        assert_eq!(server.count(CHAT), 1, "{status}");
    }
}

#[tokio::test]
async fn an_answer_that_is_too_large_is_not_read() {
    let head = || b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n".to_vec();
    let flood = answered(move || ServerAction::Flood(head())).await;
    let declared =
        answered(|| ServerAction::Raw(b"HTTP/1.1 200 OK\r\ncontent-length: 99999999\r\n\r\n".to_vec())).await;
    // The reply is small enough, but the answer in it is not.
    let long = answered(|| reply(200, &chat(super::MODEL, format!("{}{}", manifest(), " ".repeat(9000))))).await;
    let long = long.unwrap();
    assert_eq!((long.problems[0].code.as_str(), long.proposals.len()), ("answer_too_large", 0));
    for outcome in [flood, declared] {
        assert_eq!(end(&outcome), (FailureClass::Contract, false, false));
        assert!(message(&outcome).contains("proposer.max_answer_kb = 8"), "{outcome:?}");
    }
}

#[tokio::test]
async fn the_cost_is_unknown_after_a_server_error() {
    let server = Server::start(|request| if request.nth == 0 { text(500, "text/plain", "oh no") } else { good() });
    let answer = ProposerFixture::of(&server, |_| {}).propose().await.unwrap();
    assert_eq!((answer.usage.cost, answer.usage.total_tokens), (Cost::Unknown, Some(1500)));
}

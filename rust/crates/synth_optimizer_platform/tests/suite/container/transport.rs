//! Sync rollouts: what may be sent again, and the failure class of each loss.

use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};
use synth_optimizer_core::config::Config;
use synth_optimizer_core::model::answer::FailureClass;
use synth_optimizer_platform::container::{
    Client, Contract, EarlierRollouts, RolloutOutcome, Routes, Sending, Transport,
};

use super::server::{ReceivedRequest, Server, ServerAction, json as reply, text, unused_address};
use super::toy::config;
use crate::pauses::with_pauses;
use crate::waiting::with_timeout;

pub(crate) const SUBMIT: &str = "POST /rollout";
pub(crate) const STATE: &str = "GET /rollouts/r-1/state";
pub(crate) const RECORD: &str = "GET /rollouts/r-1";
pub(crate) const TERMINATE: &str = "POST /rollouts/r-1/terminate";

pub(crate) fn contract(modes: &[&str]) -> Contract {
    Contract {
        version: "synth_optimizers.gepa.v2".into(),
        routes: Routes {
            program: "/program".into(),
            rollout: "/rollout".into(),
            dataset: None,
            taskset: Some(("/taskset".into(), "/taskset/tasks".into())),
        },
        remembers_rollouts: false,
        rollout_modes: modes.iter().map(|mode| (*mode).to_owned()).collect(),
    }
}

pub(crate) fn transport(config: &Config) -> Transport {
    Transport::new(
        Client::new(&config.container).unwrap(),
        &contract(&["blocking", "async"]),
        config,
        EarlierRollouts::default(),
    )
}

pub(crate) async fn run(transport: &Transport, may_have_been_sent: bool) -> RolloutOutcome {
    let body = |mode: synth_optimizer_core::config::gepa::SubmissionMode| {
        Ok(Bytes::from(json!({ "rollout_id": "r-1", "submission_mode": mode.as_str() }).to_string()))
    };
    let sending = if may_have_been_sent { Sending::AskFirst { sent_at: 0 } } else { Sending::First };
    transport.rollout("r-1", &body, sending).await
}

async fn run_sync(server: &Server) -> RolloutOutcome {
    run(&transport(&config(&server.url())), false).await
}

pub(crate) fn record(status: &str) -> ServerAction {
    reply(200, &json!({ "rollout_id": "r-1", "status": status, "reward": 1.0 }))
}

fn record_of(id: &str) -> ServerAction {
    reply(200, &json!({ "rollout_id": id, "status": "completed", "reward": 1.0 }))
}

pub(crate) fn class(end: &RolloutOutcome) -> (FailureClass, bool) {
    let failure = end.outcome.as_ref().unwrap_err();
    (failure.class, failure.retryable)
}

pub(crate) fn status_of(end: &RolloutOutcome) -> String {
    let record: Value = serde_json::from_slice(&end.outcome.as_ref().unwrap().body).unwrap();
    record["status"].as_str().unwrap_or_default().to_owned()
}

fn not_found() -> ServerAction {
    reply(404, &json!({ "detail": "unknown_rollout:r-1" }))
}

/// Starts a server that answers submissions with the script and everything else with 404.
fn submit(script: impl Fn(&ReceivedRequest) -> ServerAction + Send + Sync + 'static) -> Server {
    Server::start(move |request| if request.line() == SUBMIT { script(request) } else { not_found() })
}

#[tokio::test]
async fn a_rollout_is_sent_once_and_returns_its_record() {
    let server = submit(|_| record("completed"));
    let end = run_sync(&server).await;
    assert_eq!(status_of(&end), "completed");
    assert_eq!((end.overload, end.fallback.is_none(), end.fatal.is_none()), (None, true, true));
    assert_eq!(server.lines(), [SUBMIT]);
    assert_eq!(server.seen()[0].json()["submission_mode"], "sync");
}

#[tokio::test]
async fn a_failed_record_is_returned() {
    assert_eq!(status_of(&run_sync(&submit(|_| record("failed"))).await), "failed");
}

#[tokio::test]
async fn an_unsent_rollout_is_retried_and_then_reported() {
    let mut config = config(&format!("http://{}", unused_address()));
    config.container.connect_retries = 3;
    config.container.retry_backoff_ms = 30;
    config.container.retry_backoff_max_ms = 1000;
    let transport = transport(&config);
    let (end, pauses) = with_pauses(run(&transport, false)).await;
    assert_eq!(class(&end), (FailureClass::NotSent, true));
    // The schedule computes in floating point.
    let is_doubled = pauses.iter().zip([30, 60, 120]).all(|(pause, wanted)| pause.abs_diff(wanted) <= 1);
    assert!(pauses.len() == 3 && is_doubled, "{pauses:?}");
}

#[tokio::test]
async fn an_overload_response_is_retried_and_counted() {
    let server = submit(|request| match request.nth {
        0 => text(503, "text/plain", "busy"),
        _ => record("completed"),
    });
    let end = run_sync(&server).await;
    assert_eq!((status_of(&end).as_str(), end.overload), ("completed", Some(503)));
    assert_eq!(server.count(SUBMIT), 2);

    let server = submit(|_| reply(429, &json!({ "detail": "slow down" })));
    let mut config = config(&server.url());
    config.container.overload_retries = 2;
    config.gepa.pipeline.adaptive_rollout_concurrency.overload_status_codes = vec![503];
    let end = run(&transport(&config), false).await;
    assert_eq!((class(&end), end.overload), ((FailureClass::NotSent, true), None));
    assert_eq!(server.count(SUBMIT), 3);
}

#[tokio::test]
async fn every_other_status_is_final() {
    let cases = [
        (500, FailureClass::Failed, true),
        (408, FailureClass::Failed, true),
        (400, FailureClass::Contract, false),
        (404, FailureClass::Contract, false),
        (409, FailureClass::Contract, false),
        (422, FailureClass::Contract, false),
        (307, FailureClass::Contract, false),
    ];
    for (status, expected, retryable) in cases {
        let server = submit(move |_| text(status, "text/plain", "Internal Server Error"));
        let end = run_sync(&server).await;
        assert_eq!(class(&end), (expected, retryable), "{status}");
        assert_eq!(server.lines(), [SUBMIT], "{status}");
        assert!(end.outcome.unwrap_err().message.contains(&format!("answered {status}: Internal")));
        assert!(end.fatal.is_none());
        assert_eq!((end.overload, end.outage), (None, None));
    }
}

#[tokio::test]
async fn a_server_in_front_of_a_lost_container_is_an_outage_and_the_rollout_may_have_run() {
    for status in [502, 504] {
        let server = submit(move |_| text(status, "text/plain", "Bad Gateway"));
        let end = run_sync(&server).await;
        assert_eq!(class(&end), (FailureClass::UnknownOutcome, true), "{status}");
        assert!(end.outage.unwrap().cause.contains(&format!("answered {status}")));
        // The container is asked for the rollout by id.
        assert_eq!(server.lines(), [SUBMIT, "GET /rollouts/r-1/state", "GET /rollouts/r-1"], "{status}");
    }
}

#[tokio::test]
async fn a_container_that_is_gone_or_overloaded_is_an_outage_and_nothing_was_sent() {
    let mut config = config(&format!("http://{}", unused_address()));
    config.container.connect_retries = 0;
    let end = run(&transport(&config), false).await;
    assert_eq!(class(&end), (FailureClass::NotSent, true));
    assert!(end.outage.unwrap().cause.starts_with("the container at 127.0.0.1:"));
    for status in [429, 503, 529] {
        let server = submit(move |_| {
            let head = format!("HTTP/1.1 {status} Busy\r\nretry-after: 7\r\ncontent-length: 0\r\n\r\n");
            ServerAction::Raw(head.into_bytes())
        });
        config.container.url = server.url();
        config.container.overload_retries = 0;
        let end = run(&transport(&config), false).await;
        assert_eq!((class(&end), end.overload), ((FailureClass::NotSent, true), Some(status)));
        assert_eq!(end.outage.unwrap().retry_after, Some(Duration::from_secs(7)));
    }
}

#[tokio::test]
async fn a_longer_pause_than_the_retries_have_is_left_to_the_run() {
    let server = submit(|_| {
        let head = "HTTP/1.1 503 Busy\r\nretry-after: 3600\r\ncontent-length: 0\r\n\r\n";
        ServerAction::Raw(head.as_bytes().to_vec())
    });
    let config = config(&server.url());
    assert!(config.container.overload_retries > 0);
    let end = run(&transport(&config), false).await;
    assert_eq!((class(&end), server.count(SUBMIT)), ((FailureClass::NotSent, true), 1));
    assert_eq!(end.outage.unwrap().retry_after, Some(Duration::from_secs(3600)));
}

#[tokio::test]
async fn a_large_reply_that_stalls_does_not_block_the_other_large_replies_until_its_deadline() {
    let server = submit(|_| {
        let mut reply = b"HTTP/1.1 200 OK\r\ncontent-length: 3000000\r\n\r\n".to_vec();
        reply.resize(2_000_000, b' ');
        ServerAction::Stall(reply)
    });
    let mut config = config(&server.url());
    (config.container.request_timeout_seconds, config.container.rollout_timeout_seconds) = (1, 3600);
    config.container.max_reply_mb = 16;
    let end = run(&transport(&config), false).await;
    assert_eq!(class(&end).0, FailureClass::UnknownOutcome);
    assert!(end.outcome.unwrap_err().message.contains("without data"));
}

/// Asks for rollout `r-1`, which was sent before, of a container that remembers the `known` rollouts.
async fn asked_again(
    known: &'static [&'static str],
    sent_at: u64,
    change: fn(&mut Config),
) -> (RolloutOutcome, Server) {
    let server = Server::start(move |request| match request.line().as_str() {
        SUBMIT => record("completed"),
        line if known.iter().any(|id| line.ends_with(&format!("/{id}")) || line.ends_with(&format!("/{id}/state"))) => {
            record_of("")
        }
        _ => not_found(),
    });
    let mut config = config(&server.url());
    config.gepa.rollout_poll_interval_ms = 1;
    change(&mut config);
    let earlier = EarlierRollouts { ended_id: Some("r-0".into()), longest: Duration::ZERO };
    let client = Client::new(&config.container).unwrap();
    let transport = Transport::new(client, &contract(&["blocking", "async"]), &config, earlier);
    let body = |_| Ok(Bytes::from_static(b"{}"));
    let end = transport.rollout("r-1", &body, Sending::AskFirst { sent_at }).await;
    (end, server)
}

#[tokio::test]
async fn a_container_that_remembers_ended_rollouts_tells_whether_a_rollout_ran() {
    // It remembers the earlier one and not this one, and no copy can still run: this one never ran.
    let (end, server) = asked_again(&["r-0"], 0, |_| {}).await;
    assert_eq!((status_of(&end).as_str(), end.is_lost), ("completed", false));
    assert_eq!(server.count(SUBMIT), 1);
    // It remembers this one: nothing is sent.
    let (end, server) = asked_again(&["r-0", "r-1"], 0, |_| {}).await;
    assert_eq!((status_of(&end).as_str(), server.count(SUBMIT)), ("completed", 0));
}

#[tokio::test]
async fn a_rollout_is_lost_if_the_container_remembers_nothing_or_was_restarted() {
    let (end, server) = asked_again(&[], 0, |_| {}).await;
    assert!(end.is_lost && end.outage.is_none());
    assert_eq!((class(&end), server.count(SUBMIT)), ((FailureClass::UnknownOutcome, true), 0));
    let managed = |config: &mut Config| config.container.command = vec!["python".into()];
    let (end, server) = asked_again(&["r-0"], 0, managed).await;
    assert_eq!((end.is_lost, server.count(SUBMIT)), (true, 0));
}

#[tokio::test]
async fn a_copy_that_still_runs_is_found_when_it_ends() {
    // The container knows a rollout only after it has ended.
    let server = Server::start(|request| match (request.line().as_str(), request.nth) {
        ("GET /rollouts/r-0/state" | "GET /rollouts/r-0", _) => record_of("r-0"),
        (STATE | RECORD, 0..4) => not_found(),
        _ => record("completed"),
    });
    let mut config = config(&server.url());
    config.gepa.rollout_poll_interval_ms = 1;
    let earlier = EarlierRollouts { ended_id: Some("r-0".into()), longest: Duration::ZERO };
    let client = Client::new(&config.container).unwrap();
    let transport = Transport::new(client, &contract(&["blocking", "async"]), &config, earlier);
    let body = |_| Ok(Bytes::from_static(b"{}"));
    let sending = Sending::AskFirst { sent_at: synth_optimizer_platform::clock::unix_millis() };
    let end = with_timeout(transport.rollout("r-1", &body, sending)).await;
    assert_eq!((status_of(&end).as_str(), server.count(SUBMIT)), ("completed", 0));
}

#[tokio::test]
async fn a_rollout_id_conflict_stops_the_run() {
    let server =
        submit(|_| reply(409, &json!({ "detail": { "error": "rollout_identity_conflict", "rollout_id": "r-1" } })));
    let end = run_sync(&server).await;
    assert_eq!(class(&end), (FailureClass::Contract, false));
    assert!(end.fatal.unwrap().message.contains("rollout_identity_conflict"));
    assert_eq!(server.count(SUBMIT), 1);
}

#[tokio::test]
async fn a_rollout_that_may_have_arrived_is_never_sent_again() {
    let cut = b"HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\n{\"rollout_id\"".to_vec();
    let losses: [Box<dyn Fn() -> ServerAction + Send + Sync>; 3] = [
        Box::new(|| ServerAction::Close),
        Box::new(move || ServerAction::Raw(cut.clone())),
        Box::new(|| ServerAction::Hang),
    ];
    for loss in losses {
        let server = submit(move |_| loss());
        let end = with_timeout(run_sync(&server)).await;
        assert_eq!(class(&end), (FailureClass::UnknownOutcome, true));
        assert_eq!(server.lines(), [SUBMIT, STATE, RECORD]);
    }
}

#[tokio::test]
async fn a_lost_answer_is_looked_up() {
    let server = Server::start(|request| match request.line().as_str() {
        SUBMIT => ServerAction::Close,
        STATE if request.nth == 0 => record("running"),
        _ => record("completed"),
    });
    let end = run_sync(&server).await;
    assert_eq!(status_of(&end), "completed");
    assert_eq!(server.lines(), [SUBMIT, STATE, STATE, RECORD]);
}

#[tokio::test]
async fn a_rollout_past_its_deadline_is_terminated() {
    let server = Server::start(|request| match request.line().as_str() {
        SUBMIT => ServerAction::Hang,
        TERMINATE => record("terminated"),
        _ => record("running"),
    });
    let end = run_sync(&server).await;
    assert_eq!(class(&end), (FailureClass::Timeout, true));
    assert_eq!(server.lines(), [SUBMIT, STATE, TERMINATE]);
    assert_eq!(server.seen()[2].json(), json!({ "reason": "gepa_async_timeout" }));
}

#[tokio::test]
async fn a_slow_answer_is_stopped_at_the_deadline() {
    let server = submit(|_| ServerAction::Drip(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n".to_vec()));
    let end = with_timeout(run_sync(&server)).await;
    assert_eq!(class(&end), (FailureClass::UnknownOutcome, true));
}

#[tokio::test]
async fn an_endless_answer_is_a_contract_failure() {
    let server = submit(|_| ServerAction::Flood(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n".to_vec()));
    let end = run_sync(&server).await;
    assert_eq!(class(&end), (FailureClass::Contract, false));
    assert!(end.outcome.unwrap_err().message.contains("container.max_reply_mb = 1"));
}

#[tokio::test]
async fn an_invalid_record_is_a_contract_failure() {
    let cases = [
        (text(200, "text/html", "<html>Bearer abcdefgh</html>"), "<html>Bearer [hidden]"),
        (text(200, "application/json", "{\"status\": \"comp"), "is not JSON"),
        (text(200, "application/octet-stream", "\u{1f}\u{8b}gzip"), "is not JSON"),
        (record("weird"), "not a known status"),
    ];
    for (act, expected) in cases {
        let act = std::sync::Mutex::new(Some(act));
        let server = submit(move |_| act.lock().unwrap().take().unwrap());
        let end = run_sync(&server).await;
        assert_eq!(class(&end), (FailureClass::Contract, false));
        let message = end.outcome.unwrap_err().message;
        assert!(message.contains(expected), "{message}");
    }
}

#[tokio::test]
async fn after_a_crash_the_container_is_asked_before_sending_again() {
    // The rollout has ended.
    let server = Server::start(|_| record("completed"));
    let end = run(&transport(&config(&server.url())), true).await;
    assert_eq!(status_of(&end), "completed");
    assert_eq!(server.lines(), [STATE, RECORD]);
    // The rollout is running.
    let server = Server::start(|request| match (request.line().as_str(), request.nth) {
        (STATE, 0 | 1) => record("running"),
        _ => record("completed"),
    });
    let end = run(&transport(&config(&server.url())), true).await;
    assert_eq!(status_of(&end), "completed");
    assert_eq!(server.lines(), [STATE, STATE, STATE, RECORD]);
    // The container does not know the rollout, or has no route to ask.
    for status in [404, 405] {
        let server = Server::start(move |request| match request.line().as_str() {
            SUBMIT => record("completed"),
            _ => reply(status, &json!({ "detail": "no" })),
        });
        let transport = transport(&config(&server.url()));
        let end = run(&transport, true).await;
        assert_eq!((class(&end), end.is_lost), ((FailureClass::UnknownOutcome, true), true));
        assert_eq!(server.lines(), [STATE, RECORD]);
        // Once that is charged, the rollout is sent again.
        let body = |_| Ok(Bytes::from_static(b"{}"));
        let end = transport.rollout("r-1", &body, Sending::Again).await;
        assert_eq!((status_of(&end).as_str(), server.count(SUBMIT)), ("completed", 1));
    }
    // The container does not answer: the rollout is not sent again.
    let server = Server::start(|_| ServerAction::Close);
    let end = run(&transport(&config(&server.url())), true).await;
    assert_eq!(class(&end), (FailureClass::UnknownOutcome, true));
    assert_eq!(server.count(SUBMIT), 0);
}

#[tokio::test]
async fn connections_are_reused() {
    let server = submit(|_| record("completed"));
    let transport = transport(&config(&server.url()));
    for _ in 0..20 {
        assert!(run(&transport, false).await.outcome.is_ok());
    }
    assert_eq!((server.count(SUBMIT), server.opened()), (20, 1));
}

#[tokio::test]
async fn a_connection_is_not_used_again_after_a_server_error() {
    let server = submit(|request| if request.nth == 0 { text(500, "text/plain", "no") } else { record("completed") });
    let transport = transport(&config(&server.url()));
    assert_eq!(class(&run(&transport, false).await), (FailureClass::Failed, true));
    for _ in 0..3 {
        assert!(run(&transport, false).await.outcome.is_ok());
    }
    assert_eq!((server.count(SUBMIT), server.opened()), (4, 2));
}

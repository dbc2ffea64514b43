//! Async rollouts: submission, polling, and the fallback to sync mode.

use std::sync::Mutex;

use serde_json::json;
use synth_optimizer_core::config::Config;
use synth_optimizer_core::config::gepa::SubmissionMode;
use synth_optimizer_core::model::answer::FailureClass;
use synth_optimizer_platform::container::{Client, EarlierRollouts, Transport};

use super::server::{Server, ServerAction, json as reply};
use super::toy::config;
use super::transport::{RECORD, STATE, SUBMIT, TERMINATE, class, contract, record, run, status_of, transport};
use crate::waiting::with_timeout;

fn config_async(server: &Server) -> Config {
    let mut config = config(&server.url());
    config.gepa.rollout_submission_mode = SubmissionMode::Async;
    config
}

#[tokio::test]
async fn a_rollout_is_submitted_polled_and_fetched_once() {
    let server = Server::start(|request| match request.line().as_str() {
        STATE if request.nth == 2 => record("completed"),
        RECORD => reply(200, &json!({ "rollout_id": "r-1", "status": "completed", "reward": 0.5 })),
        _ => record("running"),
    });
    let end = run(&transport(&config_async(&server)), false).await;
    assert_eq!(status_of(&end), "completed");
    assert_eq!(server.lines(), [SUBMIT, STATE, STATE, STATE, RECORD]);
    assert_eq!(server.seen()[0].json()["submission_mode"], "async");
}

#[tokio::test]
async fn a_first_reply_with_a_final_status_is_the_record() {
    for status in ["completed", "failed"] {
        let server = Server::start(move |_| record(status));
        let end = run(&transport(&config_async(&server)), false).await;
        assert_eq!(status_of(&end), status);
        assert_eq!(server.lines(), [SUBMIT]);
    }
}

#[tokio::test]
async fn failed_polls_are_tolerated() {
    let server = Server::start(|request| match (request.line().as_str(), request.nth) {
        (STATE, 0) => ServerAction::Close,
        (STATE, 1) => reply(500, &json!({})),
        (STATE, 2) => reply(429, &json!({})),
        (RECORD, 0) => ServerAction::Close,
        (STATE | RECORD, _) => record("completed"),
        _ => record("queued"),
    });
    let end = run(&transport(&config_async(&server)), false).await;
    assert_eq!((status_of(&end).as_str(), end.overload), ("completed", Some(429)));
    assert_eq!(server.count(SUBMIT), 1);
}

#[tokio::test]
async fn a_failed_state_is_final_without_a_record() {
    let server = Server::start(|request| match request.line().as_str() {
        STATE => reply(200, &json!({ "status": "failed", "status_detail": "RuntimeError: toy crash" })),
        RECORD => reply(404, &json!({})),
        _ => record("running"),
    });
    let end = run(&transport(&config_async(&server)), false).await;
    assert_eq!(status_of(&end), "failed");
}

#[tokio::test]
async fn a_forgotten_rollout_has_an_unknown_outcome() {
    let server = Server::start(|request| match request.line().as_str() {
        SUBMIT => record("running"),
        _ => reply(404, &json!({ "detail": "unknown_rollout:r-1" })),
    });
    let end = run(&transport(&config_async(&server)), false).await;
    assert_eq!(class(&end), (FailureClass::UnknownOutcome, true));
    assert_eq!(server.count(SUBMIT), 1);
}

#[tokio::test]
async fn a_timeout_requires_the_containers_acknowledgement() {
    for (acknowledged, expected) in [(200, FailureClass::Timeout), (500, FailureClass::UnknownOutcome)] {
        let server = Server::start(move |request| match request.line().as_str() {
            TERMINATE => reply(acknowledged, &json!({ "status": "terminated" })),
            _ => record("running"),
        });
        let end = run(&transport(&config_async(&server)), false).await;
        assert_eq!(class(&end), (expected, true));
        assert_eq!(server.count(TERMINATE), 1);
    }
}

#[tokio::test]
async fn unknown_status_words_and_foreign_ids_are_contract_failures() {
    let cases =
        [json!({ "rollout_id": "r-1", "status": "melted" }), json!({ "rollout_id": "r-2", "status": "completed" })];
    for state in cases {
        let server = Server::start(move |request| match request.line().as_str() {
            STATE => reply(200, &state),
            _ => record("running"),
        });
        let end = run(&transport(&config_async(&server)), false).await;
        assert_eq!(class(&end), (FailureClass::Contract, false));
    }
    let server = Server::start(|_| reply(200, &json!({ "rollout_id": "own-7", "status": "running" })));
    let end = run(&transport(&config_async(&server)), false).await;
    assert_eq!(class(&end), (FailureClass::Contract, false));
}

#[tokio::test]
async fn a_rejected_async_rollout_switches_to_sync() {
    let server = Server::start(|request| match request.json()["submission_mode"].as_str() {
        Some("async") => reply(422, &json!({ "detail": "only submission_mode=sync is supported" })),
        _ => record("completed"),
    });
    let transport = transport(&config_async(&server));
    assert!(transport.fallback_at_start().is_none());
    let end = run(&transport, false).await;
    assert_eq!(status_of(&end), "completed");
    let fallback = end.fallback.unwrap();
    assert_eq!((fallback.requested.as_str(), fallback.effective.as_str()), ("async", "sync"));
    let end = run(&transport, false).await;
    assert!(end.fallback.is_none() && end.outcome.is_ok());
    let modes: Vec<_> = server.seen().iter().map(|request| request.json()["submission_mode"].clone()).collect();
    assert_eq!(modes, ["async", "sync", "sync"]);
    assert_eq!(transport.mode(), SubmissionMode::Sync);
}

#[tokio::test]
async fn an_echo_of_the_mode_is_not_a_rejection_of_it() {
    let server = Server::start(|_| {
        let finding = json!({ "type": "extra_forbidden", "loc": ["body", "note"], "msg": "Extra inputs",
            "input": { "submission_mode": "async" } });
        reply(422, &json!({ "detail": [finding] }))
    });
    let end = run(&transport(&config_async(&server)), false).await;
    assert_eq!(class(&end), (FailureClass::Contract, false));
    assert!(end.fallback.is_none());
}

#[tokio::test]
async fn advertised_modes_decide_the_fallback_at_the_start() {
    let server = Server::start(|_| record("completed"));
    let config = config_async(&server);
    let made = |modes: &[&str], config: &Config| {
        Transport::new(Client::new(&config.container).unwrap(), &contract(modes), config, EarlierRollouts::default())
    };
    let fallback = made(&["blocking"], &config).fallback_at_start().unwrap();
    assert_eq!(fallback.reason, "the container's rollout_modes are blocking");
    assert!(made(&[], &config).fallback_at_start().is_none());
    assert!(made(&["blocking"], &super::toy::config(&server.url())).fallback_at_start().is_none());
    run(&made(&["blocking"], &config), false).await;
    assert_eq!(server.seen()[0].json()["submission_mode"], "sync");
}

#[tokio::test]
async fn a_lost_submission_is_polled_and_not_repeated() {
    let polls = Mutex::new(0);
    let server = Server::start(move |request| match request.line().as_str() {
        SUBMIT => ServerAction::Close,
        STATE => {
            let mut polls = polls.lock().unwrap();
            *polls += 1;
            record(if *polls < 3 { "running" } else { "completed" })
        }
        _ => record("completed"),
    });
    let end = run(&transport(&config_async(&server)), false).await;
    assert_eq!(status_of(&end), "completed");
    assert_eq!(server.count(SUBMIT), 1);
}

#[tokio::test]
async fn a_rollout_can_be_terminated() {
    let server = Server::start(|_| record("terminated"));
    transport(&config_async(&server)).terminate("r-1").await;
    assert_eq!(server.lines(), [TERMINATE]);
    assert_eq!(server.seen()[0].json(), json!({ "reason": "cancelled" }));
    let silent = Server::start(|_| ServerAction::Hang);
    with_timeout(transport(&config_async(&silent)).terminate("r-1")).await;
}

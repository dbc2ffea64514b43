//! The body of a rollout, and the reading of its record.

use bytes::Bytes;
use serde_json::{Value, json};
use synth_optimizer_core::config::gepa::SubmissionMode;
use synth_optimizer_core::config::sections::PolicySection;
use synth_optimizer_core::model::answer::{CallFailure, FailureClass};
use synth_optimizer_core::model::command::RolloutCommand;
use synth_optimizer_core::model::event_fields::Stage;
use synth_optimizer_core::model::ids::{CallId, CandidateId, Payload, RowId};
use synth_optimizer_core::model::usage::{Cost, NanoUsd, Usage};
use synth_optimizer_platform::container::{
    ExpectedRollout, IdentityCheck, ReceivedRecord, RolloutReply, TaskRow, policy_value, read_reply, rollout_body,
};

use super::program::load_toy;
use super::toy::ToyContainer;

const CANDIDATE: &str = "gepa_0123456789ab";

fn read_as(body: &str, row: Value, deciding: &str) -> Result<RolloutReply, CallFailure> {
    let payload: Payload = [("prompt".to_owned(), "Be kind.".to_owned())].into();
    let row = TaskRow { value: row, digest: String::new(), seed: None };
    let row_id = RowId::new("row");
    let (candidate_id, policy) = (CandidateId::new(CANDIDATE), json!({ "model": "gpt-4.1-nano" }));
    let expected = ExpectedRollout {
        rollout_id: Some("r-1"),
        row: &row,
        row_id: &row_id,
        candidate_id: &candidate_id,
        payload: &payload,
        policy: &policy,
        deciding,
    };
    let received = ReceivedRecord::read(Bytes::from(body.to_owned()));
    received.record.and_then(|record| read_reply(record, &expected))
}

fn read(body: &Value) -> Result<RolloutReply, CallFailure> {
    read_as(&body.to_string(), json!({}), "outcome_reward")
}

fn failed(body: &Value) -> (FailureClass, bool, String) {
    let failure = read(body).unwrap_err();
    (failure.class, failure.retryable, failure.message)
}

#[test]
fn reward_fields_are_read_in_order() {
    let cases = [
        (json!({ "reward_info": { "outcome_reward": 1, "score": 2 }, "reward": 3 }), 1.0),
        (json!({ "reward_info": { "outcome_reward": null, "score": 2 }, "summary": { "outcome_reward": 4 } }), 2.0),
        (json!({ "reward_info": null, "summary": { "outcome_reward": -0.5 }, "reward": 3 }), -0.5),
        (json!({ "status": "done", "summary": [], "reward": 1e100 }), 1e100),
        (json!({ "trace": [1, [2]], "metadata": "x", "usage": 5, "reward": 0 }), 0.0),
    ];
    for (body, expected) in cases {
        assert_eq!(read(&body).unwrap().answer.reward, expected, "{body}");
    }
}

#[test]
fn an_invalid_score_is_never_accepted() {
    let cases = [
        (r#"{"reward_info":{"outcome_reward":null},"summary":{"outcome_reward":1.0}}"#, "the score is ambiguous"),
        (r#"{"reward_info":{"outcome_reward":"nan"},"reward":1.0}"#, "reward_info.outcome_reward is nan, not a finite"),
        (r#"{"reward_info":{"outcome_reward":NaN,"score":1.0}}"#, "reward_info.outcome_reward is NaN, not a finite"),
        (r#"{"reward_info":{"outcome_reward":"n/a"},"reward":1.0}"#, "reward_info.outcome_reward is n/a and reward"),
        (r#"{"reward_info":{},"reward":1.0}"#, "the score is ambiguous"),
        (r#"{"reward_info":{"outcome_reward":"0.5"}}"#, "reward_info.outcome_reward is 0.5, not a number"),
        (r#"{"status":"completed"}"#, "no reward"),
        (r#"{"reward":null}"#, "no reward"),
        (r#"{"reward":true}"#, "reward is true, not a number"),
        (r#"{"reward":NaN}"#, "reward is NaN, not a finite number"),
        (r#"{"reward":-Infinity}"#, "reward is -Infinity, not a finite number"),
        (r#"{"reward":1e999}"#, "reward is 1e999, not a finite number"),
        (r#"{"reward":-1e308}"#, "reward is -1e+308, not a finite number from -1e100 to 1e100"),
        (
            r#"{"reward":1,"objective_scores":[{"objective":"a","value":1e101}]}"#,
            "objective_scores[0].value (a) is 1e+101",
        ),
        (
            r#"{"reward":1,"objective_scores":[{"objective":"a","value":null}]}"#,
            "objective_scores[0].value (a) is null",
        ),
        (r#"{"reward":1,"objective_scores":[{"objective":"a"}]}"#, "objective_scores[0].value (a)"),
        (r#"{"reward":1,"objective_scores":[{"objective":"a","value":"1"}]}"#, "objective_scores[0].value (a) is 1"),
    ];
    for (body, expected) in cases {
        let failure = read_as(body, json!({}), "outcome_reward").unwrap_err();
        assert_eq!((failure.class, failure.retryable), (FailureClass::InvalidScore, false), "{body}");
        assert!(failure.message.contains(expected), "{body}: {}", failure.message);
    }
}

#[test]
fn the_status_is_checked_before_the_reward() {
    let body = json!({ "status": "failed", "reward": 1.0, "status_detail": "key sk-1234567890abcdef is bad",
        "usage": { "prompt_tokens": 5, "completion_tokens": 1 } });
    let failure = read(&body).unwrap_err();
    assert_eq!((failure.class, failure.retryable), (FailureClass::Failed, true));
    assert_eq!(failure.message, "failed: key [hidden] is bad");
    assert_eq!(failure.usage.prompt_tokens, Some(5), "what was used is paid for, however it ended");
    assert_eq!(failed(&json!({ "status": "TIMED_OUT", "error": { "code": 7 } })).2, "TIMED_OUT: {\"code\":7}");
    assert_eq!(failed(&json!({ "state": "cancelled", "status_detail": "" })).2, "cancelled");
    assert!(read(&json!({ "status": "completed", "success_status": "failed", "reward": 0 })).is_ok());
    assert_eq!(failed(&json!({ "status": "running", "reward": 1 })).0, FailureClass::Contract);
    assert_eq!(failed(&json!({ "status": "weird", "reward": 1 })).0, FailureClass::Contract);
}

#[test]
fn an_invalid_record_is_a_contract_failure() {
    for body in ["<html>", "[1]", "", "{\"reward\": 1"] {
        let failure = read_as(body, json!({}), "outcome_reward").unwrap_err();
        assert_eq!((failure.class, failure.retryable), (FailureClass::Contract, false), "{body}");
    }
    let cases = [
        (json!({ "reward": 1, "objective_scores": { "a": 1 } }), "objective_scores is"),
        (
            json!({ "reward": 1, "metadata": { "objective_scores": [5] } }),
            "metadata.objective_scores[0] has no objective",
        ),
        (
            json!({ "reward": 1, "reward_info": { "outcome_reward": 1, "details": { "objective_scores": [{ "value": 1 }] } } }),
            "reward_info.details.objective_scores[0] has no objective",
        ),
        (
            json!({ "reward": 1, "objective_scores": [{ "objective": "a", "value": 1 }, { "objective": "a", "value": 0 }] }),
            "objective_scores[1] repeats",
        ),
    ];
    for (body, expected) in cases {
        let (class, _, message) = failed(&body);
        assert_eq!(class, FailureClass::Contract);
        assert!(message.contains(expected), "{message}");
    }
}

#[test]
fn objectives_are_read_from_the_first_location_that_has_them() {
    let scores = |name: &str| json!([{ "objective": name, "value": 0.5, "rationale": "x" }]);
    let body = json!({ "reward": 1, "objective_scores": null, "metadata": { "objective_scores": scores("a") },
        "reward_info": { "outcome_reward": 0.25, "details": { "objective_scores": scores("b") } } });
    let answer = read_as(&body.to_string(), json!({}), "accuracy").unwrap().answer;
    assert_eq!(answer.objectives, [("a".to_owned(), 0.5), ("accuracy".to_owned(), 0.25)].into());
    let answer = read_as(&body.to_string(), json!({}), "a").unwrap().answer;
    assert_eq!(answer.objectives, [("a".to_owned(), 0.5)].into());
    assert!(read(&json!({ "reward": 1 })).unwrap().answer.objectives.is_empty());
}

#[test]
fn a_zero_cost_with_tokens_is_unknown() {
    let usage = |usage: Value| read(&json!({ "reward": 1, "usage": usage })).unwrap().answer.usage;
    let known = |usd: u64| Cost::Known(NanoUsd(usd));
    assert_eq!(usage(json!({ "prompt_tokens": 5, "completion_tokens": 2, "cost_usd": 0.0 })).cost, Cost::Unknown);
    assert_eq!(usage(json!({ "prompt_tokens": 0, "completion_tokens": 0, "cost_usd": 0.0 })).cost, known(0));
    assert_eq!(usage(json!({ "cost_usd": 0.0 })).cost, Cost::Unknown);
    assert_eq!(usage(json!({ "cost_usd": 0.0001 })).cost, known(100_000));
    assert_eq!(usage(json!({ "cost_usd": -1, "total_tokens": "7" })), Usage::default());
    assert_eq!(usage(json!({ "prompt_tokens": 5.0, "completion_tokens": 1.5 })).total(), None);
    assert_eq!(usage(json!({ "prompt_tokens": 5.0, "completion_tokens": 1 })).total(), Some(6));
    let camel = usage(json!({ "inputTokens": 3, "output_tokens": 4, "prompt_tokens": null }));
    assert_eq!((camel.prompt_tokens, camel.completion_tokens, camel.total()), (Some(3), Some(4), Some(7)));
}

#[test]
fn usage_that_cannot_be_true_is_refused() {
    let refused = |usage: &str| {
        let body = format!(r#"{{"reward":1,"usage":{usage}}}"#);
        ReceivedRecord::read(Bytes::from(body)).record.unwrap().reported_usage()
    };
    for (usage, expected) in [
        (r#"{"prompt_tokens":-1}"#, "prompt_tokens = -1"),
        (r#"{"completion_tokens":18446744073709551615}"#, "completion_tokens = 18446744073709551615"),
        (r#"{"total_tokens":9007199254740993}"#, "total_tokens = 9007199254740993"),
        (r#"{"input_tokens":1e999}"#, "input_tokens = \"1e999\""),
        (r#"{"output_tokens":0.5}"#, "output_tokens = 0.5"),
        (r#"{"cost_usd":-0.01}"#, "cost_usd = -0.01"),
        (r#"{"cost_usd":1e300}"#, "cost_usd = 1e+300"),
        (r#"{"cost_usd":NaN}"#, "cost_usd = \"NaN\""),
    ] {
        assert_eq!(refused(usage), (Usage::default(), vec![expected.to_owned()]), "{usage}");
    }
    for usage in
        [r#"{"prompt_tokens":null,"cost_usd":null}"#, "{}", "[]", "null", r#"{"total_tokens":9007199254740992}"#]
    {
        assert!(refused(usage).1.is_empty(), "{usage}");
    }
}

#[test]
fn the_identity_check_confirms_or_contradicts_the_row() {
    let row = json!({ "seed": 2, "example_id": "ep_2", "task_id": "train:2", "task_instance_id": "toy:2" });
    let identity = |extra: Value| {
        let mut body = json!({ "reward": 1 });
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        read_as(&body.to_string(), row.clone(), "outcome_reward").unwrap().identity
    };
    for absent in [
        json!({}),
        json!({ "rollout_id": "r-1", "seed": null, "task_id": "toy.triage" }),
        json!({ "summary": { "task_id": "toy.triage" }, "metadata": { "candidate": { "other": "x" } } }),
        json!({ "metadata": { "candidate_id": CANDIDATE, "policy": { "model": "openai/gpt-4.1-nano" } } }),
        json!({ "summary": { "candidate_id": "own-id-7", "policy_model": "gpt-4.1-nano-2025-04-14" } }),
        json!({ "policy": { "model": null }, "metadata": { "policy_model": "" } }),
    ] {
        assert_eq!(identity(absent.clone()), IdentityCheck::Absent, "{absent}");
    }
    for confirmed in [
        json!({ "seed": 2.0 }),
        json!({ "summary": { "example_id": "ep_2" }, "metadata": { "candidate": { "prompt": "Be kind.\n" } } }),
        json!({ "reward_info": { "outcome_reward": 1, "details": { "task_instance_id": "toy:2" } } }),
        json!({ "trace": { "event_history": [{}], "metadata": { "task_id": "train:2", "seed": "2" } } }),
    ] {
        assert_eq!(identity(confirmed.clone()), IdentityCheck::Confirmed, "{confirmed}");
    }
    for (contradicted, sentence) in [
        (json!({ "rollout_id": "r-2", "seed": 2 }), "rollout r-2, not to r-1"),
        (json!({ "seed": 1 }), "seed in the reply is 1, but row row has 2"),
        (json!({ "seed": 2, "summary": { "example_id": "ep_1" } }), "example_id in summary is ep_1"),
        (json!({ "reward_info": { "outcome_reward": 1, "details": { "seed": 11 } } }), "in reward_info.details is 11"),
        (json!({ "trace": { "metadata": { "task_instance_id": "toy:1" } } }), "in trace.metadata is toy:1"),
        (json!({ "seed": 2, "metadata": { "candidate": { "prompt": "default" } } }), "metadata.candidate.prompt"),
        (
            json!({ "seed": 2, "metadata": { "candidate_id": "gepa_ba9876543210" } }),
            "candidate gepa_ba9876543210, not to",
        ),
        (json!({ "seed": 2, "policy": { "model": "gpt-4.1" } }), "model gpt-4.1, but the policy has gpt-4.1-nano"),
        (
            json!({ "reward_info": { "outcome_reward": 1, "details": { "policy_model": "gpt-4.1-mini" } } }),
            "model gpt-4.1-mini",
        ),
    ] {
        match identity(contradicted.clone()) {
            IdentityCheck::Contradicted(met) => assert!(met.contains(sentence), "{met}"),
            other => panic!("{contradicted}: {other:?}"),
        }
    }
}

/// Replies recorded from three kinds of containers.
#[test]
fn recorded_replies_are_read() {
    let triage = json!({ "task_id": "train:1", "task_instance_id": "toy:train:1", "split": "train", "seed": 1 });
    let episode = json!({ "seed": 2, "split": "train", "example_id": "ep_train_2" });
    let cases = [
        (include_str!("fixtures/sdk_face.json"), "r-sync-1", &triage, 1.0, IdentityCheck::Absent),
        (include_str!("fixtures/reference_face.json"), "ref-1", &triage, 1.0, IdentityCheck::Confirmed),
        (include_str!("fixtures/hand_written.json"), "rollout_42fb690091d4", &episode, 0.0, IdentityCheck::Confirmed),
    ];
    for (body, rollout_id, row, reward, identity) in cases {
        let row = TaskRow { value: row.clone(), digest: String::new(), seed: None };
        let (row_id, payload) = (RowId::new("row"), Payload::new());
        let expected = ExpectedRollout {
            rollout_id: Some(rollout_id),
            row: &row,
            row_id: &row_id,
            candidate_id: &CandidateId::new(CANDIDATE),
            payload: &payload,
            policy: &json!({ "model": "gpt-4.1-nano" }),
            deciding: "accuracy",
        };
        let reply = read_reply(ReceivedRecord::read(Bytes::from(body)).record.unwrap(), &expected).unwrap();
        assert_eq!((reply.answer.reward, reply.identity), (reward, identity), "{rollout_id}");
        assert_eq!(reply.answer.objectives["accuracy"], reward);
        assert!(reply.answer.usage.total().unwrap() > 0);
    }
}

#[tokio::test]
async fn the_rollout_body_has_only_the_required_keys() {
    let policy = policy_value(Some(&PolicySection {
        model: Some("small".into()),
        api_key_env: Some("KEY".into()),
        ..PolicySection::default()
    }));
    for (dialect, keys) in
        [("taskset", vec!["task"]), ("dataset", vec!["dataset_row"]), ("both", vec!["task", "dataset_row"])]
    {
        let task = load_toy(ToyContainer::new(dialect), |_| {}).await.unwrap();
        let row_id = task.inputs.train[1].id.clone();
        let row = &task.rows[&row_id];
        let command = RolloutCommand {
            call_id: CallId(4),
            evaluation: CallId(4),
            candidate_id: CandidateId::new("gepa_1"),
            payload: [("triage_rules".to_owned(), "x \"y\"".to_owned())].into(),
            row_id,
            heldout: false,
            stage: Stage::CandidateMinibatch,
            replicate: 0,
            attempt: 2,
        };
        let body = rollout_body(&task, &policy, &command, row, "r-1", SubmissionMode::Sync).unwrap();
        let body: Value = serde_json::from_slice(&body).unwrap();
        let mut expected = json!({
            "rollout_id": "r-1", "submission_mode": "sync", "task_id": "toy.triage",
            "candidate": { "triage_rules": "x \"y\"" },
            "candidate_overlay": { "candidate": { "triage_rules": "x \"y\"" }, "metadata": {} },
            "policy": { "provider": "openai", "model": "small", "api_family": "chat_completions",
                "disable_reasoning": "auto", "tool_call_style": "none", "proxy_mode": "allow_direct",
                "credential_mode": "byok" },
            "metadata": { "candidate_id": "gepa_1", "seed": 1, "stage": "candidate_minibatch", "attempt": 2 },
        });
        for key in keys {
            expected[key] = row.value.clone();
        }
        assert_eq!(body, expected);
        // Without `[policy]`, the request contains no policy.
        let body = rollout_body(&task, &policy_value(None), &command, row, "r-1", SubmissionMode::Sync).unwrap();
        expected.as_object_mut().unwrap().shift_remove("policy");
        assert_eq!(serde_json::from_slice::<Value>(&body).unwrap(), expected);
    }
}

#[test]
fn a_policy_has_only_the_keys_of_the_contract() {
    let policy = PolicySection {
        base_url: Some("http://127.0.0.1:1/v1".into()),
        inference_url: Some("http://127.0.0.1:2/v1".into()),
        max_tokens: Some(9),
        model: Some("small".into()),
        api_key_env: Some("KEY".into()),
        config: [("temperature".to_owned(), json!(0.0))].into(),
        ..PolicySection::default()
    };
    let value = policy_value(Some(&policy));
    let mut keys: Vec<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
    keys.sort_unstable();
    let allowed = [
        "api_family",
        "base_url",
        "config",
        "credential_mode",
        "disable_reasoning",
        "inference_url",
        "max_tokens",
        "model",
        "provider",
        "proxy_mode",
        "tool_call_style",
    ];
    assert_eq!(keys, allowed);
}

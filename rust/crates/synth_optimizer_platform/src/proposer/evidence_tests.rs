#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use serde_json::{Value, json};

use super::super::tests_support::request;
use super::{evidence, shown_reply};
use crate::proposer::{Evidence, ProposalRequest};
use synth_optimizer_core::config::gepa::Direction;
use synth_optimizer_core::model::ids::RowId;

fn text_of(request: &ProposalRequest) -> String {
    evidence(request, 32 * 1024)
}

fn row(id: &str, score: f64, reply: Value) -> Evidence {
    Evidence { row_id: RowId::new(id), row: json!({"question": id}), score: Some(score), reply: Some(reply) }
}

#[test]
fn evidence_shows_the_worst_rows_first_with_their_feedback_from_every_place() {
    let mut request = request();
    request.evidence = vec![
        row("train:good", 1.0, json!({"reward_info": {"details": {"feedback": "well done"}}})),
        row("train:bad", 0.0, json!({"metadata": {"feedback": "wrong label"}, "summary": {"feedback": "off by one"}})),
    ];
    let text = text_of(&request);
    let at = |needle: &str| text.find(needle).unwrap_or_else(|| panic!("{needle} in {text}"));
    assert!(at("train:bad") < at("train:good"), "{text}");
    assert!(at("Feedback: wrong label") < at("Feedback: off by one"), "{text}");
    assert!(text.contains("Feedback: well done") && text.contains("score 0"), "{text}");
    request.direction = Direction::Minimize;
    let text = text_of(&request);
    assert!(text.find("train:good") < text.find("train:bad"), "{text}");
}

#[test]
fn actionable_side_info_is_shown_first_wherever_it_is() {
    let said = json!({"feedback": "expected billing", "expected": "billing"});
    let places = [
        json!({"actionable_side_info": said, "feedback": "also here"}),
        json!({"metadata": {"actionable_side_info": said}, "feedback": "also here"}),
        json!({"reward_info": {"details": {"actionable_side_info": said}}, "feedback": "also here"}),
    ];
    for reply in places {
        let mut request = request();
        request.evidence = vec![row("train:1", 0.0, reply)];
        let text = text_of(&request);
        let at = |needle: &str| text.find(needle).unwrap_or_else(|| panic!("{needle} in {text}"));
        assert!(at("Feedback: expected billing") < at("Details: {\"expected\":\"billing\"}"), "{text}");
        assert!(at("Details:") < at("Feedback: also here"), "{text}");
    }
    let mut request = request();
    request.evidence = vec![row("train:1", 0.0, json!({"actionable_side_info": "plain words"}))];
    let text = text_of(&request);
    assert!(text.contains("Feedback: plain words") && !text.contains("Details"), "{text}");
}

#[test]
fn a_row_without_a_score_comes_first_in_either_direction() {
    for direction in [Direction::Maximize, Direction::Minimize] {
        let mut request = request();
        request.direction = direction;
        request.evidence = vec![row("train:1", 0.5, json!({})), row("train:2", 0.1, json!({}))];
        request.evidence.push(Evidence { row_id: RowId::new("train:3"), row: json!({}), score: None, reply: None });
        let text = text_of(&request);
        assert!(text.find("train:3").unwrap() < text.find("train:1").unwrap(), "{text}");
        assert!(text.contains("no score"), "{text}");
    }
}

/// The record of the Banking77 cookbook, and a row whose reply says everything twice.
fn repeated_facts() -> ProposalRequest {
    let mut request = request();
    let banking = json!({
        "status": "completed", "success_status": "failed", "task_id": "banking77", "reward": 0.0,
        "reward_info": {"outcome_reward": 0.0, "event_rewards": [], "details": {}},
        "objective_scores": [{"objective": "accuracy", "value": 0.0, "source": "container"}],
        "actionable_side_info": {
            "feedback": "Wrong: the query was taken for age_limit. Its intent is cash_fee.",
            "predicted": "age_limit", "expected": "cash_fee"
        },
        "summary": {"outcome_reward": 0.0, "seed": 3},
        "usage": {"prompt_tokens": 412, "completion_tokens": 4, "total_tokens": 416},
        "trace": {"event_history": [{"type": "llm_response", "text": "age_limit"}]},
        "metadata": {}
    });
    let wordy = json!({
        "status": "completed", "output": "yes", "reward": 0.5, "reward_info": {"outcome_reward": 0.5, "score": 0.5,
            "details": {"feedback": "Too short.", "expected": "no", "question": "Is it open?", "steps": 2}},
        "objective_scores": {"accuracy": 0.5, "brevity": 0.25},
        "metadata": {"actionable_side_info": {"feedback": "Too short.", "expected": "no"}},
        "summary": {"feedback": "Too short.", "outcome_reward": 0.5, "example_id": "train:4"}
    });
    let bank = json!({"task_id": "train:3", "split": "train", "seed": 3, "text": "What does cash cost?"});
    request.evidence = vec![
        Evidence { row_id: RowId::new("train:3"), row: bank, score: Some(0.0), reply: Some(banking) },
        Evidence {
            row_id: RowId::new("train:4"),
            row: json!({"split": "train", "seed": 4, "question": "Is it open?"}),
            score: Some(0.5),
            reply: Some(wordy),
        },
    ];
    request
}

#[test]
fn every_fact_is_shown_once() {
    let text = text_of(&repeated_facts());
    insta::assert_snapshot!(text);
    for fact in
        ["Wrong: the query", "cash_fee\"", "Too short.", "\"no\"", "Is it open?", "What does cash cost?", "train:3"]
    {
        assert_eq!(text.matches(fact).count(), 1, "{fact} in {text}");
    }
}

#[test]
fn a_row_without_a_score_keeps_its_status() {
    let mut request = request();
    let reply = json!({"status": "failed", "status_detail": "the tool crashed"});
    request.evidence = vec![Evidence { score: None, ..row("train:1", 0.0, reply) }];
    let text = text_of(&request);
    assert!(text.contains(r#"Record: {"status":"failed","status_detail":"the tool crashed"}"#), "{text}");
}

#[test]
fn other_side_info_stays_in_the_record() {
    let reply =
        json!({"actionable_side_info": {"feedback": "a"}, "metadata": {"actionable_side_info": {"feedback": "b"}}});
    let (feedback, record) = shown_reply(&reply, 1024);
    assert_eq!(feedback, [("Feedback", "a".to_owned())]);
    assert_eq!(record, r#"{"metadata":{"actionable_side_info":{"feedback":"b"}}}"#);
}

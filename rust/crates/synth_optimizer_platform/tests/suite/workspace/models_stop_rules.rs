//! Stop rules: limits of the config with their use, rules about failures, and the rule that ended the search.

use serde_json::{Value, json};
use synth_optimizer_core::config::sections::Durability;
use synth_optimizer_core::model::event::Event;
use synth_optimizer_core::model::event_fields::{StopDecided, StopKind, StoppedBy};
use synth_optimizer_platform::workspace::models::StopRule;
use synth_optimizer_platform::workspace::{Reader, RunRow, Workspace};
use tempfile::TempDir;

use super::models::finished_run;
use super::models_lineage::stored;
use super::script::{Script, run_row, seed, start_run};

/// Stores the start of a run with these settings, and how it stopped.
fn stopped(config: Value, stopped_by: Option<StoppedBy>) -> (TempDir, Reader) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("workspace.sqlite");
    let workspace = Workspace::create(&path, &RunRow { config, ..run_row() }, Durability::Process).unwrap();
    let mut script = Script::default();
    start_run(&mut script);
    seed(&mut script);
    if let Some(stopped_by) = stopped_by {
        script.event(Event::StopDecided(StopDecided { stopped_by, failure: None }));
    }
    script.end_batch();
    for batch in script.batches {
        workspace.commit_blocking(batch).unwrap();
    }
    workspace.close().unwrap();
    let reader = Reader::open(&path).unwrap();
    (directory, reader)
}

fn by(kind: StopKind, limit: Option<f64>, value: Option<f64>) -> Option<StoppedBy> {
    Some(StoppedBy { kind, limit, value, reason: None })
}

fn names(rules: &[StopRule]) -> Vec<&str> {
    rules.iter().map(|rule| rule.name.as_str()).collect()
}

fn named<'a>(rules: &'a [StopRule], name: &str) -> &'a StopRule {
    rules.iter().find(|rule| rule.name == name).unwrap()
}

#[test]
fn every_limit_has_its_use() {
    let (_directory, reader) = finished_run();
    let rules = json!(reader.stop_rules().unwrap());
    // The held-out limit is unset, so that the total replaces it. The cost is unknown, because the outcome of a turn is.
    let rule = |name: &str, kind: &str, limit: f64, value: Value, share: Value| {
        // The script stops at a limit of 50.
        let has_stopped = name == "gepa.max_heldout_rollouts";
        json!({"name": name, "kind": kind, "limit": limit, "value": value, "share": share, "has_stopped": has_stopped})
    };
    let expected = json!([
        rule("gepa.max_train_rollouts", "max_rollouts", 40.0, json!(8.0), json!(0.2)),
        rule("gepa.max_heldout_rollouts", "max_rollouts", 50.0, json!(1.0), json!(0.02)),
        rule("gepa.max_cost_usd", "max_cost_usd", 1.5, Value::Null, Value::Null),
        rule("proposer.max_consecutive_invalid", "proposer_exhausted", 3.0, json!(0.0), json!(0.0)),
        rule("gepa.circuit_breaker.min_failures", "circuit_breaker", 8.0, json!(0.0), json!(0.0)),
        rule("gepa.rollout_failure_rate_tolerance", "seed_failed", 0.25, json!(0.0), json!(0.0)),
    ]);
    assert_eq!(rules, expected);
}

#[test]
fn rules_of_scores_generations_time_and_tokens_are_listed_if_they_are_set() {
    let config = json!({"gepa": {
        "max_generations": 4, "no_improvement_generations": 2, "score_threshold_value": 0.9, "perfect_score": 1.0,
        "max_time_seconds": 60, "max_total_tokens": 600, "max_prompt_tokens": 1200, "max_cost_usd": 0.0,
        "circuit_breaker": {"enabled": false},
    }});
    let (_directory, reader) = stopped(config, by(StopKind::MaxGenerations, Some(4.0), Some(4.0)));
    let rules = reader.stop_rules().unwrap();
    let expected = [
        "gepa.max_total_rollouts",
        "gepa.max_prompt_tokens",
        "gepa.max_total_tokens",
        "gepa.max_time_seconds",
        "gepa.max_generations",
        "gepa.no_improvement_generations",
        "gepa.score_threshold_value",
        "gepa.perfect_score",
        "proposer.max_consecutive_invalid",
        "gepa.rollout_failure_rate_tolerance",
    ];
    assert_eq!(names(&rules), expected);
    assert_eq!(named(&rules, "gepa.max_total_tokens").share, Some(0.5));
    assert_eq!(named(&rules, "gepa.max_prompt_tokens").value, Some(240.0));
    assert_eq!(named(&rules, "gepa.max_total_rollouts").limit, Some(256.0), "the default");
    let threshold = named(&rules, "gepa.score_threshold_value");
    assert_eq!((threshold.value, threshold.share), (Some(0.375), None));
    assert_eq!(named(&rules, "gepa.max_time_seconds").value, None, "the time was not measured yet");
    let ended: Vec<&str> = rules.iter().filter(|rule| rule.has_stopped).map(|rule| rule.name.as_str()).collect();
    assert_eq!(ended, ["gepa.max_generations"]);
}

#[test]
fn limits_of_one_kind_are_told_apart() {
    let config = json!({"gepa": {"max_prompt_tokens": 500, "max_completion_tokens": 60, "max_total_tokens": 700}});
    let (_directory, reader) = stopped(config, by(StopKind::MaxTokens, Some(60.0), Some(60.0)));
    let ended: Vec<String> =
        reader.stop_rules().unwrap().into_iter().filter(|rule| rule.has_stopped).map(|rule| rule.name).collect();
    assert_eq!(ended, ["gepa.max_completion_tokens"]);
}

#[test]
fn a_rule_without_a_setting_is_listed_if_it_ended_the_search() {
    let (_directory, reader) = stopped(json!({}), by(StopKind::External, None, None));
    let rules = reader.stop_rules().unwrap();
    let last = rules.last().unwrap();
    assert_eq!((last.name.as_str(), last.has_stopped, last.limit), ("external", true, None));
    assert_eq!(rules.iter().filter(|rule| rule.has_stopped).count(), 1);
}

#[test]
fn a_run_without_events_has_its_limits() {
    let (_directory, reader) = stored(Script::default());
    let rules = reader.stop_rules().unwrap();
    assert_eq!(named(&rules, "gepa.max_train_rollouts").value, Some(0.0));
    assert_eq!(named(&rules, "gepa.max_cost_usd").value, Some(0.0), "nothing was sent");
    assert_eq!(named(&rules, "gepa.rollout_failure_rate_tolerance").value, None);
    assert!(rules.iter().all(|rule| !rule.has_stopped));
}

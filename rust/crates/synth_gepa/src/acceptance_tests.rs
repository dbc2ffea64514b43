//! Tests every acceptance criterion with small comparisons.

use std::collections::BTreeMap;

use synth_optimizer_core::config::Config;
use synth_optimizer_core::config::gepa::{AcceptanceCriterion, Direction};
use synth_optimizer_core::model::score::Comparison;

use super::judge;
use crate::settings::Settings;

/// Settings with the deciding objective `quality` and the objectives `speed` and `length`, of which `length` is minimized.
fn settings(protected: &[&str]) -> Settings {
    let mut config = Config::default();
    config.gepa.objective_keys = vec!["quality".into(), "speed".into(), "length".into()];
    config.gepa.objective_directions.insert("length".into(), Direction::Minimize);
    config.gepa.objective_acceptance.protected_objectives = protected.iter().map(|name| (*name).to_owned()).collect();
    Settings::new(&config, 1, 1)
}

/// Returns a comparison with these differences; larger is better.
fn comparison(quality: f64, speed: f64, length: f64) -> Comparison {
    Comparison {
        rows: 10,
        primary_delta: quality,
        candidate_score: 0.5 + quality,
        incumbent_score: 0.5,
        objective_deltas: BTreeMap::from([
            ("quality".into(), quality),
            ("speed".into(), speed),
            ("length".into(), length),
        ]),
    }
}

fn reason_of(criterion: AcceptanceCriterion, margin: f64, comparison: &Comparison) -> (bool, &'static str) {
    let decision = judge(&settings(&[]), criterion, margin, comparison);
    (decision.accepted, decision.reason)
}

#[test]
fn primary_improvement_needs_more_than_the_margin() {
    let criterion = AcceptanceCriterion::PrimaryImprovement;
    assert_eq!(reason_of(criterion, 0.0, &comparison(0.01, -1.0, -1.0)), (true, "primary_improved"));
    assert_eq!(reason_of(criterion, 0.0, &comparison(0.0, 1.0, 1.0)), (false, "primary_not_improved"));
    assert_eq!(reason_of(criterion, 0.05, &comparison(0.05, 1.0, 1.0)), (false, "primary_not_improved"));
    assert_eq!(reason_of(criterion, 0.05, &comparison(0.06, 1.0, 1.0)), (true, "primary_improved"));
}

#[test]
fn improvement_or_equal_accepts_losses_within_the_margin() {
    let criterion = AcceptanceCriterion::ImprovementOrEqual;
    assert_eq!(reason_of(criterion, 0.0, &comparison(0.0, 0.0, 0.0)), (true, "primary_not_worse"));
    assert_eq!(reason_of(criterion, 0.0, &comparison(-0.01, 1.0, 1.0)), (false, "primary_worse"));
    assert_eq!(reason_of(criterion, 0.05, &comparison(-0.05, 0.0, 0.0)), (true, "primary_not_worse"));
    assert_eq!(reason_of(criterion, 0.05, &comparison(0.2, 0.0, 0.0)), (true, "primary_improved"));
}

#[test]
fn one_objective_must_improve_by_the_minimum() {
    let criterion = AcceptanceCriterion::AnyObjectiveImproved;
    assert_eq!(reason_of(criterion, 0.0, &comparison(-0.5, 0.05, -0.9)), (true, "objective_improved"));
    assert_eq!(reason_of(criterion, 0.0, &comparison(-0.5, 0.04, -0.9)), (false, "no_objective_improved"));
}

#[test]
fn another_objective_may_improve_if_none_loses_much() {
    let criterion = AcceptanceCriterion::PrimaryOrObjective;
    assert_eq!(reason_of(criterion, 0.0, &comparison(-0.1, 0.05, -0.1)), (true, "objective_improved"));
    assert_eq!(reason_of(criterion, 0.0, &comparison(-0.11, 0.05, 0.0)), (false, "protected_objective_lost"));
    assert_eq!(reason_of(criterion, 0.0, &comparison(0.01, -0.9, -0.9)), (true, "primary_improved"));
}

#[test]
fn the_guard_rejects_a_better_candidate_that_loses_a_protected_objective() {
    let criterion = AcceptanceCriterion::ProtectedObjectiveGuard;
    assert_eq!(reason_of(criterion, 0.0, &comparison(0.3, -0.2, 0.0)), (false, "protected_objective_lost"));
    assert_eq!(reason_of(criterion, 0.0, &comparison(0.3, -0.1, 0.0)), (true, "primary_improved"));
    let only_length = judge(&settings(&["length"]), criterion, 0.0, &comparison(0.3, -0.9, -0.1));
    assert!(only_length.accepted, "speed is not protected");
}

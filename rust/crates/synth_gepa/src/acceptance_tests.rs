//! Every criterion against comparisons that are worked out by hand.

use std::collections::BTreeMap;

use synth_optimizer_core::config::Config;
use synth_optimizer_core::config::gepa::{AcceptanceCriterion, Direction};
use synth_optimizer_core::model::score::Comparison;

use super::judge;
use crate::settings::Settings;

/// `quality` decides, `speed` and `length` are the others; a smaller `length` is better.
fn settings(protected: &[&str]) -> Settings {
    let mut config = Config::default();
    config.gepa.objective_keys = vec!["quality".into(), "speed".into(), "length".into()];
    config.gepa.objective_directions.insert("length".into(), Direction::Minimize);
    config.gepa.objective_acceptance.protected_objectives = protected.iter().map(|name| (*name).to_owned()).collect();
    Settings::new(&config, 1)
}

/// Differences such that larger is better.
fn found(quality: f64, speed: f64, length: f64) -> Comparison {
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

fn verdict(criterion: AcceptanceCriterion, margin: f64, found: &Comparison) -> (bool, &'static str) {
    let verdict = judge(&settings(&[]), criterion, margin, found);
    (verdict.accepted, verdict.reason)
}

#[test]
fn primary_improvement_needs_more_than_the_margin() {
    let criterion = AcceptanceCriterion::PrimaryImprovement;
    assert_eq!(verdict(criterion, 0.0, &found(0.01, -1.0, -1.0)), (true, "primary_improved"));
    assert_eq!(verdict(criterion, 0.0, &found(0.0, 1.0, 1.0)), (false, "primary_not_improved"));
    assert_eq!(verdict(criterion, 0.05, &found(0.05, 1.0, 1.0)), (false, "primary_not_improved"));
    assert_eq!(verdict(criterion, 0.05, &found(0.06, 1.0, 1.0)), (true, "primary_improved"));
}

#[test]
fn improvement_or_equal_forgives_the_margin() {
    let criterion = AcceptanceCriterion::ImprovementOrEqual;
    assert_eq!(verdict(criterion, 0.0, &found(0.0, 0.0, 0.0)), (true, "primary_not_worse"));
    assert_eq!(verdict(criterion, 0.0, &found(-0.01, 1.0, 1.0)), (false, "primary_worse"));
    assert_eq!(verdict(criterion, 0.05, &found(-0.05, 0.0, 0.0)), (true, "primary_not_worse"));
    assert_eq!(verdict(criterion, 0.05, &found(0.2, 0.0, 0.0)), (true, "primary_improved"));
}

#[test]
fn any_objective_may_improve_by_enough() {
    let criterion = AcceptanceCriterion::AnyObjectiveImproved;
    assert_eq!(verdict(criterion, 0.0, &found(-0.5, 0.05, -0.9)), (true, "objective_improved"));
    assert_eq!(verdict(criterion, 0.0, &found(-0.5, 0.04, -0.9)), (false, "no_objective_improved"));
}

#[test]
fn another_objective_may_improve_if_none_loses_much() {
    let criterion = AcceptanceCriterion::PrimaryOrObjective;
    assert_eq!(verdict(criterion, 0.0, &found(-0.1, 0.05, -0.1)), (true, "objective_improved"));
    assert_eq!(verdict(criterion, 0.0, &found(-0.11, 0.05, 0.0)), (false, "protected_objective_lost"));
    assert_eq!(verdict(criterion, 0.0, &found(0.01, -0.9, -0.9)), (true, "primary_improved"));
}

#[test]
fn the_guard_protects_even_from_a_better_candidate() {
    let criterion = AcceptanceCriterion::ProtectedObjectiveGuard;
    assert_eq!(verdict(criterion, 0.0, &found(0.3, -0.2, 0.0)), (false, "protected_objective_lost"));
    assert_eq!(verdict(criterion, 0.0, &found(0.3, -0.1, 0.0)), (true, "primary_improved"));
    let only_length = judge(&settings(&["length"]), criterion, 0.0, &found(0.3, -0.9, -0.1));
    assert!(only_length.accepted, "speed is not protected");
}

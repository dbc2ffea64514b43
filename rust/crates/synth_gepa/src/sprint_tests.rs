//! The number of rollouts of a sprint: its share of the budget, its limits, and what a rollback changes.

use super::{Noise, Sprint};
use crate::settings::Settings;
use crate::state::State;
use synth_optimizer_core::config::Config;
use synth_optimizer_core::model::event_fields::{CheckDecided, CheckVerdict};
use synth_optimizer_core::model::ids::{CandidateId, Payload};

/// More rows than limit a sprint.
const MANY_ROWS: usize = 1000;

/// Returns the settings of a run with this limit of train rollouts and minibatches of three rows.
fn settings(train_rollouts: u32, sprint_rollouts: Option<u32>) -> Settings {
    let mut config = Config::default();
    config.gepa.max_train_rollouts = Some(train_rollouts);
    config.gepa.minibatch_size = Some(3);
    config.gepa.sprint.rollouts = sprint_rollouts;
    Settings::new(&config, MANY_ROWS, 0)
}

fn after(rollbacks: u32) -> Sprint {
    Sprint { rollbacks, ..Sprint::default() }
}

fn noisy(rollbacks: u32) -> Sprint {
    Sprint { noise: Noise { is_known: true, is_noisy: true, ..Noise::default() }, ..after(rollbacks) }
}

#[test]
fn a_sprint_is_an_eighth_of_the_rollouts_from_32_to_128() {
    for (train, expected) in [(10, 32), (256, 32), (264, 33), (800, 100), (1024, 128), (100_000, 128)] {
        for sprint in [after(0), noisy(0)] {
            assert_eq!(sprint.rollouts(&settings(train, None), MANY_ROWS), expected, "{train} train rollouts");
        }
    }
}

#[test]
fn rows_limit_a_sprint_if_scores_repeat_exactly() {
    let settings = settings(1024, None);
    for (rows, expected) in [(43, 128), (42, 126), (20, 60), (3, 9), (2, 6)] {
        assert_eq!(after(0).rollouts(&settings, rows), expected, "{rows} rows");
        assert_eq!(noisy(0).rollouts(&settings, rows), 128, "noise: {rows} rows");
    }
}

#[test]
fn every_rollback_halves_a_sprint_down_to_one_generation() {
    let settings = settings(1024, None);
    for (rollbacks, expected) in [(0, 128), (1, 64), (2, 32), (4, 8), (5, 6), (63, 6), (64, 6), (u32::MAX, 6)] {
        assert_eq!(after(rollbacks).rollouts(&settings, MANY_ROWS), expected, "{rollbacks} rollbacks");
        assert_eq!(noisy(rollbacks).rollouts(&settings, MANY_ROWS), 128, "noise: {rollbacks} rollbacks");
    }
    // The rows limit the sprint before it is halved.
    assert_eq!(after(1).rollouts(&settings, 20), 30);
    // However few the rows are, head and proposal are rolled out on a minibatch each.
    assert_eq!(after(0).rollouts(&settings, 1), 6);
}

#[test]
fn a_configured_length_has_the_same_limits_and_is_never_exceeded() {
    let length = |configured: u32, rollbacks: u32, rows: usize| {
        after(rollbacks).rollouts(&settings(1024, Some(configured)), rows)
    };
    assert_eq!((length(500, 0, MANY_ROWS), length(500, 1, MANY_ROWS), length(500, 0, 20)), (500, 250, 60));
    // Less than a generation is what the user asked for.
    assert_eq!((length(4, 0, MANY_ROWS), length(4, 3, 1)), (4, 4));
}

#[test]
fn an_adoption_makes_up_for_one_rollback() {
    let decided = |verdict: CheckVerdict, probability: f64| CheckDecided {
        check: 0,
        head_id: CandidateId::of("gepa_", &Payload::new()),
        anchor_id: CandidateId::of("gepa_", &Payload::new()),
        verdict,
        reason: String::new(),
        n: 8,
        mean: Some(0.0),
        variance: None,
        probability: Some(probability),
        rollouts: 16,
        head_score: None,
    };
    let settings = settings(1024, None);
    let mut state = State { sprint: Some(Sprint { spent: 100, ..Sprint::default() }), ..State::default() };
    let mut end = |verdict: CheckVerdict, probability: f64| {
        state.end_check(&decided(verdict, probability), 0.025);
        let sprint = state.sprint.as_ref().unwrap();
        (sprint.rollouts(&settings, MANY_ROWS), sprint.spent, sprint.clearly_worse, sprint.number)
    };
    assert_eq!(end(CheckVerdict::Undecided, 0.5), (128, 50, 0, 0));
    assert_eq!(end(CheckVerdict::RolledBack, 0.1), (64, 0, 0, 1));
    assert_eq!(end(CheckVerdict::RolledBack, 0.01), (32, 0, 1, 2));
    assert_eq!(end(CheckVerdict::Adopted, 0.99), (64, 0, 1, 2));
    assert_eq!(end(CheckVerdict::Adopted, 0.99), (128, 0, 1, 2));
    assert_eq!(end(CheckVerdict::Adopted, 0.99), (128, 0, 1, 2), "more adoptions save nothing up");
}

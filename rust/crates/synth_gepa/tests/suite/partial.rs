//! The rule for a partial evaluation: when a part of the rows is enough to prefer another candidate.

use std::collections::BTreeMap;

use crate::search::{climbing, level, number};
use crate::sim::{Pace, Run, Scorer, World};
use synth_gepa::{Differences, PooledVariance, Prior, probability_of_gain};
use synth_optimizer_core::config::gepa::{Direction, SearchMode};
use synth_optimizer_core::model::command::{ProposeCommand, RolloutCommand};
use synth_optimizer_core::model::event::Event;
use synth_optimizer_core::model::event_fields::{CheckVerdict, Stage};
use synth_optimizer_core::model::ids::{CandidateId, Payload, RowId};
use synth_optimizer_core::model::lifecycle::CandidateTrigger;

const TRAIN_ROWS: u32 = 40;
const SCREENED_ROWS: u32 = 3;
/// From this probability on, a part of the rows is enough.
const ENOUGH: f64 = 0.975;
const MIN_PAIRS: u32 = 8;

/// Every changed text solves this many of ten rows; the initial one solves none.
fn solves<const OF_TEN: u32>(command: &RolloutCommand) -> Result<f64, bool> {
    let row = number(command.row_id.as_str());
    Ok(f64::from(u8::from(level(command) > 0 && row * 7 % 10 < OF_TEN)))
}

/// The same task in points, of which fewer are better.
fn points<const OF_TEN: u32>(command: &RolloutCommand) -> Result<f64, bool> {
    solves::<OF_TEN>(command).map(|solved| 100.0 - 100.0 * solved)
}

/// Writes a text that no other generation writes.
fn write(command: &ProposeCommand) -> Vec<Payload> {
    vec![[("prompt".to_owned(), format!("Rules: {{rows}} {}", command.question.generation + 1))].into()]
}

fn world(score: Scorer) -> World {
    let mut world = World { train: TRAIN_ROWS, heldout: 4, write: Some(write), ..climbing(score) };
    world.config.gepa.minibatch_size = Some(SCREENED_ROWS);
    world.config.gepa.max_generations = Some(100);
    world
}

/// Returns a task with a limit that leaves this many rollouts after the evaluation of the initial candidate.
fn limited(score: Scorer, rollouts: u32) -> World {
    let mut world = world(score);
    world.config.gepa.max_train_rollouts = Some(TRAIN_ROWS + rollouts);
    world
}

/// The decision about a candidate that was evaluated on a part of the rows.
struct Partial {
    pairs: u32,
    probability: f64,
    /// Why it was deferred; `None` if it was accepted.
    deferred: Option<CandidateTrigger>,
}

/// Returns the decision about the first promoted candidate, if not all rows were evaluated. Scores are from 0 to 1.
fn partial(run: &Run) -> Option<Partial> {
    let mut rewards: BTreeMap<CandidateId, BTreeMap<RowId, f64>> = BTreeMap::new();
    let (mut initial, mut promoted) = (None, None);
    for event in &run.events {
        let (id, deferred) = match event {
            Event::RolloutFinished(done) if done.stage != Stage::Heldout => {
                rewards.entry(done.candidate_id.clone()).or_default().insert(done.row_id.clone(), done.reward);
                continue;
            }
            Event::CandidatePromoted(decided) => {
                promoted = promoted.or(Some(decided.candidate_id.clone()));
                continue;
            }
            Event::CandidateAccepted(decided) if decided.stage == Stage::SeedFullTrain => {
                initial = Some(decided.candidate_id.clone());
                continue;
            }
            Event::CandidateAccepted(decided) => (&decided.candidate_id, None),
            Event::CandidateDeferred(decided) => (&decided.candidate_id, Some(decided.reason)),
            _ => continue,
        };
        if Some(id) != promoted.as_ref() {
            continue;
        }
        let before = &rewards[initial.as_ref()?];
        let gains: Vec<f64> = rewards[id].iter().map(|(row, reward)| reward - before[row]).collect();
        let found = Differences::of(&gains)?;
        let prior = Prior { pooled: PooledVariance::default(), steps: 1, step_scale: 0.05, all_rows: None };
        let probability = probability_of_gain(&found, &prior);
        return (found.n < TRAIN_ROWS).then_some(Partial { pairs: found.n, probability, deferred });
    }
    None
}

#[test]
fn a_part_of_the_rows_is_enough_only_from_a_probability_of_975_in_1000_on() {
    let (mut accepted, mut deferred) = (Vec::new(), Vec::new());
    for score in [solves::<2>, solves::<4>, solves::<6>, solves::<8>, solves::<10>] {
        for rollouts in (SCREENED_ROWS..TRAIN_ROWS).step_by(3) {
            let Some(found) = partial(&limited(score, rollouts).run(Pace::default())) else { continue };
            let Partial { pairs, probability, deferred: reason } = found;
            let is_enough = pairs >= MIN_PAIRS && probability >= ENOUGH;
            assert_eq!(reason, (!is_enough).then_some(CandidateTrigger::BudgetRefused), "{pairs} pairs, {probability}");
            if is_enough { &mut accepted } else { &mut deferred }.push((pairs, probability));
        }
    }
    let has_close_ones = |found: &[(u32, f64)], low: f64, high: f64| {
        found.iter().any(|(pairs, probability)| *pairs >= MIN_PAIRS && (low..high).contains(probability))
    };
    assert!(has_close_ones(&accepted, ENOUGH, 0.995), "{accepted:?}");
    assert!(has_close_ones(&deferred, 0.9, ENOUGH), "{deferred:?}");
}

#[test]
fn the_rule_does_not_depend_on_the_scale_and_the_direction_of_scores() {
    let kept = |score: Scorer, direction: Direction, rollouts: u32| {
        let mut world = limited(score, rollouts);
        world.config.gepa.objective_directions.insert("outcome_reward".into(), direction);
        world.run(Pace::default()).state.best == Some(0)
    };
    for (score, direction) in [(solves::<10> as Scorer, Direction::Maximize), (points::<10>, Direction::Minimize)] {
        assert!(kept(score, direction, MIN_PAIRS - 1), "fewer than eight rows are never enough");
        assert!(!kept(score, direction, MIN_PAIRS), "all eight rows are better");
    }
    for (score, direction) in [(solves::<8> as Scorer, Direction::Maximize), (points::<8>, Direction::Minimize)] {
        assert!(!kept(score, direction, 30), "eight of ten rows are better");
    }
}

#[test]
fn a_stop_request_during_the_evaluation_follows_the_same_rule() {
    // The evaluation of the initial candidate, one turn and the screening come first.
    let before = (TRAIN_ROWS + 1 + SCREENED_ROWS) as usize;
    for (score, answers, deferred) in [
        (solves::<10> as Scorer, 3, Some(CandidateTrigger::RunStopped)),
        (solves::<10>, 5, None),
        (solves::<10>, 30, None),
        (solves::<8>, 30, None),
    ] {
        let pace = Pace { rollout_workers: 1, stop_after: Some(before + answers), ..Pace::default() };
        let found = partial(&world(score).run(pace)).unwrap();
        assert_eq!((found.pairs, found.deferred), (SCREENED_ROWS + answers as u32, deferred));
    }
}

#[test]
fn a_search_in_sprints_that_is_stopped_keeps_what_its_checks_have_confirmed() {
    let mut world = world(solves::<8>);
    world.config.gepa.search = SearchMode::Sprint;
    let mut adopted = 0;
    for answers in (1..240).step_by(7) {
        let run = world.run(Pace { rollout_workers: 4, stop_after: Some(answers), ..Pace::default() });
        let mut best = None;
        for event in &run.events {
            match event {
                Event::CheckDecided(check) if check.verdict == CheckVerdict::Adopted => {
                    let is_certain = check.n == TRAIN_ROWS || check.probability.is_some_and(|found| found >= ENOUGH);
                    assert!(is_certain, "stopped after {answers} answers: {check:?}");
                    best = Some(check.head_id.clone());
                    adopted += 1;
                }
                Event::CandidateAccepted(decided) if decided.stage != Stage::SeedFullTrain => {
                    assert_eq!(Some(&decided.candidate_id), best.as_ref());
                }
                _ => {}
            }
        }
        let shown = run.state.best.map(|best| run.state.candidates[best as usize].id.clone());
        let initial = run.state.best.is_some().then(|| run.state.candidates[0].id.clone());
        assert_eq!(shown, best.or(initial), "stopped after {answers} answers");
    }
    assert!(adopted > 0);
}

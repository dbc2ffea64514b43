//! Behaviour of the search in small situations with known results.

use std::collections::BTreeSet;

use crate::sim::{Pace, Run, Scorer, World};
use synth_gepa::GepaEngine;
use synth_optimizer_core::config::gepa::{
    AcceptanceCriterion, ComponentSelector, DeploymentRule, Direction, FrontierType, LeakagePolicy, PipelineMode,
    Sampler, Selector,
};
use synth_optimizer_core::model::answer::{FailureClass, Proposal};
use synth_optimizer_core::model::command::{Command, ProposeCommand, Relation, RolloutCommand};
use synth_optimizer_core::model::error::ErrorCode;
use synth_optimizer_core::model::event::Event;
use synth_optimizer_core::model::event_fields::{Operation, RunFinished, Stage, StopKind};
use synth_optimizer_core::model::ids::{Payload, TrainRow};

pub(crate) fn finished(run: &Run) -> &RunFinished {
    match run.last() {
        Event::RunFinished(finished) => finished,
        other => panic!("the run did not end well: {other:?}"),
    }
}

fn stopped_by(run: &Run) -> StopKind {
    finished(run).stopped_by.kind
}

pub(crate) fn number(text: &str) -> u32 {
    text.split(|ch: char| !ch.is_ascii_digit())
        .rfind(|part| !part.is_empty())
        .map_or(0, |part| part.parse().unwrap_or(0))
}

/// A proposer that increments the number in the parent's text.
pub(crate) fn next_number(command: &ProposeCommand) -> Vec<Payload> {
    let field = &command.question.components[0];
    let text = format!("Rules: {{rows}} {}", number(&command.question.base[field]) + 1);
    vec![Payload::from([(field.clone(), text)])]
}

pub(crate) fn level(command: &RolloutCommand) -> u32 {
    command.payload.values().map(|text| number(text)).sum()
}

pub(crate) fn climbing(score: Scorer) -> World {
    let mut world = World { score: Some(score), write: Some(next_number), ..World::default() };
    world.config.gepa.proposals_per_generation = 1;
    world.config.gepa.max_generations = Some(6);
    world.config.gepa.max_total_rollouts = 1000;
    world
}

#[test]
fn a_minimized_objective_has_no_assumed_perfect_score() {
    let mut world = climbing(|command| Ok(1.0 / f64::from(1 + level(command))));
    world.config.gepa.objective_directions.insert("outcome_reward".into(), Direction::Minimize);
    let run = world.run(Pace::default());
    assert_eq!(stopped_by(&run), StopKind::MaxGenerations);
    assert_eq!(run.count("candidate.accepted"), 7);
    assert!(finished(&run).heldout_gain.unwrap().difference > 0.0);
}

#[test]
fn the_score_threshold_ends_the_search_and_heldout_failures_are_still_retried() {
    let mut world = climbing(|command| {
        if command.heldout && command.attempt == 1 { Err(true) } else { Ok(f64::from(level(command)) / 10.0) }
    });
    world.config.gepa.score_threshold_value = Some(0.2);
    let run = world.run(Pace::default());
    assert_eq!(stopped_by(&run), StopKind::ScoreThreshold);
    assert_eq!(finished(&run).generations, 2);
    let heldout: Vec<u32> =
        finished(&run).scores.iter().filter(|score| score.split == "heldout").map(|score| score.score.n).collect();
    assert_eq!(heldout, [10, 10]);
}

#[test]
fn generations_without_gain_end_the_search() {
    let mut world = climbing(|command| Ok(f64::from(level(command).min(2)) / 10.0));
    world.config.gepa.no_improvement_generations = Some(2);
    world.config.gepa.max_generations = Some(50);
    let run = world.run(Pace::default());
    assert_eq!(stopped_by(&run), StopKind::NoImprovement);
    assert_eq!(finished(&run).generations, 4);
}

#[test]
fn a_perfect_initial_candidate_costs_one_evaluation_and_no_proposal() {
    let run = climbing(|_| Ok(1.0)).run(Pace::default());
    assert_eq!(stopped_by(&run), StopKind::PerfectScore);
    assert_eq!(run.count("proposer.started"), 0);
    // The initial candidate on 24 train and 10 held-out rows, once.
    assert_eq!(run.billed_rollouts, 34);
}

#[test]
fn rewards_above_one_mean_that_one_is_not_perfect() {
    let run = climbing(|command| Ok(2.0 + f64::from(level(command)))).run(Pace::default());
    assert_eq!(stopped_by(&run), StopKind::MaxGenerations);
    assert_eq!(run.count("minibatch.skipped"), 0);
}

#[test]
fn rows_without_a_gain_are_not_proposed_about() {
    let run = climbing(|command| Ok(f64::from(u8::from(level(command) > 0 || command.row_id.as_str() != "train:5"))))
        .run(Pace::default());
    // Only one row of 24 can improve. The search finds it, improves it, and then stops.
    assert_eq!(stopped_by(&run), StopKind::PerfectScore);
    assert_eq!(run.count("candidate.accepted"), 2);
    // No turn was spent on rows without a gain.
    assert_eq!(run.count("proposer.started"), 1);
}

#[test]
fn a_row_that_always_fails_does_not_fail_the_run() {
    let run =
        climbing(|command| if command.row_id.as_str() == "train:3" { Err(true) } else { Ok(1.0) }).run(Pace::default());
    assert_eq!(stopped_by(&run), StopKind::PerfectScore);
    // One failed rollout and its retry; the row is not requested again.
    assert_eq!(run.count("rollout.failed"), 2);
    // A minibatch of only this row is drawn again, even if perfect minibatches are not skipped.
    let mut world = climbing(|command| {
        let failing = command.row_id.as_str() == "train:3";
        if failing { Err(false) } else { Ok(f64::from(level(command)) / 10.0) }
    });
    world.config.gepa.minibatch_size = Some(1);
    world.config.gepa.skip_perfect_score = false;
    world.config.gepa.max_generations = Some(40);
    assert_eq!(stopped_by(&world.run(Pace::default())), StopKind::MaxGenerations);
}

/// Turns that ran at the same time had the same question, so their equal answers count once.
#[test]
fn concurrent_turns_of_one_parent_do_not_end_the_search() {
    // The first six turns answer the same; later ones improve.
    fn write(command: &ProposeCommand) -> Vec<Payload> {
        let text = if command.question.generation < 6 { 1 } else { command.question.generation };
        vec![Payload::from([(command.question.components[0].clone(), format!("Rules: {{rows}} {text}"))])]
    }
    let mut world = climbing(|command| Ok(f64::from(level(command).min(50)) / 100.0));
    world.write = Some(write);
    world.config.gepa.max_generations = Some(12);
    world.config.gepa.proposals_per_generation = 1;
    world.config.gepa.pipeline.mode = PipelineMode::AsyncPipelined;
    world.config.gepa.pipeline.max_in_flight_candidates = Some(6);
    world.config.proposer.max_consecutive_invalid = 3;
    assert_eq!(stopped_by(&world.run(Pace::default())), StopKind::MaxGenerations);
    // One after the other, they are repeats in a row.
    world.config.gepa.pipeline.mode = PipelineMode::SyncSerial;
    assert_eq!(stopped_by(&world.run(Pace::default())), StopKind::ProposerExhausted);
}

#[test]
fn a_proposer_that_repeats_itself_ends_the_search_without_failing_it() {
    fn same(command: &ProposeCommand) -> Vec<Payload> {
        vec![Payload::from([(command.question.components[0].clone(), "Rules: {rows} 1".to_owned())])]
    }
    let mut world = climbing(|command| Ok(f64::from(level(command)) / 10.0));
    world.write = Some(same);
    let run = world.run(Pace::default());
    assert_eq!(stopped_by(&run), StopKind::ProposerExhausted);
    assert_eq!(run.count("candidate.duplicate_skipped"), 3);
    assert_eq!(finished(&run).heldout_gain.unwrap().n, 10);
}

#[test]
fn a_proposer_without_valid_proposals_fails_the_run_and_its_usage_counts() {
    fn empty(command: &ProposeCommand) -> Vec<Payload> {
        vec![Payload::from([(command.question.components[0].clone(), "  ".to_owned())])]
    }
    let mut world = climbing(|command| Ok(f64::from(level(command)) / 10.0));
    world.write = Some(empty);
    let run = world.run(Pace::default());
    let Event::RunFailed(failed) = run.last() else { panic!("{:?}", run.last()) };
    assert_eq!(failed.error_code, ErrorCode::Proposer);
    assert_eq!(failed.rollouts.train, 24);
    assert!(failed.best_candidate_id.is_some());
    // Three turns, each with one repair.
    assert_eq!(run.count("proposer.started"), 6);
    let repairs = run.commands.iter().filter(
        |command| matches!(command, Command::Propose(turn) if !turn.question.problems.is_empty() && turn.repairs.is_some()),
    );
    assert_eq!(repairs.count(), 3);
}

#[test]
fn the_circuit_breaker_and_a_stop_request_override_a_soft_stop() {
    let world = |mode, breaks_at| {
        let mut world = World { breaks_at, ..World::default() };
        world.config.gepa.pipeline.mode = mode;
        world
    };
    for mode in [PipelineMode::SyncSerial, PipelineMode::AsyncPipelined] {
        let broken = world(mode, Some(30)).run(Pace::default());
        assert!(matches!(broken.last(), Event::RunFailed(failed) if failed.error_code == ErrorCode::RunFailed));
        assert_eq!(broken.count("rollout.circuit_breaker.tripped"), 1);
        let whole = world(mode, None).run(Pace::default());
        let stopped = world(mode, None).run(Pace { stop_after: Some(25), ..Pace::default() });
        assert_eq!(stopped_by(&stopped), StopKind::External);
        assert!(stopped.billed_rollouts < whole.billed_rollouts);
        assert_eq!(stopped.count("heldout.completed"), 1, "the seed is still measured");
    }
}

#[test]
fn a_task_that_fails_on_every_row_is_not_called_beyond_the_circuit_breaker() {
    let failures = |run: &Run, class| {
        let is_class = |event: &&Event| matches!(event, Event::RolloutFailed(failed) if failed.class == class);
        run.events.iter().filter(is_class).count()
    };
    let mut world = climbing(|_| Err(false));
    let run = world.run(Pace::default());
    let Event::RunFailed(failed) = run.last() else { panic!("{:?}", run.last()) };
    assert_eq!((failed.error_code, run.billed_rollouts), (ErrorCode::RunFailed, 8));
    assert!(failed.message.contains("8 of the last 8 rows failed"), "{}", failed.message);
    assert!(failed.hint.as_ref().is_some_and(|hint| !hint.contains("cache")), "{:?}", failed.hint);
    assert_eq!(failures(&run, FailureClass::Failed), 8);
    assert_eq!(failures(&run, FailureClass::Withdrawn), world.train as usize - 8);
    let other = Pace { arrival_seed: 7, rollout_workers: 64, ..Pace::default() };
    assert_eq!(world.run(other).events, run.events);
    // Failed rows are retried before the other rows are tried.
    let flaky = climbing(|_| Err(true));
    let attempts = flaky.config.gepa.rollout_max_attempts;
    let run = flaky.run(Pace::default());
    assert!(attempts > 1 && matches!(run.last(), Event::RunFailed(_)));
    assert_eq!(run.billed_rollouts, u64::from(8 * attempts));
    assert_eq!(flaky.run(other).events, run.events);
    let mut patient = climbing(|command| if command.attempt < 3 { Err(true) } else { Ok(0.5) });
    patient.config.gepa.rollout_max_attempts = 3;
    let run = patient.run(Pace::default());
    assert!(matches!(run.last(), Event::RunFinished(_)), "a success of the last attempt counts: {:?}", run.last());
    assert_eq!(patient.run(other).events, run.events);
    // Without the circuit breaker, and within the tolerance, every row is called.
    world.config.gepa.circuit_breaker.enabled = false;
    assert_eq!(world.run(Pace::default()).billed_rollouts, u64::from(world.train));
    world.config.gepa.circuit_breaker.enabled = true;
    world.config.gepa.rollout_failure_rate_tolerance = 1.0;
    assert_eq!(failures(&world.run(Pace::default()), FailureClass::Withdrawn), 0);
    // After one score, other rollouts may have been sent.
    let world = climbing(|command| if number(command.row_id.as_str()) == 0 { Ok(0.5) } else { Err(false) });
    let run = world.run(Pace::default());
    assert_eq!((failures(&run, FailureClass::Withdrawn), run.billed_rollouts), (0, u64::from(world.train)));
}

#[test]
fn a_stop_before_the_first_call_costs_nothing() {
    let run = World::default().run(Pace { stop_after: Some(0), ..Pace::default() });
    assert!(matches!(run.last(), Event::RunCancelled(_)));
    assert_eq!(run.billed_rollouts, 0);
}

#[test]
fn an_initial_candidate_that_mostly_fails_fails_the_run() {
    let mut world = climbing(|command| {
        if level(command) == 0 && number(command.row_id.as_str()).is_multiple_of(2) { Err(false) } else { Ok(0.5) }
    });
    world.config.gepa.circuit_breaker.enabled = false;
    let run = world.run(Pace::default());
    let Event::RunFailed(failed) = run.last() else { panic!("{:?}", run.last()) };
    assert_eq!(failed.error_code, ErrorCode::RunFailed);
    assert!(failed.message.contains("50 %"), "{}", failed.message);
}

#[test]
fn an_initial_candidate_without_any_score_fails_the_run() {
    let mut world = climbing(|_| Err(false));
    world.config.gepa.rollout_failure_rate_tolerance = 1.0;
    let run = world.run(Pace::default());
    assert!(matches!(run.last(), Event::RunFailed(failed) if failed.error_code == ErrorCode::RunFailed));
}

#[test]
fn a_short_run_without_any_valid_proposal_fails() {
    let run = World { invalid: 1.0, ..World::default() }.run(Pace::default());
    assert!(
        matches!(run.last(), Event::RunFailed(failed) if failed.error_code == ErrorCode::Proposer),
        "{:?}",
        run.last()
    );
}

#[test]
fn a_candidate_gains_nothing_by_failing_on_hard_rows() {
    // Level 1 fails on the hard rows, on which the initial candidate scores 0, and ties with it on all others.
    let mut world = climbing(|command| {
        let hard = number(command.row_id.as_str()) < 6;
        if hard && level(command) > 0 { Err(false) } else { Ok(if hard { 0.0 } else { 0.9 }) }
    });
    world.config.gepa.minibatch_acceptance_criterion = AcceptanceCriterion::ImprovementOrEqual;
    world.config.gepa.score_threshold_value = Some(0.9);
    world.config.gepa.circuit_breaker.enabled = false;
    let run = world.run(Pace::default());
    assert_ne!(stopped_by(&run), StopKind::ScoreThreshold);
    assert_eq!(finished(&run).best_candidate_id, run.state.candidates[0].id);
    let merits: BTreeSet<u64> = run
        .state
        .candidates
        .iter()
        .filter_map(|one| one.pool_entry)
        .map(|one| (one.ranking_score * 1e6).round() as u64)
        .collect();
    assert_eq!(merits.len(), 1, "{merits:?}");
}

#[test]
fn the_time_limit_applies_to_the_heldout_phase() {
    let mut world = climbing(|command| Ok(f64::from(level(command)) / 10.0));
    world.heldout = 200;
    world.config.proposer.timeout_seconds = 5;
    world.config.gepa.max_total_rollouts = 2000;
    world.config.gepa.max_time_seconds = Some(30);
    world.config.gepa.rollout_estimated_wall_seconds = Some(3.5);
    world.config.gepa.pipeline.workers.rollout = 1;
    let run = world.run(Pace { rollout_workers: 1, ..Pace::default() });
    // A rollout in flight may end late; no call is sent after that.
    assert!(run.simulated_millis < 34_000, "{}", run.simulated_millis);
    assert_eq!(run.count("heldout.skipped"), 1);
}

#[test]
fn a_stop_request_is_not_a_container_failure() {
    let slow = Pace { rollout_workers: 1, stop_after: Some(3), ..Pace::default() };
    let run = World::default().run(slow);
    assert!(matches!(run.last(), Event::RunCancelled(_)), "{:?}", run.last());
    assert_eq!(run.billed_rollouts, 3, "nothing more is sent");
    let later = Pace { rollout_workers: 1, stop_after: Some(30), ..Pace::default() };
    let run = World::default().run(later);
    assert_eq!(stopped_by(&run), StopKind::External);
    assert_eq!(run.state.candidates[1].status.as_str(), "deferred_stop");
}

#[test]
fn a_row_that_always_fails_does_not_empty_the_objective_frontier() {
    let mut world = climbing(|command| {
        let failing = command.row_id.as_str() == "train:0";
        if failing { Err(false) } else { Ok(f64::from(level(command)) / 10.0) }
    });
    world.config.gepa.frontier_type = FrontierType::PerObjective;
    let run = world.run(Pace::default());
    assert!(run.state.frontier.size() > 0);
    assert_eq!(level_of(&run), 6);
}

#[test]
fn rows_that_cannot_be_measured_are_not_called_perfect() {
    let mut world = climbing(|command| if number(command.row_id.as_str()) < 4 { Err(false) } else { Ok(0.2) });
    world.config.gepa.circuit_breaker.enabled = false;
    let mut inputs = world.inputs();
    inputs.minibatch_pool = (0..4).map(TrainRow).collect();
    inputs.reflection_pool = inputs.minibatch_pool.clone();
    let run = world.run_with(inputs, Pace::default());
    assert_eq!(stopped_by(&run), StopKind::NothingMeasurable);
}

#[test]
fn limits_are_named_in_dollars() {
    let mut world = World::default();
    world.config.gepa.max_cost_usd = 0.01;
    world.config.gepa.rollout_estimated_cost_usd = Some(0.003);
    world.config.gepa.proposer_estimated_cost_usd = Some(0.03);
    let run = world.run(Pace::default());
    let Event::RunFailed(failed) = run.last() else { panic!("{:?}", run.last()) };
    assert_eq!(
        failed.message,
        "the evaluation of the initial candidate requires 0.072 of max_cost_usd, and 0.01 are left"
    );
}

#[test]
fn an_initial_evaluation_beyond_the_budget_is_refused_before_any_call() {
    let mut world = World::default();
    world.config.gepa.max_total_rollouts = 20;
    let run = world.run(Pace::default());
    let Event::RunFailed(failed) = run.last() else { panic!("{:?}", run.last()) };
    assert_eq!(failed.error_code, ErrorCode::BudgetExceeded);
    assert_eq!(run.billed_rollouts, 0);
}

#[test]
fn of_tied_candidates_the_newest_is_the_parent() {
    // Every proposal ties with its parent on all rows.
    let mut world = climbing(|_| Ok(0.5));
    world.config.gepa.minibatch_acceptance_criterion = AcceptanceCriterion::ImprovementOrEqual;
    for selector in [Selector::CurrentBest, Selector::ParetoWeighted, Selector::UniformPareto] {
        world.config.gepa.candidate_selector.name = selector;
        let run = world.run(Pace::default());
        let levels: Vec<u32> = run
            .commands
            .iter()
            .filter_map(|command| match command {
                Command::Propose(turn) => Some(number(&turn.question.base["prompt"])),
                Command::Rollout(_) => None,
            })
            .collect();
        assert_eq!(levels, [0, 1, 2, 3, 4, 5], "{selector:?}");
    }
}

#[test]
fn rejected_candidates_reach_the_next_proposal_with_their_text_and_reason() {
    // The first two proposals are worse than the initial candidate.
    let mut world = climbing(|command| Ok(if level(command) == 0 { 0.5 } else { 0.1 }));
    world.write = Some(|command| {
        let field = command.question.components[0].clone();
        vec![Payload::from([(field, format!("Rules: {{rows}} {}", command.question.generation + 1))])]
    });
    world.config.gepa.carry_failures = 2;
    world.config.gepa.max_generations = Some(4);
    let run = world.run(Pace::default());
    let carried: Vec<Vec<u32>> = run
        .commands
        .iter()
        .filter_map(|command| match command {
            Command::Propose(turn) => {
                Some(turn.question.carried_failures.iter().map(|failure| number(&failure.payload["prompt"])).collect())
            }
            Command::Rollout(_) => None,
        })
        .collect();
    assert_eq!(carried, [vec![], vec![1], vec![1, 2], vec![2, 3]]);
    let Some(Command::Propose(last)) = run.commands.iter().rfind(|command| matches!(command, Command::Propose(_)))
    else {
        panic!("nothing was proposed")
    };
    assert_eq!(last.question.carried_failures[0].reason, "primary_not_improved");
}

#[test]
fn a_proposal_knows_the_parents_relatives_and_the_frontier() {
    // Every level is better than the one below.
    let mut world = climbing(|command| Ok(f64::from(level(command)) / 10.0));
    world.config.gepa.max_generations = Some(9);
    let run = world.run(Pace::default());
    let turns: Vec<_> = run
        .commands
        .iter()
        .filter_map(|command| match command {
            Command::Propose(turn) => Some(turn),
            Command::Rollout(_) => None,
        })
        .collect();
    assert!(turns[0].question.relatives.is_empty() && turns[0].question.frontier.len() == 1, "{:?}", turns[0]);
    let last = turns.last().unwrap();
    let ancestors: Vec<_> =
        last.question.relatives.iter().filter(|found| found.relation == Relation::Ancestor).collect();
    // The history is longer than the shown part.
    assert_eq!(ancestors.len(), 4, "{:?}", last.question.relatives);
    for ancestor in &ancestors {
        assert!((ancestor.delta.unwrap() - 0.1).abs() < 1e-9 && ancestor.rows > 0, "{ancestor:?}");
        assert!(ancestor.changed.contains_key("prompt"), "{ancestor:?}");
    }
    assert_eq!(last.question.frontier[0].candidate_id, last.question.parents[0].candidate_id);
    assert!(last.question.frontier[0].train_score > 0.5 && last.question.frontier[0].cells_won > 0);
}

#[test]
fn heldout_scores_are_measured_once_and_never_select_a_candidate() {
    let turned = |score: Scorer| climbing(score).run(Pace::default());
    let plain = turned(|command| Ok(f64::from(level(command)) / 10.0));
    let other = turned(|command| {
        if command.heldout { Ok(1.0 - f64::from(level(command)) / 10.0) } else { Ok(f64::from(level(command)) / 10.0) }
    });
    let before = |run: &Run| {
        let place = run.events.iter().position(|event| matches!(event, Event::HeldoutStarted(_))).unwrap();
        run.events[..place].to_vec()
    };
    assert_eq!(before(&plain), before(&other));
    assert_eq!(finished(&plain).best_candidate_id, finished(&other).best_candidate_id);
    assert!(finished(&other).heldout_gain.unwrap().difference < 0.0);
    let measured =
        plain.commands.iter().filter(|command| matches!(command, Command::Rollout(rollout) if rollout.heldout));
    assert_eq!(measured.count(), 20);
    assert!(
        before(&plain)
            .iter()
            .all(|event| !matches!(event, Event::RolloutFinished(rollout) if rollout.stage == Stage::Heldout))
    );
}

#[test]
fn heldout_best_returns_the_best_on_rows_that_all_have() {
    let mut world = climbing(|command| match (command.heldout, level(command)) {
        (false, level) => Ok(f64::from(level) / 10.0),
        // Level 6 is best on train rows, level 4 on held-out rows; the initial candidate is perfect on its only scored row.
        (true, 0) => {
            if command.row_id.as_str() == "heldout:0" {
                Ok(1.0)
            } else {
                Err(false)
            }
        }
        (true, 4) => Ok(0.9),
        (true, _) => Ok(0.3),
    });
    world.config.gepa.circuit_breaker.enabled = false;
    let chosen = |world: &World| level_of(&world.run(Pace::default()));
    assert_eq!(chosen(&world), 6);
    world.config.gepa.deployment_rule = DeploymentRule::HeldoutBest;
    assert_eq!(chosen(&world), 4);
}

pub(crate) fn level_of(run: &Run) -> u32 {
    let best = &finished(run).best_candidate_id;
    run.state
        .candidates
        .iter()
        .find(|candidate| candidate.id == *best)
        .map_or(0, |candidate| number(&candidate.payload["prompt"]))
}

#[test]
fn proposals_are_checked_before_they_cost_anything() {
    let (heldout, train) = ("heldout-3-".repeat(5), "train-3-".repeat(5));
    let cases: Vec<(&str, Payload, &str)> = vec![
        ("no field", Payload::new(), "empty_proposal"),
        ("unknown field", Payload::from([("x".into(), "y".into())]), "field_unknown"),
        ("empty text", Payload::from([("odd".into(), " \n".into())]), "field_empty"),
        ("too long", Payload::from([("odd".into(), format!("{{rows}} {}", "x".repeat(40_000)))]), "field_too_long"),
        ("variable lost", Payload::from([("odd".into(), "no placeholder".into())]), "template_variable_lost"),
        ("other module", Payload::from([("even".into(), "{rows} changed".into())]), "field_not_requested"),
        ("held-out text", Payload::from([("odd".into(), format!("{{rows}} {heldout}"))]), "heldout_leakage"),
        ("train text", Payload::from([("odd".into(), format!("{{rows}} {train}"))]), "train_leakage"),
    ];
    for (name, fields, code) in cases {
        let problems = check(&World { modules: vec!["odd", "even"], ..World::default() }, fields).unwrap_err();
        let codes: Vec<&str> = problems.iter().map(|problem| problem.code.as_str()).collect();
        assert_eq!(codes, [code], "{name}");
        assert!(problems.iter().all(|problem| !problem.message.contains("heldout-3")), "{problems:?}");
    }
    let both = Payload::from([("odd".into(), String::new()), ("x".into(), "y".into())]);
    let problems = check(&World { modules: vec!["odd", "even"], ..World::default() }, both).unwrap_err();
    assert_eq!(problems.len(), 2, "every problem is named");
    // A field with unchanged text does not count as changed.
    let named = Payload::from([("odd".into(), "{rows} new".into()), ("even".into(), "Rules: {rows}".into())]);
    assert_eq!(
        check(&World { modules: vec!["odd", "even"], ..World::default() }, named).unwrap().changed_fields,
        ["odd"]
    );
}

#[test]
fn train_text_may_be_forbidden_warned_about_or_allowed() {
    let text = format!("{{rows}} {}", "train-3-".repeat(5));
    let fields = || Payload::from([("odd".into(), text.clone())]);
    let mut world = World { modules: vec!["odd"], ..World::default() };
    assert!(check(&world, fields()).is_err());
    world.config.gepa.leakage.policy = LeakagePolicy::Warn;
    assert_eq!(check(&world, fields()).unwrap().repeated.len(), 1);
    world.config.gepa.leakage.policy = LeakagePolicy::Allow;
    assert_eq!(check(&world, fields()).unwrap().repeated.len(), 0);
    // Held-out text is still rejected.
    let heldout = text.replace("train", "heldout");
    assert!(check(&world, Payload::from([("odd".into(), heldout)])).is_err());
}

pub(crate) type Checked = Result<synth_gepa::CheckedProposal, Vec<synth_optimizer_core::model::event_fields::Problem>>;

pub(crate) fn check(world: &World, fields: Payload) -> Checked {
    check_proposal(world, &Proposal { fields, ..Proposal::default() })
}

pub(crate) fn check_proposal(world: &World, proposal: &Proposal) -> Checked {
    // A run that is cancelled during its first proposer turn has an open generation to check against.
    let engine = world.engine();
    let state = first_turn(&engine, world);
    let generation = state.generations.values().next().unwrap();
    engine.check_proposal(generation, proposal)
}

fn first_turn(engine: &GepaEngine, world: &World) -> synth_gepa::State {
    use synth_optimizer_core::engine::Engine;
    let run = world.run(Pace::default());
    let mut state = engine.initial_state();
    for event in &run.events {
        engine.evolve(&mut state, event);
        if matches!(event, Event::ProposerStarted(_)) {
            return state;
        }
    }
    panic!("nothing was proposed")
}

#[test]
fn components_take_turns_or_change_together() {
    let turns = |selector| {
        let mut world = climbing(|command| Ok(f64::from(level(command)) / 10.0));
        world.modules = vec!["odd", "even"];
        world.config.gepa.component_selector = selector;
        world.config.gepa.max_generations = Some(4);
        let run = world.run(Pace::default());
        let components = run.events.iter().filter_map(|event| match event {
            Event::GenerationStarted(generation) => Some(generation.components.join("+")),
            _ => None,
        });
        components.collect::<Vec<_>>()
    };
    assert_eq!(turns(ComponentSelector::RoundRobin), ["odd", "even", "odd", "even"]);
    assert_eq!(turns(ComponentSelector::All), ["odd+even"; 4]);
}

#[test]
fn separate_pools_measure_the_parent_where_it_has_no_scores() {
    let mut world = climbing(|command| Ok(f64::from(level(command)) / 10.0));
    world.config.gepa.minibatch_size = Some(4);
    world.config.gepa.max_generations = Some(1);
    world.config.gepa.batch_sampler.name = Sampler::OrderedEpoch;
    let mut inputs = world.inputs();
    inputs.pareto_pool = (0..10).map(TrainRow).collect();
    inputs.minibatch_pool = (10..14).map(TrainRow).collect();
    inputs.reflection_pool = (14..18).map(TrainRow).collect();
    let run = world.run_with(inputs, Pace::default());
    let reference: BTreeSet<&str> = rows_of(&run, Stage::ParentMinibatchReference);
    assert_eq!(reference, (10..18).map(|row| NAMES[row]).collect());
    assert_eq!(rows_of(&run, Stage::CandidateMinibatch), (10..14).map(|row| NAMES[row]).collect());
    assert_eq!(rows_of(&run, Stage::CandidateFullTrain), (0..10).map(|row| NAMES[row]).collect());
    let Some(Command::Propose(turn)) = run.commands.iter().find(|command| matches!(command, Command::Propose(_)))
    else {
        panic!("nothing was proposed")
    };
    let evidence: BTreeSet<&str> = turn.evidence.iter().map(|row| row.row_id.as_str()).collect();
    assert_eq!(evidence, (14..18).map(|row| NAMES[row]).collect());
    assert!(turn.evidence.iter().all(|row| row.score == Some(0.0)));
}

const NAMES: [&str; 18] = [
    "train:0", "train:1", "train:2", "train:3", "train:4", "train:5", "train:6", "train:7", "train:8", "train:9",
    "train:10", "train:11", "train:12", "train:13", "train:14", "train:15", "train:16", "train:17",
];

fn rows_of(run: &Run, stage: Stage) -> BTreeSet<&str> {
    let rollouts = run.commands.iter().filter_map(|command| match command {
        Command::Rollout(rollout) if rollout.stage == stage => Some(rollout.row_id.as_str()),
        _ => None,
    });
    rollouts.collect()
}

/// Two candidates descend from the initial one and change different modules. Their merge has both changes.
#[test]
fn a_merge_takes_each_change_from_the_parent_that_made_it() {
    let mut world = World { modules: vec!["odd", "even"], learns: 0.4, forgets: 0.0, ..World::default() };
    world.config.gepa.max_generations = Some(12);
    world.config.gepa.minibatch_size = Some(6);
    world.config.gepa.max_total_rollouts = 2000;
    world.config.gepa.candidate_selector.name = Selector::Random;
    world.config.gepa.merge.enabled = true;
    let mut built = 0;
    for seed in 0..12 {
        for most in [1, 5] {
            world.config.run.seed = seed;
            world.config.gepa.merge.max_merges = most;
            let run = world.run(Pace::default());
            let merges = run.state.candidates.iter().filter(|candidate| candidate.operation == Operation::Merge);
            let merges: Vec<_> = merges.collect();
            assert!(merges.len() <= most as usize, "the cap is hard");
            for merge in &merges {
                let [first, second] = [0, 1].map(|place| &run.state.candidates[merge.parents[place] as usize]);
                for (field, text) in &merge.payload {
                    assert!(*text == first.payload[field] || *text == second.payload[field]);
                }
                assert_ne!(merge.payload, first.payload);
                assert_ne!(merge.payload, second.payload);
            }
            built += merges.len();
        }
    }
    assert!(built > 5, "only {built} merges were built");
}

/// In simulated time with enough workers, the same rollouts finish several times sooner.
#[test]
fn a_wider_window_finishes_sooner_with_the_same_rollouts() {
    let finish = |mode, window| {
        let mut world = World { rules: 200, train: 40, inventive: true, ..World::default() };
        world.config.gepa.pipeline.mode = mode;
        world.config.gepa.pipeline.max_in_flight_candidates = Some(window);
        world.config.gepa.proposals_per_generation = 1;
        world.config.gepa.max_generations = Some(1000);
        world.config.gepa.skip_perfect_score = false;
        world.config.gepa.max_train_rollouts = Some(1500);
        world.config.gepa.max_heldout_rollouts = Some(20);
        let run = world.run(Pace { rollout_workers: 16, propose_workers: 8, ..Pace::default() });
        assert!(run.billed_rollouts > 1500, "{}", run.billed_rollouts);
        run.simulated_millis
    };
    let serial = finish(PipelineMode::SyncSerial, 1);
    let wide = finish(PipelineMode::AsyncPipelined, 8);
    assert!(serial > 3 * wide, "{serial} ms against {wide} ms");
}

/// A world without an end of its own.
fn endless() -> World {
    let mut world = World { inventive: true, rules: 400, ..World::default() };
    world.config.gepa.max_generations = None;
    world.config.gepa.skip_perfect_score = false;
    world.config.gepa.leakage.min_span_chars = 4000;
    world
}

/// A world with a cost limit and no estimates.
fn with_cost_limit(usd: f64) -> World {
    let mut world = endless();
    world.config.gepa.max_total_rollouts = 100_000;
    world.config.gepa.max_cost_usd = usd;
    world
}

#[test]
fn a_cost_limit_alone_runs_the_first_rollout_alone_and_uses_the_budget() {
    let run = with_cost_limit(1.5).run(Pace::default());
    let requested: Vec<usize> = run
        .events
        .iter()
        .filter_map(|event| match event {
            Event::RolloutsRequested(rollouts) => Some(rollouts.row_ids.len()),
            _ => None,
        })
        .collect();
    assert_eq!(requested[..2], [1, 23], "one row alone, then the rest of the initial candidate");
    let spent = run.state.counts.spend().known_cost.0 as f64 / 1e9;
    assert!((1.2..=1.5).contains(&spent), "{spent}");
    let heldout = run.events.iter().filter(|event| matches!(event, Event::HeldoutCompleted(_))).count();
    assert_eq!(heldout, 2, "the held-out rows of the initial and the best candidate are set aside");
}

#[test]
fn a_cost_limit_fails_the_run_after_the_first_rollout_without_a_cost() {
    let run = World { rollout_cost: None, ..with_cost_limit(1.5) }.run(Pace::default());
    let failure = run.events.iter().find_map(|event| match event {
        Event::RunFailed(failed) => Some(failed),
        _ => None,
    });
    let failure = failure.unwrap();
    assert_eq!(
        failure.message,
        "`gepa.max_cost_usd` is set, but the first rollout reported no cost, so that the limit cannot be kept"
    );
    assert!(failure.hint.as_ref().unwrap().contains("gepa.rollout_estimated_cost_usd"));
    assert_eq!(run.billed_rollouts, 1);
}

#[test]
fn without_a_limit_of_generations_the_rollouts_end_the_search() {
    let mut world = endless();
    world.config.gepa.max_total_rollouts = 600;
    let run = world.run(Pace::default());
    let stopped = run.events.iter().find_map(|event| match event {
        Event::StopDecided(stop) => Some(stop.stopped_by.kind),
        _ => None,
    });
    assert_eq!(stopped, Some(StopKind::MaxRollouts));
    assert!(run.count("generation.started") > 2);
}

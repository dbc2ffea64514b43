//! What a user demands of candidates: texts to keep, guarded rows, a maximum length, and the length as an objective.

use serde_json::json;

use crate::search::{check, climbing, finished, level, level_of, number};
use crate::sim::{Pace, Run, World};
use synth_gepa::GepaEngine;
use synth_optimizer_core::config::gepa::{
    AcceptanceCriterion, DeploymentRule, Direction, FrontierType, candidate_tokens,
};
use synth_optimizer_core::config::sections::KeepSpan;
use synth_optimizer_core::engine::Engine;
use synth_optimizer_core::model::command::{Command, KeptText, ProposeCommand};
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::event::{Event, message};
use synth_optimizer_core::model::event_fields::{CandidateDecided, Stage};
use synth_optimizer_core::model::ids::{Payload, RowId, TrainRow};

fn keep(text: &str, field: Option<&str>) -> KeepSpan {
    KeepSpan { text: text.into(), field: field.map(str::to_owned) }
}

fn rejected(run: &Run) -> Vec<&CandidateDecided> {
    let decisions = run.events.iter().filter_map(|event| match event {
        Event::CandidateRejected(decision) => Some(decision),
        _ => None,
    });
    decisions.collect()
}

fn questions(run: &Run) -> Vec<&ProposeCommand> {
    let turns = run.commands.iter().filter_map(|command| match command {
        Command::Propose(turn) => Some(turn),
        Command::Rollout(_) => None,
    });
    turns.collect()
}

/// Returns the error of an engine that cannot be built.
fn refusal(world: &World) -> OptimizerError {
    let inputs = world.inputs();
    let mut config = world.config.clone();
    config.candidate.target_modules = inputs.program.targets.clone();
    GepaEngine::new(&config, inputs).unwrap_err()
}

#[test]
fn a_change_that_was_not_requested_is_left_out_and_recorded() {
    let world = World { modules: vec!["odd", "even"], ..World::default() };
    let both = Payload::from([
        ("odd".into(), "{rows} new".into()),
        ("even".into(), "{rows} unasked".into()),
        ("x".into(), "unknown".into()),
    ]);
    let checked = check(&world, both).unwrap();
    assert_eq!((checked.changed_fields, checked.dropped_fields), (vec!["odd".into()], vec!["even".into(), "x".into()]));
    let expected = [("odd".to_owned(), "{rows} new".to_owned()), ("even".to_owned(), "Rules: {rows}".to_owned())];
    assert_eq!(checked.payload, Payload::from(expected));
    // Without a requested change, nothing is left.
    let none = Payload::from([("odd".into(), "Rules: {rows}".into()), ("even".into(), "{rows} unasked".into())]);
    assert_eq!(check(&world, none).unwrap_err()[0].code, "field_not_requested");

    let mut world = climbing(|command| Ok(f64::from(level(command)) / 10.0));
    world.modules = vec!["odd", "even"];
    world.write = Some(|command| {
        let base = &command.question.base;
        let next = |field: &str| (field.to_owned(), format!("Rules: {{rows}} {}", number(&base[field]) + 1));
        vec![Payload::from(["odd", "even"].map(next))]
    });
    let run = world.run(Pace::default());
    assert_eq!((run.count("proposal.rejected"), run.count("candidate.registered")), (0, 7));
    let lines: Vec<String> =
        run.events.iter().map(message).filter(|line| line.contains("without its change")).collect();
    assert_eq!(lines.len(), 6);
    assert!(lines[0].ends_with("(mutate), without its change of even, which was not requested"), "{}", lines[0]);
}

#[test]
fn a_text_to_keep_must_be_in_the_initial_candidate() {
    let mut world = World { modules: vec!["odd", "even"], ..World::default() };
    world.config.candidate.keep = vec![keep("Rules:", None), keep("{rows}", Some("even"))];
    world.engine();
    for (span, place) in [
        (keep("rules:", None), "any initial text of odd, even"),
        (keep("Answer", Some("even")), "the initial text of the field \"even\""),
    ] {
        let text = span.text.clone();
        world.config.candidate.keep = vec![span];
        let error = refusal(&world);
        assert_eq!(error.code, ErrorCode::Config);
        assert_eq!(error.message, format!("the text to keep {text:?} is not in {place}"));
    }
}

#[test]
fn a_proposal_that_loses_a_text_costs_no_rollout_and_is_repaired() {
    let mut world = climbing(|command| Ok(f64::from(level(command)) / 10.0));
    world.config.candidate.keep = vec![keep("Rules:", None)];
    world.write = Some(|command| {
        let next = number(&command.question.base["prompt"]) + 1;
        let start = if command.question.problems.is_empty() { "Laws:" } else { "Rules:" };
        vec![Payload::from([("prompt".into(), format!("{start} {{rows}} {next}"))])]
    });
    let run = world.run(Pace::default());
    assert_eq!((run.count("proposal.rejected"), level_of(&run)), (6, 6));
    assert!(run.state.candidates.iter().all(|candidate| candidate.payload["prompt"].contains("Rules:")));
    let questions = questions(&run);
    let kept = KeptText { field: "prompt".into(), text: "Rules:".into() };
    assert!(questions.iter().all(|turn| turn.question.rules.keep == [kept.clone()]));
    let problem = &questions[1].question.problems[0];
    assert_eq!((problem.code.as_str(), problem.field.as_deref()), ("kept_text_lost", Some("prompt")));
    assert_eq!(problem.message, "the text must keep \"Rules:\" word for word");
}

/// Every level is better in total. From level 4 on, train:3 is lost.
fn losing(command: &synth_optimizer_core::model::command::RolloutCommand) -> Result<f64, bool> {
    let level = level(command);
    if command.row_id.as_str() == "train:3" {
        Ok(if level < 4 { 0.3 } else { 0.2 })
    } else {
        Ok(f64::from(level) / 10.0)
    }
}

#[test]
fn a_candidate_that_loses_a_guarded_row_is_not_accepted() {
    let mut world = climbing(losing);
    assert_eq!(level_of(&world.run(Pace::default())), 6);
    world.config.gepa.guard_ids = vec![json!("train:3")];
    let run = world.run(Pace::default());
    assert_eq!(level_of(&run), 3);
    let decision = rejected(&run).into_iter().find(|decision| decision.reason == "guarded_row_worse").unwrap();
    assert_eq!(decision.detail.as_deref(), Some("worse on guarded row train:3 (0.3 before, 0.2 now)"));
    let rules = &questions(&run)[0].question.rules;
    assert_eq!((rules.guarded.as_slice(), rules.keep.len(), rules.length), (&[RowId::new("train:3")][..], 0, None));
    // The next turn reads the reason.
    let carried = questions(&run).into_iter().flat_map(|turn| &turn.question.carried_failures);
    assert!(carried.into_iter().any(|failure| failure.reason.starts_with("guarded_row_worse: worse on guarded row")));
    // Held-out scores cannot choose such a candidate either.
    world.score = Some(|command| if command.heldout { Ok(f64::from(level(command)) / 10.0) } else { losing(command) });
    world.config.gepa.deployment_rule = DeploymentRule::HeldoutBest;
    assert_eq!(level_of(&world.run(Pace::default())), 3);
}

#[test]
fn a_loss_on_the_minibatch_ends_the_screening() {
    let mut world = climbing(losing);
    world.config.gepa.guard_ids = vec![json!("train:3")];
    world.config.gepa.minibatch_size = Some(24);
    let run = world.run(Pace::default());
    let lost: Vec<_> = rejected(&run).into_iter().filter(|decision| decision.reason == "guarded_row_worse").collect();
    assert!(!lost.is_empty() && lost.iter().all(|decision| decision.stage == Stage::CandidateMinibatch));
    assert_eq!(level_of(&run), 3);
}

#[test]
fn a_guarded_row_without_a_score_is_missing_evidence() {
    let mut world = climbing(|command| {
        let is_lost = command.row_id.as_str() == "train:3" && level(command) >= 2;
        if is_lost { Err(false) } else { Ok(f64::from(level(command)) / 10.0) }
    });
    assert!(level_of(&world.run(Pace::default())) > 1);
    world.config.gepa.guard_ids = vec![json!("train:3"), json!("train:4")];
    let run = world.run(Pace::default());
    assert_eq!(level_of(&run), 1);
    let decision = rejected(&run).into_iter().find(|decision| decision.reason == "guarded_row_missing").unwrap();
    assert_eq!(decision.detail.as_deref(), Some("no score on guarded row train:3"));
}

#[test]
fn guarded_rows_are_known_train_rows_of_the_full_evaluation() {
    let mut world = climbing(losing);
    for (entry, message) in [
        (json!("train:99"), "gepa.guard_ids names \"train:99\", which is not a train row of this run"),
        (json!("heldout:1"), "gepa.guard_ids names \"heldout:1\", which is a held-out row"),
        (json!(99), "gepa.guard_ids names 99, which is not a train row of this run"),
    ] {
        world.config.gepa.guard_ids = vec![entry];
        let error = refusal(&world);
        assert_eq!((error.code, error.message.as_str()), (ErrorCode::Config, message));
        assert!(error.hint.contains("train:0"), "{}", error.hint);
    }
    // A row number is an entry of `train_seeds`.
    world.config.dataset = Some(Default::default());
    world.config.dataset.as_mut().unwrap().train_seeds = (100..124).collect();
    world.config.gepa.guard_ids = vec![json!(103)];
    assert_eq!(level_of(&world.run(Pace::default())), 3);
    let mut inputs = world.inputs();
    inputs.pareto_pool = (4..24).map(TrainRow).collect();
    let mut config = world.config.clone();
    config.candidate.target_modules = inputs.program.targets.clone();
    let error = GepaEngine::new(&config, inputs).unwrap_err();
    assert_eq!(error.message, "gepa.guard_ids names 103, which no full evaluation measures");
}

#[test]
fn a_candidate_that_is_too_long_costs_no_rollout() {
    let mut world = World { modules: vec!["odd", "even"], ..World::default() };
    world.config.gepa.max_candidate_tokens = Some(10);
    let of = |length: usize| Payload::from([("odd".into(), format!("{{rows}}{}", "x".repeat(length - 6)))]);
    // The other text has 13 characters.
    assert!(check(&world, of(27)).is_ok());
    let problems = check(&world, of(28)).unwrap_err();
    assert_eq!(problems[0].code, "candidate_too_long");
    let numbers =
        "the candidate has about 11 tokens (characters of all target texts divided by 4); at most 10 are allowed";
    assert_eq!(problems[0].message, numbers);
    let run = world.run(Pace::default());
    let length = questions(&run)[0].question.rules.length.unwrap();
    assert_eq!((length.max_tokens, length.base_tokens), (10, 7));
    let targets = ["odd".to_owned(), "even".to_owned()];
    assert!(run.state.candidates.iter().all(|candidate| candidate_tokens(&candidate.payload, &targets) <= 10));
}

#[test]
fn the_length_is_an_objective_that_no_container_reports() {
    // Each proposal is shorter than its parent, and no better.
    let mut world = World { score: Some(|_| Ok(0.5)), write: Some(shorter), ..World::default() };
    world.config.gepa.objective_keys = vec!["outcome_reward".into(), "candidate_tokens".into()];
    world.config.gepa.max_generations = Some(3);
    world.config.gepa.frontier_type = FrontierType::PerObjective;
    let plain = world.run(Pace::default());
    assert_eq!(plain.count("candidate.accepted"), 1, "the deciding objective does not improve");
    let Some(Event::ObjectiveSetDeclared(set)) =
        plain.events.iter().find(|event| matches!(event, Event::ObjectiveSetDeclared(_)))
    else {
        panic!("no objectives")
    };
    assert_eq!(
        (set.selection_objective.as_str(), set.objectives[1].direction),
        ("outcome_reward", Direction::Minimize)
    );
    for event in &plain.events {
        if let Event::RolloutFinished(rollout) = event {
            let candidate = plain.state.candidates.iter().find(|known| known.id == rollout.candidate_id).unwrap();
            if let Some(text) = candidate.payload.get("prompt") {
                assert_eq!(rollout.objectives["candidate_tokens"], text.chars().count().div_ceil(4) as f64);
            }
        }
    }
    for criterion in [AcceptanceCriterion::AnyObjectiveImproved, AcceptanceCriterion::PrimaryOrObjective] {
        world.config.gepa.acceptance_criterion = criterion;
        world.config.gepa.minibatch_acceptance_criterion = criterion;
        let run = world.run(Pace::default());
        assert!(run.count("candidate.accepted") > 1, "{criterion:?}");
        let best = &finished(&run).best_candidate_id;
        let best = run.state.candidates.iter().find(|candidate| candidate.id == *best).unwrap();
        assert!(best.payload["prompt"].len() < "Rules: {rows}".len());
    }
}

fn shorter(command: &ProposeCommand) -> Vec<Payload> {
    let base = &command.question.base["prompt"];
    let text = match base.strip_prefix("Rules: ") {
        Some(rest) => rest.to_owned(),
        None => format!("{base} {}", command.question.generation),
    };
    vec![Payload::from([("prompt".into(), text)])]
}

#[test]
fn demands_do_not_depend_on_arrival_order_or_resume() {
    let mut world = World { failure: 0.1, ..World::default() };
    world.config.candidate.keep = vec![keep("Rules:", None)];
    world.config.gepa.guard_ids = vec![json!("train:3"), json!("train:5")];
    world.config.gepa.max_candidate_tokens = Some(12);
    world.config.gepa.objective_keys = vec!["outcome_reward".into(), "candidate_tokens".into()];
    world.config.gepa.max_generations = Some(8);
    world.config.gepa.max_total_rollouts = 400;
    let run = world.run(Pace::default());
    for arrival_seed in 1..4 {
        let other = world.run(Pace { arrival_seed, rollout_workers: 3, ..Pace::default() });
        assert_eq!(run.events, other.events, "{arrival_seed}");
    }
    for end in run.boundaries.iter().step_by(17) {
        let resumed = world.resume(&run.events[..*end], Pace::default());
        assert_eq!(run.events, [&run.events[..*end], &resumed].concat(), "{end}");
    }
}

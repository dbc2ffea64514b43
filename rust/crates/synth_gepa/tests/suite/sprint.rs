//! The search in sprints: what a check compares, what moves head and best candidate, and unusual tasks.

use std::collections::{BTreeMap, BTreeSet};

use crate::search::finished;
use crate::sim::{Pace, Run, Scorer, Scoring, World};
use synth_optimizer_core::config::gepa::{Direction, PipelineMode, SearchMode};
use synth_optimizer_core::model::canonical::canonical_digest;
use synth_optimizer_core::model::claim::ClaimVerdict;
use synth_optimizer_core::model::command::{ProposeCommand, RolloutCommand};
use synth_optimizer_core::model::event::Event;
use synth_optimizer_core::model::event_fields::{CheckVerdict, Operation, Stage, StopKind};
use synth_optimizer_core::model::ids::{CandidateId, Payload, RowId};
use synth_optimizer_core::model::lifecycle::CandidateTrigger;

/// A task with many rules that a search in sprints meets with this budget and window.
fn world(seed: u64, budget: u32, window: u32) -> World {
    let mut world = World { rules: 30, train: 60, heldout: 20, inventive: false, ..World::default() };
    world.config.run.seed = seed;
    let gepa = &mut world.config.gepa;
    gepa.search = SearchMode::Sprint;
    gepa.max_generations = None;
    gepa.minibatch_size = Some(3);
    gepa.proposals_per_generation = 1;
    gepa.max_total_rollouts = budget;
    gepa.leakage.min_span_chars = 4000;
    gepa.pipeline.mode = if window > 1 { PipelineMode::AsyncPipelined } else { PipelineMode::SyncSerial };
    gepa.pipeline.max_in_flight_candidates = Some(window);
    world.config.proposer.max_consecutive_invalid = 40;
    world
}

fn known_rules(payload: &Payload) -> usize {
    let words = payload.values().flat_map(|text| text.split_whitespace());
    words.filter(|word| word.starts_with('r')).collect::<BTreeSet<_>>().len()
}

fn best(run: &Run) -> &Payload {
    &run.state.candidates[run.state.best.unwrap() as usize].payload
}

fn verdicts(run: &Run, wanted: CheckVerdict) -> usize {
    run.events.iter().filter(|event| matches!(event, Event::CheckDecided(check) if check.verdict == wanted)).count()
}

#[test]
fn a_few_hundred_rollouts_find_more_than_the_reference_search() {
    let (mut sprint, mut reference) = (0, 0);
    for seed in 0..6 {
        let mut world = world(seed, 400, 1);
        sprint += known_rules(best(&world.run(Pace::default())));
        world.config.gepa.search = SearchMode::Reference;
        reference += known_rules(best(&world.run(Pace::default())));
    }
    assert!(sprint > 2 * reference, "{sprint} against {reference}");
}

/// Recomputes every check from the log alone: each side has the mean of its rollouts on a row since it became the head or the
/// best candidate, if scores are noisy.
#[test]
fn checks_compare_scores_that_have_decided_nothing() {
    for (noise, is_late, window) in
        [(0.0, false, 1), (0.0, false, 6), (0.15, false, 1), (0.15, false, 6), (0.15, true, 1), (0.15, true, 6)]
    {
        let score = is_late.then_some(late_noise as Scorer);
        let run = World { noise, score, in_lines: true, ..world(3, 900, window) }.run(Pace::default());
        let mut scores: BTreeMap<CandidateId, BTreeMap<RowId, Vec<f64>>> = BTreeMap::new();
        let initial = run.state.candidates[0].id.clone();
        let (mut head, mut best) = (initial.clone(), initial.clone());
        let mut is_noisy = false;
        let (mut checks, mut measurements) = (0, 0);
        for event in &run.events {
            match event {
                Event::NoiseMeasured(found) => {
                    // Scores seemed to repeat exactly, and decided about head and best candidate.
                    for id in [&head, &best].into_iter().filter(|id| measurements > 0 && **id != initial) {
                        scores.remove(id);
                    }
                    measurements += 1;
                    is_noisy = found.is_noisy;
                }
                Event::RolloutFinished(done) if done.stage != Stage::Heldout => {
                    let of = scores.entry(done.candidate_id.clone()).or_default();
                    of.entry(done.row_id.clone()).or_default().push(done.reward);
                }
                Event::HeadMoved(moved) => {
                    head = moved.candidate_id.clone();
                    if is_noisy {
                        scores.remove(&head);
                    }
                }
                Event::CheckDecided(check) => {
                    checks += 1;
                    let mean = |rewards: &Vec<f64>| rewards.iter().sum::<f64>() / rewards.len() as f64;
                    let none = BTreeMap::new();
                    let anchor = scores.get(&check.anchor_id).unwrap_or(&none);
                    let own = scores.get(&check.head_id).unwrap_or(&none).iter();
                    let differences: Vec<f64> =
                        own.filter_map(|(row, rewards)| Some(mean(rewards) - mean(anchor.get(row)?))).collect();
                    assert_eq!(check.n as usize, differences.len(), "{check:?}");
                    if let Some(found) = check.mean {
                        assert!((found - mean(&differences)).abs() < 1e-9, "{check:?}");
                    }
                    match check.verdict {
                        CheckVerdict::Adopted => {
                            best = check.head_id.clone();
                            if is_noisy {
                                scores.remove(&best);
                            }
                        }
                        CheckVerdict::RolledBack => head = best.clone(),
                        CheckVerdict::Undecided => {}
                    }
                }
                _ => {}
            }
        }
        assert!(checks > 1, "noise {noise}, window {window}: {checks} checks");
        assert_eq!((is_noisy, measurements), (noise > 0.0, if is_late { 2 } else { 1 }));
    }
}

/// Scores of the initial text repeat exactly, those of other texts do not.
fn late_noise(command: &RolloutCommand) -> Result<f64, bool> {
    let number: u32 = command.row_id.as_str().split(':').next_back().unwrap().parse().unwrap();
    let rule = format!("r{}", number % 30);
    let is_solved = command.payload["prompt"].split_whitespace().any(|word| word == rule);
    let is_flipped = known_rules(&command.payload) > 0 && luck(command) < 0.15;
    Ok(f64::from(u8::from(is_solved != is_flipped)))
}

/// Returns a number from 0 to 1 that another rollout of the same text on the same row draws anew.
fn luck(command: &RolloutCommand) -> f64 {
    let digest = canonical_digest(&(&command.payload, &command.row_id, command.replicate));
    f64::from(u32::from_str_radix(&digest[..6], 16).unwrap()) / f64::from(0x00ff_ffff_u32)
}

#[test]
fn only_checks_change_the_best_candidate_and_a_rolled_back_sprint_is_over() {
    for (seed, noise, window) in [(1, 0.0, 1), (2, 0.2, 1), (3, 0.2, 5), (4, 0.0, 8), (5, 0.3, 8)] {
        let run = World { noise, forgets: 0.6, ..world(seed, 1200, window) }.run(Pace::default());
        let mut parents: BTreeMap<CandidateId, Vec<CandidateId>> = BTreeMap::new();
        let (mut head, mut anchor, mut sprint) = (None, None, 0);
        let mut last = None;
        for event in &run.events {
            match event {
                Event::CandidateRegistered(candidate) => {
                    parents.insert(candidate.candidate_id.clone(), candidate.parent_ids.clone());
                }
                Event::CandidateAccepted(accepted) => {
                    if accepted.stage != Stage::SeedFullTrain {
                        assert_eq!(last, Some((CheckVerdict::Adopted, accepted.candidate_id.clone())));
                    } else {
                        head = Some(accepted.candidate_id.clone());
                    }
                    anchor = Some(accepted.candidate_id.clone());
                }
                Event::HeadMoved(moved) => {
                    assert_eq!(moved.sprint, sprint);
                    assert_eq!(parents[&moved.candidate_id].first(), head.as_ref(), "the change starts from the head");
                    head = Some(moved.candidate_id.clone());
                }
                Event::CheckDecided(check) => {
                    assert_eq!(Some(&check.anchor_id), anchor.as_ref());
                    last = Some((check.verdict, check.head_id.clone()));
                    if check.verdict == CheckVerdict::RolledBack {
                        head.clone_from(&anchor);
                        sprint += 1;
                    }
                }
                _ => {}
            }
        }
        let place = |wanted: fn(&Event) -> bool| run.events.iter().rposition(wanted).unwrap_or(0);
        let checks = place(|event| matches!(event, Event::CheckDecided(_)));
        assert!(checks < place(|event| matches!(event, Event::HeldoutStarted(_))), "held-out rows come last");
        let is_open = |status: &str| matches!(status, "registered" | "minibatch_evaluated" | "full_train_evaluated");
        assert!(run.state.candidates.iter().all(|candidate| !is_open(candidate.status.as_str())));
    }
}

#[test]
fn a_proposer_that_only_harms_does_not_move_the_best_candidate() {
    // A row is solved unless the text has its "harm"; noise makes many harms look like gains.
    fn score(command: &RolloutCommand) -> Result<f64, bool> {
        let text = &command.payload["prompt"];
        let harms = text.matches("harm").count() as f64;
        Ok(f64::from(u8::from(luck(command) < 0.7 - 0.1 * harms)))
    }
    fn write(command: &ProposeCommand) -> Vec<Payload> {
        let text = format!("{} harm{}", command.question.base["prompt"], command.question.generation);
        vec![[("prompt".to_owned(), text)].into()]
    }
    let mut harms = 0;
    for seed in 0..20 {
        let world = World { score: Some(score), write: Some(write), ..world(seed, 800, 1) };
        let run = world.run(Pace::default());
        harms += best(&run)["prompt"].matches("harm").count();
        assert!(verdicts(&run, CheckVerdict::RolledBack) > 0);
    }
    // Without checks, every one of these runs would end with a dozen harms.
    assert!(harms <= 4, "{harms} harms in 20 runs");
}

#[test]
fn late_changes_are_carried_over_to_the_head() {
    // Each proposal adds a line of its own, so that changes of one parent can be joined.
    fn score(command: &RolloutCommand) -> Result<f64, bool> {
        let number: u32 = command.row_id.as_str().split(':').next_back().unwrap().parse().unwrap();
        let has = |line: &str| line == format!("rule {}", number % 30);
        Ok(f64::from(u8::from(command.payload["prompt"].lines().any(has))))
    }
    fn write(command: &ProposeCommand) -> Vec<Payload> {
        let lost = command.evidence.iter().find(|row| row.score == Some(0.0));
        let number: u32 =
            lost.map_or(0, |row| row.row_id.as_str().split(':').next_back().unwrap().parse::<u32>().unwrap() % 30);
        vec![[("prompt".to_owned(), format!("{}\nrule {number}", command.question.base["prompt"]))].into()]
    }
    let rules_found = |window: u32| {
        let world = World { score: Some(score), write: Some(write), ..world(9, 500, window) };
        let run = world.run(Pace::default());
        let rebased = run.events.iter().filter(
            |event| matches!(event, Event::CandidateRegistered(candidate) if candidate.operation == Operation::Rebase),
        );
        (best(&run)["prompt"].lines().count() - 1, rebased.count())
    };
    let ((serial, none), (wide, rebased)) = (rules_found(1), rules_found(8));
    assert_eq!(none, 0);
    assert!(rebased > 2, "{rebased} rebases");
    assert!(wide * 10 >= serial * 8, "{wide} rules with a window of 8, {serial} with 1");
}

#[test]
fn unusual_tasks_end_with_a_clear_result() {
    for rows in [1, 2, 3, 4, 7] {
        for (scoring, noise) in [(Scoring::Binary, 0.0), (Scoring::Binary, 0.3), (Scoring::Saturated, 0.0)] {
            let run = World { train: rows, heldout: 2, scoring, noise, ..world(1, 300, 1) }.run(Pace::default());
            assert!(matches!(run.last(), Event::RunFinished(_)), "{rows} rows: {:?}", run.last());
        }
    }
    // Too few rollouts for a check: the initial candidate is the best one.
    let run = world(1, 20 + 2 * 20, 1).run(Pace::default());
    assert!(matches!(run.last(), Event::RunFinished(_)), "{:?}", run.last());
    // Not even one rollout beside the held-out rows.
    let run = world(1, 3, 1).run(Pace::default());
    assert!(matches!(run.last(), Event::RunFailed(_)), "{:?}", run.last());
    // All rollouts fail.
    let run = World { failure: 1.0, ..world(1, 300, 1) }.run(Pace::default());
    assert!(matches!(run.last(), Event::RunFailed(_)), "{:?}", run.last());
    // The proposer repeats itself.
    fn same(command: &ProposeCommand) -> Vec<Payload> {
        vec![command.question.base.iter().map(|(field, text)| (field.clone(), format!("{text} again"))).collect()]
    }
    let run = World { write: Some(same), ..world(1, 300, 1) }.run(Pace::default());
    let Event::RunFinished(done) = run.last() else { panic!("{:?}", run.last()) };
    assert_eq!(done.stopped_by.kind, StopKind::ProposerExhausted);
    // Every score is the same.
    for score in [(|_| Ok(0.25)) as Scorer, |_| Ok(0.0), |_| Ok(1.0), |_| Ok(-3.0)] {
        let run = World { score: Some(score), inventive: true, ..world(1, 300, 1) }.run(Pace::default());
        assert_eq!(run.state.best, Some(0));
        assert_eq!(verdicts(&run, CheckVerdict::Adopted), 0);
        assert_eq!(finished(&run).claim.as_ref().unwrap().verdict, ClaimVerdict::Unchanged);
    }
}

#[test]
fn repeated_rollouts_find_noise() {
    let noise = |noise: f64, repeats: u32| {
        let mut world = World { noise, ..world(2, 400, 1) };
        world.config.gepa.sprint.repeats = repeats;
        let run = world.run(Pace::default());
        let found = run.events.iter().find_map(|event| match event {
            Event::NoiseMeasured(found) => Some(found.clone()),
            _ => None,
        });
        found.unwrap()
    };
    let (exact, noisy, unknown) = (noise(0.0, 16), noise(0.3, 16), noise(0.0, 0));
    assert_eq!((exact.pairs, exact.differing, exact.is_noisy), (16, 0, false));
    assert!(noisy.is_noisy && noisy.differing > 0 && noisy.variance > 0.0);
    assert_eq!((unknown.pairs, unknown.is_noisy), (0, true), "unknown noise is treated as noise");
}

#[test]
fn an_adoption_loses_no_proposal_in_flight() {
    let mut adopted = 0;
    for seed in 0..6 {
        let run = World { noise: 0.15, in_lines: true, ..world(seed, 900, 8) }.run(Pace::default());
        let is_lost = |event: &&Event| matches!(event, Event::CandidateDeferred(deferred) if deferred.reason == CandidateTrigger::TooManyFailures);
        assert_eq!(run.events.iter().find(is_lost), None, "no rollout fails");
        adopted += verdicts(&run, CheckVerdict::Adopted);
    }
    assert!(adopted > 6, "{adopted} adoptions");
}

#[test]
fn an_undecided_head_is_checked_with_the_rollouts_that_are_left() {
    // The proposer has one idea, which is a clear gain, and then repeats itself.
    fn score(command: &RolloutCommand) -> Result<f64, bool> {
        let share = if command.payload["prompt"].contains("idea") { 0.75 } else { 0.4 };
        Ok(f64::from(u8::from(luck(command) < share)))
    }
    fn write(command: &ProposeCommand) -> Vec<Payload> {
        let base = &command.question.base["prompt"];
        vec![[("prompt".to_owned(), if base.contains("idea") { base.clone() } else { format!("{base} idea") })].into()]
    }
    let (mut found, mut limited) = (0, 0);
    for seed in 0..12 {
        let mut world = World { score: Some(score), write: Some(write), ..world(seed, 3000, 1) };
        world.config.gepa.sprint.rollouts = Some(40);
        let run = world.run(Pace::default());
        assert_eq!(finished(&run).stopped_by.kind, StopKind::ProposerExhausted);
        let started: Vec<Option<u64>> = run
            .events
            .iter()
            .filter_map(|event| match event {
                Event::CheckStarted(check) => Some(check.max_rollouts),
                _ => None,
            })
            .collect();
        let sprint = run.state.sprint.as_ref().unwrap();
        let is_undecided = run.state.best != Some(sprint.head);
        assert!(!is_undecided || started.last() == Some(&None), "seed {seed}: {started:?}");
        limited += usize::from(started.len() > 1 && started.last() == Some(&None));
        found += usize::from(best(&run)["prompt"].contains("idea"));
    }
    assert!(limited >= 4, "{limited} of 12 runs had an undecided check before the last one");
    assert!(found >= 10, "{found} of 12 runs found the gain");
}

#[test]
fn a_search_that_does_not_improve_checks_its_changes_before_it_ends() {
    let mut rules = 0;
    for seed in 0..6 {
        let mut world = world(seed, 900, 1);
        world.config.gepa.no_improvement_generations = Some(4);
        let run = world.run(Pace::default());
        rules += known_rules(best(&run));
        assert!(verdicts(&run, CheckVerdict::Adopted) > 1, "seed {seed}: an adoption is an improvement");
        // A stop follows so many generations without an adoption, and what they changed was checked.
        if finished(&run).stopped_by.kind == StopKind::NoImprovement {
            let head = run.state.sprint.as_ref().unwrap().head;
            let checked = run.events.iter().rev().find_map(|event| match event {
                Event::CheckDecided(check) => Some(&check.head_id),
                _ => None,
            });
            let is_best = run.state.best == Some(head);
            assert!(is_best || checked == Some(&run.state.candidates[head as usize].id), "seed {seed}");
        }
    }
    assert!(rules > 6 * 15, "{rules} rules in 6 runs");
}

#[test]
fn a_glance_says_what_it_found() {
    // Every second proposal solves the rows that it saw and forgets the rest.
    fn write(command: &ProposeCommand) -> Vec<Payload> {
        let base = &command.question.base["prompt"];
        let kept = if command.question.generation.is_multiple_of(2) { "Rules: {rows}" } else { base };
        let rules = command.evidence.iter().map(|row| row.row_id.as_str().split(':').next_back().unwrap());
        let rules: String = rules.map(|number| format!(" r{}", number.parse::<u32>().unwrap() % 30)).collect();
        vec![[("prompt".to_owned(), format!("{kept}{rules} g{}", command.question.generation))].into()]
    }
    let mut glances = 0;
    for seed in 0..6 {
        let run = World { write: Some(write), ..world(seed, 1500, 1) }.run(Pace::default());
        for event in &run.events {
            let Event::CandidateRejected(decided) = event else { continue };
            if decided.stage == Stage::Glance {
                let found = decided.comparison.as_ref().unwrap();
                assert_eq!((decided.reason.as_str(), found.rows), ("glance_lost", 3));
                assert!(found.candidate_score < 0.5 * found.incumbent_score, "{found:?}");
                assert!((found.primary_delta - (found.candidate_score - found.incumbent_score)).abs() < 1e-12);
                glances += 1;
            }
        }
    }
    assert!(glances > 0);
}

#[test]
fn the_variance_of_rollouts_is_that_of_the_first_repeats() {
    // A changed text has almost always the perfect score, which the search doubts.
    fn score(command: &RolloutCommand) -> Result<f64, bool> {
        let share = if command.payload["prompt"].contains("idea") { 0.98 } else { 0.5 };
        Ok(f64::from(u8::from(luck(command) < share)))
    }
    fn write(command: &ProposeCommand) -> Vec<Payload> {
        vec![[("prompt".to_owned(), format!("Rules: {{rows}} idea {}", command.question.generation))].into()]
    }
    let mut doubts = 0;
    for seed in 0..6 {
        let world = World { score: Some(score), write: Some(write), train: 8, ..world(seed, 900, 1) };
        let run = world.run(Pace::default());
        let (mut pairs, mut repeats) = (0, 0);
        for event in &run.events {
            match event {
                Event::NoiseMeasured(found) => pairs = found.pairs,
                Event::RolloutFinished(done) => repeats += u32::from(done.stage == Stage::Repeat),
                _ => {}
            }
        }
        assert_eq!(run.state.sprint.as_ref().unwrap().noise.pairs, pairs);
        doubts += repeats - pairs;
    }
    assert!(doubts > 0, "perfect scores are rolled out again");
}

#[test]
fn objectives_that_contradict_each_other_end_with_a_clear_result() {
    // Every rule makes the text longer, and the length is protected.
    let mut world = World { scoring: Scoring::TwoObjectives, ..world(1, 900, 1) };
    let gepa = &mut world.config.gepa;
    gepa.objective_keys = vec!["quality".into(), "length".into()];
    gepa.objective_directions.insert("length".into(), Direction::Minimize);
    gepa.objective_acceptance.protected_objectives = vec!["length".into()];
    gepa.objective_acceptance.objective_regression_tolerance = 0.1;
    let run = world.run(Pace::default());
    assert!(matches!(run.last(), Event::RunFinished(_)), "{:?}", run.last());
    let is_refused = |event: &&Event| {
        matches!(event, Event::CheckDecided(check)
            if check.verdict == CheckVerdict::RolledBack && check.reason == "a protected objective lost too much")
    };
    assert!(run.events.iter().filter(is_refused).count() > 0);
}

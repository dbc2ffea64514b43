//! Changes of late candidates in the reference search, and the width of the window.

use synth_optimizer_core::config::gepa::{PipelineMode, SearchMode};
use synth_optimizer_core::model::answer::Proposal;
use synth_optimizer_core::model::command::{ProposeCommand, RolloutCommand};
use synth_optimizer_core::model::edit::{Edit, EditOperation};
use synth_optimizer_core::model::event::Event;
use synth_optimizer_core::model::event_fields::{Operation, WindowChanged};
use synth_optimizer_core::model::ids::Payload;

use crate::sim::{Pace, Run, World};

/// Each of 60 rows needs two of 30 rules, each of which is a line of its own.
fn score(command: &RolloutCommand) -> Result<f64, bool> {
    let number: u32 = command.row_id.as_str().split(':').next_back().unwrap().parse().unwrap();
    let has = |rule: u32| command.payload["prompt"].lines().any(|line| line == format!("rule {}", rule % 30));
    Ok(f64::from(u8::from(has(number)) + u8::from(has(number * 7 + 3))) / 2.0)
}

/// Appends a rule that a row of the evidence lacks.
fn append(command: &ProposeCommand) -> Vec<Payload> {
    let lost = command.evidence.iter().find(|row| row.score.is_some_and(|score| score < 1.0));
    let number: u32 = lost.map_or(0, |row| row.row_id.as_str().split(':').next_back().unwrap().parse().unwrap());
    let base = &command.question.base["prompt"];
    let missing = [number, number * 7 + 3].map(|rule| format!("rule {}", rule % 30));
    let rule = missing.iter().find(|rule| !base.lines().any(|line| line == **rule)).unwrap_or(&missing[0]);
    vec![[("prompt".to_owned(), format!("{base}\n{rule}"))].into()]
}

/// Writes the same rules in another order and other words, so that no line is kept.
fn rewrite(command: &ProposeCommand) -> Vec<Payload> {
    let appended = append(command).remove(0).remove("prompt").unwrap();
    let mut lines: Vec<&str> = appended.lines().map(str::trim).collect();
    lines.reverse();
    let indent = " ".repeat(command.question.generation as usize + 1);
    let text: Vec<String> = lines.iter().map(|line| format!("{indent}{line}")).collect();
    vec![[("prompt".to_owned(), text.join("\n"))].into()]
}

/// Rewrites the text in the first 20 generations, and appends the rule as an edit in later ones.
fn rewrite_then_edit(command: &ProposeCommand) -> Vec<Proposal> {
    if command.question.generation < 20 {
        return rewrite(command).into_iter().map(|fields| Proposal { fields, ..Proposal::default() }).collect();
    }
    let text = append(command).remove(0).remove("prompt").unwrap();
    let rule = text.lines().last().unwrap().to_owned();
    let edit = Edit { operation: EditOperation::Append, find: String::new(), text: rule };
    vec![Proposal { edits: [("prompt".to_owned(), vec![edit])].into(), ..Proposal::default() }]
}

/// Scores texts of `rewrite`, whose lines are indented.
fn score_trimmed(command: &RolloutCommand) -> Result<f64, bool> {
    let mut command = command.clone();
    let text = command.payload["prompt"].lines().map(str::trim).collect::<Vec<&str>>().join("\n");
    command.payload = [("prompt".to_owned(), text)].into();
    score(&command)
}

fn world(window: u32) -> World {
    let mut world = World { train: 60, score: Some(score), write: Some(append), ..World::default() };
    let gepa = &mut world.config.gepa;
    gepa.max_generations = None;
    gepa.max_total_rollouts = 900;
    gepa.minibatch_size = Some(3);
    gepa.proposals_per_generation = 1;
    gepa.pipeline.mode = if window > 1 { PipelineMode::AsyncPipelined } else { PipelineMode::SyncSerial };
    gepa.pipeline.max_in_flight_candidates = Some(window);
    world
}

/// Returns the number of rules of the best candidate.
fn rules(run: &Run) -> usize {
    let best = run.state.candidate(run.state.best.unwrap());
    best.payload["prompt"].lines().filter(|line| line.trim().starts_with("rule")).count()
}

fn rebases(run: &Run) -> usize {
    let is_rebase = |event: &&Event| matches!(event, Event::CandidateRegistered(candidate) if candidate.operation == Operation::Rebase);
    run.events.iter().filter(is_rebase).count()
}

fn windows(run: &Run) -> Vec<WindowChanged> {
    let changes = run.events.iter().filter_map(|event| match event {
        Event::WindowChanged(window) => Some(window.clone()),
        _ => None,
    });
    changes.collect()
}

#[test]
fn the_reference_search_keeps_its_depth_with_a_window() {
    let (mut serial, mut wide, mut without) = (0, 0, 0);
    for seed in 0..6 {
        let found = |window: u32, rebase: bool| {
            let mut world = world(window);
            world.config.run.seed = seed;
            world.config.gepa.rebase = rebase;
            world.run(Pace::default())
        };
        let (alone, joined) = (found(1, true), found(8, true));
        assert_eq!(rebases(&alone), 0, "a serial search has no late changes");
        assert!(rebases(&joined) > 2);
        (serial, wide, without) = (serial + rules(&alone), wide + rules(&joined), without + rules(&found(8, false)));
    }
    assert!(wide * 10 >= serial * 9, "{wide} rules with a window of 8, {serial} with 1");
    assert!(wide > 2 * without, "{wide} rules with late changes carried over, {without} without");
}

#[test]
fn a_serial_search_is_the_same_with_and_without_rebase() {
    let run = |rebase: bool| {
        let mut world = world(1);
        world.config.gepa.rebase = rebase;
        world.run(Pace::default()).lines()
    };
    assert_eq!(run(true), run(false));
}

#[test]
fn members_of_a_rebase_are_superseded_and_its_parents_name_them() {
    let run = world(8).run(Pace::default());
    let mut superseded = std::collections::BTreeMap::new();
    for event in &run.events {
        if let Event::CandidateSuperseded(fields) = event {
            superseded.insert(fields.candidate_id.clone(), fields.by.clone());
        }
    }
    for event in &run.events {
        let Event::CandidateRegistered(candidate) = event else { continue };
        if candidate.operation == Operation::Rebase {
            assert!(candidate.parent_ids.len() >= 2, "{:?}", candidate.parent_ids);
            for member in &candidate.parent_ids[1..] {
                assert_eq!(superseded.get(member), Some(&Some(candidate.candidate_id.clone())));
            }
        }
    }
}

/// Returns the largest number of open generations before the first change of the window, and after each.
fn open_generations(run: &Run) -> Vec<usize> {
    let (mut open, mut most) = (0, vec![0]);
    for event in &run.events {
        match event {
            Event::WindowChanged(_) => most.push(0),
            Event::GenerationStarted(_) => {
                open += 1;
                let most = most.last_mut().unwrap();
                *most = open.max(*most);
            }
            Event::GenerationCompleted(_) => open -= 1,
            _ => {}
        }
    }
    most
}

#[test]
fn the_window_grows_again_if_proposals_edit_their_texts() {
    for search in [SearchMode::Reference, SearchMode::Sprint] {
        let mut world = World { score: Some(score_trimmed), write: None, edit: Some(rewrite_then_edit), ..world(16) };
        world.config.gepa.search = search;
        world.config.gepa.max_total_rollouts = 4000;
        let run = world.run(Pace::default());
        let found = windows(&run);
        assert_eq!(found.iter().map(|window| window.generations).collect::<Vec<_>>(), [4, 16], "{found:?}");
        assert!(found[0].reason.ends_with("side by side cannot be combined"), "{}", found[0].reason);
        assert!(found[1].reason.ends_with("side by side can be combined"), "{}", found[1].reason);
        let open = open_generations(&run);
        // In sprints, a check takes the place of a generation.
        assert!(open[0] <= 4 && open[1] <= 4 && open[2] >= 14, "{search:?}: {open:?}");
        assert_eq!(run.state.window.is_wide, Some(true));
    }
}

#[test]
fn the_window_stays_small_if_proposals_rewrite_their_texts() {
    for search in [SearchMode::Reference, SearchMode::Sprint] {
        let mut rewriting = World { score: Some(score_trimmed), write: Some(rewrite), ..world(16) };
        rewriting.config.gepa.search = search;
        rewriting.config.gepa.max_total_rollouts = 2000;
        let run = rewriting.run(Pace::default());
        let found = windows(&run);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].generations, 4);
        assert!(found[0].reason.contains("0 % of the lines"), "{}", found[0].reason);
        assert_eq!(open_generations(&run), [4, 4]);
        let mut appending = world(16);
        appending.config.gepa.search = search;
        let run = appending.run(Pace::default());
        let found = windows(&run);
        assert_eq!(found.iter().map(|window| window.generations).collect::<Vec<_>>(), [16], "{found:?}");
        let open = open_generations(&run);
        assert!(open[0] == 4 && open[1] >= 14, "{search:?}: {open:?}");
    }
}

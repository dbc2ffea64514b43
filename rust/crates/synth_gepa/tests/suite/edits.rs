//! Proposals with edits: when they are asked for, the texts that they make, and the checks of these texts.

use std::collections::BTreeMap;

use crate::search::{check_proposal, finished};
use crate::sim::{Pace, World};
use synth_gepa::CheckedProposal;
use synth_optimizer_core::config::gepa::LeakagePolicy;
use synth_optimizer_core::config::proposer::ProposalEdits;
use synth_optimizer_core::config::sections::KeepSpan;
use synth_optimizer_core::model::answer::Proposal;
use synth_optimizer_core::model::command::Command;
use synth_optimizer_core::model::edit::{Edit, EditOperation};
use synth_optimizer_core::model::event::Event;
use synth_optimizer_core::model::ids::Payload;

const LONG: &str = "Answer {rows} by these rules.\n# Rules\n- Be brief.\n- Be kind.\n- Be exact.\nStop.";

fn long() -> World {
    World { initial: LONG, ..World::default() }
}

fn edit(operation: EditOperation, find: &str, text: &str) -> Edit {
    Edit { operation, find: find.into(), text: text.into() }
}

fn replace(find: &str, text: &str) -> Edit {
    edit(EditOperation::Replace, find, text)
}

fn edits(field: &str, edits: &[Edit]) -> Proposal {
    Proposal { edits: BTreeMap::from([(field.to_owned(), edits.to_vec())]), ..Proposal::default() }
}

fn accepted(world: &World, list: &[Edit]) -> CheckedProposal {
    check_proposal(world, &edits("prompt", list)).unwrap()
}

/// Code, field and message of every problem.
fn problems(world: &World, proposal: &Proposal) -> Vec<(String, Option<String>, String)> {
    let problems = check_proposal(world, proposal).unwrap_err();
    problems.into_iter().map(|problem| (problem.code, problem.field, problem.message)).collect()
}

fn problem(world: &World, list: &[Edit]) -> (String, String) {
    let found = problems(world, &edits("prompt", list));
    assert_eq!((found.len(), found[0].1.as_deref()), (1, Some("prompt")), "{found:?}");
    (found[0].0.clone(), found[0].2.clone())
}

#[test]
fn edits_are_laid_over_the_base() {
    let checked = accepted(
        &long(),
        &[
            replace("- Be kind.", "- Be polite."),
            edit(EditOperation::InsertAfter, "# Rules", "- Name the rule."),
            edit(EditOperation::Delete, "- Be exact.", ""),
            edit(EditOperation::Append, "", "Say nothing else."),
        ],
    );
    let text =
        "Answer {rows} by these rules.\n# Rules\n- Name the rule.\n- Be brief.\n- Be polite.\nStop.\nSay nothing else.";
    assert_eq!(checked.payload["prompt"], text);
    assert_eq!(checked.changed_fields, ["prompt"]);
    // Four of the six lines of the parent are still there.
    assert_eq!(checked.kept_share, Some(4.0 / 6.0));
    assert_eq!(accepted(&long(), &[replace("Stop.", "Stop.\nNow.")]).kept_share, Some(1.0));
}

#[test]
fn the_share_that_is_kept_is_recorded_for_every_proposal() {
    let whole = Proposal { fields: Payload::from([("prompt".into(), "{rows}".into())]), ..Proposal::default() };
    assert_eq!(check_proposal(&long(), &whole).unwrap().kept_share, Some(0.0));
    let mut world = long();
    world.config.gepa.max_generations = Some(1);
    world.config.gepa.proposals_per_generation = 1;
    world.edit = Some(|command| {
        let rows = command.evidence.iter().map(|row| row.row_id.as_str().rsplit(':').next().unwrap());
        let rules: String = rows.map(|row| format!(" r{}", row.parse::<u32>().unwrap() % 12)).collect();
        vec![edits("prompt", &[edit(EditOperation::Append, "", &format!("Rules:{rules}"))])]
    });
    let run = world.run(Pace::default());
    let shares = run.events.iter().filter_map(|event| match event {
        Event::CandidateRegistered(candidate) => Some((candidate.parent_ids.len(), candidate.kept_share)),
        _ => None,
    });
    assert_eq!(shares.collect::<Vec<_>>(), [(0, None), (1, Some(1.0))]);
    assert_ne!(finished(&run).best_candidate_id, run.state.candidates[0].id);
}

#[test]
fn an_edit_that_does_not_match_once_is_refused_with_its_place() {
    let world = long();
    let cases: Vec<(Edit, &str, &str)> = vec![
        (
            replace("- Be kinder.", "x"),
            "edit_not_found",
            "edit 1 (replace): \"- Be kinder.\" occurs 0 times in the text; the nearest line is \"- Be kind.\"",
        ),
        (
            edit(EditOperation::Delete, "Zürich", ""),
            "edit_not_found",
            "edit 1 (delete): \"Zürich\" occurs 0 times in the text; nothing in the text is like it",
        ),
        (
            replace("- Be kind.\n- Be brief.", "x"),
            "edit_not_found",
            "edit 1 (replace): \"- Be kind.\\n- Be brief.\" occurs 0 times in the text; its parts occur, but with other \
             spaces, line breaks or order",
        ),
        (
            edit(EditOperation::InsertAfter, "- Be", "x"),
            "edit_ambiguous",
            "edit 1 (insert_after): \"- Be\" occurs 3 times in the text, and must occur once; quote more of what surrounds it",
        ),
        (replace("", "x"), "edit_empty", "edit 1 (replace): `find` is empty"),
        (edit(EditOperation::Append, "", "\n"), "edit_empty", "edit 1 (append): `text` is empty"),
    ];
    for (one, code, message) in cases {
        assert_eq!(problem(&world, &[one]), (code.to_owned(), message.to_owned()));
    }
    let twice = [replace("- Be kind.", "- Be fair."), edit(EditOperation::Delete, "- Be kind.", "")];
    let (code, message) = problem(&world, &twice);
    assert_eq!(code, "edit_not_found");
    assert_eq!(message, "edit 2 (delete): \"- Be kind.\" occurs 0 times, because an edit before it changed this place");
    // A long quotation is cut.
    let (_, message) = problem(&world, &[replace(&"Be brief and ".repeat(99), "x")]);
    assert!(message.contains("\"… occurs 0 times") && message.len() < 300, "{message}");
}

#[test]
fn every_faulty_edit_of_a_proposal_is_named() {
    let both = edits("prompt", &[replace("nowhere", "x"), replace("- Be kind.", "- Be fair."), replace("Be", "Stay")]);
    let codes: Vec<String> = problems(&long(), &both).into_iter().map(|(code, ..)| code).collect();
    assert_eq!(codes, ["edit_not_found", "edit_ambiguous"]);
}

#[test]
fn the_text_with_the_edits_is_checked_like_a_whole_text() {
    let mut world = long();
    world.config.candidate.keep = vec![KeepSpan { text: "- Be kind.".into(), field: None }];
    let cases = [
        (replace("{rows}", "all rows"), "template_variable_lost", "the text must keep {rows}"),
        (replace("kind", "polite"), "kept_text_lost", "the text must keep \"- Be kind.\" word for word"),
        (
            edit(EditOperation::Delete, "- Be kind.", ""),
            "kept_text_lost",
            "the text must keep \"- Be kind.\" word for word",
        ),
    ];
    for (one, code, message) in cases {
        assert_eq!(problem(&world, &[one]), (code.to_owned(), message.to_owned()));
    }
    // The kept text may move, and a variable may be written again.
    let moved = [edit(EditOperation::Delete, "- Be kind.", ""), edit(EditOperation::Append, "", "- Be kind.")];
    assert!(accepted(&world, &moved).payload["prompt"].ends_with("Stop.\n- Be kind."));
    let back = [replace("{rows}", "all"), edit(EditOperation::Append, "", "{rows}")];
    assert!(accepted(&world, &back).payload["prompt"].contains("{rows}"));

    let append = |text: String| edit(EditOperation::Append, "", &text);
    assert_eq!(problem(&world, &[append("x".repeat(40_000))]).0, "field_too_long");
    assert_eq!(problem(&world, &[append("heldout-3-".repeat(5))]).0, "heldout_leakage");
    world.config.gepa.leakage.policy = LeakagePolicy::Forbid;
    let (code, message) = problem(&world, &[append("train-3-".repeat(5))]);
    assert_eq!(code, "train_leakage");
    // The repair turn reads what to write in other words.
    assert!(
        message.ends_with("repeat train row train:3 verbatim: \"train 3 train 3 train 3 train 3 train 3\""),
        "{message}"
    );
    // Two edits that make a row together are found as well.
    let (start, end) = ("train-3-train-3-train", "-3-train-3-train-3-");
    let split = [append(start.to_owned()), replace(start, &format!("{start}{end}"))];
    assert_eq!(problem(&world, &split).0, "train_leakage");
    world.config.candidate.keep.clear();
    let all: Vec<Edit> = LONG.lines().map(|line| edit(EditOperation::Delete, line, "")).collect();
    assert_eq!(
        problem(&World { initial: "Rules: {rows}", ..World::default() }, &[replace("Rules: {rows}", " ")]).0,
        "field_empty"
    );
    assert_eq!(problem(&world, &all).0, "field_empty");
}

#[test]
fn a_field_has_a_whole_text_or_edits() {
    let mut both = edits("prompt", &[replace("- Be kind.", "- Be fair.")]);
    both.fields.insert("prompt".into(), "{rows}".into());
    let message = "the field has a whole text and edits; give only one of them".to_owned();
    assert_eq!(problems(&long(), &both), [("edits_and_text".to_owned(), Some("prompt".to_owned()), message)]);
    // An empty list changes nothing: beside a text, the text counts; alone, nothing is proposed.
    both.edits.insert("prompt".into(), Vec::new());
    assert_eq!(check_proposal(&long(), &both).unwrap().payload["prompt"], "{rows}");
    assert_eq!(problems(&long(), &edits("prompt", &[]))[0].0, "empty_proposal");
    // An edit that changes nothing is the parent again.
    let same = accepted(&long(), &[replace("- Be kind.", "- Be kind.")]);
    assert_eq!((same.payload["prompt"].as_str(), same.changed_fields.len(), same.kept_share), (LONG, 0, None));
}

#[test]
fn edits_of_fields_that_were_not_requested_are_left_out() {
    let world = World { modules: vec!["odd", "even"], ..long() };
    let mut both = edits("odd", &[replace("- Be kind.", "- Be fair.")]);
    both.edits.insert("even".into(), vec![replace("nowhere", "x")]);
    both.edits.insert("x".into(), vec![edit(EditOperation::Append, "", "y")]);
    both.edits.insert("y".into(), Vec::new());
    let checked = check_proposal(&world, &both).unwrap();
    assert_eq!((checked.changed_fields, checked.dropped_fields), (vec!["odd".into()], vec!["even".into(), "x".into()]));
    assert_eq!(checked.payload["even"], LONG);
    both.edits.remove("odd");
    let found: Vec<String> = problems(&world, &both).into_iter().map(|(code, ..)| code).collect();
    assert_eq!(found, ["field_not_requested", "field_unknown"]);
    // Fields may differ in their form.
    let mut mixed = edits("odd", &[replace("- Be kind.", "- Be fair.")]);
    mixed.fields.insert("even".into(), "{rows}".into());
    let mut all = world.clone();
    all.config.gepa.component_selector = synth_optimizer_core::config::gepa::ComponentSelector::All;
    let checked = check_proposal(&all, &mixed).unwrap();
    assert_eq!((checked.payload["odd"].contains("fair"), checked.payload["even"].as_str()), (true, "{rows}"));
    // The whole text has none of the six lines of its parent.
    assert_eq!(checked.kept_share, Some(5.0 / 12.0));
}

#[test]
fn edits_are_asked_for_where_the_text_is_long() {
    let asked = |initial: &'static str, edits: ProposalEdits| {
        let mut world = World { initial, ..World::default() };
        world.config.proposer.edits = edits;
        let run = world.run(Pace::default());
        let mut questions = run.commands.iter().filter_map(|command| match command {
            Command::Propose(turn) => Some(turn.question.edit_fields.clone()),
            Command::Rollout(_) => None,
        });
        questions.next().unwrap()
    };
    let five = "{rows}\n2\n3\n4\n5\n";
    assert_eq!(asked(five, ProposalEdits::Auto), Vec::<String>::new());
    assert_eq!(asked(LONG, ProposalEdits::Auto), ["prompt"]);
    assert_eq!(asked(five, ProposalEdits::Always), ["prompt"]);
    assert_eq!(asked(LONG, ProposalEdits::Never), Vec::<String>::new());
}

//! The tree of candidates: parents, decisions in words, undominated members of the frontier, and the checks of sprints.

use serde_json::json;
use synth_optimizer_core::model::event::Event;
use synth_optimizer_core::model::event_fields::{
    CandidateDecided, CandidateDeferred, CandidateRegistered, CandidateSuperseded, CellWon, CheckDecided, CheckStarted,
    CheckVerdict, FrontierUpdated, HeadMoved, Operation, SearchChosen, SearchMode, Stage,
};
use synth_optimizer_core::model::ids::{Payload, RowId};
use synth_optimizer_core::model::lifecycle::CandidateTrigger;
use synth_optimizer_core::model::score::Comparison;
use synth_optimizer_platform::workspace::Reader;
use synth_optimizer_platform::workspace::models::{LineageCandidate, RunLineage};
use tempfile::TempDir;

use super::models::finished_run;
use super::script::{Script, completed, create, end_run, id, start_run};

/// Stores the events of a script and opens the workspace.
pub(super) fn stored(mut script: Script) -> (TempDir, Reader) {
    script.end_batch();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("workspace.sqlite");
    let workspace = create(&path);
    for batch in script.batches {
        workspace.commit_blocking(batch).unwrap();
    }
    workspace.close().unwrap();
    let reader = Reader::open(&path).unwrap();
    (directory, reader)
}

fn of<'a>(lineage: &'a RunLineage, name: &str) -> &'a LineageCandidate {
    lineage.candidates.iter().find(|known| known.candidate_id == name).unwrap()
}

fn reason<'a>(lineage: &'a RunLineage, name: &str) -> &'a str {
    of(lineage, name).reason.as_deref().unwrap()
}

fn registered(name: &str, operation: Operation, parents: &[&str], generation: Option<u32>, kept: Option<f64>) -> Event {
    Event::CandidateRegistered(CandidateRegistered {
        candidate_id: id(name),
        operation,
        parent_ids: parents.iter().map(|parent| id(parent)).collect(),
        generation,
        payload: Payload::from([("prompt".to_owned(), "x".repeat(20))]),
        changed_fields: vec!["prompt".to_owned()],
        rationale: String::new(),
        dropped_fields: Vec::new(),
        kept_share: kept,
    })
}

fn decided(name: &str, stage: Stage, code: &str, detail: Option<&str>) -> CandidateDecided {
    let comparison = Comparison {
        rows: 1,
        primary_delta: -0.25,
        candidate_score: 0.25,
        incumbent_score: 0.5,
        objective_deltas: Default::default(),
    };
    CandidateDecided {
        candidate_id: id(name),
        stage,
        reason: code.to_owned(),
        detail: detail.map(str::to_owned),
        comparison: Some(comparison),
    }
}

#[test]
fn every_candidate_has_its_parents_its_scores_and_a_reason_in_words() {
    let (_directory, reader) = finished_run();
    let lineage = reader.lineage().unwrap();
    assert_eq!(lineage.metric.as_deref(), Some("outcome_reward"));
    assert_eq!(json!(lineage.direction), json!("maximize"));
    assert_eq!(
        (lineage.initial_candidate_id.as_deref(), lineage.best_candidate_id.as_deref()),
        (Some("c1"), Some("c2"))
    );
    let ids: Vec<&str> = lineage.candidates.iter().map(|known| known.candidate_id.as_str()).collect();
    assert_eq!(ids, ["c1", "c2", "c3", "c4"]);
    assert_eq!(reason(&lineage, "c1"), "the initial candidate");
    assert_eq!(
        reason(&lineage, "c2"),
        "accepted after its full evaluation: better, +0.2500 against the best candidate on 2 rows"
    );
    assert_eq!(
        reason(&lineage, "c3"),
        "rejected after its screening: not better, -0.5000 against its parent on 2 rows"
    );
    assert_eq!(reason(&lineage, "c4"), "not decided: a limit refused the rollouts that it needs");
    let (c2, c4) = (of(&lineage, "c2"), of(&lineage, "c4"));
    assert_eq!((c2.operation, c4.operation), (Operation::Mutate, Operation::Merge));
    assert_eq!(c4.parent_ids, ["c1", "c2"]);
    assert_eq!((c2.generation, c2.sprint, c2.is_best), (Some(0), None, true));
    assert_eq!((c2.train_score.unwrap().mean, c2.train_score.unwrap().n), (0.625, 2));
    assert_eq!(c2.heldout_score.unwrap().mean, 0.75);
    // c1 ties with c2 on train:2 and holds no other cell, so c2 dominates it.
    assert!(c2.on_frontier && !of(&lineage, "c1").on_frontier);
    assert!(lineage.checks.is_empty() && lineage.search.is_none());
}

#[test]
fn a_search_in_sprints_shows_its_checks_and_the_sprint_of_each_candidate() {
    let mut script = Script::default();
    script.event(Event::SearchChosen(SearchChosen { search: SearchMode::Sprint, reason: "as configured".into() }));
    script.event(registered("c1", Operation::Seed, &[], None, None));
    script.event(registered("c2", Operation::Mutate, &["c1"], Some(0), Some(0.75)));
    script.event(Event::CandidatePromoted(decided("c2", Stage::CandidateMinibatch, "primary_improved", None)));
    script.event(Event::HeadMoved(HeadMoved { candidate_id: id("c2"), sprint: 0, steps: 1 }));
    script.event(registered("c3", Operation::Mutate, &["c2"], Some(1), None));
    script.event(Event::CheckStarted(CheckStarted {
        check: 0,
        head_id: id("c2"),
        anchor_id: id("c1"),
        steps: 1,
        max_rollouts: None,
    }));
    let check = CheckDecided {
        check: 0,
        head_id: id("c2"),
        anchor_id: id("c1"),
        verdict: CheckVerdict::RolledBack,
        reason: "worse: -0.2 on 8 rows".into(),
        n: 8,
        mean: Some(-0.2),
        variance: Some(0.1),
        probability: Some(0.02),
        rollouts: 16,
        head_score: None,
    };
    script.event(Event::CheckDecided(check));
    let why = Some("worse on guarded row train:3");
    script.event(Event::CandidateRejected(decided("c2", Stage::Check, "check_rolled_back", why)));
    script.event(Event::CandidateSuperseded(CandidateSuperseded {
        candidate_id: id("c3"),
        by: None,
        reason: "its sprint was rolled back".into(),
    }));
    script.event(registered("c4", Operation::Rebase, &["c1", "c3"], None, None));
    script.event(Event::CandidateSuperseded(CandidateSuperseded {
        candidate_id: id("c4"),
        by: Some(id("c1")),
        reason: "the head already has its change".into(),
    }));
    script.event(registered("c5", Operation::Mutate, &["c1"], Some(2), None));
    script.event(Event::CandidateDeferred(CandidateDeferred {
        candidate_id: id("c5"),
        stage: Stage::CandidateMinibatch,
        reason: CandidateTrigger::RunStopped,
    }));
    script.event(Event::CheckStarted(CheckStarted {
        check: 1,
        head_id: id("c5"),
        anchor_id: id("c1"),
        steps: 1,
        max_rollouts: Some(4),
    }));
    let (_directory, reader) = stored(script);
    let chosen = SearchChosen { search: SearchMode::Sprint, reason: "as configured".into() };
    assert_eq!(reader.search().unwrap(), Some(chosen));
    let lineage = reader.lineage().unwrap();
    let sprints: Vec<Option<u32>> = lineage.candidates.iter().map(|known| known.sprint).collect();
    assert_eq!(sprints, [None, Some(0), Some(0), Some(1), Some(1)]);
    assert_eq!((of(&lineage, "c2").kept_share, of(&lineage, "c1").kept_share), (Some(0.75), None));
    assert_eq!(
        reason(&lineage, "c2"),
        "rejected after a check: the check rolled it back, -0.2500 against the best candidate on 1 row; \
         worse on guarded row train:3"
    );
    assert_eq!(reason(&lineage, "c3"), "superseded: its sprint was rolled back");
    assert_eq!(reason(&lineage, "c4"), "superseded by c1: the head already has its change");
    assert_eq!(of(&lineage, "c4").superseded_by.as_deref(), Some("c1"));
    assert_eq!(reason(&lineage, "c5"), "not decided: the search ended before");
    let checks = json!(lineage.checks);
    assert_eq!(checks.as_array().unwrap().len(), 2);
    assert_eq!((&checks[0]["verdict"], &checks[0]["sprint"]), (&json!("rolled_back"), &json!(0)));
    assert_eq!((&checks[0]["n"], &checks[0]["mean"], &checks[0]["rollouts"]), (&json!(8), &json!(-0.2), &json!(16)));
    assert_eq!((&checks[0]["probability"], &checks[0]["steps"]), (&json!(0.02), &json!(1)));
    assert_eq!((&checks[1]["verdict"], &checks[1]["sprint"]), (&json!(null), &json!(1)));
}

#[test]
fn a_promoted_candidate_says_by_how_much_it_passed_and_an_unknown_reason_is_readable() {
    let mut script = Script::default();
    script.event(registered("c1", Operation::Seed, &[], None, None));
    script.event(registered("c2", Operation::Mutate, &["c1"], Some(0), None));
    script.event(Event::CandidatePromoted(decided("c2", Stage::CandidateMinibatch, "brand_new_rule", None)));
    let (_directory, reader) = stored(script);
    let lineage = reader.lineage().unwrap();
    assert_eq!(reason(&lineage, "c2"), "passed its screening: brand new rule, -0.2500 against its parent on 1 row");
    assert_eq!(of(&lineage, "c1").reason, None);
    assert_eq!(of(&lineage, "c2").sprint, None, "the search is not in sprints");
}

/// Updates of the frontier with rows, values and whether the previous holders lose the cell.
fn update(name: &str, ranking_score: f64, cells: &[(&str, bool)]) -> Event {
    let cell = |(row, alone): &(&str, bool)| CellWon {
        row_id: Some(RowId::new(row)),
        objective: "outcome_reward".into(),
        value: 1.0,
        alone: *alone,
    };
    Event::FrontierUpdated(FrontierUpdated {
        candidate_id: id(name),
        ranking_score,
        cells_won: cells.len() as u32,
        joined: !cells.is_empty(),
        cells: cells.iter().map(cell).collect(),
        removed: Vec::new(),
        size: 1,
    })
}

#[test]
fn a_member_whose_cells_better_members_also_hold_is_not_on_the_frontier() {
    let mut script = Script::default();
    script.event(registered("c1", Operation::Seed, &[], None, None));
    for name in ["c2", "c3", "c4"] {
        script.event(registered(name, Operation::Mutate, &["c1"], Some(0), None));
    }
    script.event(update("c1", 0.2, &[("a", true), ("b", true), ("c", true)]));
    script.event(update("c2", 0.5, &[("a", false), ("b", false)]));
    script.event(update("c3", 0.4, &[("c", true)]));
    script.event(update("c4", 0.3, &[("a", false), ("d", true)]));
    let (_directory, reader) = stored(script);
    let lineage = reader.lineage().unwrap();
    let members: Vec<&str> =
        lineage.candidates.iter().filter(|known| known.on_frontier).map(|known| known.candidate_id.as_str()).collect();
    // c1 lost c to c3, and c2 also holds its other cells.
    assert_eq!(members, ["c2", "c3", "c4"]);
}

#[test]
fn after_a_search_in_sprints_a_result_that_wins_every_row_is_alone_on_the_frontier() {
    let rows: Vec<String> = ["train:1", "train:2", "train:3"].map(str::to_owned).to_vec();
    let mut script = Script::default();
    start_run(&mut script);
    script.register("c1", &[], None);
    let first = script.request_rollouts("c1", Stage::SeedFullTrain, &rows, 1);
    for (call, row) in (first..).zip(&rows) {
        script.finish(call, "c1", row, Stage::SeedFullTrain, 0.25);
    }
    script.event(Event::SeedEvaluated(completed(first, "c1", &[0.25; 3])));
    script.event(Event::CandidateAccepted(decided("c1", Stage::SeedFullTrain, "seed", None)));
    script.event(update("c1", 0.25, &[("train:1", true), ("train:2", true), ("train:3", true)]));
    script.register("c2", &["c1"], Some(0));
    // The check measured one row, so the log says that c2 holds no other.
    let adopted = script.request_rollouts("c2", Stage::Check, &rows[..1], 1);
    script.finish(adopted, "c2", "train:1", Stage::Check, 1.0);
    script.event(Event::FullTrainEvaluated(completed(adopted, "c2", &[1.0])));
    script.event(update("c2", 1.0, &[("train:1", true)]));
    script.event(Event::CandidateAccepted(decided("c2", Stage::Check, "check_adopted", None)));
    let rest = script.request_rollouts("c2", Stage::CandidateFullTrain, &rows[1..], 1);
    for (call, row) in (rest..).zip(&rows[1..]) {
        script.finish(call, "c2", row, Stage::CandidateFullTrain, 1.0);
    }
    let members = |script: Script| -> Vec<String> {
        let (_directory, reader) = stored(script);
        let candidates = reader.lineage().unwrap().candidates.into_iter();
        candidates.filter(|known| known.on_frontier).map(|known| known.candidate_id).collect()
    };
    end_run(&mut script);
    assert_eq!(members(script), ["c2"]);
}

#[test]
fn a_run_without_candidates_has_an_empty_tree() {
    let (_directory, reader) = stored(Script::default());
    assert_eq!(reader.lineage().unwrap(), RunLineage { is_live: true, ..RunLineage::default() });
}

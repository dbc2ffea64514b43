//! The table of rows and candidates: cells, winners, gains, orders and windows.

use serde_json::json;
use synth_optimizer_core::model::answer::FailureClass;
use synth_optimizer_core::model::event::Event;
use synth_optimizer_core::model::event_fields::{RolloutFailed, Stage};
use synth_optimizer_core::model::ids::{CallId, RowId};
use synth_optimizer_platform::workspace::Reader;
use synth_optimizer_platform::workspace::models::{ReadError, RowQuery, RowTable};

use super::models::{code, finished_run};
use super::models_lineage::stored;
use super::script::{Script, completed, id, start_run, usage};
use synth_optimizer_core::config::gepa::FrontierType;
use synth_optimizer_core::model::event_fields::{CandidateDecided, Direction, Objective, ObjectiveSetDeclared};
use synth_optimizer_platform::workspace::models::{RowSplit, RowSummary};

fn table(reader: &Reader, query: RowQuery) -> RowTable {
    query.check().unwrap();
    reader.row_table(&query).unwrap()
}

fn word(word: &str) -> Option<String> {
    Some(word.to_owned())
}

fn ids(table: &RowTable) -> Vec<&str> {
    table.rows.iter().map(|row| row.example_id.as_str()).collect()
}

fn columns(table: &RowTable) -> Vec<&str> {
    table.candidates.iter().map(|column| column.candidate_id.as_str()).collect()
}

#[test]
fn cells_tell_values_failures_and_missing_measurements_apart() {
    let (_directory, reader) = finished_run();
    let all = table(&reader, RowQuery { candidates: word("all"), order: word("id"), ..RowQuery::default() });
    assert_eq!((all.metric.as_deref(), columns(&all)), (Some("outcome_reward"), vec!["c1", "c2", "c3", "c4"]));
    assert_eq!(ids(&all), ["train:1", "train:2", "train:3"]);
    assert_eq!(json!(all.rows[0].cells), json!([0.5, 1.0, 0.0, null]));
    assert_eq!(json!(all.rows[1].cells), json!([0.25, 0.25, null, null]));
    assert_eq!(json!(all.rows[2].cells), json!([0.5, null, null, null]));
    let first = &all.rows[0];
    assert_eq!((first.best_value, first.gain, first.measured), (Some(1.0), Some(0.5), 3));
    assert_eq!((first.winners.as_slice(), first.winner_count, first.failed), (["c2".to_owned()].as_slice(), 1, 0));
    assert_eq!(all.rows[1].winners, ["c1", "c2"]);
    assert_eq!((all.rows[1].gain, all.rows[2].gain), (Some(0.0), None));
}

#[test]
fn the_usual_columns_are_the_initial_the_best_and_the_accepted_candidates() {
    let (_directory, reader) = finished_run();
    let usual = table(&reader, RowQuery::default());
    assert_eq!((columns(&usual), usual.candidate_count), (vec!["c1", "c2"], 2));
    assert!(usual.candidates[0].is_initial && usual.candidates[1].is_best);
    // The rows with the worst best value come first; equal ones are ordered by id.
    assert_eq!(ids(&usual), ["train:2", "train:3", "train:1"]);
    let named = table(&reader, RowQuery { candidates: word("c3, c1"), ..RowQuery::default() });
    assert_eq!(columns(&named), ["c3", "c1"]);
    let gained = table(&reader, RowQuery { order: word("gain"), ..RowQuery::default() });
    assert_eq!(ids(&gained), ["train:2", "train:1", "train:3"]);
    let heldout = table(&reader, RowQuery { split: word("heldout"), ..RowQuery::default() });
    assert_eq!((ids(&heldout), json!(heldout.rows[0].cells)), (vec!["test:1"], json!([null, 0.75])));
    let other = table(&reader, RowQuery { metric: word("brevity"), order: word("id"), ..RowQuery::default() });
    assert_eq!((other.metric.as_deref(), json!(other.rows[0].cells)), (Some("brevity"), json!([0.25, 0.25])));
}

#[test]
fn windows_cover_every_row_and_every_candidate_once() {
    let (_directory, reader) = finished_run();
    let whole = table(&reader, RowQuery { candidates: word("all"), ..RowQuery::default() });
    let (mut rows, mut offset) = (Vec::new(), Some(0));
    while let Some(from) = offset {
        let query = RowQuery { limit: Some(2), offset: Some(from as i64), ..RowQuery::default() };
        let page = table(&reader, query);
        assert_eq!((page.row_count, page.rows.len() <= 2), (3, true));
        rows.extend(ids(&page).into_iter().map(str::to_owned));
        offset = page.next_offset;
    }
    assert_eq!(rows, ids(&whole));
    let (mut found, mut offset) = (Vec::new(), Some(0));
    while let Some(from) = offset {
        let (candidate_limit, candidate_offset) = (Some(3), Some(from as i64));
        let query = RowQuery { candidates: word("all"), candidate_limit, candidate_offset, ..RowQuery::default() };
        let page = table(&reader, query);
        assert_eq!(page.rows[0].cells.len(), page.candidates.len());
        found.extend(columns(&page).into_iter().map(str::to_owned));
        offset = page.next_candidate_offset;
    }
    assert_eq!(found, columns(&whole));
    let beyond = table(&reader, RowQuery { offset: Some(i64::MAX), ..RowQuery::default() });
    assert_eq!((beyond.rows.len(), beyond.row_count, beyond.next_offset), (0, 3, None));
}

#[test]
fn a_row_on_which_every_rollout_failed_is_told_apart() {
    let mut script = Script::default();
    start_run(&mut script);
    script.register("c1", &[], None);
    let rows: Vec<String> = ["train:1", "train:2", "train:3"].map(str::to_owned).to_vec();
    let first = script.request_rollouts("c1", Stage::SeedFullTrain, &rows, 1);
    for (place, row) in rows.iter().take(2).enumerate() {
        script.event(Event::RolloutFailed(RolloutFailed {
            call_id: CallId(first + place as u64),
            candidate_id: id("c1"),
            row_id: RowId::new(row),
            stage: Stage::SeedFullTrain,
            attempt: 1,
            class: FailureClass::Timeout,
            message: "no answer".into(),
            usage: usage(),
            cached: false,
            retried: false,
        }));
    }
    // A later score counts more than the failure.
    let again = script.request_rollouts("c1", Stage::Check, &rows[..1], 1);
    script.finish(again, "c1", "train:1", Stage::Check, 0.5);
    let (_directory, reader) = stored(script);
    let found = table(&reader, RowQuery { candidates: word("all"), ..RowQuery::default() });
    let cells: Vec<_> = found.rows.iter().map(|row| (row.example_id.as_str(), json!(row.cells), row.failed)).collect();
    let expected = [("train:2", json!(["failed"]), 1), ("train:3", json!([null]), 0), ("train:1", json!([0.5]), 0)];
    assert_eq!(cells, expected);
}

#[test]
fn numbers_in_ids_count_as_numbers() {
    let (mut script, rows) = (Script::default(), ["train:10", "train:9", "x", "train:1"]);
    start_run(&mut script);
    script.register("c1", &[], None);
    let rows: Vec<String> = rows.map(str::to_owned).to_vec();
    script.request_rollouts("c1", Stage::SeedFullTrain, &rows, 1);
    let (_directory, reader) = stored(script);
    let found = table(&reader, RowQuery { order: word("id"), ..RowQuery::default() });
    assert_eq!(ids(&found), ["train:1", "train:9", "train:10", "x"]);
    // Nothing is settled yet: no cell has a value, and all rows are unsolved.
    assert!(found.rows.iter().all(|row| row.best_value.is_none() && row.winners.is_empty() && row.measured == 0));
}

#[test]
fn bad_parameters_are_rejected_and_an_empty_run_has_an_empty_table() {
    let (_directory, reader) = finished_run();
    let bad = |query: RowQuery| code(reader.row_table(&query));
    assert_eq!(bad(RowQuery { split: word("dev"), ..RowQuery::default() }), "invalid_filter");
    assert_eq!(bad(RowQuery { order: word("best"), ..RowQuery::default() }), "invalid_filter");
    assert_eq!(bad(RowQuery { metric: word("speed"), ..RowQuery::default() }), "invalid_filter");
    assert_eq!(bad(RowQuery { candidates: word("c1,missing"), ..RowQuery::default() }), "invalid_filter");
    assert_eq!(bad(RowQuery { limit: Some(0), ..RowQuery::default() }), "invalid_limit");
    assert_eq!(bad(RowQuery { candidate_limit: Some(201), ..RowQuery::default() }), "invalid_limit");
    assert_eq!(bad(RowQuery { offset: Some(-1), ..RowQuery::default() }), "invalid_offset");
    let (_directory, empty) = stored(Script::default());
    let found: Result<RowTable, ReadError> = empty.row_table(&RowQuery::default());
    assert_eq!(found.unwrap(), RowTable::default());
}

/// Returns a run whose second candidate is the best, with a score of both on each row.
fn compared(direction: Direction, scores: impl Iterator<Item = (f64, f64)>) -> (tempfile::TempDir, Reader) {
    let mut script = Script::default();
    start_run(&mut script);
    script.event(Event::ObjectiveSetDeclared(ObjectiveSetDeclared {
        selection_objective: "outcome_reward".into(),
        frontier_type: FrontierType::PerExample,
        objectives: vec![Objective { name: "outcome_reward".into(), direction }],
    }));
    let (seed, best): (Vec<f64>, Vec<f64>) = scores.unzip();
    let rows: Vec<String> = (0..seed.len()).map(|row| format!("train:{row}")).collect();
    for (name, stage, values) in [("c1", Stage::SeedFullTrain, seed), ("c2", Stage::CandidateFullTrain, best)] {
        script.register(name, if name == "c1" { &[] } else { &["c1"] }, None);
        let first = script.request_rollouts(name, stage, &rows, 1);
        for (place, value) in values.iter().enumerate() {
            script.finish(first + place as u64, name, &rows[place], stage, *value);
        }
        let done = completed(first, name, &values);
        script.event(if name == "c1" { Event::SeedEvaluated(done) } else { Event::FullTrainEvaluated(done) });
        script.event(Event::CandidateAccepted(CandidateDecided {
            candidate_id: id(name),
            stage,
            reason: "primary_improved".into(),
            detail: None,
            comparison: None,
        }));
    }
    stored(script)
}

#[test]
fn gains_count_every_row_and_list_both_ends() {
    // Of 1,500 rows, 1,100 are worse, so no gained row is among the first 1,000 of the table.
    let scores = (0..1500_u32).map(|row| match row {
        0..1100 => (0.5, 0.5 - f64::from(row + 1) / 4000.0),
        1100..1200 => (0.5, 0.5),
        _ => (0.5, 0.5 + f64::from(row) / 4000.0),
    });
    let (_directory, reader) = compared(Direction::Maximize, scores);
    let gains = reader.row_gains(RowSplit::Train, 2).unwrap().unwrap();
    assert_eq!((gains.better, gains.worse, gains.equal), (300, 1100, 100));
    let names = |rows: &[synth_optimizer_platform::workspace::models::TableRow]| {
        rows.iter().map(|row| row.example_id.clone()).collect::<Vec<_>>()
    };
    assert_eq!(names(&gains.gained), ["train:1499", "train:1498"]);
    assert_eq!(names(&gains.lost), ["train:1099", "train:1098"]);
    assert_eq!(reader.row_gains(RowSplit::Heldout, 2).unwrap(), None);
}

#[test]
fn every_window_has_the_scale_and_the_unsolved_rows_of_the_whole_split() {
    let scores = [(2.0, 8.0), (1.0, 4.0), (0.5, 0.0)];
    for (direction, worst, best, unsolved) in [(Direction::Maximize, 0.0, 8.0, 2), (Direction::Minimize, 8.0, 0.0, 2)] {
        let (_directory, reader) = compared(direction, scores.into_iter());
        for offset in 0..4 {
            let window = table(&reader, RowQuery { limit: Some(1), offset: Some(offset), ..RowQuery::default() });
            assert_eq!(window.summary, RowSummary { worst, best, unsolved }, "{offset}");
        }
    }
}

#[test]
fn a_cell_names_its_rollout_only_if_there_is_exactly_one() {
    let mut script = Script::default();
    start_run(&mut script);
    script.register("c1", &[], None);
    let rows: Vec<String> = ["train:1", "train:2", "train:3"].map(str::to_owned).to_vec();
    let first = script.request_rollouts("c1", Stage::SeedFullTrain, &rows[..2], 1);
    let again = script.request_rollouts("c1", Stage::Check, &rows[1..2], 1);
    script.finish(first, "c1", "train:1", Stage::SeedFullTrain, 1.0);
    script.finish(again, "c1", "train:2", Stage::Check, 0.5);
    let (_directory, reader) = stored(script);
    let found = table(&reader, RowQuery { candidates: word("all"), order: word("id"), ..RowQuery::default() });
    let only: Vec<_> = found.rows.iter().map(|row| row.only_rollouts.clone()).collect();
    assert_eq!(only, [vec![Some(first)], vec![None]]);
    assert!(!json!(found).to_string().contains("only_rollouts"));
}

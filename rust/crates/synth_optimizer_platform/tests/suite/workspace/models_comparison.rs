//! Comparisons of two runs and of two candidates: settings, paired gains, texts, usage and ends.

use serde_json::json;
use synth_optimizer_core::config::sections::Durability;
use synth_optimizer_platform::workspace::models::{CompareQuery, compare_runs};
use synth_optimizer_platform::workspace::{Reader, RunRow, Workspace};
use tempfile::TempDir;

use super::models::{code, finished_run};
use super::models_lineage::stored;
use super::script::{Script, run_row, start_run};

fn named(first: &str, second: &str) -> CompareQuery {
    CompareQuery { candidate_id: Some(first.to_owned()), other_candidate_id: Some(second.to_owned()) }
}

/// Stores a run with other settings, of which only the initial candidate is evaluated.
fn other_run() -> (TempDir, Reader) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("workspace.sqlite");
    let config = json!({"run": {"seed": 8, "run_id": "other"}, "gepa": {"max_total_rollouts": 50, "search": "sprint"}});
    let run = RunRow { run_id: "other".into(), config, ..run_row() };
    let workspace = Workspace::create(&path, &run, Durability::Process).unwrap();
    let mut script = Script::default();
    start_run(&mut script);
    super::script::seed(&mut script);
    script.end_batch();
    for batch in script.batches {
        workspace.commit_blocking(batch).unwrap();
    }
    workspace.close().unwrap();
    let reader = Reader::open(&path).unwrap();
    (directory, reader)
}

#[test]
fn two_candidates_of_one_run_are_compared_on_shared_rows() {
    let (_directory, reader) = finished_run();
    let found = json!(compare_runs(&reader, &reader, &CompareQuery::default()).unwrap());
    assert_eq!((&found["left"]["candidate_id"], &found["right"]["candidate_id"]), (&json!("c1"), &json!("c2")));
    assert_eq!(found["metric"], "outcome_reward");
    assert_eq!((&found["train_gain"]["difference"], &found["train_gain"]["n"]), (&json!(0.25), &json!(2)));
    assert_eq!((&found["heldout_gain"], &found["settings"]), (&json!(null), &json!([])));
    assert_eq!(found["notes"], json!(["no held-out row has scores of both candidates"]));
    let texts = json!([{
        "field": "instruction", "is_equal": false, "left": "Say \"why\", c1.", "right": "Say \"why\", c2."
    }]);
    assert_eq!(found["texts"], texts);
    assert_eq!(found["right"]["stopped_by"]["kind"], "max_rollouts");
    let back = compare_runs(&reader, &reader, &named("c2", "c1")).unwrap();
    assert_eq!((back.train_gain.unwrap().difference, back.train_gain.unwrap().losses), (-0.25, 1));
    let same = compare_runs(&reader, &reader, &named("c2", "c2")).unwrap();
    assert!(same.texts[0].is_equal && same.heldout_gain.unwrap().ties == 1);
    assert_eq!(code(compare_runs(&reader, &reader, &named("c2", "missing"))), "candidate_not_found");
}

#[test]
fn two_runs_are_compared_by_settings_scores_usage_and_end() {
    let ((_one, left), (_two, right)) = (finished_run(), other_run());
    let found = json!(compare_runs(&left, &right, &CompareQuery::default()).unwrap());
    let settings = json!([
        {"field": "gepa.max_cost_usd", "left": 1.5, "right": null},
        {"field": "gepa.max_train_rollouts", "left": 40, "right": null},
        {"field": "gepa.search", "left": null, "right": "sprint"},
        {"field": "run.seed", "left": 7, "right": 8},
    ]);
    assert_eq!(found["settings"], settings);
    // The best candidates are c2 and c1.
    assert_eq!((&found["left"]["candidate_id"], &found["right"]["candidate_id"]), (&json!("c2"), &json!("c1")));
    assert_eq!(found["train_gain"]["difference"], -0.25);
    assert_eq!((&found["left"]["state"], &found["right"]["run_id"]), (&json!("completed"), &json!("other")));
    assert_eq!((&found["left"]["rollouts_finished"], &found["right"]["rollouts_finished"]), (&json!(8), &json!(2)));
    assert!(found["left"]["usage"]["cost_usd"].is_null() && found["right"]["stopped_by"].is_null());
}

#[test]
fn a_run_without_candidates_is_compared_as_far_as_possible() {
    let ((_one, left), (_two, right)) = (finished_run(), stored(Script::default()));
    let found = compare_runs(&left, &right, &CompareQuery::default()).unwrap();
    assert_eq!((found.metric, found.train_gain), (None, None));
    assert_eq!(found.notes, ["run run-1 has no evaluated candidate"]);
    assert_eq!(found.texts[0].right, None);
}

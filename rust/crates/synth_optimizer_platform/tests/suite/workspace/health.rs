//! Status and rebuild: the status passes during a run and after it, and reports manual changes with a repair hint.

use std::path::Path;

use rusqlite::Connection;
use serde_json::{Value, json};
use synth_optimizer_platform::workspace::{RebuildMode, rebuild, workspace_status};
use tempfile::TempDir;

use super::script::{create, whole_run};
use super::views::record_surroundings;

fn report(path: &Path) -> Value {
    workspace_status(path).unwrap()["runs"][0]["invariant_report"].take()
}

fn finished_run(path: &Path) {
    let workspace = create(path);
    for batch in whole_run() {
        workspace.commit_blocking(batch).unwrap();
    }
    record_surroundings(&workspace);
    workspace.close().unwrap();
}

#[test]
fn the_status_passes_at_every_batch_of_a_run() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("workspace.sqlite");
    let workspace = create(&path);
    assert_eq!(report(&path)["violations"], json!([]));
    let batches = whole_run();
    for batch in &batches[..batches.len() - 1] {
        workspace.commit_blocking(batch.clone()).unwrap();
        let status = workspace_status(&path).unwrap();
        assert_eq!(status["runs"][0]["invariant_report"]["violations"], json!([]));
        assert_eq!(status["projection_status_counts"].as_object().unwrap().keys().collect::<Vec<_>>(), ["fresh"]);
    }
    record_surroundings(&workspace);
    workspace.commit_blocking(batches[batches.len() - 1].clone()).unwrap();
    let status = workspace_status(&path).unwrap();
    let run = &status["runs"][0];
    assert_eq!(run["invariant_report"]["violations"], json!([]));
    assert_eq!(run["invariant_report"]["recorded"], json!(true));
    assert_eq!(run["state"], "completed");
    assert_eq!(run["latest_transition"]["to_state"], "completed");
    assert_eq!(run["rollout_status_counts"], json!({"finished": 8, "retried": 1}));
    assert_eq!(run["candidate_status_counts"], json!({"accepted": 2, "deferred_budget": 1, "rejected_minibatch": 1}));
    assert_eq!(run["usage"]["sent_calls"], json!(12));
    assert_eq!(run["budget_status"]["limits"]["max_total_rollouts"], json!(50));
    assert_eq!(run["stopped_by"]["kind"], "max_rollouts");
    assert_eq!(run["cost_usd"], Value::Null);
}

#[test]
fn a_status_writes_only_its_findings() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("workspace.sqlite");
    finished_run(&path);
    let db = Connection::open(&path).unwrap();
    let changes =
        || -> i64 { db.query_row("SELECT count(*) FROM projection_freshness", [], |row| row.get(0)).unwrap() };
    assert_eq!(changes(), 0);
    workspace_status(&path).unwrap();
    assert!(changes() > 15);
    // The status is returned even while a writer holds the database for long.
    db.execute_batch("BEGIN IMMEDIATE").unwrap();
    let busy = report(&path);
    assert_eq!((&busy["status"], &busy["recorded"]), (&json!("pass"), &json!(false)));
}

#[test]
fn manual_changes_are_reported_and_repaired() {
    for (meddling, invariant, table) in [
        ("DELETE FROM rollouts WHERE call_id = 2", "rollouts_from_events", "rollouts"),
        ("UPDATE rollouts SET reward = 1.0 WHERE call_id = 1", "rollouts_match_events", "rollouts"),
        ("UPDATE rollouts SET candidate_id = 'c2' WHERE call_id = 1", "rollouts_match_events", "rollouts"),
        (
            "UPDATE candidates SET status = 'accepted' WHERE candidate_id = 'c3'",
            "candidate_statuses_match_events",
            "candidates",
        ),
        ("DELETE FROM candidates WHERE candidate_id = 'c4'", "candidates_from_events", "candidates"),
        (
            "UPDATE proposer_calls SET cost_nano_usd = 7 WHERE status = 'completed'",
            "run_state_matches_usage_ledger",
            "proposer_calls",
        ),
        (
            "UPDATE run_state SET totals = json_set(totals, '$.state', 'failed')",
            "run_state_matches_last_transition",
            "run_state",
        ),
        (
            "UPDATE run_state SET totals = json_set(totals, '$.rollouts_requested', 99)",
            "run_state_matches_rollouts",
            "run_state",
        ),
    ] {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("workspace.sqlite");
        finished_run(&path);
        let db = Connection::open(&path).unwrap();
        db.execute_batch(&format!("PRAGMA foreign_keys = OFF; {meddling}")).unwrap();
        drop(db);
        let found = report(&path);
        assert_eq!(found["status"], "fail", "{meddling}");
        let violations = found["violations"].as_array().unwrap();
        let named = violations.iter().find(|violation| violation["invariant_id"] == invariant);
        let named = named.unwrap_or_else(|| panic!("{meddling}: {violations:?}"));
        assert!(named["repair_hint"].as_str().unwrap().contains("workspace rebuild"), "{named}");

        let compared = rebuild(&path, RebuildMode::Compare).unwrap();
        assert!(!compared.replaced);
        assert!(compared.differing >= 1, "{meddling}");
        let difference = &compared.differences[0];
        assert_eq!(difference.table, table, "{meddling}");
        assert_ne!(difference.stored, difference.expected);
        assert_eq!(report(&path)["status"], "fail", "a comparison must not change anything");

        assert!(rebuild(&path, RebuildMode::Replace).unwrap().replaced);
        assert_eq!(report(&path)["violations"], json!([]), "{meddling}");
        let again = rebuild(&path, RebuildMode::Compare).unwrap();
        assert_eq!((again.differing, again.differences.len()), (0, 0));
    }
}

#[test]
fn a_gap_in_the_log_is_reported() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("workspace.sqlite");
    finished_run(&path);
    Connection::open(&path).unwrap().execute("DELETE FROM events WHERE type = 'clock.observed'", []).unwrap();
    let found = report(&path);
    assert_eq!(found["violations"][0]["invariant_id"], "events_without_gaps");
}

#[test]
fn an_ended_run_must_not_hold_leases() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("workspace.sqlite");
    let workspace = create(&path);
    workspace.acquire_lease("pid 1".into()).unwrap();
    workspace.acquire_lease("pid 2".into()).unwrap();
    for batch in whole_run() {
        workspace.commit_blocking(batch).unwrap();
    }
    record_surroundings(&workspace);
    assert_eq!(report(&path)["violations"][0]["invariant_id"], "terminal_run_releases_resource_leases");
    workspace.close().unwrap();
    let status = workspace_status(&path).unwrap();
    assert_eq!(status["runs"][0]["invariant_report"]["status"], "pass");
    assert_eq!(status["resource_lease_status_counts"], json!({"expired": 1, "released": 1}));
}

#[test]
fn the_status_passes_during_writes() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("workspace.sqlite");
    let workspace = create(&path);
    let writer = std::thread::spawn(move || {
        for batch in super::size::script(3_200).batches {
            workspace.commit_blocking(batch).unwrap();
        }
        workspace.close().unwrap();
    });
    let mut looks = 0;
    while !writer.is_finished() || looks == 0 {
        assert_eq!(report(&path)["violations"], json!([]));
        looks += 1;
    }
    writer.join().unwrap();
    let status = workspace_status(&path).unwrap();
    assert_eq!(status["runs"][0]["counts"]["rollouts"], json!(3_200));
}

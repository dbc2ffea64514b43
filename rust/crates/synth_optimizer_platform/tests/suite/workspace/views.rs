//! The published tables and views: each can be queried at any time and has the expected rows.

use std::collections::BTreeMap;
use std::path::Path;

use rusqlite::{Connection, OpenFlags};
use serde_json::{Value, json};
use synth_optimizer_platform::workspace::{
    ArtifactRef, CacheAction, CacheUse, Record, SnapshotKind, Workspace, workspace_status,
};
use tempfile::TempDir;

use super::script::{START, create, sha256, whole_run};

/// Stores the records beside the log of the scripted run.
pub(crate) fn record_surroundings(workspace: &Workspace) {
    let cache = Some(CacheUse { key: sha256(b"program"), action: CacheAction::Hit });
    let large = json!(vec!["x".repeat(100); 1000]);
    let document = |kind, document| Record::Snapshot { kind, unix_millis: START, document };
    for record in [
        Record::SetupCall { boundary: "container.program".into(), unix_millis: START, cache },
        Record::SetupCall { boundary: "container.metadata".into(), unix_millis: START, cache: None },
        document(SnapshotKind::Contract, json!({"name": "quiz"})),
        document(SnapshotKind::Contract, json!({"name": "quiz"})),
        document(SnapshotKind::Program, json!({"modules": []})),
        document(SnapshotKind::TrainRows, large),
        document(SnapshotKind::HeldoutRows, json!([{"id": "test:1"}])),
        Record::Artifact {
            file: ArtifactRef {
                path: "frontier.json".into(),
                kind: "frontier".into(),
                sha256: sha256(b"{}"),
                bytes: 2,
                retention: "release_evidence".into(),
            },
            unix_millis: START,
        },
        Record::Manifest {
            path: "/runs/run-1/result_manifest.json".into(),
            document: json!({"best_candidate": {"candidate_id": "c2"}, "cost_usd": null, "usage": {}}),
            unix_millis: START,
        },
        Record::Operation { operation_type: "start".into(), subject: "pid 1".into(), unix_millis: START },
    ] {
        workspace.record_all(vec![record]).unwrap();
    }
}

fn read_only(path: &Path) -> Connection {
    Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap()
}

fn counts(db: &Connection) -> BTreeMap<String, u64> {
    let mut names = db.prepare("SELECT name FROM sqlite_schema WHERE type IN ('table', 'view')").unwrap();
    let names: Vec<String> = names.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
    names
        .into_iter()
        .map(|name| {
            // Reads every column of every row, not only their number.
            let mut statement = db.prepare(&format!("SELECT * FROM \"{name}\"")).unwrap();
            let columns = statement.column_count();
            let mut rows = statement.query([]).unwrap();
            let mut count = 0;
            while let Some(row) = rows.next().unwrap_or_else(|error| panic!("{name}: {error}")) {
                assert!((0..columns).all(|index| row.get_ref(index).is_ok()), "{name}");
                count += 1;
            }
            (name, count)
        })
        .collect()
}

fn rows(db: &Connection, sql: &str) -> Vec<Vec<Value>> {
    let mut statement = db.prepare(sql).unwrap();
    let columns = statement.column_count();
    statement
        .query_map([], |row| {
            (0..columns)
                .map(|index| {
                    Ok(match row.get_ref(index)? {
                        rusqlite::types::ValueRef::Null => Value::Null,
                        rusqlite::types::ValueRef::Integer(number) => json!(number),
                        rusqlite::types::ValueRef::Real(number) => json!(number),
                        rusqlite::types::ValueRef::Text(text) => json!(String::from_utf8_lossy(text)),
                        rusqlite::types::ValueRef::Blob(bytes) => json!(bytes),
                    })
                })
                .collect()
        })
        .unwrap()
        .map(Result::unwrap)
        .collect()
}

#[test]
fn every_published_table_exists_and_is_live() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("workspace.sqlite");
    let workspace = create(&path);
    let db = read_only(&path);
    for batch in whole_run() {
        workspace.commit_blocking(batch).unwrap();
        counts(&db);
    }
    record_surroundings(&workspace);
    let counts = counts(&db);
    let expected = json!({
        "acceptance_decisions": 5, "artifact_refs": 1, "cache_accesses": 10, "cache_profiles": 1, "candidate_deltas": 4,
        "candidate_payloads": 4, "candidates": 4, "checkpoints": 5, "container_contract_snapshots": 1,
        "dataset_snapshots": 2, "evidence_frames": 18, "frontier_cells": 3, "manifests": 1, "objective_sets": 1,
        "objectives": 2, "operations": 1, "optimization_runs": 1, "plan_links": 24, "prompt_program_snapshots": 1,
        "resolved_run_configs": 1, "rollout_events": 36, "rollout_jobs": 9, "rollouts": 9, "run_limits": 1,
        "score_vectors": 6, "scores": 16, "sensor_frames": 9, "stopper_states": 4, "subagent_invocations": 2,
        "trace_annotations": 9, "usage_ledger": 12, "verifier_jobs": 9, "workspace_metadata": 1, "inbox": 0
    });
    for (name, count) in expected.as_object().unwrap() {
        assert_eq!(counts.get(name).map(|count| json!(count)).as_ref(), Some(count), "{name}");
    }
    let status = workspace_status(&path).unwrap();
    for (name, count) in status["runs"][0]["counts"].as_object().unwrap() {
        assert_eq!(counts.get(name).map(|count| json!(count)).as_ref(), Some(count), "the status counts {name}");
    }
    for name in ["optimizer_state_history", "event_stream_events", "resource_leases", "projection_freshness"] {
        assert!(counts.contains_key(name), "{name}");
    }
}

#[test]
fn the_views_have_the_expected_rows() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("workspace.sqlite");
    let workspace = create(&path);
    for batch in whole_run() {
        workspace.commit_blocking(batch).unwrap();
    }
    record_surroundings(&workspace);
    let db = read_only(&path);
    let check = |sql: &str, expected: Value| assert_eq!(json!(rows(&db, sql)), expected, "{sql}");
    check(
        "SELECT run_id, state, best_candidate_id, cost_usd, started_at, completed_at IS NOT NULL, usage_json ->> 'total_tokens' FROM optimization_runs",
        json!([["run-1", "completed", "c2", null, "2023-11-14T22:13:20.000Z", 1, 1500]]),
    );
    check(
        "SELECT max_total_rollouts, max_cost_usd, max_tokens_set FROM (SELECT *, max_total_tokens IS NOT NULL AS max_tokens_set FROM run_limits)",
        json!([[50, 1.5, 0]]),
    );
    check(
        "SELECT candidate_id, status, parent_id, source, minibatch_reward, train_reward, heldout_reward FROM candidates ORDER BY registered_sequence",
        json!([
            ["c1", "accepted", null, "seed", null, 0.375, null],
            ["c2", "accepted", "c1", "mutate", 1.0, 0.625, 0.75],
            ["c3", "rejected_minibatch", "c1", "mutate", 0.0, null, null],
            ["c4", "deferred_budget", "c1", "merge", null, null, null],
        ]),
    );
    check(
        "SELECT example_id, candidate_id, score FROM frontier_cells ORDER BY 1, 2",
        json!([["train:1", "c2", 1.0], ["train:2", "c1", 0.25], ["train:2", "c2", 0.25]]),
    );
    check(
        "SELECT boundary, count(*), sum(call_count), sum(cost_usd IS NULL), round(sum(cost_usd), 6) FROM usage_ledger GROUP BY 1",
        json!([["proposer", 3, 3, 2, 0.0015], ["rollout", 9, 9, 0, 0.0135]]),
    );
    check("SELECT hits, misses, writes, total_accesses FROM cache_profiles", json!([[1, 9, 8, 10]]));
    check(
        "SELECT split, row_count, rows_json IS NULL FROM dataset_snapshots ORDER BY split",
        json!([["heldout", 1, 0], ["train", 2, 1]]),
    );
    check("SELECT best_candidate_id, cost_usd FROM manifests", json!([["c2", null]]));
    check(
        "SELECT mean_reward, score_count, objective_values_json FROM score_vectors WHERE candidate_id = 'c2' AND split = 'heldout'",
        json!([[0.75, 1, "{\"brevity\":0.25,\"outcome_reward\":0.75}"]]),
    );
    check(
        "SELECT checkpoint_kind FROM checkpoints ORDER BY sequence_number",
        json!([["inputs_loaded"], ["generation_boundary"], ["interrupted"], ["stop"], ["terminal"]]),
    );
    check(
        "SELECT decision, stage, reason FROM acceptance_decisions WHERE candidate_id = 'c2' ORDER BY sequence_number",
        json!([
            ["promoted", "candidate_minibatch", "primary_improved"],
            ["accepted", "candidate_full_train", "primary_improved"],
        ]),
    );
    check(
        "SELECT status, evaluation_stage, failure_json FROM sensor_frames WHERE failure_json IS NOT NULL",
        json!([["retried", "candidate_minibatch", "{\"class\":\"timeout\",\"message\":\"no answer in 5 s\"}"]]),
    );
    let plan = rows(&db, "EXPLAIN QUERY PLAN SELECT * FROM optimizer_state_history");
    assert!(json!(plan).to_string().contains("events_by_type"), "{plan:?}");
}

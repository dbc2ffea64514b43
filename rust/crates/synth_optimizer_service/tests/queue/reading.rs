//! Looking at the queue: pages, counts, views, and a status that changes nothing.

use serde_json::json;
use synth_optimizer_core::model::lifecycle::RequestState;
use synth_optimizer_service::Code;
use synth_optimizer_service::queue::{Completion, Hold, workspace_status};

use crate::bench::{Bench, config, submit};

#[test]
fn pages_hold_every_request_once_while_others_come() {
    let bench = Bench::new();
    for n in 0..25 {
        bench.submit(&format!("run-{n:02}"));
    }
    let mut seen = Vec::new();
    let mut cursor = None;
    loop {
        let page = bench.queue.list(&[], 10, cursor.as_deref()).unwrap();
        seen.extend(page.items.into_iter().map(|entry| entry.run_id));
        bench.submit(&format!("later-{}", seen.len()));
        match page.next_cursor {
            Some(next) => cursor = Some(next),
            None => break,
        }
    }
    let expected: Vec<String> = (0..25).rev().map(|n| format!("run-{n:02}")).collect();
    assert_eq!(seen, expected);
    for cursor in ["", "c", "7", "c-1x", "czz", "c-5", "c0", "c05", "cF"] {
        assert_eq!(bench.queue.list(&[], 10, Some(cursor)).unwrap_err().code, Some(Code::CursorInvalid), "{cursor}");
    }
    bench.claim().unwrap();
    assert_eq!(bench.queue.list(&[RequestState::Leased], 10, None).unwrap().items.len(), 1);
}

#[test]
fn a_status_tells_everything_and_writes_nothing() {
    let bench = Bench::new();
    let (entry, token) = bench.running("done");
    let completion = Completion {
        run_workspace_db_path: Some("/nowhere/runs/done/workspace.sqlite".into()),
        result_manifest_path: Some("/nowhere/runs/done/result_manifest.json".into()),
        best_candidate_id: Some("gepa_1".into()),
        cost_usd: None,
        usage: Some(json!({"total_tokens": 7})),
        result: Some(json!({"run_id": "done"})),
    };
    bench.queue.complete(&entry.request_id, Hold::Token(token), &completion).unwrap();
    bench.submit("waits");
    bench.queue.checkpoint().unwrap();
    let before = std::fs::read(bench.path()).unwrap();
    for _ in 0..20 {
        let found = workspace_status(&bench.path()).unwrap();
        assert_eq!(found["run_request_status_counts"], json!({"completed": 1, "queued": 1}));
        assert_eq!(found["workspace_invariant_report"]["status"], "pass");
        let done = &found["run_requests"][1];
        assert_eq!((&done["best_candidate_id"], &done["cost_usd"]), (&json!("gepa_1"), &json!(null)));
        assert_eq!((&done["usage"]["total_tokens"], &done["result"]["run_id"]), (&json!(7), &json!("done")));
        assert_eq!(found["resource_lease_status_counts"], json!({"released": 2}), "a container and a cache");
    }
    assert_eq!(std::fs::read(bench.path()).unwrap(), before);
}

#[test]
fn a_damaged_rule_is_reported_with_a_way_to_mend_it() {
    let bench = Bench::new();
    let entry = bench.submit("odd");
    let raw = rusqlite::Connection::open(bench.path()).unwrap();
    raw.execute_batch("PRAGMA ignore_check_constraints = ON; UPDATE run_requests SET status = 'running'").unwrap();
    let report = bench.queue.invariants().unwrap();
    assert_eq!(report["status"], "fail");
    let violation = &report["violations"][0];
    assert_eq!(
        (&violation["invariant_id"], &violation["subject_id"]),
        (&json!("active_requests_have_lease"), &json!(entry.request_id))
    );
    assert!(violation["repair_hint"].as_str().unwrap().contains("restore"));
}

#[test]
fn changes_wake_whoever_waits_and_looks_do_not() {
    let bench = Bench::new();
    let seen = || *bench.queue.changes.get();
    bench.queue.notice_others().unwrap();
    let before = seen();
    assert!(bench.claim().is_none());
    assert!(bench.queue.recover(None).unwrap().is_empty());
    bench.queue.notice_others().unwrap();
    assert_eq!(seen(), before, "nothing was changed");
    bench.submit("here");
    assert_eq!(seen(), before + 1);
    // Another connection, as of another process.
    submit(&bench.again(), &config("there", "http://there.test", None));
    assert_eq!(seen(), before + 1);
    bench.queue.notice_others().unwrap();
    assert_eq!(seen(), before + 2);
    bench.queue.notice_others().unwrap();
    assert_eq!(seen(), before + 2);
}

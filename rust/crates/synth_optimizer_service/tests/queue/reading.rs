//! Reading the queue: pages, counts, views, and a read-only status.

use serde_json::json;
use synth_optimizer_core::model::lifecycle::RequestState;
use synth_optimizer_service::ServiceErrorCode;
use synth_optimizer_service::queue::{Completion, LeaseProof, workspace_status};

use crate::fixture::{QueueFixture, config, submit};

#[test]
fn pages_list_every_request_once_while_others_are_submitted() {
    let fixture = QueueFixture::new();
    for n in 0..25 {
        fixture.submit(&format!("run-{n:02}"));
    }
    let mut seen = Vec::new();
    let mut cursor = None;
    loop {
        let page = fixture.queue.list(&[], 10, cursor.as_deref()).unwrap();
        seen.extend(page.items.into_iter().map(|entry| entry.run_id));
        fixture.submit(&format!("later-{}", seen.len()));
        match page.next_cursor {
            Some(next) => cursor = Some(next),
            None => break,
        }
    }
    let expected: Vec<String> = (0..25).rev().map(|n| format!("run-{n:02}")).collect();
    assert_eq!(seen, expected);
    for cursor in ["", "c", "7", "c-1x", "czz", "c-5", "c0", "c05", "cF"] {
        assert_eq!(
            fixture.queue.list(&[], 10, Some(cursor)).unwrap_err().code,
            Some(ServiceErrorCode::InvalidCursor),
            "{cursor}"
        );
    }
    fixture.claim().unwrap();
    assert_eq!(fixture.queue.list(&[RequestState::Leased], 10, None).unwrap().items.len(), 1);
}

#[test]
fn the_status_is_complete_and_read_only() {
    let fixture = QueueFixture::new();
    let (entry, token) = fixture.running("done");
    let completion = Completion {
        run_workspace_db_path: Some("/nowhere/runs/done/workspace.sqlite".into()),
        result_manifest_path: Some("/nowhere/runs/done/result_manifest.json".into()),
        best_candidate_id: Some("gepa_1".into()),
        cost_usd: None,
        usage: Some(json!({"total_tokens": 7})),
        result: Some(json!({"run_id": "done"})),
    };
    fixture.queue.complete(&entry.request_id, LeaseProof::Token(token), &completion).unwrap();
    fixture.submit("waits");
    fixture.queue.checkpoint().unwrap();
    let before = std::fs::read(fixture.path()).unwrap();
    for _ in 0..20 {
        let found = workspace_status(&fixture.path()).unwrap();
        assert_eq!(found["run_request_status_counts"], json!({"completed": 1, "queued": 1}));
        assert_eq!(found["workspace_invariant_report"]["status"], "pass");
        let done = &found["run_requests"][1];
        assert_eq!((&done["best_candidate_id"], &done["cost_usd"]), (&json!("gepa_1"), &json!(null)));
        assert_eq!((&done["usage"]["total_tokens"], &done["result"]["run_id"]), (&json!(7), &json!("done")));
        assert_eq!(found["resource_lease_status_counts"], json!({"released": 2}), "a container and a cache");
    }
    assert_eq!(std::fs::read(fixture.path()).unwrap(), before);
}

#[test]
fn a_violated_invariant_is_reported_with_a_repair_hint() {
    let fixture = QueueFixture::new();
    let entry = fixture.submit("odd");
    let raw = rusqlite::Connection::open(fixture.path()).unwrap();
    raw.execute_batch("PRAGMA ignore_check_constraints = ON; UPDATE run_requests SET status = 'running'").unwrap();
    let report = fixture.queue.invariants().unwrap();
    assert_eq!(report["status"], "fail");
    let violation = &report["violations"][0];
    assert_eq!(
        (&violation["invariant_id"], &violation["subject_id"]),
        (&json!("active_requests_have_lease"), &json!(entry.request_id))
    );
    assert!(violation["repair_hint"].as_str().unwrap().contains("restore"));
}

#[test]
fn changes_wake_waiters_and_reads_do_not() {
    let fixture = QueueFixture::new();
    let seen = || *fixture.queue.changes.get();
    fixture.queue.poll_external_changes().unwrap();
    let before = seen();
    assert!(fixture.claim().is_none());
    assert!(fixture.queue.recover(None).unwrap().is_empty());
    fixture.queue.poll_external_changes().unwrap();
    assert_eq!(seen(), before, "nothing was changed");
    fixture.submit("here");
    assert_eq!(seen(), before + 1);
    // Another connection, as in another process.
    submit(&fixture.reopen(), &config("there", "http://there.test", None));
    assert_eq!(seen(), before + 1);
    fixture.queue.poll_external_changes().unwrap();
    assert_eq!(seen(), before + 2);
    fixture.queue.poll_external_changes().unwrap();
    assert_eq!(seen(), before + 2);
}

//! Deleting and pruning: only ended runs are deleted, with their history.

use synth_optimizer_core::model::control::ControlAction;
use synth_optimizer_core::model::lifecycle::RequestState;
use synth_optimizer_service::ServiceErrorCode;
use synth_optimizer_service::queue::LeaseProof;

use crate::fixture::{QueueFixture, failure, send_control};

fn submit_failed(fixture: &QueueFixture, run_id: &str) {
    let (entry, token) = fixture.running(run_id);
    fixture.queue.fail(&entry.request_id, LeaseProof::Token(token), &failure(), None, None).unwrap();
}

#[test]
fn an_unfinished_run_cannot_be_deleted() {
    let fixture = QueueFixture::new();
    let (running, _) = fixture.running("running");
    fixture.submit("queued");
    for (run_id, state) in [("running", "running"), ("queued", "queued")] {
        for refused in [fixture.queue.delete(run_id, &[]).unwrap_err(), fixture.queue.deletable(run_id).unwrap_err()] {
            assert_eq!((refused.code, refused.state.unwrap().as_str()), (Some(ServiceErrorCode::NotTerminal), state));
        }
    }
    assert_eq!(fixture.queue.get("running").unwrap().request_id, running.request_id);
    fixture.queue.delete("unknown", &[]).unwrap();
}

#[test]
fn deleting_a_run_deletes_all_its_requests_and_their_history() {
    let fixture = QueueFixture::new();
    submit_failed(&fixture, "twice");
    submit_failed(&fixture, "twice");
    submit_failed(&fixture, "other");
    let known = fixture.queue.deletable("twice").unwrap();
    assert_eq!(known.len(), 2);
    // A request that the caller has not seen prevents the deletion.
    let refused = fixture.queue.delete("twice", &known[..1]).unwrap_err();
    assert_eq!(refused.code, Some(ServiceErrorCode::NotTerminal));
    fixture.queue.delete("twice", &known).unwrap();
    assert_eq!(fixture.queue.get("twice").unwrap_err().code, Some(ServiceErrorCode::RunNotFound));
    let raw = rusqlite::Connection::open(fixture.path()).unwrap();
    let left = |table: &str| raw.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get::<_, i64>(0));
    assert_eq!(left("run_requests").unwrap(), 1);
    assert_eq!(left("request_history").unwrap(), 4);
}

#[test]
fn prunable_runs_match_the_age_and_the_states() {
    let fixture = QueueFixture::new();
    let names = |older: Option<u64>, states: &[RequestState]| -> Vec<String> {
        let found = fixture.queue.prunable(older, states).unwrap();
        found.into_iter().map(|entry| entry.run_id).collect()
    };
    submit_failed(&fixture, "old");
    fixture.clock.set_wall(1_800_000_000_000);
    submit_failed(&fixture, "new");
    let cancelled = fixture.submit("dropped");
    send_control(&fixture.queue, &cancelled.request_id, ControlAction::Cancel, None).unwrap();
    submit_failed(&fixture, "again");
    fixture.submit("again");
    fixture.submit("queued");
    assert_eq!(names(None, &[]), ["old", "new", "dropped"], "a run that was submitted again is not finished");
    assert_eq!(names(Some(1_750_000_000_000), &[]), ["old"]);
    assert_eq!(names(Some(1_700_000_000_000), &[]), Vec::<String>::new());
    assert_eq!(names(None, &[RequestState::Cancelled]), ["dropped"]);
    let refused = fixture.queue.prunable(None, &[RequestState::Running]).unwrap_err();
    assert_eq!(refused.code, Some(ServiceErrorCode::NotTerminal));
}

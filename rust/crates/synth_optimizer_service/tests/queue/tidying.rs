//! Only what is over is removed, with its history.

use synth_optimizer_core::model::control::ControlAction;
use synth_optimizer_core::model::lifecycle::RequestState;
use synth_optimizer_service::Code;
use synth_optimizer_service::queue::Hold;

use crate::bench::{Bench, ask, no};

fn failed(bench: &Bench, run_id: &str) {
    let (entry, token) = bench.running(run_id);
    bench.queue.fail(&entry.request_id, Hold::Token(token), &no(), None, None).unwrap();
}

#[test]
fn a_run_that_is_not_over_cannot_be_deleted() {
    let bench = Bench::new();
    let (running, _) = bench.running("running");
    bench.submit("queued");
    for (run_id, state) in [("running", "running"), ("queued", "queued")] {
        for refused in [bench.queue.delete(run_id, &[]).unwrap_err(), bench.queue.deletable(run_id).unwrap_err()] {
            assert_eq!((refused.code, refused.state.unwrap().word()), (Some(Code::NotTerminal), state));
        }
    }
    assert_eq!(bench.queue.get("running").unwrap().request_id, running.request_id);
    bench.queue.delete("nobody", &[]).unwrap();
}

#[test]
fn every_request_of_a_run_goes_with_its_history() {
    let bench = Bench::new();
    failed(&bench, "twice");
    failed(&bench, "twice");
    failed(&bench, "other");
    let known = bench.queue.deletable("twice").unwrap();
    assert_eq!(known.len(), 2);
    // One that has come since and is over as well is not thrown away unseen.
    let refused = bench.queue.delete("twice", &known[..1]).unwrap_err();
    assert_eq!(refused.code, Some(Code::NotTerminal));
    bench.queue.delete("twice", &known).unwrap();
    assert_eq!(bench.queue.get("twice").unwrap_err().code, Some(Code::RunNotFound));
    let raw = rusqlite::Connection::open(bench.path()).unwrap();
    let left = |table: &str| raw.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get::<_, i64>(0));
    assert_eq!(left("run_requests").unwrap(), 1);
    assert_eq!(left("request_history").unwrap(), 4);
}

#[test]
fn prunable_is_what_is_over_long_enough_in_a_state_that_was_named() {
    let bench = Bench::new();
    let names = |older: Option<u64>, states: &[RequestState]| -> Vec<String> {
        let found = bench.queue.prunable(older, states).unwrap();
        found.into_iter().map(|entry| entry.run_id).collect()
    };
    failed(&bench, "old");
    bench.clock.set_wall(1_800_000_000_000);
    failed(&bench, "new");
    let cancelled = bench.submit("dropped");
    ask(&bench.queue, &cancelled.request_id, ControlAction::Cancel, None).unwrap();
    failed(&bench, "again");
    bench.submit("again");
    bench.submit("queued");
    assert_eq!(names(None, &[]), ["old", "new", "dropped"], "what was begun again is not over");
    assert_eq!(names(Some(1_750_000_000_000), &[]), ["old"]);
    assert_eq!(names(Some(1_700_000_000_000), &[]), Vec::<String>::new());
    assert_eq!(names(None, &[RequestState::Cancelled]), ["dropped"]);
    let refused = bench.queue.prunable(None, &[RequestState::Running]).unwrap_err();
    assert_eq!(refused.code, Some(Code::NotTerminal));
}

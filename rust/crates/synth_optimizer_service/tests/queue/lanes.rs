//! The order of claims, and the lanes that keep requests apart.

use rusqlite::Connection;
use synth_optimizer_service::queue::{ClaimFilter, Completion, LeaseProof, Submission, WaitingReason};

use crate::fixture::{QueueFixture, claim, config, submission, submit};

fn complete(fixture: &QueueFixture, request_id: &str, token: i64) {
    fixture.queue.start(request_id, LeaseProof::Token(token)).unwrap();
    fixture.queue.complete(request_id, LeaseProof::Token(token), &Completion::default()).unwrap();
}

#[test]
fn requests_are_claimed_by_priority_then_age() {
    let fixture = QueueFixture::new();
    for (run_id, priority) in [("a", 0), ("b", 5), ("c", 5), ("d", -1), ("e", 7)] {
        let config = config(run_id, &format!("http://{run_id}.test"), Some(run_id));
        fixture.queue.submit(&Submission { priority, ..submission(&config) }).unwrap();
        // Age is the order of submission, independent of the clock.
        fixture.clock.set_wall(1_600_000_000_000 - u64::from(run_id.as_bytes()[0]) * 1000);
    }
    let order: Vec<String> = std::iter::from_fn(|| fixture.claim()).map(|entry| entry.run_id).collect();
    assert_eq!(order, ["e", "b", "c", "a", "d"]);
}

#[test]
fn a_container_serves_one_run_in_every_spelling_of_its_address() {
    let fixture = QueueFixture::new();
    submit(&fixture.queue, &config("first", "http://tasks.test", None));
    let second = submit(&fixture.queue, &config("second", "HTTP://Tasks.TEST:80/", None));
    submit(&fixture.queue, &config("elsewhere", "http://tasks.test:81", None));
    let held = fixture.claim().unwrap();
    assert_eq!(held.run_id, "first");
    assert_eq!(fixture.claim().unwrap().run_id, "elsewhere", "a busy lane does not block other requests");
    assert_eq!(fixture.claim(), None);
    let waiting = fixture.queue.get("second").unwrap().waiting.unwrap();
    assert_eq!(waiting.reason, WaitingReason::ContainerBusy);
    assert!(waiting.message.contains("run first") && waiting.message.contains(&held.request_id), "{waiting:?}");
    assert!(waiting.since.is_some() && waiting.deadline_at.is_none());
    complete(&fixture, &held.request_id, held.fencing_token);
    assert_eq!(fixture.claim().unwrap().request_id, second.request_id);
}

#[test]
fn a_cache_namespace_serves_one_run() {
    let fixture = QueueFixture::new();
    submit(&fixture.queue, &config("first", "http://one.test", Some("shared")));
    submit(&fixture.queue, &config("second", "http://two.test", Some("shared")));
    fixture.claim().unwrap();
    assert_eq!(fixture.claim(), None);
    assert_eq!(fixture.queue.get("second").unwrap().waiting.unwrap().reason, WaitingReason::CacheBusy);
}

/// The database enforces the lanes, independent of the code.
#[test]
fn unique_indexes_enforce_the_lanes() {
    let fixture = QueueFixture::new();
    submit(&fixture.queue, &config("first", "http://one.test", Some("a")));
    submit(&fixture.queue, &config("second", "http://one.test", Some("b")));
    submit(&fixture.queue, &config("third", "http://two.test", Some("a")));
    fixture.claim().unwrap();
    let raw = Connection::open(fixture.path()).unwrap();
    for run_id in ["second", "third"] {
        let forced = raw.execute(
            "UPDATE run_requests SET status = 'leased', lease_id = 'x', lease_expires_at = 1, lease_deadline_boot = 1,
               lease_boot_id = 'x', holder_kind = 'caller', fencing_token = 99 WHERE run_id = ?1",
            [run_id],
        );
        let refused = forced.unwrap_err().to_string();
        assert!(refused.contains("UNIQUE constraint failed"), "{refused}");
    }
    // A request cannot run without a lease, end without a time, fail without an error, or have half of a pause.
    for change in [
        "status = 'running'",
        "status = 'completed'",
        "status = 'failed', finished_at = 1",
        "status = 'paused', pause_expires_at = 1",
        "pause_expires_at = 1, pause_deadline_boot = 1, pause_boot_id = 'x', pause_ms = 1",
        "status = 'lost'",
        "finished_at = 1",
        "lease_id = 'x'",
    ] {
        let refused = raw.execute(&format!("UPDATE run_requests SET {change} WHERE run_id = 'second'"), []);
        assert!(refused.unwrap_err().to_string().contains("CHECK constraint failed"), "{change}");
    }
    let history = raw.execute("UPDATE request_history SET at = 0", []).unwrap_err().to_string();
    assert!(history.contains("never changed"), "{history}");
    let history = raw.execute("DELETE FROM request_history", []).unwrap_err().to_string();
    assert!(history.contains("with its request only"), "{history}");
}

#[test]
fn background_workers_skip_manual_requests() {
    let fixture = QueueFixture::new();
    let config = |name: &str| config(name, &format!("http://{name}.test"), Some(name));
    let (by_hand, stepped) = (config("by-hand"), config("stepped"));
    fixture.queue.submit(&Submission { auto_start: false, ..submission(&by_hand) }).unwrap();
    fixture.queue.submit(&Submission { manual_step: true, ..submission(&stepped) }).unwrap();
    assert_eq!(claim(&fixture.queue, "lease", ClaimFilter::Background), None);
    let waits = |run_id: &str| fixture.queue.get(run_id).unwrap().waiting.unwrap().reason;
    assert_eq!(waits("by-hand"), WaitingReason::AutoStartOff);
    assert_eq!(waits("stepped"), WaitingReason::ManualStep);
    assert_eq!(fixture.claim().unwrap().run_id, "by-hand");
    assert_eq!(fixture.claim(), None, "only a claim by id takes a request in manual-step mode");
    let wanted = fixture.queue.get("stepped").unwrap().request_id;
    assert_eq!(claim(&fixture.queue, "lease", ClaimFilter::Request(&wanted)).unwrap().run_id, "stepped");
}

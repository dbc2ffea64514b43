//! Leases: heartbeats extend them, and only the boot clock or evidence that the holder is gone ends them.

use std::time::Duration;

use synth_optimizer_core::model::control::{ControlAction, ControlRequest};
use synth_optimizer_core::model::lifecycle::RequestState;
use synth_optimizer_service::queue::{Claim, ClaimFilter, LeaseHolder, LeaseProof, ServiceLock};

use crate::fixture::{LEASE, QueueFixture, failure, history};

fn evidence(fixture: &QueueFixture, request_id: &str) -> String {
    let last = history(&fixture.queue, request_id).pop().unwrap();
    assert_eq!(last.trigger, "lease_expired");
    last.detail["evidence"].as_str().unwrap().to_owned()
}

#[test]
fn a_heartbeat_extends_a_lease_and_silence_ends_it() {
    let fixture = QueueFixture::new();
    let (entry, token) = fixture.running("kept");
    let (queue, id) = (&fixture.queue, entry.request_id.as_str());
    for _ in 0..3 {
        fixture.clock.advance(LEASE - Duration::from_millis(1));
        assert!(queue.recover(None).unwrap().is_empty());
        queue.heartbeat(id, LeaseProof::Token(token), LEASE, Some(1_700_000_123_000)).unwrap().unwrap();
    }
    assert_eq!(queue.leases().unwrap()[0].progress_at.as_deref(), Some("2023-11-14T22:15:23.000Z"));
    fixture.clock.advance(LEASE);
    let recovered = queue.recover(None).unwrap();
    assert_eq!(recovered.len(), 1);
    assert_eq!((recovered[0].status, recovered[0].recoveries), (RequestState::Queued, 1));
    assert_eq!((recovered[0].lease_id.as_deref(), recovered[0].worker_id.as_deref()), (None, None));
    assert_eq!(evidence(&fixture, id), "deadline_passed");
}

#[test]
fn changes_of_the_wall_clock_do_not_affect_leases() {
    let fixture = QueueFixture::new();
    let (entry, _) = fixture.running("jumps");
    let day = 24 * 3600 * 1000;
    for wall in [1_700_000_000_000 + day, 1_700_000_000_000 - day, 1_700_000_000_000 - 10_000, 0] {
        fixture.clock.set_wall(wall);
        assert!(fixture.queue.recover(None).unwrap().is_empty(), "{wall}");
        assert!(fixture.reopen().claim(&other_claim()).unwrap().is_none());
    }
    fixture.clock.set_wall(1_700_000_000_000 - day);
    fixture.clock.advance(LEASE);
    assert_eq!(fixture.queue.recover(None).unwrap().len(), 1, "setting the clock back extends no lease");
    // Sequence numbers give the order of the history.
    let history = history(&fixture.queue, &entry.request_id);
    assert!(history.windows(2).all(|pair| pair[0].sequence < pair[1].sequence));
    assert!(fixture.queue.liveness().unwrap().oldest_queued_age_seconds.unwrap() >= 0.0);
}

fn other_claim() -> Claim<'static> {
    Claim {
        lease_id: "other",
        worker_id: Some("o"),
        lease: LEASE,
        holder: LeaseHolder::Caller,
        filter: ClaimFilter::Any,
    }
}

#[test]
fn a_reboot_ends_every_lease() {
    let fixture = QueueFixture::new();
    let (entry, token) = fixture.running("before");
    fixture.clock.reboot();
    assert_eq!(fixture.queue.recover(None).unwrap().len(), 1);
    assert_eq!(evidence(&fixture, &entry.request_id), "other_boot");
    assert!(fixture.queue.heartbeat(&entry.request_id, LeaseProof::Token(token), LEASE, None).unwrap().is_none());
}

#[test]
fn the_lease_of_an_ended_process_is_recovered() {
    let fixture = QueueFixture::new();
    fixture.submit("dies");
    let claim = Claim { holder: LeaseHolder::Worker, ..other_claim() };
    let entry = fixture.queue.claim(&claim).unwrap().unwrap();
    assert!(fixture.queue.recover(None).unwrap().is_empty(), "this process is alive");
    // Simulates another process: the same row with the pid of an ended process.
    let mut child = std::process::Command::new("true").spawn().unwrap();
    let pid = child.id();
    child.wait().unwrap();
    let raw = rusqlite::Connection::open(fixture.path()).unwrap();
    raw.execute("UPDATE run_requests SET holder_pid = ?1", [pid]).unwrap();
    assert_eq!(fixture.queue.recover(None).unwrap().len(), 1);
    assert_eq!(evidence(&fixture, &entry.request_id), "holder_gone");
    assert_eq!(fixture.queue.get("dies").unwrap().last_holder_pid, Some(i64::from(pid)));
}

/// The system reuses pids.
#[test]
fn a_reused_pid_is_recognized_as_another_process() {
    let fixture = QueueFixture::new();
    fixture.submit("recycled");
    let entry = fixture.queue.claim(&Claim { holder: LeaseHolder::Worker, ..other_claim() }).unwrap().unwrap();
    let raw = rusqlite::Connection::open(fixture.path()).unwrap();
    // A second on Linux, which counts ticks. The portable form counts seconds, and ignores a difference of two.
    raw.execute("UPDATE run_requests SET holder_started = holder_started - 100", []).unwrap();
    assert_eq!(fixture.queue.recover(None).unwrap().len(), 1, "the pid belongs to another process");
    assert_eq!(evidence(&fixture, &entry.request_id), "holder_gone");
    fixture.queue.claim(&Claim { holder: LeaseHolder::Worker, ..other_claim() }).unwrap().unwrap();
    raw.execute("UPDATE run_requests SET holder_pid_namespace = 'pid:[1]', holder_started = 1", []).unwrap();
    assert!(fixture.queue.recover(None).unwrap().is_empty(), "processes of another pid namespace are not visible");
}

#[test]
fn a_new_service_recovers_the_requests_of_the_previous_one() {
    let fixture = QueueFixture::new();
    fixture.submit("served");
    let first = ServiceLock::take(&fixture.path(), "127.0.0.1:1").unwrap();
    let holder = LeaseHolder::Service(first.instance_id.clone());
    let entry = fixture.queue.claim(&Claim { holder, ..other_claim() }).unwrap().unwrap();
    assert!(fixture.queue.recover(Some(&first.instance_id)).unwrap().is_empty());
    assert!(fixture.queue.recover(None).unwrap().is_empty(), "only the service with the lock knows");
    drop(first);
    let second = ServiceLock::take(&fixture.path(), "127.0.0.1:1").unwrap();
    assert_eq!(fixture.queue.recover(Some(&second.instance_id)).unwrap().len(), 1);
    assert_eq!(evidence(&fixture, &entry.request_id), "earlier_service");
}

#[test]
fn a_pause_expires_and_restarts_after_a_reboot() {
    let fixture = QueueFixture::new();
    let entry = fixture.submit("rests");
    let pause = Duration::from_secs(100);
    let asked =
        ControlRequest { pause: Some(pause), ..ControlRequest::new(ControlAction::Pause).with_reason(Some("lunch")) };
    fixture.queue.control(&entry.request_id, &asked).unwrap();
    fixture.clock.advance(pause - Duration::from_millis(1));
    fixture.clock.set_wall(1_900_000_000_000);
    assert!(fixture.queue.recover(None).unwrap().is_empty());
    fixture.clock.reboot();
    assert!(fixture.queue.recover(None).unwrap().is_empty(), "it is unknown how long the machine was off");
    fixture.clock.advance(pause - Duration::from_millis(1));
    assert!(fixture.queue.recover(None).unwrap().is_empty());
    fixture.clock.advance(Duration::from_millis(1));
    let ended = fixture.queue.recover(None).unwrap();
    assert_eq!(ended[0].status, RequestState::Cancelled);
    let error = ended[0].error.as_ref().unwrap();
    assert_eq!(
        (&error["error_code"], &error["reason_code"]),
        (&"synth_optimizer_cancelled".into(), &"pause_timeout".into())
    );
}

#[test]
fn a_pause_without_a_timeout_never_expires() {
    let fixture = QueueFixture::new();
    let (queued, (running, token)) = (fixture.submit("waits"), fixture.running("works"));
    for id in [&queued.request_id, &running.request_id] {
        fixture.queue.control(id, &ControlRequest::pause("lunch")).unwrap();
    }
    fixture.queue.release(&running.request_id, LeaseProof::Token(token), "obeyed").unwrap();
    for step in ["a year passes", "the machine restarts"] {
        fixture.clock.advance(Duration::from_secs(365 * 24 * 3600));
        assert!(fixture.queue.recover(None).unwrap().is_empty(), "{step}");
        for run_id in ["waits", "works"] {
            let entry = fixture.queue.get(run_id).unwrap();
            let waiting = entry.waiting.unwrap();
            assert_eq!((entry.status, entry.pause_expires_at), (RequestState::Paused, None), "{run_id}: {step}");
            assert_eq!((waiting.reason.as_str(), waiting.deadline_at), ("paused", None), "{run_id}: {step}");
            assert!(waiting.message.contains(&format!("/runs/{run_id}/resume")), "{}", waiting.message);
        }
        fixture.clock.reboot();
    }
}

#[test]
fn a_run_that_an_outage_interrupted_is_claimed_again_after_its_pause_or_a_reboot() {
    let fixture = QueueFixture::new();
    let pause = Duration::from_secs(60);
    for end in ["the pause passes", "the machine restarts"] {
        let run_id = end.replace(' ', "-");
        let (running, token) = fixture.running(&run_id);
        let cause = "the container does not answer";
        let entry =
            fixture.queue.release_for_retry(&running.request_id, LeaseProof::Token(token), cause, pause).unwrap();
        let waiting = entry.waiting.unwrap();
        assert_eq!((entry.status, waiting.reason.as_str()), (RequestState::Queued, "outage"));
        assert_eq!(waiting.message, cause);
        assert!(waiting.deadline_at.is_some());
        fixture.clock.advance(pause / 2);
        assert!(fixture.claim().is_none(), "{end}");
        assert_eq!(fixture.queue.next_retry().unwrap(), Some(pause / 2));
        match end {
            "the pause passes" => fixture.clock.advance(pause / 2),
            _ => fixture.clock.reboot(),
        }
        let claimed = fixture.claim().unwrap();
        assert_eq!((claimed.run_id.as_str(), claimed.status), (run_id.as_str(), RequestState::Leased), "{end}");
        let token = LeaseProof::Token(claimed.fencing_token);
        fixture.queue.fail(&claimed.request_id, token, &failure(), None, None).unwrap();
        assert_eq!(fixture.queue.next_retry().unwrap(), None);
    }
}

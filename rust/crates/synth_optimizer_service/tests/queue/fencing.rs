//! A holder that lost its lease cannot write, and its pending control request stays in effect.

use synth_optimizer_core::model::control::ControlAction;
use synth_optimizer_core::model::lifecycle::RequestState;
use synth_optimizer_service::ServiceErrorCode;
use synth_optimizer_service::queue::{ClaimFilter, Completion, LeaseProof, QueueError, Submission};

use crate::fixture::{LEASE, QueueFixture, claim, config, failure, history, pending_control, send_control, submission};

#[test]
fn every_write_of_a_superseded_holder_is_rejected() {
    let fixture = QueueFixture::new();
    let (entry, old) = fixture.running("zombie");
    let (queue, id) = (&fixture.queue, entry.request_id.as_str());
    fixture.clock.advance(LEASE);
    let taken = claim(queue, "new", ClaimFilter::Any).unwrap();
    let new = taken.fencing_token;
    assert_eq!((taken.request_id.as_str(), taken.attempts, new > old), (id, 2, true));
    let before = (queue.get_request(id).unwrap(), history(queue, id));
    type Write<'a> = (&'a str, Box<dyn Fn(LeaseProof<'static>) -> Result<(), QueueError> + 'a>);
    let writes: Vec<Write<'_>> = vec![
        ("start", Box::new(|lease_proof| queue.start(id, lease_proof).map(drop))),
        ("progress", Box::new(|lease_proof| queue.record_progress(id, lease_proof, 7).map(drop))),
        ("complete", Box::new(|lease_proof| queue.complete(id, lease_proof, &Completion::default()).map(drop))),
        ("fail", Box::new(|lease_proof| queue.fail(id, lease_proof, &failure(), None, None).map(drop))),
        ("cancelled", Box::new(|lease_proof| queue.mark_cancelled(id, lease_proof, "no", None, false).map(drop))),
        ("release", Box::new(|lease_proof| queue.release(id, lease_proof, "no").map(drop))),
    ];
    for (what, write) in &writes {
        for lease_proof in [LeaseProof::Token(old), LeaseProof::Lease("lease")] {
            let refused = write(lease_proof).unwrap_err();
            assert_eq!(refused.code, Some(ServiceErrorCode::Fenced), "{what}");
            assert!(refused.error.message.contains("new"), "{what} names the holder: {refused}");
        }
    }
    assert!(queue.heartbeat(id, LeaseProof::Token(old), LEASE, Some(1)).unwrap().is_none());
    assert_eq!(pending_control(queue, id, old), None);
    assert_eq!((queue.get_request(id).unwrap(), history(queue, id)), before);
    assert_eq!(pending_control(queue, id, new), Some(None));
    queue.start(id, LeaseProof::Token(new)).unwrap();
    assert_eq!(
        queue.complete(id, LeaseProof::Lease("new"), &Completion::default()).unwrap().status,
        RequestState::Completed
    );
}

#[test]
fn an_expired_lease_can_be_renewed_until_another_worker_claims_it() {
    let fixture = QueueFixture::new();
    let (entry, token) = fixture.running("slept");
    fixture.clock.advance(LEASE * 10);
    let refused = fixture.queue.record_progress(&entry.request_id, LeaseProof::Current, 1).unwrap_err();
    assert_eq!(refused.code, Some(ServiceErrorCode::Fenced), "an expired lease must be named");
    assert!(fixture.queue.heartbeat(&entry.request_id, LeaseProof::Token(token), LEASE, None).unwrap().is_some());
    assert!(fixture.queue.recover(None).unwrap().is_empty());
}

#[test]
fn fencing_tokens_grow_after_requests_are_deleted() {
    let fixture = QueueFixture::new();
    let mut last = 0;
    for round in 0..3 {
        let (entry, token) = fixture.running("again");
        assert!(token > last, "round {round}");
        last = token;
        fixture.queue.fail(&entry.request_id, LeaseProof::Token(token), &failure(), None, None).unwrap();
        fixture.queue.delete("again", &fixture.queue.deletable("again").unwrap()).unwrap();
    }
}

#[test]
fn a_pending_control_request_takes_effect_when_the_holder_is_gone() {
    for (action, ends) in [
        (ControlAction::Cancel, RequestState::Cancelled),
        (ControlAction::Pause, RequestState::Paused),
        (ControlAction::Stop, RequestState::Queued),
    ] {
        let fixture = QueueFixture::new();
        let (entry, _) = fixture.running("asked");
        let (queue, id) = (&fixture.queue, entry.request_id.as_str());
        send_control(queue, id, action, Some("why")).unwrap();
        fixture.clock.advance(LEASE);
        let moved = queue.recover(None).unwrap();
        assert_eq!(moved[0].status, ends, "{}", action.as_str());
        // A pending stop is delivered to the next holder.
        let next = claim(queue, "next", ClaimFilter::Any);
        assert_eq!(next.is_some(), action == ControlAction::Stop);
        if let Some(next) = next {
            let stop = pending_control(queue, id, next.fencing_token).unwrap().unwrap();
            assert_eq!((stop.action, stop.reason.as_deref()), (ControlAction::Stop, Some("why")));
        }
    }
}

#[test]
fn a_stop_of_a_started_run_waits_for_the_next_holder() {
    for paused in [false, true] {
        let fixture = QueueFixture::new();
        let (entry, token) = fixture.running("begun");
        let (queue, id) = (&fixture.queue, entry.request_id.as_str());
        if paused {
            send_control(queue, id, ControlAction::Pause, None).unwrap();
        }
        queue.release(id, LeaseProof::Token(token), "shutdown").unwrap();
        assert_eq!(
            send_control(queue, id, ControlAction::Stop, Some("enough")).unwrap().acknowledgement.as_str(),
            "accepted"
        );
        assert_eq!(send_control(queue, id, ControlAction::Stop, None).unwrap().acknowledgement.as_str(), "noop");
        assert_eq!(queue.get_request(id).unwrap().status, RequestState::Queued);
        assert_eq!(
            send_control(queue, id, ControlAction::Pause, None).unwrap_err().code,
            Some(ServiceErrorCode::InvalidTransition)
        );
        let next = claim(queue, "next", ClaimFilter::Background).unwrap();
        assert_eq!(pending_control(queue, id, next.fencing_token).unwrap().unwrap().action, ControlAction::Stop);
    }
    // A run that never started is cancelled.
    let fixture = QueueFixture::new();
    let entry = fixture.submit("fresh");
    assert_eq!(
        send_control(&fixture.queue, &entry.request_id, ControlAction::Stop, None).unwrap().entry.status,
        RequestState::Cancelled
    );
}

#[test]
fn a_control_request_during_a_pause_is_not_lost() {
    let fixture = QueueFixture::new();
    let (entry, token) = fixture.running("aside");
    let (queue, id) = (&fixture.queue, entry.request_id.as_str());
    send_control(queue, id, ControlAction::Pause, None).unwrap();
    send_control(queue, id, ControlAction::Cancel, Some("no longer")).unwrap();
    let ended = queue.release(id, LeaseProof::Token(token), "the run was saved").unwrap();
    assert_eq!(ended.status, RequestState::Cancelled);
    assert_eq!(ended.error.unwrap()["message"], "no longer");
}

#[test]
fn a_manually_started_run_continues_automatically_after_resume() {
    let fixture = QueueFixture::new();
    let config = config("by-hand", "http://one.test", None);
    fixture.queue.submit(&Submission { auto_start: false, ..submission(&config) }).unwrap();
    let claimed = fixture.claim().unwrap();
    let (id, lease_proof) = (claimed.request_id.as_str(), LeaseProof::Token(claimed.fencing_token));
    fixture.queue.start(id, lease_proof).unwrap();
    send_control(&fixture.queue, id, ControlAction::Pause, None).unwrap();
    fixture.queue.release(id, lease_proof, "obeyed").unwrap();
    send_control(&fixture.queue, id, ControlAction::Resume, None).unwrap();
    assert_eq!(claim(&fixture.queue, "next", ClaimFilter::Background).unwrap().request_id, id);
}

#[test]
fn recoveries_are_counted_since_the_last_progress() {
    let fixture = QueueFixture::new();
    let (entry, token) = fixture.running("lost");
    let (queue, id) = (&fixture.queue, entry.request_id.as_str());
    assert_eq!(queue.record_progress(id, LeaseProof::Token(token), 3).unwrap(), 0);
    for (losses, mark) in [(1, 3), (2, 3), (0, 4), (1, 4)] {
        fixture.clock.advance(LEASE);
        let next = claim(queue, "next", ClaimFilter::Any).unwrap();
        assert_eq!(
            queue.record_progress(id, LeaseProof::Token(next.fencing_token), mark).unwrap(),
            losses,
            "at {mark}"
        );
    }
    assert_eq!(queue.get_request(id).unwrap().recoveries, 4);
}

//! Requests follow the lifecycle table: every trigger in every state.

use std::time::Duration;

use synth_optimizer_core::model::control::{ControlAction, ControlRequest};
use synth_optimizer_core::model::lifecycle::{Lifecycle, RequestState, RequestTrigger};
use synth_optimizer_service::ServiceErrorCode;
use synth_optimizer_service::queue::{Acknowledgement, ClaimFilter, Completion, LeaseProof, Queue, QueueError};

use crate::fixture::{LEASE, QueueFixture, failure, history, pending_control, send_control, try_claim};

/// The timeout of a pause. It is longer than a lease.
const PAUSE: Duration = Duration::from_secs(1800);

/// Pauses a request with a timeout.
fn pause(queue: &Queue, id: &str) -> Result<(), QueueError> {
    queue.control(id, &ControlRequest { pause: Some(PAUSE), ..ControlRequest::new(ControlAction::Pause) }).map(drop)
}

/// Creates a request in this state. Returns its id and fencing token.
fn request_in(fixture: &QueueFixture, state: RequestState) -> (String, i64) {
    let submitted = fixture.submit(&format!("in-{}", state.as_str()));
    let (queue, id) = (&fixture.queue, submitted.request_id.clone());
    let claim = || {
        let claimed = try_claim(queue, "lease", ClaimFilter::Request(&id)).unwrap().unwrap();
        claimed.fencing_token
    };
    let token = match state {
        RequestState::Queued => 0,
        RequestState::Leased => claim(),
        RequestState::Running | RequestState::Completed | RequestState::Failed => {
            let token = claim();
            queue.start(&id, LeaseProof::Token(token)).unwrap();
            match state {
                RequestState::Completed => {
                    drop(queue.complete(&id, LeaseProof::Token(token), &Completion::default()).unwrap())
                }
                RequestState::Failed => {
                    drop(queue.fail(&id, LeaseProof::Token(token), &failure(), None, None).unwrap())
                }
                _ => {}
            }
            token
        }
        RequestState::Paused => {
            pause(queue, &id).unwrap();
            0
        }
        RequestState::Cancelled => {
            send_control(queue, &id, ControlAction::Cancel, None).unwrap();
            0
        }
    };
    assert_eq!(queue.get_request(&id).unwrap().status, state);
    (id, token)
}

/// Fires a trigger through the public function for it.
fn fire(fixture: &QueueFixture, id: &str, token: i64, trigger: RequestTrigger) -> Result<(), QueueError> {
    let (queue, lease_proof): (&Queue, _) = (&fixture.queue, LeaseProof::Token(token));
    let holder = matches!(queue.get_request(id).unwrap().status, RequestState::Leased | RequestState::Running);
    match trigger {
        RequestTrigger::Claim => try_claim(queue, "other", ClaimFilter::Request(id)).map(drop),
        RequestTrigger::Start => queue.start(id, lease_proof).map(drop),
        RequestTrigger::Complete => queue.complete(id, lease_proof, &Completion::default()).map(drop),
        RequestTrigger::Fail => queue.fail(id, lease_proof, &failure(), None, None).map(drop),
        RequestTrigger::Cancel if holder => queue.mark_cancelled(id, lease_proof, "enough", None, false).map(drop),
        RequestTrigger::Cancel => send_control(queue, id, ControlAction::Cancel, None).map(drop),
        RequestTrigger::Pause if holder => {
            pause(queue, id)?;
            queue.release(id, lease_proof, "obeyed").map(drop)
        }
        RequestTrigger::Pause => pause(queue, id),
        RequestTrigger::Resume => send_control(queue, id, ControlAction::Resume, None).map(drop),
        RequestTrigger::Release => queue.release(id, lease_proof, "shutdown").map(drop),
        RequestTrigger::LeaseExpired => {
            fixture.clock.advance(LEASE);
            queue.recover(None).map(drop)
        }
        RequestTrigger::PauseExpired => {
            fixture.clock.advance(PAUSE);
            queue.recover(None).map(drop)
        }
    }
}

#[test]
fn every_trigger_in_every_state_follows_the_lifecycle_table() {
    for state in RequestState::STATES.iter().copied() {
        for trigger in RequestTrigger::NAMES.iter().map(|word| RequestTrigger::parse(word).unwrap()) {
            let fixture = QueueFixture::new();
            let (id, token) = request_in(&fixture, state);
            let before = (fixture.queue.get_request(&id).unwrap(), history(&fixture.queue, &id));
            let is_held = matches!(state, RequestState::Leased | RequestState::Running);
            // The lease expires before the pause does.
            let expires = is_held && trigger == RequestTrigger::PauseExpired;
            let wanted = if expires { Ok(RequestState::Queued) } else { state.next(trigger) };
            let done = fire(&fixture, &id, token, trigger);
            let after = (fixture.queue.get_request(&id).unwrap(), history(&fixture.queue, &id));
            let what = format!("{} in {}", trigger.as_str(), state.as_str());
            match wanted {
                Ok(to) => {
                    done.unwrap();
                    assert_eq!(after.0.status, to, "{what}");
                    let last = after.1.last().unwrap();
                    let word = if expires { "lease_expired" } else { trigger.as_str() };
                    assert_eq!((last.from.as_deref(), last.to.as_str()), (Some(state.as_str()), to.as_str()), "{what}");
                    assert_eq!(last.trigger, word, "{what}");
                    // A pause is requested first, and then its holder releases the request.
                    let records = if is_held && trigger == RequestTrigger::Pause { 2 } else { 1 };
                    assert_eq!(after.1.len(), before.1.len() + records, "{what}");
                    assert_eq!(after.0.is_terminal, after.0.finished_at.is_some(), "{what}");
                    assert_eq!(after.0.lease_id.is_some(), to == RequestState::Running || to == RequestState::Leased);
                    assert_eq!(after.0.pause_expires_at.is_some(), to == RequestState::Paused, "{what}");
                }
                Err(_) => {
                    if let Err(refused) = done {
                        let known = [Some(ServiceErrorCode::Fenced), Some(ServiceErrorCode::InvalidTransition)];
                        assert!(known.contains(&refused.code), "{what}: {refused:?}");
                        assert_eq!(refused.state, Some(state), "{what}");
                        assert_eq!(refused.error.code.as_str(), "synth_optimizer_state_transition_error");
                    }
                    assert_eq!(after, before, "{what}");
                }
            }
        }
    }
}

#[test]
fn a_control_request_for_an_active_request_waits_for_its_holder() {
    let fixture = QueueFixture::new();
    let (entry, token) = fixture.running("held");
    let (queue, id) = (&fixture.queue, entry.request_id.as_str());
    assert_eq!(send_control(queue, id, ControlAction::Resume, None).unwrap().acknowledgement, Acknowledgement::Noop);
    assert_eq!(send_control(queue, id, ControlAction::Pause, None).unwrap().acknowledgement, Acknowledgement::Accepted);
    assert_eq!(send_control(queue, id, ControlAction::Pause, None).unwrap().acknowledgement, Acknowledgement::Noop);
    assert_eq!(
        send_control(queue, id, ControlAction::Resume, None).unwrap().acknowledgement,
        Acknowledgement::Accepted
    );
    assert_eq!(pending_control(queue, id, token), Some(None));
    let cancel = send_control(queue, id, ControlAction::Cancel, Some("too dear")).unwrap();
    assert_eq!(cancel.acknowledgement, Acknowledgement::Accepted);
    assert_eq!(cancel.entry.status, RequestState::Running);
    assert_eq!(cancel.entry.waiting.unwrap().reason.as_str(), "stopping");
    let refused = send_control(queue, id, ControlAction::Pause, None).unwrap_err();
    assert_eq!((refused.code, refused.state), (Some(ServiceErrorCode::InvalidTransition), Some(RequestState::Running)));
    // Another connection, as after a crash, sees it too.
    let pending = pending_control(&fixture.reopen(), id, token).unwrap().unwrap();
    assert_eq!((pending.action, pending.reason.as_deref()), (ControlAction::Cancel, Some("too dear")));
    let ended = queue.mark_cancelled(id, LeaseProof::Token(token), "obeyed", None, false).unwrap();
    assert_eq!(ended.error.unwrap()["message"], "too dear");
    assert_eq!(send_control(queue, id, ControlAction::Cancel, None).unwrap().acknowledgement, Acknowledgement::Noop);
    assert_eq!(send_control(queue, id, ControlAction::Stop, None).unwrap().acknowledgement, Acknowledgement::Noop);
    let triggers: Vec<String> = history(queue, id).into_iter().map(|row| row.trigger).collect();
    assert_eq!(triggers, ["submit", "claim", "start", "request_pause", "withdraw_pause", "request_cancel", "cancel"]);
}

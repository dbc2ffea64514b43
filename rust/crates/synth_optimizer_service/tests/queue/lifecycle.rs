//! A request moves along its table: every trigger in every state.

use synth_optimizer_core::model::control::ControlAction;
use synth_optimizer_core::model::lifecycle::{Lifecycle, RequestState, RequestTrigger};
use synth_optimizer_service::Code;
use synth_optimizer_service::queue::{
    Acknowledgement, Completion, DEFAULT_PAUSE as PAUSE, Hold, Queue, QueueError, Which,
};

use crate::bench::{Bench, LEASE, ask, asked, history, no, try_claim};

/// Brings a new request into a state.
fn bring(bench: &Bench, state: RequestState) -> (String, i64) {
    let submitted = bench.submit(&format!("in-{}", state.word()));
    let (queue, id) = (&bench.queue, submitted.request_id.clone());
    let claim = || {
        let claimed = try_claim(queue, "lease", Which::Request(&id)).unwrap().unwrap();
        claimed.fencing_token
    };
    let token = match state {
        RequestState::Queued => 0,
        RequestState::Leased => claim(),
        RequestState::Running | RequestState::Completed | RequestState::Failed => {
            let token = claim();
            queue.start(&id, Hold::Token(token)).unwrap();
            match state {
                RequestState::Completed => {
                    drop(queue.complete(&id, Hold::Token(token), &Completion::default()).unwrap())
                }
                RequestState::Failed => drop(queue.fail(&id, Hold::Token(token), &no(), None, None).unwrap()),
                _ => {}
            }
            token
        }
        RequestState::Paused => {
            ask(queue, &id, ControlAction::Pause, None).unwrap();
            0
        }
        RequestState::Cancelled => {
            ask(queue, &id, ControlAction::Cancel, None).unwrap();
            0
        }
    };
    assert_eq!(queue.get_request(&id).unwrap().status, state);
    (id, token)
}

/// Pulls a trigger the way its owner would.
fn pull(bench: &Bench, id: &str, token: i64, trigger: RequestTrigger) -> Result<(), QueueError> {
    let (queue, hold): (&Queue, _) = (&bench.queue, Hold::Token(token));
    let holder = matches!(queue.get_request(id).unwrap().status, RequestState::Leased | RequestState::Running);
    match trigger {
        RequestTrigger::Claim => try_claim(queue, "other", Which::Request(id)).map(drop),
        RequestTrigger::Start => queue.start(id, hold).map(drop),
        RequestTrigger::Complete => queue.complete(id, hold, &Completion::default()).map(drop),
        RequestTrigger::Fail => queue.fail(id, hold, &no(), None, None).map(drop),
        RequestTrigger::Cancel if holder => queue.mark_cancelled(id, hold, "enough", None).map(drop),
        RequestTrigger::Cancel => ask(queue, id, ControlAction::Cancel, None).map(drop),
        RequestTrigger::Pause if holder => queue.mark_paused(id, hold, PAUSE).map(drop),
        RequestTrigger::Pause => ask(queue, id, ControlAction::Pause, None).map(drop),
        RequestTrigger::Resume => ask(queue, id, ControlAction::Resume, None).map(drop),
        RequestTrigger::Release => queue.release(id, hold, "shutdown").map(drop),
        RequestTrigger::LeaseExpired => {
            bench.clock.advance(LEASE);
            queue.recover(None).map(drop)
        }
        RequestTrigger::PauseExpired => {
            bench.clock.advance(PAUSE);
            queue.recover(None).map(drop)
        }
    }
}

#[test]
fn every_trigger_in_every_state_does_what_the_table_says() {
    for state in RequestState::STATES.iter().copied() {
        for trigger in RequestTrigger::WORDS.iter().map(|word| RequestTrigger::from_word(word).unwrap()) {
            let bench = Bench::new();
            let (id, token) = bring(&bench, state);
            let before = (bench.queue.get_request(&id).unwrap(), history(&bench.queue, &id));
            // A lease that was not extended ends before the longest pause does.
            let expires = trigger == RequestTrigger::PauseExpired
                && matches!(state, RequestState::Leased | RequestState::Running);
            let wanted = if expires { Ok(RequestState::Queued) } else { state.next(trigger) };
            let done = pull(&bench, &id, token, trigger);
            let after = (bench.queue.get_request(&id).unwrap(), history(&bench.queue, &id));
            let what = format!("{} in {}", trigger.word(), state.word());
            match wanted {
                Ok(to) => {
                    done.unwrap();
                    assert_eq!(after.0.status, to, "{what}");
                    let last = after.1.last().unwrap();
                    let word = if expires { "lease_expired" } else { trigger.word() };
                    assert_eq!((last.from.as_deref(), last.to.as_str()), (Some(state.word()), to.word()), "{what}");
                    assert_eq!(last.trigger, word, "{what}");
                    assert_eq!(after.1.len(), before.1.len() + 1, "{what}");
                    assert_eq!(after.0.is_terminal, after.0.finished_at.is_some(), "{what}");
                    assert_eq!(after.0.lease_id.is_some(), to == RequestState::Running || to == RequestState::Leased);
                    assert_eq!(after.0.pause_expires_at.is_some(), to == RequestState::Paused, "{what}");
                }
                Err(_) => {
                    if let Err(refused) = done {
                        let known = [Some(Code::Fenced), Some(Code::InvalidTransition)];
                        assert!(known.contains(&refused.code), "{what}: {refused:?}");
                        assert_eq!(refused.state, Some(state), "{what}");
                        assert_eq!(refused.error.code.wire(), "synth_optimizer_state_transition_error");
                    }
                    assert_eq!(after, before, "{what}");
                }
            }
        }
    }
}

#[test]
fn what_is_asked_of_a_held_request_waits_for_its_holder() {
    let bench = Bench::new();
    let (entry, token) = bench.running("held");
    let (queue, id) = (&bench.queue, entry.request_id.as_str());
    assert_eq!(ask(queue, id, ControlAction::Resume, None).unwrap().acknowledgement, Acknowledgement::Noop);
    assert_eq!(ask(queue, id, ControlAction::Pause, None).unwrap().acknowledgement, Acknowledgement::Accepted);
    assert_eq!(ask(queue, id, ControlAction::Pause, None).unwrap().acknowledgement, Acknowledgement::Noop);
    assert_eq!(ask(queue, id, ControlAction::Resume, None).unwrap().acknowledgement, Acknowledgement::Accepted);
    assert_eq!(asked(queue, id, token), Some(None));
    let cancel = ask(queue, id, ControlAction::Cancel, Some("too dear")).unwrap();
    assert_eq!(cancel.acknowledgement, Acknowledgement::Accepted);
    assert_eq!(cancel.entry.status, RequestState::Running);
    assert_eq!(cancel.entry.waiting.unwrap().reason.word(), "stopping");
    let refused = ask(queue, id, ControlAction::Pause, None).unwrap_err();
    assert_eq!((refused.code, refused.state), (Some(Code::InvalidTransition), Some(RequestState::Running)));
    // Another connection, as after a crash of this one, tells it as well.
    let heard = asked(&bench.again(), id, token).unwrap().unwrap();
    assert_eq!((heard.action, heard.reason.as_deref()), (ControlAction::Cancel, Some("too dear")));
    let ended = queue.mark_cancelled(id, Hold::Token(token), "obeyed", None).unwrap();
    assert_eq!(ended.error.unwrap()["message"], "too dear");
    assert_eq!(ask(queue, id, ControlAction::Cancel, None).unwrap().acknowledgement, Acknowledgement::Noop);
    assert_eq!(ask(queue, id, ControlAction::Stop, None).unwrap().acknowledgement, Acknowledgement::Noop);
    let triggers: Vec<String> = history(queue, id).into_iter().map(|row| row.trigger).collect();
    assert_eq!(triggers, ["submit", "claim", "start", "ask_pause", "withdraw_pause", "ask_cancel", "cancel"]);
}

//! A holder that has lost its request writes nothing, whatever it tries; and what it was asked for is not lost with it.

use synth_optimizer_core::model::control::ControlAction;
use synth_optimizer_core::model::lifecycle::RequestState;
use synth_optimizer_service::Code;
use synth_optimizer_service::queue::{Completion, DEFAULT_PAUSE, Hold, QueueError, Submission, Which};

use crate::bench::{Bench, LEASE, ask, asked, claim, config, history, no, plain};

#[test]
fn every_write_of_a_holder_that_was_superseded_is_refused() {
    let bench = Bench::new();
    let (entry, old) = bench.running("zombie");
    let (queue, id) = (&bench.queue, entry.request_id.as_str());
    bench.clock.advance(LEASE);
    let taken = claim(queue, "new", Which::Any).unwrap();
    let new = taken.fencing_token;
    assert_eq!((taken.request_id.as_str(), taken.attempts, new > old), (id, 2, true));
    let before = (queue.get_request(id).unwrap(), history(queue, id));
    type Write<'a> = (&'a str, Box<dyn Fn(Hold<'static>) -> Result<(), QueueError> + 'a>);
    let writes: Vec<Write<'_>> = vec![
        ("start", Box::new(|hold| queue.start(id, hold).map(drop))),
        ("progress", Box::new(|hold| queue.progress(id, hold, 7).map(drop))),
        ("complete", Box::new(|hold| queue.complete(id, hold, &Completion::default()).map(drop))),
        ("fail", Box::new(|hold| queue.fail(id, hold, &no(), None, None).map(drop))),
        ("cancelled", Box::new(|hold| queue.mark_cancelled(id, hold, "no", None).map(drop))),
        ("paused", Box::new(|hold| queue.mark_paused(id, hold, DEFAULT_PAUSE).map(drop))),
        ("release", Box::new(|hold| queue.release(id, hold, "no").map(drop))),
    ];
    for (what, write) in &writes {
        for hold in [Hold::Token(old), Hold::Lease("lease")] {
            let refused = write(hold).unwrap_err();
            assert_eq!(refused.code, Some(Code::Fenced), "{what}");
            assert!(refused.error.message.contains("new"), "{what} names the holder: {refused}");
        }
    }
    assert!(queue.heartbeat(id, Hold::Token(old), LEASE, Some(1)).unwrap().is_none());
    assert_eq!(asked(queue, id, old), None);
    assert_eq!((queue.get_request(id).unwrap(), history(queue, id)), before);
    assert_eq!(asked(queue, id, new), Some(None));
    queue.start(id, Hold::Token(new)).unwrap();
    assert_eq!(queue.complete(id, Hold::Lease("new"), &Completion::default()).unwrap().status, RequestState::Completed);
}

#[test]
fn a_lease_that_ran_out_and_was_not_taken_is_still_its_holders() {
    let bench = Bench::new();
    let (entry, token) = bench.running("slept");
    bench.clock.advance(LEASE * 10);
    let refused = bench.queue.progress(&entry.request_id, Hold::Current, 1).unwrap_err();
    assert_eq!(refused.code, Some(Code::Fenced), "nobody speaks for a lease that ran out without naming it");
    assert!(bench.queue.heartbeat(&entry.request_id, Hold::Token(token), LEASE, None).unwrap().is_some());
    assert!(bench.queue.recover(None).unwrap().is_empty());
}

#[test]
fn tokens_grow_over_everything_that_is_deleted() {
    let bench = Bench::new();
    let mut last = 0;
    for round in 0..3 {
        let (entry, token) = bench.running("again");
        assert!(token > last, "round {round}");
        last = token;
        bench.queue.fail(&entry.request_id, Hold::Token(token), &no(), None, None).unwrap();
        bench.queue.delete("again", &bench.queue.deletable("again").unwrap()).unwrap();
    }
}

#[test]
fn what_was_asked_of_a_holder_that_is_gone_takes_effect() {
    for (action, ends) in [
        (ControlAction::Cancel, RequestState::Cancelled),
        (ControlAction::Pause, RequestState::Paused),
        (ControlAction::Stop, RequestState::Queued),
    ] {
        let bench = Bench::new();
        let (entry, _) = bench.running("asked");
        let (queue, id) = (&bench.queue, entry.request_id.as_str());
        ask(queue, id, action, Some("why")).unwrap();
        bench.clock.advance(LEASE);
        let moved = queue.recover(None).unwrap();
        assert_eq!(moved[0].status, ends, "{}", action.word());
        // Whoever takes it up next ends it with what it has.
        let next = claim(queue, "next", Which::Any);
        assert_eq!(next.is_some(), action == ControlAction::Stop);
        if let Some(next) = next {
            let stop = asked(queue, id, next.fencing_token).unwrap().unwrap();
            assert_eq!((stop.action, stop.reason.as_deref()), (ControlAction::Stop, Some("why")));
        }
    }
}

#[test]
fn a_stop_of_a_run_that_has_begun_waits_for_whoever_takes_it_up() {
    for paused in [false, true] {
        let bench = Bench::new();
        let (entry, token) = bench.running("begun");
        let (queue, id) = (&bench.queue, entry.request_id.as_str());
        match paused {
            false => queue.release(id, Hold::Token(token), "shutdown").map(drop).unwrap(),
            true => queue.mark_paused(id, Hold::Token(token), DEFAULT_PAUSE).map(drop).unwrap(),
        }
        assert_eq!(ask(queue, id, ControlAction::Stop, Some("enough")).unwrap().acknowledgement.word(), "accepted");
        assert_eq!(ask(queue, id, ControlAction::Stop, None).unwrap().acknowledgement.word(), "noop");
        assert_eq!(queue.get_request(id).unwrap().status, RequestState::Queued);
        assert_eq!(ask(queue, id, ControlAction::Pause, None).unwrap_err().code, Some(Code::InvalidTransition));
        let next = claim(queue, "next", Which::Background).unwrap();
        assert_eq!(asked(queue, id, next.fencing_token).unwrap().unwrap().action, ControlAction::Stop);
    }
    // One that never began has nothing to end with.
    let bench = Bench::new();
    let entry = bench.submit("fresh");
    assert_eq!(
        ask(&bench.queue, &entry.request_id, ControlAction::Stop, None).unwrap().entry.status,
        RequestState::Cancelled
    );
}

#[test]
fn what_is_asked_while_a_run_is_being_set_aside_is_not_lost() {
    let bench = Bench::new();
    let (entry, token) = bench.running("aside");
    let (queue, id) = (&bench.queue, entry.request_id.as_str());
    ask(queue, id, ControlAction::Cancel, Some("no longer")).unwrap();
    let ended = queue.mark_paused(id, Hold::Token(token), DEFAULT_PAUSE).unwrap();
    assert_eq!(ended.status, RequestState::Cancelled);
    assert_eq!(ended.error.unwrap()["message"], "no longer");
}

#[test]
fn a_run_that_was_begun_by_hand_goes_on_by_itself_once_it_is_resumed() {
    let bench = Bench::new();
    let config = config("by-hand", "http://one.test", None);
    bench.queue.submit(&Submission { auto_start: false, ..plain(&config) }).unwrap();
    let claimed = bench.claim().unwrap();
    let (id, hold) = (claimed.request_id.as_str(), Hold::Token(claimed.fencing_token));
    bench.queue.start(id, hold).unwrap();
    ask(&bench.queue, id, ControlAction::Pause, None).unwrap();
    bench.queue.release(id, hold, "obeyed").unwrap();
    ask(&bench.queue, id, ControlAction::Resume, None).unwrap();
    assert_eq!(claim(&bench.queue, "next", Which::Background).unwrap().request_id, id);
}

#[test]
fn losses_are_counted_from_where_the_run_last_was() {
    let bench = Bench::new();
    let (entry, token) = bench.running("lost");
    let (queue, id) = (&bench.queue, entry.request_id.as_str());
    assert_eq!(queue.progress(id, Hold::Token(token), 3).unwrap(), 0);
    for (losses, mark) in [(1, 3), (2, 3), (0, 4), (1, 4)] {
        bench.clock.advance(LEASE);
        let next = claim(queue, "next", Which::Any).unwrap();
        assert_eq!(queue.progress(id, Hold::Token(next.fencing_token), mark).unwrap(), losses, "at {mark}");
    }
    assert_eq!(queue.get_request(id).unwrap().recoveries, 4);
}

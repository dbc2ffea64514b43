use super::*;
use crate::state::RowRef;
use synth_optimizer_core::model::command::ProposerQuestion;
use synth_optimizer_core::model::event_fields::{Operation, Stage};
use synth_optimizer_core::model::ids::{Payload, TrainRow};

fn rollout(row: u32) -> OutstandingCall {
    OutstandingCall::Rollout(Rollout {
        evaluation: CallId(0),
        candidate: 0,
        row: RowRef::Train(TrainRow(row)),
        stage: Stage::CandidateMinibatch,
        attempt: 1,
        replicate: 0,
    })
}

fn turn() -> OutstandingCall {
    let question = ProposerQuestion {
        operation: Operation::Mutate,
        generation: 0,
        parents: Vec::new(),
        ancestor: None,
        base: Payload::default(),
        components: Vec::new(),
        edit_fields: Vec::new(),
        proposal_count: 1,
        carried_failures: Vec::new(),
        relatives: Vec::new(),
        frontier: Vec::new(),
        frontier_size: 0,
        problems: Vec::new(),
        rules: Box::default(),
    };
    let (call_id, evidence) = (CallId(0), Vec::new());
    OutstandingCall::Proposal(Box::new(ProposeCommand { call_id, attempt: 1, question, evidence, repairs: None }))
}

/// Settles the calls in their order, and adds `next` after each of them.
fn order(calls: &mut OutstandingCalls, mut next: impl FnMut(CallId) -> Vec<(u64, OutstandingCall)>) -> Vec<u64> {
    let mut found = Vec::new();
    while let Some(id) = calls.next() {
        calls.settle(id);
        found.push(id.0);
        for (id, call) in next(id) {
            calls.add(CallId(id), call);
        }
    }
    found
}

#[test]
fn rollouts_take_effect_in_the_order_of_their_requests() {
    let mut calls = OutstandingCalls::default();
    (0..3).for_each(|id| calls.add(CallId(id), rollout(id as u32)));
    let later = |id: CallId| if id.0 == 1 { vec![(3, rollout(3)), (4, rollout(4))] } else { Vec::new() };
    assert_eq!(order(&mut calls, later), [0, 1, 2, 3, 4]);
}

#[test]
fn rollouts_do_not_wait_for_an_earlier_turn_that_is_not_due() {
    let mut calls = OutstandingCalls::default();
    calls.add(CallId(0), turn());
    calls.add(CallId(1), rollout(0));
    // Each rollout requests another one, so one of them is due in each round.
    let chain = |id: CallId| if (1..8).contains(&id.0) { vec![(id.0 + 1, rollout(0))] } else { Vec::new() };
    let found = order(&mut calls, chain);
    let before = found.iter().position(|id| *id == 0).unwrap();
    assert_eq!(before as u64, TURN_ROUNDS - 1, "{found:?}");
    assert_eq!(found.len(), 9);
}

#[test]
fn a_turn_that_is_due_is_not_overtaken() {
    let mut calls = OutstandingCalls::default();
    calls.add(CallId(0), turn());
    calls.add(CallId(1), turn());
    calls.add(CallId(2), rollout(0));
    assert_eq!(order(&mut calls, |id| if id.0 == 0 { vec![(3, rollout(0))] } else { Vec::new() }), [2, 0, 1, 3]);
}

#[test]
fn a_call_that_is_withdrawn_out_of_order_moves_the_clock_forward_only() {
    let mut calls = OutstandingCalls::default();
    calls.add(CallId(0), rollout(0));
    calls.add(CallId(1), turn());
    assert!(calls.settle(CallId(1)).is_some());
    assert!(calls.settle(CallId(1)).is_none(), "settled once");
    assert_eq!(calls.next(), Some(CallId(0)));
    calls.settle(CallId(0));
    calls.add(CallId(2), rollout(0));
    assert_eq!((calls.round, calls.len()), (TURN_ROUNDS, 1));
    calls.settle(CallId(2));
    assert!(calls.is_empty() && !calls.contains(CallId(2)));
}

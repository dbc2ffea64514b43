//! The calls without an answer, and the order in which their answers take effect.
//!
//! The order must not depend on when answers arrive, and still resemble it: a rollout that is behind a slower proposer turn
//! would wait for it, and everything that depends on the rollout too. So each call has a round in which its answer is due, on
//! a clock that only answers move. A rollout is due one round after its request, and a proposer turn a few rounds after it.

use std::collections::{BTreeMap, BTreeSet};

use synth_optimizer_core::model::command::ProposeCommand;
use synth_optimizer_core::model::ids::CallId;

use crate::state::Rollout;

/// The number of rounds after which a proposer turn is due: about how many rollouts one after the other take as long. A
/// larger number keeps more rollouts in progress beside slow turns, and bases fewer proposals on the latest scores.
pub(crate) const TURN_ROUNDS: u64 = 5;

/// A call without an answer.
#[derive(Debug, Clone, PartialEq)]
pub enum OutstandingCall {
    Rollout(Rollout),
    /// The whole command, fixed at the decision, so that later events do not change the question.
    Proposal(Box<ProposeCommand>),
}

impl OutstandingCall {
    const fn rounds(&self) -> u64 {
        match self {
            Self::Rollout(_) => 1,
            Self::Proposal(_) => TURN_ROUNDS,
        }
    }
}

/// The calls without an answer.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct OutstandingCalls {
    /// Every call, with the round in which it is due.
    calls: BTreeMap<CallId, (u64, OutstandingCall)>,
    /// The same calls in the order in which their answers take effect.
    order: BTreeSet<(u64, CallId)>,
    /// The round of the last call that was settled.
    round: u64,
}

impl OutstandingCalls {
    pub(crate) fn add(&mut self, id: CallId, call: OutstandingCall) {
        let due = self.round + call.rounds();
        self.order.insert((due, id));
        self.calls.insert(id, (due, call));
    }

    /// Removes a call that is settled. The clock moves to its round, and never back.
    pub(crate) fn settle(&mut self, id: CallId) -> Option<OutstandingCall> {
        let (due, call) = self.calls.remove(&id)?;
        self.order.remove(&(due, id));
        self.round = self.round.max(due);
        Some(call)
    }

    /// Returns the call whose answer takes effect next.
    pub fn next(&self) -> Option<CallId> {
        self.order.first().map(|(_, id)| *id)
    }

    pub fn get(&self, id: CallId) -> Option<&OutstandingCall> {
        self.calls.get(&id).map(|(_, call)| call)
    }

    pub fn contains(&self, id: CallId) -> bool {
        self.calls.contains_key(&id)
    }

    /// Returns the ids of the calls in the order in which their answers take effect.
    pub fn ids(&self) -> impl Iterator<Item = CallId> {
        self.order.iter().map(|(_, id)| *id)
    }

    /// Returns the rollouts in the order in which their answers take effect.
    pub fn rollouts(&self) -> impl Iterator<Item = (CallId, &Rollout)> {
        self.ids().filter_map(|id| match self.get(id)? {
            OutstandingCall::Rollout(rollout) => Some((id, rollout)),
            OutstandingCall::Proposal(_) => None,
        })
    }

    pub fn len(&self) -> usize {
        self.calls.len()
    }

    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }
}

#[cfg(test)]
#[path = "outstanding_tests.rs"]
mod tests;

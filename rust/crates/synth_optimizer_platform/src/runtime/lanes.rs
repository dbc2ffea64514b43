//! What waits and what is under way: admission by limits, the probe, and one call per cache key.

use std::collections::{BTreeMap, BTreeSet};

use tokio::task::AbortHandle;

use super::concurrency::Concurrency;
use synth_optimizer_core::config::gepa::GepaSection;
use synth_optimizer_core::model::event_fields::ConcurrencyAdjusted;
use synth_optimizer_core::model::event_meaning::CallKind;
use synth_optimizer_core::model::ids::RequestId;

/// A call under way.
#[derive(Debug)]
struct Flight {
    kind: CallKind,
    /// How many calls had been sent before it.
    number: u64,
    key: Option<String>,
    task: Option<AbortHandle>,
}

/// Which requests may begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hold {
    Free,
    /// Those that waited at the last step: requests are numbered in the order in which they are made.
    UpTo(Option<RequestId>),
}

impl Hold {
    fn admits(self, request: Option<&RequestId>) -> bool {
        match (self, request) {
            (_, None) => false,
            (Self::Free, Some(_)) => true,
            (Self::UpTo(last), Some(request)) => last.is_some_and(|last| *request <= last),
        }
    }
}

/// The lanes of a run.
#[derive(Debug)]
pub(super) struct Lanes {
    rollouts: BTreeSet<RequestId>,
    proposals: BTreeSet<RequestId>,
    flights: BTreeMap<RequestId, Flight>,
    rollouts_in_flight: usize,
    proposals_in_flight: usize,
    concurrency: Concurrency,
    most_proposals: usize,
    chunk: usize,
    sent: u64,
    /// Requests that wait for another one with the same cache key.
    parked: BTreeMap<String, Vec<RequestId>>,
    keys: BTreeMap<String, RequestId>,
    /// Whether a live rollout has come back and was what had been asked for.
    probed: bool,
    /// Which requests may begin.
    hold: Hold,
    /// Requests that may have reached somebody and have no answer: sent by an earlier process, or lost in this one.
    unanswered: BTreeSet<RequestId>,
}

impl Lanes {
    pub(super) fn new(gepa: &GepaSection, unanswered: BTreeSet<RequestId>) -> Self {
        Self {
            rollouts: BTreeSet::new(),
            proposals: BTreeSet::new(),
            flights: BTreeMap::new(),
            rollouts_in_flight: 0,
            proposals_in_flight: 0,
            concurrency: Concurrency::new(&gepa.pipeline),
            most_proposals: gepa.pipeline.workers.propose.max(1) as usize,
            chunk: gepa.rollout_chunk_size.map_or(usize::MAX, |size| size.max(1) as usize),
            sent: 0,
            parked: BTreeMap::new(),
            keys: BTreeMap::new(),
            probed: false,
            hold: Hold::Free,
            unanswered,
        }
    }

    /// Nothing will be called, so nothing has to be probed.
    pub(super) fn open(&mut self) {
        self.probed = true;
    }

    /// Nothing begins before a step.
    pub(super) fn hold(&mut self) {
        self.hold = Hold::UpTo(None);
    }

    /// Lets what waits now begin, if the run is held.
    pub(super) fn step(&mut self) {
        if let Hold::UpTo(last) = self.hold {
            let parked = self.parked.values().flatten().max();
            let newest = [self.rollouts.last(), self.proposals.last(), parked, last.as_ref()];
            self.hold = Hold::UpTo(newest.into_iter().flatten().max().copied());
        }
    }

    /// Whether nothing is under way and nothing that waits may begin.
    pub(super) fn is_settled(&self) -> bool {
        self.flights.is_empty() && !self.hold.admits(self.rollouts.first()) && !self.hold.admits(self.proposals.first())
    }

    /// Whether something waits for a step.
    pub(super) fn is_held_back(&self) -> bool {
        self.hold != Hold::Free && !(self.rollouts.is_empty() && self.proposals.is_empty())
    }

    /// The proposer turns under way.
    pub(super) fn turns(&self) -> Vec<RequestId> {
        let turns = self.flights.iter().filter(|(_, flight)| flight.kind == CallKind::Proposer);
        turns.map(|(request, _)| *request).collect()
    }

    /// Drops a call under way. Its answer, if it gives one, is not heard.
    pub(super) fn drop_call(&self, request: RequestId) {
        if let Some(task) = self.flights.get(&request).and_then(|flight| flight.task.as_ref()) {
            task.abort();
        }
    }

    pub(super) fn enqueue(&mut self, kind: CallKind, request: RequestId) {
        match kind {
            CallKind::Rollout => self.rollouts.insert(request),
            CallKind::Proposer => self.proposals.insert(request),
        };
    }

    /// The oldest proposal that may begin.
    pub(super) fn next_proposal(&mut self) -> Option<RequestId> {
        if self.proposals_in_flight >= self.most_proposals || !self.hold.admits(self.proposals.first()) {
            return None;
        }
        self.proposals.pop_first()
    }

    /// The oldest rollout that may begin, when `launched` have begun in this round.
    pub(super) fn next_rollout(&mut self, launched: usize) -> Option<RequestId> {
        // Nothing is paid for in bulk before one rollout has shown that the container does what it is asked.
        let limit = if self.probed { self.concurrency.limit() } else { 1 };
        if self.rollouts_in_flight >= limit || launched >= self.chunk || !self.hold.admits(self.rollouts.first()) {
            return None;
        }
        self.rollouts.pop_first()
    }

    /// Whether something waits and could begin now.
    pub(super) fn could_begin(&self) -> bool {
        let limit = if self.probed { self.concurrency.limit() } else { 1 };
        (self.hold.admits(self.proposals.first()) && self.proposals_in_flight < self.most_proposals)
            || (self.hold.admits(self.rollouts.first()) && self.rollouts_in_flight < limit)
    }

    /// Puts a request aside until the call with the same key is back, if there is one.
    pub(super) fn park(&mut self, key: &str, request: RequestId) -> bool {
        let under_way = self.keys.contains_key(key);
        if under_way {
            self.parked.entry(key.to_owned()).or_default().push(request);
        }
        under_way
    }

    pub(super) fn begin(&mut self, kind: CallKind, request: RequestId, key: Option<String>) {
        if let Some(key) = &key {
            self.keys.insert(key.clone(), request);
        }
        match kind {
            CallKind::Rollout => self.rollouts_in_flight += 1,
            CallKind::Proposer => self.proposals_in_flight += 1,
        }
        self.flights.insert(request, Flight { kind, number: self.sent, key, task: None });
        self.sent += 1;
    }

    pub(super) fn started(&mut self, request: RequestId, task: AbortHandle) {
        if let Some(flight) = self.flights.get_mut(&request) {
            flight.task = Some(task);
        }
    }

    /// A call was not sent after all.
    pub(super) fn take_back(&mut self, request: RequestId) {
        self.leave(request);
    }

    /// A call is gone: it was sent, and its answer cannot be used.
    pub(super) fn lose(&mut self, request: RequestId) {
        self.leave(request);
        self.unanswered.insert(request);
    }

    fn leave(&mut self, request: RequestId) -> Option<Flight> {
        let flight = self.flights.remove(&request)?;
        if let Some(key) = &flight.key {
            self.keys.remove(key);
            for waiting in self.parked.remove(key).unwrap_or_default() {
                self.enqueue(flight.kind, waiting);
            }
        }
        match flight.kind {
            CallKind::Proposer => self.proposals_in_flight -= 1,
            CallKind::Rollout => self.rollouts_in_flight -= 1,
        }
        Some(flight)
    }

    /// A call is back. `overload` is the status of an overload it met; `well` that it gave a score.
    pub(super) fn end(&mut self, request: RequestId, overload: Option<u16>, well: bool) -> Option<ConcurrencyAdjusted> {
        self.unanswered.remove(&request);
        let flight = self.leave(request)?;
        if flight.kind == CallKind::Proposer {
            return None;
        }
        self.probed |= well;
        match overload {
            Some(status) => self.concurrency.overloaded(status, flight.number, self.sent),
            None if well => self.concurrency.succeeded(),
            None => None,
        }
    }

    /// Whether the request may have reached somebody.
    pub(super) fn is_sent(&self, request: RequestId) -> bool {
        self.flights.contains_key(&request) || self.unanswered.contains(&request)
    }

    /// Whether an earlier process may have sent the request.
    pub(super) fn was_sent_before(&self, request: RequestId) -> bool {
        self.unanswered.contains(&request)
    }

    pub(super) fn is_idle(&self) -> bool {
        self.flights.is_empty()
    }

    /// Drops every call under way and names the rollouts among them.
    pub(super) fn abort(&mut self) -> Vec<RequestId> {
        let mut rollouts = Vec::new();
        for (request, flight) in &self.flights {
            if let Some(task) = &flight.task {
                task.abort();
            }
            if flight.kind == CallKind::Rollout {
                rollouts.push(*request);
            }
        }
        rollouts
    }
}

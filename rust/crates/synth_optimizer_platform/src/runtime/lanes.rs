//! What waits and what is under way: admission by limits, the probe, and one call per cache key.

use std::collections::{BTreeMap, BTreeSet};

use tokio::task::AbortHandle;
use tracing::{debug, warn};

use synth_optimizer_core::config::gepa::{AdaptiveConcurrency, GepaSection, Pipeline};
use synth_optimizer_core::model::event_fields::ConcurrencyAdjusted;
use synth_optimizer_core::model::event_meaning::CallKind;
use synth_optimizer_core::model::ids::RequestId;

/// A call under way.
#[derive(Debug)]
pub(super) struct Flight {
    kind: CallKind,
    /// How many calls had been sent before it.
    number: u64,
    key: Option<String>,
    task: Option<AbortHandle>,
}

/// The calls of one kind.
#[derive(Debug, Default)]
struct Lane {
    waiting: BTreeSet<RequestId>,
    in_flight: usize,
}

/// The lanes of a run.
#[derive(Debug)]
pub(super) struct Lanes {
    rollouts: Lane,
    proposals: Lane,
    flights: BTreeMap<RequestId, Flight>,
    concurrency: Concurrency,
    most_proposals: usize,
    chunk: usize,
    sent: u64,
    /// The cache keys of calls under way, and the requests that wait for the one with their key.
    parked: BTreeMap<String, Vec<RequestId>>,
    /// Whether a live rollout has come back and was what had been asked for.
    probed: bool,
    /// Whether only what a step has released may begin.
    pub(super) is_held: bool,
    /// In a held run, the number below which requests may begin: they are numbered in the order in which they are made.
    released: u64,
    /// Requests that may have reached somebody and have no answer: sent by an earlier process, or lost in this one.
    unanswered: BTreeSet<RequestId>,
}

impl Lanes {
    /// `is_live` tells that the container is called, and that one rollout has to show first that it does what it is asked.
    pub(super) fn new(gepa: &GepaSection, unanswered: BTreeSet<RequestId>, is_live: bool, is_held: bool) -> Self {
        Self {
            rollouts: Lane::default(),
            proposals: Lane::default(),
            flights: BTreeMap::new(),
            concurrency: Concurrency::new(&gepa.pipeline),
            most_proposals: gepa.pipeline.workers.propose.max(1) as usize,
            chunk: gepa.rollout_chunk_size.map_or(usize::MAX, |size| size.max(1) as usize),
            sent: 0,
            parked: BTreeMap::new(),
            probed: !is_live,
            is_held,
            released: 0,
            unanswered,
        }
    }

    fn lane(&mut self, kind: CallKind) -> &mut Lane {
        match kind {
            CallKind::Rollout => &mut self.rollouts,
            CallKind::Proposer => &mut self.proposals,
        }
    }

    /// Lets what waits now begin, if the run is held.
    pub(super) fn step(&mut self) {
        let parked = self.parked.values().flatten().max();
        let newest = [self.rollouts.waiting.last(), self.proposals.waiting.last(), parked].into_iter().flatten().max();
        self.released = newest.map_or(0, |newest| newest.0 + 1).max(self.released);
    }

    /// Whether nothing is under way and nothing that waits may begin.
    pub(super) fn is_settled(&self) -> bool {
        self.is_idle() && !self.could_begin()
    }

    /// Whether something waits for a step.
    pub(super) fn is_held_back(&self) -> bool {
        self.is_held && !(self.rollouts.waiting.is_empty() && self.proposals.waiting.is_empty())
    }

    /// The calls of a kind under way.
    pub(super) fn in_flight(&self, kind: CallKind) -> Vec<RequestId> {
        self.flights.iter().filter(|(_, flight)| flight.kind == kind).map(|(request, _)| *request).collect()
    }

    pub(super) fn enqueue(&mut self, kind: CallKind, request: RequestId) {
        self.lane(kind).waiting.insert(request);
    }

    /// The oldest request of a kind, if it may begin now.
    fn first(&self, kind: CallKind) -> Option<RequestId> {
        let (lane, limit) = match kind {
            CallKind::Proposer => (&self.proposals, self.most_proposals),
            CallKind::Rollout if self.probed => (&self.rollouts, self.concurrency.limit()),
            // Nothing is paid for in bulk before one rollout has shown that the container does what it is asked.
            CallKind::Rollout => (&self.rollouts, 1),
        };
        let is_released = |request: &RequestId| !self.is_held || request.0 < self.released;
        lane.waiting.first().copied().filter(is_released).filter(|_| lane.in_flight < limit)
    }

    /// The oldest proposal that may begin.
    pub(super) fn next_proposal(&mut self) -> Option<RequestId> {
        self.first(CallKind::Proposer).and_then(|_| self.proposals.waiting.pop_first())
    }

    /// The oldest rollout that may begin, when `launched` have begun in this round.
    pub(super) fn next_rollout(&mut self, launched: usize) -> Option<RequestId> {
        let first = self.first(CallKind::Rollout).filter(|_| launched < self.chunk);
        first.and_then(|_| self.rollouts.waiting.pop_first())
    }

    /// Whether something waits and could begin now.
    pub(super) fn could_begin(&self) -> bool {
        self.first(CallKind::Proposer).or(self.first(CallKind::Rollout)).is_some()
    }

    /// Puts a request aside until the call with the same key is back, if there is one.
    pub(super) fn park(&mut self, key: &str, request: RequestId) -> bool {
        let parked = self.parked.get_mut(key);
        parked.map(|parked| parked.push(request)).is_some()
    }

    pub(super) fn begin(&mut self, kind: CallKind, request: RequestId, key: Option<String>) {
        if let Some(key) = &key {
            self.parked.insert(key.clone(), Vec::new());
        }
        self.lane(kind).in_flight += 1;
        self.flights.insert(request, Flight { kind, number: self.sent, key, task: None });
        self.sent += 1;
    }

    pub(super) fn started(&mut self, request: RequestId, task: AbortHandle) {
        if let Some(flight) = self.flights.get_mut(&request) {
            flight.task = Some(task);
        }
    }

    /// A call is not under way any more: it is back, or was not sent after all.
    pub(super) fn leave(&mut self, request: RequestId) -> Option<Flight> {
        let flight = self.flights.remove(&request)?;
        let waiting = flight.key.as_ref().and_then(|key| self.parked.remove(key)).unwrap_or_default();
        let lane = self.lane(flight.kind);
        lane.waiting.extend(waiting);
        lane.in_flight -= 1;
        Some(flight)
    }

    /// A call is gone: it was sent, and its answer cannot be used.
    pub(super) fn lose(&mut self, request: RequestId) {
        self.leave(request);
        self.unanswered.insert(request);
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

    /// Drops a call under way. Its answer, if it gives one, is not heard.
    pub(super) fn drop_call(&self, request: RequestId) {
        if let Some(task) = self.flights.get(&request).and_then(|flight| flight.task.as_ref()) {
            task.abort();
        }
    }

    /// Drops every call under way and names the rollouts among them.
    pub(super) fn abort(&self) -> Vec<RequestId> {
        self.flights.keys().for_each(|request| self.drop_call(*request));
        self.in_flight(CallKind::Rollout)
    }
}

/// The limit on rollouts at once: up by steps while all goes well, halved when the container is overloaded. It never passes
/// `workers.rollout`.
#[derive(Debug)]
struct Concurrency {
    rules: AdaptiveConcurrency,
    most: u32,
    limit: u32,
    successes: u32,
    /// Calls that were sent before the last decrease tell about the load before it.
    decreased_at: u64,
}

impl Concurrency {
    fn new(pipeline: &Pipeline) -> Self {
        let rules = pipeline.adaptive_rollout_concurrency.clone();
        let workers = pipeline.workers.rollout.max(1);
        let (most, limit) = if rules.enabled {
            let most = workers.min(rules.max).max(1);
            (most, rules.initial.clamp(1, most))
        } else {
            (workers, workers)
        };
        Self { rules, most, limit, successes: 0, decreased_at: 0 }
    }

    fn limit(&self) -> usize {
        self.limit as usize
    }

    /// A call came back well.
    fn succeeded(&mut self) -> Option<ConcurrencyAdjusted> {
        if !self.rules.enabled || self.limit >= self.most {
            return None;
        }
        self.successes += 1;
        if self.successes < self.rules.increase_after_successes {
            return None;
        }
        self.set((self.limit + self.rules.increase_step).min(self.most), None)
    }

    /// A call met an overload. `sent` and `now` count calls in the order in which they were sent.
    fn overloaded(&mut self, status: u16, sent: u64, now: u64) -> Option<ConcurrencyAdjusted> {
        if !self.rules.enabled || sent < self.decreased_at {
            return None;
        }
        self.decreased_at = now;
        let lower = (self.limit / 2).min(self.limit.saturating_sub(self.rules.decrease_step));
        self.set(lower.max(self.rules.min.min(self.most)).max(1), Some(status))
    }

    fn set(&mut self, limit: u32, status: Option<u16>) -> Option<ConcurrencyAdjusted> {
        self.successes = 0;
        let old_limit = std::mem::replace(&mut self.limit, limit);
        match status {
            Some(status) if old_limit != limit => {
                warn!(status, old_limit, new_limit = limit, "the container is overloaded: fewer rollouts at once");
            }
            _ => debug!(old_limit, new_limit = limit, "rollouts at once"),
        }
        (old_limit != limit).then_some(ConcurrencyAdjusted { old_limit, new_limit: limit, status })
    }
}

#[cfg(test)]
#[path = "lanes_tests.rs"]
mod tests;

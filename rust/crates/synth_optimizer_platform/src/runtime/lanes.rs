//! Waiting calls and calls in flight: concurrency limits, the first rollout as a probe, and one call per cache key.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::task::AbortHandle;
use tokio::time::Instant;
use tracing::{debug, warn};

use crate::clock::unix_millis;
use crate::container::Sending;
use crate::outage::Outage;
use synth_optimizer_core::config::Config;
use synth_optimizer_core::config::gepa::{AdaptiveConcurrency, Pipeline};
use synth_optimizer_core::model::event_effects::CallKind;
use synth_optimizer_core::model::event_fields::ConcurrencyAdjusted;
use synth_optimizer_core::model::ids::CallId;

/// A call that was sent and has no answer yet.
#[derive(Debug)]
pub(super) struct InFlightCall {
    kind: CallKind,
    /// How many calls this process sent before it.
    number: u64,
    key: Option<String>,
    task: Option<AbortHandle>,
}

/// The waiting calls of one kind, and the number in flight.
#[derive(Debug, Default)]
struct Lane {
    waiting: BTreeSet<CallId>,
    in_flight: usize,
    /// Set while the receiver of the calls is unavailable. Then one call at a time is sent, after a pause.
    outage: Option<LaneOutage>,
}

/// An outage in progress.
#[derive(Debug, Clone)]
pub(super) struct LaneOutage {
    pub(super) outage: Outage,
    pub(super) since: Instant,
    /// Milliseconds since 1970.
    pub(super) since_millis: u64,
    pub(super) tries: u32,
    pub(super) next_try: Instant,
}

/// The lanes of a run: one for rollouts, one for proposals.
#[derive(Debug)]
pub(super) struct Lanes {
    rollouts: Lane,
    proposals: Lane,
    in_flight_calls: BTreeMap<CallId, InFlightCall>,
    concurrency: Concurrency,
    max_proposals: usize,
    max_rollouts_per_round: usize,
    sent: u64,
    /// The cache keys of calls in flight, each with the calls that wait for its answer because they have the same key.
    parked: BTreeMap<String, Vec<CallId>>,
    /// Whether a live rollout has completed, and its reply was for the requested row.
    probe_succeeded: bool,
    /// Whether the run is stepped manually: only calls that a step released may start.
    pub(super) is_stepped: bool,
    /// In a manually stepped run, calls with a number below this one may start. Calls are numbered in the order in which
    /// the engine requests them.
    released_below: u64,
    /// Calls that were sent and have no answer: sent by an earlier process, or lost in this one.
    unanswered: BTreeMap<CallId, Sending>,
    /// How often the outcome of a call became unknown in this process.
    losses: BTreeMap<CallId, u32>,
    /// The first and the longest pause between two tries during an outage.
    outage_pause: (Duration, Duration),
}

impl Lanes {
    /// Creates empty lanes. `is_live` means that the container is called, so that one rollout has to succeed as a probe.
    pub(super) fn new(config: &Config, unanswered: BTreeMap<CallId, Sending>, is_live: bool, is_stepped: bool) -> Self {
        let (gepa, run) = (&config.gepa, &config.run);
        Self {
            rollouts: Lane::default(),
            proposals: Lane::default(),
            in_flight_calls: BTreeMap::new(),
            concurrency: Concurrency::new(&gepa.pipeline),
            max_proposals: gepa.proposer_turns() as usize,
            max_rollouts_per_round: gepa.rollout_chunk_size.map_or(usize::MAX, |size| size.max(1) as usize),
            sent: 0,
            parked: BTreeMap::new(),
            probe_succeeded: !is_live,
            is_stepped,
            released_below: 0,
            unanswered,
            losses: BTreeMap::new(),
            outage_pause: (
                Duration::from_millis(run.outage_retry_ms),
                Duration::from_secs(run.outage_retry_max_seconds),
            ),
        }
    }

    fn lane(&mut self, kind: CallKind) -> &mut Lane {
        match kind {
            CallKind::Rollout => &mut self.rollouts,
            CallKind::Proposer => &mut self.proposals,
        }
    }

    /// Releases the calls that wait now, for a manually stepped run.
    pub(super) fn release_step(&mut self) {
        let parked = self.parked.values().flatten().max();
        let newest = [self.rollouts.waiting.last(), self.proposals.waiting.last(), parked].into_iter().flatten().max();
        self.released_below = newest.map_or(0, |newest| newest.0 + 1).max(self.released_below);
    }

    /// Returns whether no call is in flight and no waiting call may start, now or after an outage.
    pub(super) fn is_settled(&self) -> bool {
        self.is_idle() && !self.has_ready_call() && self.next_try().is_none()
    }

    /// Returns whether calls wait for a step.
    pub(super) fn has_calls_awaiting_step(&self) -> bool {
        self.is_stepped && !(self.rollouts.waiting.is_empty() && self.proposals.waiting.is_empty())
    }

    /// Returns the calls of one kind that are in flight.
    pub(super) fn in_flight(&self, kind: CallKind) -> Vec<CallId> {
        self.in_flight_calls.iter().filter(|(_, flight)| flight.kind == kind).map(|(call_id, _)| *call_id).collect()
    }

    pub(super) fn enqueue(&mut self, kind: CallKind, call_id: CallId) {
        self.lane(kind).waiting.insert(call_id);
    }

    /// Returns the oldest waiting call of a kind, if it may start now.
    fn first_ready(&self, kind: CallKind) -> Option<CallId> {
        let (lane, limit) = match kind {
            CallKind::Proposer => (&self.proposals, self.max_proposals),
            CallKind::Rollout if self.probe_succeeded => (&self.rollouts, self.concurrency.limit()),
            // Until one rollout has shown that the container runs the requested row, only one is sent at a time.
            CallKind::Rollout => (&self.rollouts, 1),
        };
        let limit = match &lane.outage {
            Some(outage) if Instant::now() < outage.next_try => 0,
            Some(_) => 1,
            None => limit,
        };
        self.first_released(lane).filter(|_| lane.in_flight < limit)
    }

    fn first_released(&self, lane: &Lane) -> Option<CallId> {
        let is_released = |call_id: &CallId| !self.is_stepped || call_id.0 < self.released_below;
        lane.waiting.first().copied().filter(is_released)
    }

    /// Returns when the next call is tried, if calls wait for the end of an outage.
    pub(super) fn next_try(&self) -> Option<Instant> {
        let lanes = [&self.rollouts, &self.proposals].into_iter().filter(|lane| self.first_released(lane).is_some());
        lanes.filter_map(|lane| lane.outage.as_ref()).map(|outage| outage.next_try).min()
    }

    /// Returns an outage that began at least `patience` ago, has no try in flight, and keeps a wanted call waiting.
    pub(super) fn exhausted_outage(
        &self,
        patience: Duration,
        is_wanted: impl Fn(CallId) -> bool,
    ) -> Option<(CallKind, &LaneOutage)> {
        let lanes = [(CallKind::Rollout, &self.rollouts), (CallKind::Proposer, &self.proposals)];
        let blocks = |lane: &Lane| lane.in_flight == 0 && lane.waiting.iter().any(|call_id| is_wanted(*call_id));
        let mut outages = lanes.into_iter().filter(|(_, lane)| blocks(lane));
        outages.find_map(|(kind, lane)| {
            lane.outage.as_ref().filter(|outage| outage.since.elapsed() >= patience).map(|outage| (kind, outage))
        })
    }

    /// Returns a call to its lane, because its receiver is unavailable. Returns the outage if this call began it or was a
    /// try during it.
    pub(super) fn defer(
        &mut self,
        call_id: CallId,
        kind: CallKind,
        outage: Outage,
        patience: Duration,
    ) -> Option<&LaneOutage> {
        self.remove(call_id);
        let (first, longest) = self.outage_pause;
        let lane = self.lane(kind);
        lane.waiting.insert(call_id);
        let now = Instant::now();
        let known = lane.outage.take();
        if let Some(known) = known.as_ref().filter(|known| now < known.next_try) {
            // It was sent before the outage was noticed.
            lane.outage = Some(known.clone());
            return None;
        }
        let tries = known.as_ref().map_or(0, |known| known.tries) + 1;
        let pause = first.saturating_mul(1 << (tries - 1).min(16)).min(longest);
        let pause = pause.max(outage.retry_after.unwrap_or_default());
        let (since, since_millis) =
            known.map_or_else(|| (now, unix_millis()), |known| (known.since, known.since_millis));
        // The last try is at the end of the patience.
        let next_try = (now + pause).min((since + patience).max(now));
        Some(lane.outage.insert(LaneOutage { outage, since, since_millis, tries, next_try }))
    }

    /// Records an overload that a call met before it was deferred.
    pub(super) fn note_overload(&mut self, call_id: CallId, status: u16) -> Option<ConcurrencyAdjusted> {
        let number = self.in_flight_calls.get(&call_id)?.number;
        self.concurrency.overloaded(status, number, self.sent)
    }

    pub(super) fn has_outage(&self, kind: CallKind) -> bool {
        match kind {
            CallKind::Rollout => self.rollouts.outage.is_some(),
            CallKind::Proposer => self.proposals.outage.is_some(),
        }
    }

    /// Ends the outage of a lane, because its receiver answered. Returns how long it lasted, in milliseconds.
    pub(super) fn end_outage(&mut self, kind: CallKind) -> Option<u64> {
        self.lane(kind).outage.take().map(|outage| outage.since.elapsed().as_millis() as u64)
    }

    /// Enqueues a call whose outcome is unknown and charged: it is sent again.
    pub(super) fn send_again(&mut self, call_id: CallId, kind: CallKind) {
        self.remove(call_id);
        self.unanswered.insert(call_id, Sending::Again);
        self.lane(kind).waiting.insert(call_id);
    }

    /// Counts that the outcome of a call became unknown, and returns how often it did in this process.
    pub(super) fn count_loss(&mut self, call_id: CallId) -> u32 {
        let losses = self.losses.entry(call_id).or_default();
        *losses += 1;
        *losses
    }

    /// Takes the oldest proposal that may start.
    pub(super) fn next_proposal(&mut self) -> Option<CallId> {
        self.first_ready(CallKind::Proposer).and_then(|_| self.proposals.waiting.pop_first())
    }

    /// Takes the oldest rollout that may start. `launched` is the number of rollouts that started in this round.
    pub(super) fn next_rollout(&mut self, launched: usize) -> Option<CallId> {
        let first = self.first_ready(CallKind::Rollout).filter(|_| launched < self.max_rollouts_per_round);
        first.and_then(|_| self.rollouts.waiting.pop_first())
    }

    /// Returns whether a waiting call may start now.
    pub(super) fn has_ready_call(&self) -> bool {
        self.first_ready(CallKind::Proposer).or(self.first_ready(CallKind::Rollout)).is_some()
    }

    /// Parks a call if another call with the same cache key is in flight, until that one completes. Returns whether it did.
    pub(super) fn park(&mut self, key: &str, call_id: CallId) -> bool {
        let parked = self.parked.get_mut(key);
        parked.map(|parked| parked.push(call_id)).is_some()
    }

    pub(super) fn begin(&mut self, kind: CallKind, call_id: CallId, key: Option<String>) {
        if let Some(key) = &key {
            self.parked.insert(key.clone(), Vec::new());
        }
        self.lane(kind).in_flight += 1;
        self.in_flight_calls.insert(call_id, InFlightCall { kind, number: self.sent, key, task: None });
        self.sent += 1;
    }

    pub(super) fn set_task(&mut self, call_id: CallId, task: AbortHandle) {
        if let Some(flight) = self.in_flight_calls.get_mut(&call_id) {
            flight.task = Some(task);
        }
    }

    /// Removes a call from those in flight, because it completed or was not sent, and enqueues the calls parked behind it.
    pub(super) fn remove(&mut self, call_id: CallId) -> Option<InFlightCall> {
        let flight = self.in_flight_calls.remove(&call_id)?;
        let waiting = flight.key.as_ref().and_then(|key| self.parked.remove(key)).unwrap_or_default();
        let lane = self.lane(flight.kind);
        lane.waiting.extend(waiting);
        lane.in_flight -= 1;
        Some(flight)
    }

    /// Removes a call that was sent and whose outcome is unknown.
    pub(super) fn mark_lost(&mut self, call_id: CallId) {
        self.remove(call_id);
        self.mark_sent(call_id);
    }

    /// Records that a call was sent and has no answer.
    pub(super) fn mark_sent(&mut self, call_id: CallId) {
        self.unanswered.insert(call_id, Sending::AskFirst { sent_at: unix_millis() });
    }

    /// Removes a completed call and adjusts the concurrency limit. `overload` is the HTTP status of an overload that the
    /// call met; `succeeded` means that it returned a score.
    pub(super) fn complete(
        &mut self,
        call_id: CallId,
        overload: Option<u16>,
        succeeded: bool,
    ) -> Option<ConcurrencyAdjusted> {
        self.unanswered.remove(&call_id);
        self.losses.remove(&call_id);
        let flight = self.remove(call_id)?;
        if flight.kind == CallKind::Proposer {
            return None;
        }
        self.probe_succeeded |= succeeded;
        match overload {
            Some(status) => self.concurrency.overloaded(status, flight.number, self.sent),
            None if succeeded => self.concurrency.succeeded(),
            None => None,
        }
    }

    /// Returns whether the call may have been sent, by this process or an earlier one. A copy that is charged as a call of
    /// unknown outcome does not count.
    pub(super) fn may_have_been_sent(&self, call_id: CallId) -> bool {
        let is_unanswered = matches!(self.unanswered.get(&call_id), Some(Sending::AskFirst { .. }));
        self.in_flight_calls.contains_key(&call_id) || is_unanswered
    }

    /// Returns how to send a call: whether it was sent before.
    pub(super) fn sending(&self, call_id: CallId) -> Sending {
        self.unanswered.get(&call_id).copied().unwrap_or(Sending::First)
    }

    pub(super) fn is_idle(&self) -> bool {
        self.in_flight_calls.is_empty()
    }

    /// Aborts a call in flight and ignores its answer.
    pub(super) fn abort_call(&self, call_id: CallId) {
        if let Some(task) = self.in_flight_calls.get(&call_id).and_then(|flight| flight.task.as_ref()) {
            task.abort();
        }
    }

    /// Aborts every call in flight and returns the rollouts among them.
    pub(super) fn abort_all(&self) -> Vec<CallId> {
        self.in_flight_calls.keys().for_each(|call_id| self.abort_call(*call_id));
        self.in_flight(CallKind::Rollout)
    }
}

/// The limit on concurrent rollouts. It grows by steps while calls succeed, and is halved when the container is
/// overloaded. It never exceeds `workers.rollout`.
#[derive(Debug)]
struct Concurrency {
    rules: AdaptiveConcurrency,
    most: u32,
    limit: u32,
    successes: u32,
    /// How many calls were sent at the last decrease. An overload of an earlier call does not cause another decrease.
    decreased_at: u64,
}

impl Concurrency {
    fn new(pipeline: &Pipeline) -> Self {
        let rules = pipeline.adaptive_rollout_concurrency.clone();
        let most = pipeline.concurrent_rollouts();
        let limit = if rules.enabled { rules.initial.clamp(1, most) } else { most };
        Self { rules, most, limit, successes: 0, decreased_at: 0 }
    }

    fn limit(&self) -> usize {
        self.limit as usize
    }

    /// Records a successful call.
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

    /// Records a call that met an overload. `sent` is the call's number in the order of sending; `now` counts all calls
    /// sent so far.
    fn overloaded(&mut self, status: u16, sent: u64, now: u64) -> Option<ConcurrencyAdjusted> {
        if !self.rules.enabled || sent < self.decreased_at {
            return None;
        }
        self.decreased_at = now;
        let lower = self.limit / 2;
        self.set(lower.max(self.rules.min.min(self.most)).max(1), Some(status))
    }

    fn set(&mut self, limit: u32, status: Option<u16>) -> Option<ConcurrencyAdjusted> {
        self.successes = 0;
        let old_limit = std::mem::replace(&mut self.limit, limit);
        match status {
            Some(status) if old_limit != limit => {
                warn!(status, old_limit, new_limit = limit, "the container is overloaded; fewer concurrent rollouts");
            }
            _ => debug!(old_limit, new_limit = limit, "concurrent rollouts adjusted"),
        }
        let workers = self.most;
        (old_limit != limit).then_some(ConcurrencyAdjusted { old_limit, new_limit: limit, workers, status })
    }
}

#[cfg(test)]
#[path = "lanes_tests.rs"]
mod tests;

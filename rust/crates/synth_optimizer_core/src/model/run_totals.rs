//! The totals of a run: the fold of its events into state, counts, usage, best candidate and times.
//!
//! The engine, the tables, the manifest, the status, the metrics and every view use these numbers. The fold depends only
//! on its own value and the next event, so it can be stored and continued.

use serde::{Deserialize, Serialize};

use super::candidate_view::affected_candidates;
use super::event::Event;
use super::event_effects::CallKind;
use super::event_fields::{
    ConcurrencyAdjusted, EstimateShortfall, RolloutCount, RunCancelled, RunFailed, RunFinished, RunWaiting, Stage,
    StoppedBy,
};
use super::ids::CandidateId;
use super::lifecycle::{Lifecycle, RunState};
use super::usage::{Billing, Cost, RunUsage, Spend, Usage};

/// Rollouts that count against the limits, by purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct RolloutPurposes {
    /// The initial candidate on train rows.
    pub initial: u64,
    /// A candidate again on the same row, to learn whether scores are noisy.
    pub repeat: u64,
    /// A parent on the rows of a generation on which it has no score.
    pub reference: u64,
    /// A proposal on the minibatch.
    pub screening: u64,
    /// A screened candidate on a few other rows, after a sprint that was clearly worse.
    pub glance: u64,
    /// The head of a sprint and the last confirmed candidate on the same rows.
    pub check: u64,
    /// A promoted candidate on all train rows.
    pub full_evaluation: u64,
    /// The result on held-out rows.
    pub heldout: u64,
}

impl RolloutPurposes {
    /// Counts one event.
    pub fn count(&mut self, event: &Event) {
        let Some(stage) = counted_stage(event) else { return };
        let count = match stage {
            Stage::SeedFullTrain => &mut self.initial,
            Stage::Repeat => &mut self.repeat,
            Stage::ParentMinibatchReference => &mut self.reference,
            Stage::CandidateMinibatch => &mut self.screening,
            Stage::Glance => &mut self.glance,
            Stage::Check => &mut self.check,
            Stage::CandidateFullTrain => &mut self.full_evaluation,
            Stage::Heldout => &mut self.heldout,
        };
        *count += 1;
    }
}

/// Returns the stage of a rollout that the event counts against the limits.
fn counted_stage(event: &Event) -> Option<Stage> {
    match event {
        Event::RolloutFinished(rollout) => Some(rollout.stage),
        Event::RolloutFailed(rollout) => rollout.class.was_sent().then_some(rollout.stage),
        Event::OutcomeUnknown(lost) => lost.stage,
        _ => None,
    }
}

/// What a run has spent on its search at a moment. A cached call counts like a sent one, so equal runs have equal values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Effort {
    /// Rollouts on train rows that count against the limits.
    pub rollouts: u64,
    /// The cost of rollouts and proposer turns.
    pub cost: Cost,
}

/// Counts of events. The counts of several runs can be added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RunCounts {
    pub candidates: u64,
    /// Accepted and rejected candidates, without the initial candidate.
    pub accepted: u64,
    pub rejected: u64,
    /// Candidates that could not be decided.
    pub deferred: u64,
    pub proposals_refused: u64,
    pub proposals_duplicate: u64,
    /// Fully evaluated candidates that were compared with the frontier.
    pub frontier_candidates: u64,
    /// Completed generations.
    pub generations: u64,
    pub rollouts_requested: u64,
    pub rollouts_finished: u64,
    /// Sent rollouts without a score, including those that were retried.
    pub rollouts_failed: u64,
    /// Requested rollouts that were not sent.
    pub rollouts_unsent: u64,
    /// Rollouts that count against the limits: sent or cached ones.
    pub train_rollouts: u64,
    pub heldout_rollouts: u64,
    /// Requested proposer turns.
    pub proposer_turns: u64,
    /// Sent proposer turns without an answer.
    pub turns_failed: u64,
    /// Reported usage that counts against limits. A cached call counts like a sent one. Where a call reports nothing, the
    /// engine's budget counts the estimate instead.
    pub limited: Spend,
    /// Usage of rollouts.
    pub rollouts: Spend,
    /// Usage of the proposer.
    pub proposer: Spend,
}

impl RunCounts {
    /// Counts one event.
    pub fn count(&mut self, event: &Event) {
        match event {
            Event::CandidateRegistered(_) => self.candidates += 1,
            Event::CandidateAccepted(decision) => self.accepted += u64::from(decision.stage != Stage::SeedFullTrain),
            Event::CandidateRejected(_) => self.rejected += 1,
            Event::CandidateDeferred(_) => self.deferred += 1,
            Event::ProposalRejected(_) => self.proposals_refused += 1,
            Event::DuplicateSkipped(_) => self.proposals_duplicate += 1,
            Event::FrontierUpdated(_) => self.frontier_candidates += 1,
            Event::GenerationCompleted(_) => self.generations += 1,
            Event::RolloutsRequested(batch) => self.rollouts_requested += batch.row_ids.len() as u64,
            Event::RolloutFinished(_) => self.rollouts_finished += 1,
            Event::RolloutFailed(rollout) if rollout.class.was_sent() => self.rollouts_failed += 1,
            Event::RolloutFailed(_) => self.rollouts_unsent += 1,
            Event::OutcomeUnknown(lost) => self.count_call(lost.kind, Billing::Unknown, &Usage::default()),
            Event::ProposerStarted(_) => self.proposer_turns += 1,
            Event::ProposerFailed(turn) => self.turns_failed += u64::from(turn.class.was_sent()),
            _ => {}
        }
        if let Some(stage) = counted_stage(event) {
            self.count_rollout(stage);
        }
        if let Some(call) = event.settled_call() {
            self.count_call(call.kind, call.billing, call.usage);
        }
    }

    fn count_call(&mut self, kind: CallKind, billing: Billing, usage: &Usage) {
        match kind {
            CallKind::Rollout => self.rollouts.count(billing, usage),
            CallKind::Proposer => self.proposer.count(billing, usage),
        }
        let limited = if billing == Billing::Cached { Billing::Sent } else { billing };
        self.limited.count(limited, usage);
    }

    fn count_rollout(&mut self, stage: Stage) {
        let count = if stage == Stage::Heldout { &mut self.heldout_rollouts } else { &mut self.train_rollouts };
        *count += 1;
    }

    /// Returns the number of requested rollouts without an answer in the log.
    pub fn rollouts_outstanding(&self) -> u64 {
        self.rollouts_requested
            .saturating_sub(self.rollouts_finished)
            .saturating_sub(self.rollouts_failed)
            .saturating_sub(self.rollouts_unsent)
    }

    /// Returns the rollouts that count against the limits.
    pub fn rollout_count(&self) -> RolloutCount {
        RolloutCount {
            train: self.train_rollouts,
            heldout: self.heldout_rollouts,
            unknown_outcomes: self.rollouts.unknown_outcomes,
        }
    }

    /// Returns what the search has spent.
    pub fn effort(&self) -> Effort {
        Effort { rollouts: self.train_rollouts, cost: self.limited.cost() }
    }

    /// Returns the usage of rollouts and proposer together.
    pub fn spend(&self) -> Spend {
        self.rollouts + self.proposer
    }

    /// Returns the usage as documents show it.
    pub fn usage(&self) -> RunUsage {
        RunUsage::new(self.rollouts, self.proposer)
    }
}

/// The best candidate, and the last event that changed which one it is or what is shown of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct BestMark {
    /// Sequence number of that event.
    pub sequence: u64,
    /// The candidate.
    #[schemars(with = "String")]
    pub candidate_id: CandidateId,
}

/// The state, counts, usage and times of a run.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct RunTotals {
    pub state: RunState,
    pub last_sequence: Option<u64>,
    /// Milliseconds since 1970.
    pub started_at: Option<u64>,
    pub updated_at: Option<u64>,
    pub finished_at: Option<u64>,
    /// Time in which no process was working on the run.
    pub idle_millis: u64,
    /// Whether the last process stopped working on the run before its end.
    pub is_interrupted: bool,
    /// Measured running time if there is a time limit, and the time of that measurement.
    pub clock: Option<(u64, u64)>,
    pub seed_candidate_id: Option<CandidateId>,
    pub best: Option<BestMark>,
    /// Number of candidates on the frontier, and the last event that changed it.
    pub frontier_size: u32,
    pub frontier_sequence: Option<u64>,
    /// The generation that was started last.
    pub generation: Option<u32>,
    pub stopped_by: Option<StoppedBy>,
    /// What the run waits for, because it is unavailable.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waiting: Vec<RunWaiting>,
    /// The last change of the number of concurrent rollouts. `None` as long as all workers are used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<ConcurrencyAdjusted>,
    /// Limits that an ended run exceeded, because calls used more than their estimates.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shortfalls: Vec<EstimateShortfall>,
    #[serde(flatten)]
    pub counts: RunCounts,
}

impl RunTotals {
    /// Applies the next event.
    pub fn apply(&mut self, sequence: u64, unix_millis: u64, event: &Event) {
        let idle = unix_millis.saturating_sub(self.updated_at.unwrap_or(unix_millis));
        self.last_sequence = Some(sequence);
        self.started_at.get_or_insert(unix_millis);
        self.updated_at = Some(unix_millis);
        self.counts.count(event);
        match event {
            Event::StateTransitioned(change) => {
                self.state = change.to;
                self.finished_at = change.to.is_final().then_some(unix_millis);
                if change.to.is_final() {
                    self.waiting.clear();
                    self.concurrency = None;
                }
            }
            Event::CandidateRegistered(candidate) if self.seed_candidate_id.is_none() => {
                self.seed_candidate_id = Some(candidate.candidate_id.clone());
            }
            Event::FrontierUpdated(update) => {
                (self.frontier_size, self.frontier_sequence) = (update.size, Some(sequence));
            }
            Event::GenerationStarted(generation) => self.generation = Some(generation.generation),
            Event::StopDecided(stop) => self.stopped_by = Some(stop.stopped_by.clone()),
            Event::ClockObserved(clock) => self.clock = Some((clock.elapsed_millis, unix_millis)),
            Event::RunWaiting(waiting) => {
                self.waiting.retain(|known| known.waiting_for != waiting.waiting_for);
                self.waiting.push(waiting.clone());
            }
            Event::WaitingEnded(ended) => self.waiting.retain(|known| known.waiting_for != ended.waiting_for),
            Event::ConcurrencyAdjusted(change) => {
                self.concurrency = Some(change.clone()).filter(|change| change.new_limit < change.workers);
            }
            Event::RunFinished(RunFinished { bill, .. })
            | Event::RunFailed(RunFailed { bill, .. })
            | Event::RunCancelled(RunCancelled { bill, .. }) => self.shortfalls.clone_from(&bill.shortfalls),
            Event::RunInterrupted(_) => self.is_interrupted = true,
            Event::RunResumed(_) => {
                self.idle_millis += idle;
                self.is_interrupted = false;
                self.waiting.clear();
                self.concurrency = None;
            }
            _ => {}
        }
        self.mark_best(sequence, event);
    }

    fn mark_best(&mut self, sequence: u64, event: &Event) {
        if let Some(named) = event.best_candidate()
            && self.best.as_ref().is_none_or(|best| best.candidate_id != *named)
        {
            self.best = Some(BestMark { sequence, candidate_id: named.clone() });
            return;
        }
        let Some(best) = &mut self.best else { return };
        // The held-out score of the initial candidate is part of the gain of the best one.
        let is_seed_measured = matches!(event, Event::HeldoutCompleted(done)
            if self.seed_candidate_id.as_ref() == Some(&done.candidate_id));
        if is_seed_measured || affected_candidates(event).contains(&&best.candidate_id) {
            best.sequence = sequence;
        }
    }

    pub fn is_terminal(&self) -> bool {
        self.state.is_final()
    }

    pub fn best_candidate_id(&self) -> Option<&CandidateId> {
        self.best.as_ref().map(|best| &best.candidate_id)
    }
}

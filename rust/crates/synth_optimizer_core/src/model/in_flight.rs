//! Work in flight: evaluations and proposer turns that have started and not ended in the log.

use std::collections::BTreeMap;

use serde::Serialize;

use super::event::Event;
use super::event_fields::{RolloutsRequested, Stage};
use super::ids::{CallId, CandidateId};
use super::usage::Spend;

/// An evaluation in flight, with the results of its rollouts so far.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct InFlightEvaluation {
    pub candidate_id: CandidateId,
    pub stage: Stage,
    /// Milliseconds since 1970.
    pub since: u64,
    /// Rollouts that were requested and not withdrawn.
    pub total: u32,
    pub done: u32,
    pub finished: u32,
    /// Failures by class.
    pub failures: BTreeMap<&'static str, u32>,
    #[serde(skip)]
    pub spend: Spend,
}

/// A proposer turn without an answer.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct InFlightTurn {
    pub generation: u32,
    /// Milliseconds since 1970.
    pub since: u64,
    /// Whether the turn repairs an earlier answer.
    pub is_repair: bool,
}

/// All evaluations and proposer turns in flight.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct InFlight {
    /// By the first call of each evaluation.
    pub evaluations: BTreeMap<CallId, InFlightEvaluation>,
    pub turns: BTreeMap<CallId, InFlightTurn>,
    /// Batches of calls by their first call: the number after the last call, and the evaluation they belong to.
    batches: BTreeMap<CallId, (u64, CallId)>,
}

impl InFlight {
    /// Applies the next event.
    pub fn apply(&mut self, unix_millis: u64, event: &Event) {
        match event {
            Event::RolloutsRequested(batch) => self.add_batch(unix_millis, batch),
            Event::RolloutFinished(rollout) => {
                if let Some(evaluation) = self.evaluation_of(rollout.call_id) {
                    evaluation.done += 1;
                    evaluation.finished += 1;
                }
            }
            Event::RolloutFailed(rollout) => {
                if let Some(evaluation) = self.evaluation_of(rollout.call_id) {
                    *evaluation.failures.entry(rollout.class.as_str()).or_default() += 1;
                    if rollout.class.was_sent() {
                        evaluation.done += 1;
                    } else {
                        evaluation.total = evaluation.total.saturating_sub(1);
                    }
                }
            }
            Event::ProposerStarted(turn) => {
                let (generation, is_repair) = (turn.generation, !turn.problems.is_empty());
                self.turns.insert(turn.call_id, InFlightTurn { generation, since: unix_millis, is_repair });
            }
            Event::RunFinished(_) | Event::RunFailed(_) | Event::RunCancelled(_) => *self = Self::default(),
            _ => {
                if let Some(evaluation) = ended_evaluation(event) {
                    self.evaluations.remove(&evaluation);
                    self.batches.retain(|_, (_, of)| *of != evaluation);
                }
            }
        }
        let Some(call) = event.settled_call() else { return };
        self.turns.remove(&call.call_id);
        if let Some(evaluation) = self.evaluation_of(call.call_id) {
            evaluation.spend.count(call.billing, call.usage);
        }
    }

    /// Returns when the evaluation or turn started that this event ends. Call it before `apply`.
    pub fn started_at(&self, event: &Event) -> Option<u64> {
        match event.settled_call() {
            Some(call) => self.turns.get(&call.call_id).map(|turn| turn.since),
            None => self.evaluations.get(&ended_evaluation(event)?).map(|evaluation| evaluation.since),
        }
    }

    fn add_batch(&mut self, unix_millis: u64, batch: &RolloutsRequested) {
        let rows = batch.row_ids.len();
        self.batches.insert(batch.first_call_id, (batch.first_call_id.0 + rows as u64, batch.evaluation));
        let evaluation = self.evaluations.entry(batch.evaluation).or_insert_with(|| InFlightEvaluation {
            candidate_id: batch.candidate_id.clone(),
            stage: batch.stage,
            since: unix_millis,
            total: 0,
            done: 0,
            finished: 0,
            failures: BTreeMap::new(),
            spend: Spend::default(),
        });
        evaluation.total += rows as u32;
    }

    fn evaluation_of(&mut self, call_id: CallId) -> Option<&mut InFlightEvaluation> {
        let (end, evaluation) = self.batches.range(..=call_id).next_back().map(|(_, batch)| *batch)?;
        if call_id.0 < end { self.evaluations.get_mut(&evaluation) } else { None }
    }
}

/// Returns the evaluation that this event ends.
fn ended_evaluation(event: &Event) -> Option<CallId> {
    match event {
        Event::SeedEvaluated(done)
        | Event::ReferenceCompleted(done)
        | Event::MinibatchEvaluated(done)
        | Event::FullTrainEvaluated(done)
        | Event::HeldoutCompleted(done) => Some(done.evaluation),
        _ => None,
    }
}

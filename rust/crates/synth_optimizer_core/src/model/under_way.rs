//! What a run waits for: evaluations and proposer turns that have no end in the log yet.

use std::collections::BTreeMap;

use serde::Serialize;

use super::event::Event;
use super::event_fields::{RolloutsRequested, Stage};
use super::ids::{CandidateId, RequestId};
use super::usage::Spend;

/// An evaluation under way, and what came of its rollouts so far.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EvaluationUnderWay {
    pub candidate_id: CandidateId,
    pub stage: Stage,
    /// Milliseconds since 1970.
    pub since: u64,
    /// Rollouts that were asked for and not withdrawn.
    pub total: u32,
    pub done: u32,
    pub finished: u32,
    /// Failures by class.
    pub failures: BTreeMap<&'static str, u32>,
    #[serde(skip)]
    pub spend: Spend,
}

/// A turn of the proposer that has no answer yet.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct TurnUnderWay {
    pub generation: u32,
    /// Milliseconds since 1970.
    pub since: u64,
    /// Whether it repairs an answer.
    pub is_repair: bool,
}

/// Everything that has begun and not ended.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct UnderWay {
    /// By the first request of each.
    pub evaluations: BTreeMap<RequestId, EvaluationUnderWay>,
    pub turns: BTreeMap<RequestId, TurnUnderWay>,
    /// Requests by the first of each batch: the one after its last, and their evaluation.
    batches: BTreeMap<RequestId, (u64, RequestId)>,
}

impl UnderWay {
    /// Takes in the next event.
    pub fn apply(&mut self, unix_millis: u64, event: &Event) {
        match event {
            Event::RolloutsRequested(batch) => self.requested(unix_millis, batch),
            Event::RolloutFinished(rollout) => {
                if let Some(evaluation) = self.evaluation_of(rollout.request) {
                    evaluation.done += 1;
                    evaluation.finished += 1;
                }
            }
            Event::RolloutFailed(rollout) => {
                if let Some(evaluation) = self.evaluation_of(rollout.request) {
                    *evaluation.failures.entry(rollout.class.word()).or_default() += 1;
                    if rollout.class.was_sent() {
                        evaluation.done += 1;
                    } else {
                        evaluation.total = evaluation.total.saturating_sub(1);
                    }
                }
            }
            Event::ProposerStarted(turn) => {
                let (generation, is_repair) = (turn.generation, !turn.problems.is_empty());
                self.turns.insert(turn.request, TurnUnderWay { generation, since: unix_millis, is_repair });
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
        self.turns.remove(&call.request);
        if let Some(evaluation) = self.evaluation_of(call.request) {
            evaluation.spend.count(call.billing, call.usage);
        }
    }

    /// Since when the evaluation or turn has been under way that this event ends; ask before the event is applied.
    pub fn began(&self, event: &Event) -> Option<u64> {
        match event.settled_call() {
            Some(call) => self.turns.get(&call.request).map(|turn| turn.since),
            None => self.evaluations.get(&ended_evaluation(event)?).map(|evaluation| evaluation.since),
        }
    }

    fn requested(&mut self, unix_millis: u64, batch: &RolloutsRequested) {
        let rows = batch.row_ids.len();
        self.batches.insert(batch.first_request, (batch.first_request.0 + rows as u64, batch.evaluation));
        let evaluation = self.evaluations.entry(batch.evaluation).or_insert_with(|| EvaluationUnderWay {
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

    fn evaluation_of(&mut self, request: RequestId) -> Option<&mut EvaluationUnderWay> {
        let (end, evaluation) = self.batches.range(..=request).next_back().map(|(_, batch)| *batch)?;
        if request.0 < end { self.evaluations.get_mut(&evaluation) } else { None }
    }
}

/// The evaluation that this event ends.
fn ended_evaluation(event: &Event) -> Option<RequestId> {
    match event {
        Event::SeedEvaluated(done)
        | Event::ReferenceCompleted(done)
        | Event::MinibatchEvaluated(done)
        | Event::FullTrainEvaluated(done)
        | Event::HeldoutCompleted(done) => Some(done.evaluation),
        _ => None,
    }
}

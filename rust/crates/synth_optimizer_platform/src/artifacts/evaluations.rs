//! Rollouts of a feed, summed up by the evaluation that they belong to.

use std::collections::BTreeMap;

use super::story_words::counted;
use crate::model::answer::FailureClass;
use crate::model::event_fields::{RolloutFailed, RolloutFinished, RolloutsRequested};
use crate::model::ids::RequestId;
use crate::model::usage::{Cost, NanoUsd, Usage};

/// Evaluations that are under way.
#[derive(Debug, Default)]
pub(super) struct Evaluations {
    /// Requests by the first of each batch: the one after its last, and their evaluation.
    batches: BTreeMap<RequestId, (u64, RequestId)>,
    open: BTreeMap<RequestId, Tally>,
}

/// The rollouts of one evaluation.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Tally {
    finished: u32,
    cached: u32,
    failures: BTreeMap<&'static str, u32>,
    cost: Cost,
}

impl Default for Tally {
    fn default() -> Self {
        Self { finished: 0, cached: 0, failures: BTreeMap::new(), cost: Cost::Known(NanoUsd(0)) }
    }
}

impl Evaluations {
    pub(super) fn requested(&mut self, batch: &RolloutsRequested) {
        let end = batch.first_request.0 + batch.row_ids.len() as u64;
        self.batches.insert(batch.first_request, (end, batch.evaluation));
        self.open.entry(batch.evaluation).or_default();
    }

    pub(super) fn finished(&mut self, rollout: &RolloutFinished) {
        if let Some(tally) = self.of(rollout.request) {
            tally.finished += 1;
            tally.pay(rollout.cached, &rollout.usage);
        }
    }

    pub(super) fn failed(&mut self, rollout: &RolloutFailed) {
        if let Some(tally) = self.of(rollout.request) {
            *tally.failures.entry(rollout.class.word()).or_default() += 1;
            match rollout.class {
                // Never sent, so never paid for.
                FailureClass::NotSent | FailureClass::Withdrawn => {}
                FailureClass::UnknownOutcome
                | FailureClass::Failed
                | FailureClass::Timeout
                | FailureClass::Contract
                | FailureClass::InvalidScore
                | FailureClass::Abandoned => tally.pay(rollout.cached, &rollout.usage),
            }
        }
    }

    /// Ends an evaluation.
    pub(super) fn completed(&mut self, evaluation: RequestId) -> Tally {
        self.batches.retain(|_, (_, of)| *of != evaluation);
        self.open.remove(&evaluation).unwrap_or_default()
    }

    /// Rollouts of evaluations that never came to their end.
    pub(super) fn cut_short(&self) -> u32 {
        self.open.values().map(|tally| tally.finished).sum()
    }

    fn of(&mut self, request: RequestId) -> Option<&mut Tally> {
        let (end, evaluation) = self.batches.range(..=request).next_back().map(|(_, batch)| *batch)?;
        if request.0 < end { self.open.get_mut(&evaluation) } else { None }
    }
}

impl Tally {
    fn pay(&mut self, cached: bool, usage: &Usage) {
        if cached {
            self.cached += 1;
        } else {
            self.cost += usage.cost;
        }
    }

    /// `24 rollouts, 3 from the cache, 1 timeout, $0.0012`
    pub(super) fn words(&self) -> String {
        let failed: u32 = self.failures.values().sum();
        let mut parts = vec![counted(self.finished + failed, "rollout")];
        if self.cached > 0 {
            parts.push(format!("{} from the cache", self.cached));
        }
        parts.extend(self.failures.iter().map(|(class, count)| format!("{count} {class}")));
        match self.cost {
            Cost::Known(NanoUsd(0)) => {}
            Cost::Known(_) => parts.push(self.cost.to_string()),
            Cost::Unknown => parts.push("cost unknown".to_owned()),
        }
        parts.join(", ")
    }
}

//! A candidate as the result files show it: texts, lineage, scores by row, and how it was judged.

use serde::Serialize;

use super::row_scores::RowScores;
use crate::model::event_fields::{
    CandidateDecided, CandidateDeferred, CandidateRegistered, EvaluationCompleted, Operation, RolloutFailed,
    RolloutFinished, Stage,
};
use crate::model::ids::{CandidateId, Payload, RowId};
use crate::model::lifecycle::{CandidateStatus, CandidateTrigger};
use crate::model::score::{Comparison, Score};

/// An entry of `candidate_registry.json`, and the whole of `best_candidate.json`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CandidateRecord {
    pub candidate_id: CandidateId,
    pub payload: Payload,
    /// The first of `parent_ids`.
    pub parent_id: Option<CandidateId>,
    pub parent_ids: Vec<CandidateId>,
    pub source: Operation,
    pub generation: Option<u32>,
    pub changed_fields: Vec<String>,
    pub rationale: String,
    pub status: CandidateStatus,
    /// Means of the scores below.
    pub minibatch_reward: Option<f64>,
    pub train_reward: Option<f64>,
    pub heldout_reward: Option<f64>,
    pub minibatch_score: Option<Score>,
    pub train_score: Option<Score>,
    pub heldout_score: Option<Score>,
    pub minibatch_scores: RowScores,
    /// Every train row that gave a score, on whatever occasion.
    pub train_scores: RowScores,
    pub heldout_scores: RowScores,
    /// Rows that gave no score for good.
    pub failed_rows: Vec<FailedRow>,
    /// The last comparison that it was judged by.
    pub acceptance_score: Option<Comparison>,
    pub acceptance_metadata: Vec<Judgement>,
}

/// A row without a score.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FailedRow {
    pub example_id: RowId,
    pub evaluation_stage: Stage,
    pub failure_class: &'static str,
}

/// One step of how a candidate was judged.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Judgement {
    pub decision: &'static str,
    pub evaluation_stage: Stage,
    pub reason: String,
}

impl CandidateRecord {
    pub(super) fn new(registered: &CandidateRegistered) -> Self {
        Self {
            candidate_id: registered.candidate_id.clone(),
            payload: registered.payload.clone(),
            parent_id: registered.parent_ids.first().cloned(),
            parent_ids: registered.parent_ids.clone(),
            source: registered.operation,
            generation: registered.generation,
            changed_fields: registered.changed_fields.clone(),
            rationale: registered.rationale.clone(),
            status: CandidateStatus::Registered,
            minibatch_reward: None,
            train_reward: None,
            heldout_reward: None,
            minibatch_score: None,
            train_score: None,
            heldout_score: None,
            minibatch_scores: RowScores::default(),
            train_scores: RowScores::default(),
            heldout_scores: RowScores::default(),
            failed_rows: Vec::new(),
            acceptance_score: None,
            acceptance_metadata: Vec::new(),
        }
    }

    pub fn is_accepted(&self) -> bool {
        self.status == CandidateStatus::Accepted
    }

    pub(super) fn finished(&mut self, rollout: &RolloutFinished) {
        let lists = match rollout.stage {
            Stage::Heldout => vec![&mut self.heldout_scores],
            Stage::CandidateMinibatch => vec![&mut self.minibatch_scores, &mut self.train_scores],
            Stage::SeedFullTrain | Stage::ParentMinibatchReference | Stage::CandidateFullTrain => {
                vec![&mut self.train_scores]
            }
        };
        for list in lists {
            list.add(rollout);
        }
    }

    pub(super) fn failed(&mut self, rollout: &RolloutFailed) {
        if !rollout.retried {
            self.failed_rows.push(FailedRow {
                example_id: rollout.row_id.clone(),
                evaluation_stage: rollout.stage,
                failure_class: rollout.class.word(),
            });
        }
    }

    pub(super) fn screened(&mut self, done: &EvaluationCompleted) {
        self.status = CandidateStatus::MinibatchEvaluated;
        self.minibatch_score = done.score;
        self.minibatch_reward = done.score.map(|score| score.mean);
    }

    pub(super) fn evaluated(&mut self, done: &EvaluationCompleted) {
        self.status = CandidateStatus::FullTrainEvaluated;
        self.train_score = done.score;
        self.train_reward = done.score.map(|score| score.mean);
    }

    pub(super) fn measured(&mut self, done: &EvaluationCompleted) {
        self.heldout_score = done.score;
        self.heldout_reward = done.score.map(|score| score.mean);
    }

    pub(super) fn promoted(&mut self, decision: &CandidateDecided) {
        self.judged("promoted", decision);
    }

    pub(super) fn accepted(&mut self, decision: &CandidateDecided) {
        self.status = CandidateStatus::Accepted;
        self.judged("accepted", decision);
    }

    pub(super) fn rejected(&mut self, decision: &CandidateDecided) {
        self.status = match decision.stage {
            Stage::CandidateMinibatch | Stage::ParentMinibatchReference => CandidateStatus::RejectedMinibatch,
            Stage::CandidateFullTrain | Stage::SeedFullTrain | Stage::Heldout => CandidateStatus::RejectedFullTrain,
        };
        self.judged("rejected", decision);
    }

    pub(super) fn deferred(&mut self, deferred: &CandidateDeferred) {
        self.status = match deferred.reason {
            CandidateTrigger::BudgetRefused => CandidateStatus::DeferredBudget,
            CandidateTrigger::TooManyFailures => CandidateStatus::DeferredFailures,
            CandidateTrigger::RunStopped
            | CandidateTrigger::MinibatchDone
            | CandidateTrigger::MinibatchLost
            | CandidateTrigger::FullTrainDone
            | CandidateTrigger::Accept
            | CandidateTrigger::FullTrainLost => CandidateStatus::DeferredStop,
        };
        self.acceptance_metadata.push(Judgement {
            decision: "deferred",
            evaluation_stage: deferred.stage,
            reason: deferred.reason.word().to_owned(),
        });
    }

    fn judged(&mut self, decision: &'static str, decided: &CandidateDecided) {
        self.acceptance_score.clone_from(&decided.comparison);
        self.acceptance_metadata.push(Judgement {
            decision,
            evaluation_stage: decided.stage,
            reason: decided.reason.clone(),
        });
    }
}

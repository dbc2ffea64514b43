//! The effects of an event on calls, candidates and the best candidate. The engine, the folds and the tables all use these
//! functions.

use super::error::OptimizerError;
use super::event::Event;
use super::event_fields::{CandidateDecided, CheckVerdict, RunFailed, Stage};
use super::ids::{CallId, CandidateId};
use super::lifecycle::CandidateTrigger;
use super::usage::{Billing, Usage};
use crate::string_enum;

string_enum! {
    /// The receiver of a call.
    CallKind {
        /// The container.
        Rollout = "rollout",
        /// The proposer.
        Proposer = "proposer",
    }
}

/// A call that an event settles, with its billing and usage.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SettledCall<'e> {
    pub kind: CallKind,
    pub call_id: CallId,
    pub billing: Billing,
    pub usage: &'e Usage,
}

impl Event {
    /// Returns the call that this event settles, if any.
    pub fn settled_call(&self) -> Option<SettledCall<'_>> {
        let (kind, call_id, billing, usage) = match self {
            Self::RolloutFinished(done) => {
                (CallKind::Rollout, done.call_id, Billing::answered(done.cached), &done.usage)
            }
            Self::RolloutFailed(failed) => {
                let billing = failed.class.billing(&failed.usage, failed.cached);
                (CallKind::Rollout, failed.call_id, billing, &failed.usage)
            }
            Self::ProposerCompleted(done) => {
                (CallKind::Proposer, done.call_id, Billing::answered(done.cached), &done.usage)
            }
            Self::ProposerFailed(failed) => {
                let billing = failed.class.billing(&failed.usage, failed.cached);
                (CallKind::Proposer, failed.call_id, billing, &failed.usage)
            }
            _ => return None,
        };
        Some(SettledCall { kind, call_id, billing, usage })
    }

    /// Returns the candidate that this event moves along its lifecycle, and the trigger.
    pub fn candidate_trigger(&self) -> Option<(&CandidateId, CandidateTrigger)> {
        match self {
            Self::SeedEvaluated(done) | Self::FullTrainEvaluated(done) => {
                Some((&done.candidate_id, CandidateTrigger::FullTrainDone))
            }
            Self::MinibatchEvaluated(done) => Some((&done.candidate_id, CandidateTrigger::MinibatchDone)),
            Self::CandidateAccepted(decision) => Some((&decision.candidate_id, CandidateTrigger::Accept)),
            Self::CandidateRejected(decision) => Some((&decision.candidate_id, lost(decision))),
            Self::CandidateDeferred(deferred) => Some((&deferred.candidate_id, deferred.reason)),
            Self::CandidateSuperseded(superseded) => Some((&superseded.candidate_id, CandidateTrigger::Supersede)),
            // A decided check is the evaluation of the head. Acceptance or rejection follows as an event of its own.
            Self::CheckDecided(check) if check.verdict != CheckVerdict::Undecided => {
                Some((&check.head_id, CandidateTrigger::FullTrainDone))
            }
            _ => None,
        }
    }

    /// Returns the candidate that becomes the best one with this event.
    ///
    /// An accepted candidate becomes the best unless its score on the deciding objective is below that of the previous
    /// best; other objectives can cause such an acceptance. The end of a generation and of the run name the best one.
    pub fn best_candidate(&self) -> Option<&CandidateId> {
        match self {
            Self::CandidateAccepted(decision) => decision
                .comparison
                .as_ref()
                .is_none_or(|comparison| comparison.primary_delta >= 0.0)
                .then_some(&decision.candidate_id),
            Self::GenerationCompleted(done) => Some(&done.best_candidate_id),
            Self::RunFinished(run) => Some(&run.best_candidate_id),
            Self::RunFailed(run) => run.best_candidate_id.as_ref(),
            Self::RunCancelled(run) => run.best_candidate_id.as_ref(),
            _ => None,
        }
    }
}

impl RunFailed {
    /// Returns the error that ended the run.
    pub fn error(&self) -> OptimizerError {
        let error = OptimizerError::new(self.error_code, self.message.clone());
        match &self.hint {
            Some(hint) => error.with_hint(hint.clone()),
            None => error,
        }
    }
}

fn lost(decision: &CandidateDecided) -> CandidateTrigger {
    match decision.stage {
        Stage::CandidateMinibatch | Stage::Glance => CandidateTrigger::MinibatchLost,
        Stage::SeedFullTrain
        | Stage::ParentMinibatchReference
        | Stage::CandidateFullTrain
        | Stage::Repeat
        | Stage::Check
        | Stage::Heldout => CandidateTrigger::FullTrainLost,
    }
}

//! Converts answers to events: scores, failures, retries, and proposals, which are checked before any rollout.

use std::collections::BTreeSet;

use synth_optimizer_core::config::gepa::CANDIDATE_TOKENS;
use synth_optimizer_core::model::answer::{Answer, CallFailure, FailureClass, ProposalAnswer, RolloutAnswer};
use synth_optimizer_core::model::budget::Resources;
use synth_optimizer_core::model::command::ProposeCommand;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::event::Event;
use synth_optimizer_core::model::event_fields::{
    CandidateRegistered, DuplicateSkipped, LeakageDetected, Problem, ProposalRejected, ProposerCompleted,
    ProposerFailed, RolloutFailed, RolloutFinished, RolloutsRequested,
};
use synth_optimizer_core::model::ids::{CallId, CandidateId};

use crate::engine::GepaEngine;
use crate::objectives::objective_value;
use crate::outstanding::OutstandingCall;
use crate::state::{Rollout, State};

impl GepaEngine {
    pub(crate) fn events_for_answer(
        &self,
        state: &State,
        id: CallId,
        answer: &Answer,
    ) -> Result<Vec<Event>, OptimizerError> {
        // A second answer to the same call is ignored.
        let Some(work) = state.outstanding_calls.get(id) else { return Ok(Vec::new()) };
        if state.outstanding_calls.next() != Some(id) {
            let message = format!("the answer to call {} was offered before its turn", id.0);
            return Err(OptimizerError::new(ErrorCode::Invariant, message));
        }
        Ok(match (work, answer) {
            (OutstandingCall::Rollout(rollout), Answer::Rollout(scored)) => {
                self.events_for_rollout(state, id, rollout, scored)
            }
            (OutstandingCall::Rollout(rollout), Answer::Failed(failure)) => {
                self.events_for_failed_rollout(state, id, rollout, failure)
            }
            (OutstandingCall::Rollout(rollout), Answer::Abandoned { sent }) => {
                self.events_for_failed_rollout(state, id, rollout, &abandoned(*sent))
            }
            (OutstandingCall::Proposal(asked), Answer::Proposal(turn)) => self.events_for_proposals(state, asked, turn),
            (OutstandingCall::Proposal(asked), Answer::Failed(failure)) => {
                vec![self.event_for_failed_turn(state, asked, failure)]
            }
            (OutstandingCall::Proposal(asked), Answer::Abandoned { sent }) => {
                vec![self.event_for_failed_turn(state, asked, &abandoned(*sent))]
            }
            (OutstandingCall::Rollout(_), Answer::Proposal(_)) | (OutstandingCall::Proposal(_), Answer::Rollout(_)) => {
                let message = format!("call {} received an answer of another kind", id.0);
                return Err(OptimizerError::new(ErrorCode::Invariant, message));
            }
        })
    }

    fn events_for_rollout(&self, state: &State, id: CallId, asked: &Rollout, answer: &RolloutAnswer) -> Vec<Event> {
        let candidate = state.candidate(asked.candidate);
        let mut objectives = answer.objectives.clone();
        if self.has_length_objective() {
            // The engine measures the length, whatever the container reports under this name.
            objectives.insert(CANDIDATE_TOKENS.to_owned(), self.tokens(&candidate.payload) as f64);
        }
        let finished = RolloutFinished {
            call_id: id,
            candidate_id: candidate.id.clone(),
            row_id: self.row_id(asked.row).clone(),
            stage: asked.stage,
            reward: answer.reward,
            objectives,
            usage: answer.usage,
            cached: answer.cached,
            trace_digest: answer.trace_digest.clone(),
        };
        let wrong =
            self.settings.objectives.iter().find_map(|objective| match objective_value(&finished, &objective.name) {
                None => Some(format!("no score for objective {:?}", objective.name)),
                Some(value) if !value.is_finite() => Some(format!("objective {:?} is {value}", objective.name)),
                Some(_) => None,
            });
        let wrong = wrong.or_else(|| (!answer.reward.is_finite()).then(|| format!("the reward is {}", answer.reward)));
        let Some(message) = wrong else { return vec![Event::RolloutFinished(finished)] };
        let (usage, cached) = (answer.usage, answer.cached);
        let failure = CallFailure { usage, cached, ..CallFailure::new(FailureClass::InvalidScore, message) };
        self.events_for_failed_rollout(state, id, asked, &failure)
    }

    pub(crate) fn events_for_failed_rollout(
        &self,
        state: &State,
        id: CallId,
        asked: &Rollout,
        failure: &CallFailure,
    ) -> Vec<Event> {
        let retried = failure.retryable
            && asked.attempt < self.settings.gepa.rollout_max_attempts
            && state.may_send_calls()
            && !self.time_is_up(state)
            && fits_after(state, id, failure, &self.rollout_amount(state, asked.row));
        let (candidate_id, row_id) = (&state.candidate(asked.candidate).id, self.row_id(asked.row));
        let mut events = vec![Event::RolloutFailed(RolloutFailed {
            call_id: id,
            candidate_id: candidate_id.clone(),
            row_id: row_id.clone(),
            stage: asked.stage,
            attempt: asked.attempt,
            class: failure.class,
            message: failure.message.clone(),
            usage: failure.usage,
            cached: failure.cached,
            retried,
        })];
        if retried {
            let evaluation = state.evaluations.get(&asked.evaluation);
            events.push(Event::RolloutsRequested(RolloutsRequested {
                first_call_id: CallId(state.next_call_id),
                evaluation: asked.evaluation,
                candidate_id: candidate_id.clone(),
                stage: asked.stage,
                generation: evaluation.and_then(|evaluation| evaluation.generation),
                row_ids: vec![row_id.clone()],
                attempt: asked.attempt + 1,
                replicate: asked.replicate,
            }));
        }
        events
    }

    fn events_for_proposals(&self, state: &State, asked: &ProposeCommand, turn: &ProposalAnswer) -> Vec<Event> {
        let (number, count) = (asked.question.generation, asked.question.proposal_count);
        let mut events = vec![Event::ProposerCompleted(ProposerCompleted {
            call_id: asked.call_id,
            generation: number,
            proposal_count: turn.proposals.len() as u32,
            ignored: (turn.proposals.len() as u32).saturating_sub(count),
            requested_model: turn.requested_model.clone(),
            effective_model: turn.effective_model.clone(),
            usage: turn.usage,
            cached: turn.cached,
        })];
        let Some(generation) = state.generations.get(&number) else { return events };
        let refuse = |index: usize, problems: Vec<Problem>| {
            Event::ProposalRejected(ProposalRejected { generation: number, index: index as u32, problems })
        };
        if !turn.problems.is_empty() {
            events.push(refuse(turn.proposals.len(), turn.problems.clone()));
        } else if turn.proposals.is_empty() {
            let message = "the answer contains no proposal".to_owned();
            events.push(refuse(0, vec![Problem { code: "no_proposal".into(), field: None, message }]));
        }
        let mut fresh = BTreeSet::new();
        for (index, proposal) in turn.proposals.iter().take(count as usize).enumerate() {
            let checked = match self.check_proposal(generation, proposal) {
                Ok(checked) => checked,
                Err(problems) => {
                    events.push(refuse(index, problems));
                    continue;
                }
            };
            let candidate_id = CandidateId::of(&self.settings.candidate_id_prefix, &checked.payload);
            if state.index_of(&candidate_id).is_some() || !fresh.insert(candidate_id.clone()) {
                events.push(Event::DuplicateSkipped(DuplicateSkipped {
                    candidate_id,
                    generation: number,
                    index: index as u32,
                }));
                continue;
            }
            let leaks = checked.repeated.into_iter().map(|(field, row_id, chars)| {
                Event::LeakageDetected(LeakageDetected { candidate_id: candidate_id.clone(), field, row_id, chars })
            });
            events.extend(leaks);
            events.push(Event::CandidateRegistered(CandidateRegistered {
                candidate_id,
                operation: generation.operation,
                parent_ids: state.ids(&generation.parents),
                generation: Some(number),
                payload: checked.payload,
                changed_fields: checked.changed_fields,
                rationale: proposal.rationale.clone(),
                dropped_fields: checked.dropped_fields,
                kept_share: checked.kept_share,
            }));
        }
        events
    }

    fn event_for_failed_turn(&self, state: &State, asked: &ProposeCommand, failure: &CallFailure) -> Event {
        let retried = failure.retryable
            && asked.attempt < self.settings.proposer.max_attempts
            && state.may_send_calls()
            && fits_after(state, asked.call_id, failure, &self.proposal(state));
        Event::ProposerFailed(ProposerFailed {
            call_id: asked.call_id,
            generation: asked.question.generation,
            attempt: asked.attempt,
            class: failure.class,
            message: failure.message.clone(),
            usage: failure.usage,
            cached: failure.cached,
            models: failure.models.clone(),
            retried,
        })
    }
}

/// Returns whether an amount fits the budget after a failed call is settled.
fn fits_after(state: &State, call_id: CallId, failure: &CallFailure, amount: &Resources) -> bool {
    let billing = failure.class.billing(&failure.usage, failure.cached);
    state.budget.fits_after(call_id, billing, &failure.usage, amount)
}

pub(crate) fn abandoned(sent: bool) -> CallFailure {
    CallFailure::new(if sent { FailureClass::Abandoned } else { FailureClass::Withdrawn }, "the run ends")
}

//! Answers become events: scores, failures, retries, and proposals that are checked before they cost anything.

use std::collections::BTreeSet;

use synth_optimizer_core::model::answer::{Answer, CallFailure, FailureClass, ProposalAnswer, RolloutAnswer};
use synth_optimizer_core::model::budget::Amount;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::event::Event;
use synth_optimizer_core::model::event_fields::{
    CandidateRegistered, DuplicateSkipped, LeakageDetected, Problem, ProposalRejected, ProposerCompleted,
    ProposerFailed, RolloutFailed, RolloutFinished, RolloutsRequested, Stage,
};
use synth_optimizer_core::model::ids::{CandidateId, RequestId, RowId};
use synth_optimizer_core::model::usage::Usage;

use crate::engine::GepaEngine;
use crate::objectives::objective_value;
use crate::state::{State, Work};

/// A rollout request, as far as its answer needs it.
struct Asked<'a> {
    request: RequestId,
    evaluation: RequestId,
    candidate_id: &'a CandidateId,
    row_id: &'a RowId,
    stage: Stage,
    generation: Option<u32>,
    attempt: u32,
    replicate: u32,
}

impl GepaEngine {
    pub(crate) fn answered(&self, state: &State, id: RequestId, answer: &Answer) -> Result<Vec<Event>, OptimizerError> {
        // An answer that comes twice was settled the first time.
        let Some(work) = state.requests.get(&id) else { return Ok(Vec::new()) };
        if state.requests.first_key_value().is_some_and(|(turn, _)| *turn != id) {
            let message = format!("the answer to request {} was offered before its turn", id.0);
            return Err(OptimizerError::new(ErrorCode::Invariant, message));
        }
        match work {
            Work::Rollout { evaluation, candidate, row, stage, attempt, replicate } => {
                let asked = Asked {
                    request: id,
                    evaluation: *evaluation,
                    candidate_id: &state.candidate(*candidate).id,
                    row_id: self.row_id(*row),
                    stage: *stage,
                    generation: state.evaluations.get(evaluation).and_then(|evaluation| evaluation.generation),
                    attempt: *attempt,
                    replicate: *replicate,
                };
                match answer {
                    Answer::Rollout(scored) => Ok(self.rollout_answered(state, &asked, scored)),
                    Answer::Failed(failure) => Ok(self.rollout_not_answered(state, &asked, failure)),
                    Answer::Abandoned { sent } => Ok(self.rollout_not_answered(state, &asked, &abandoned(*sent))),
                    Answer::Proposal(_) => Err(mixed_up(id)),
                }
            }
            Work::Proposal { generation, attempt, count, .. } => match answer {
                Answer::Proposal(turn) => Ok(self.proposals_answered(state, id, *generation, *count, turn)),
                Answer::Failed(failure) => Ok(self.proposals_failed(state, id, *generation, *attempt, failure)),
                Answer::Abandoned { sent } => {
                    Ok(self.proposals_failed(state, id, *generation, *attempt, &abandoned(*sent)))
                }
                Answer::Rollout(_) => Err(mixed_up(id)),
            },
        }
    }

    fn rollout_answered(&self, state: &State, asked: &Asked<'_>, answer: &RolloutAnswer) -> Vec<Event> {
        let finished = RolloutFinished {
            request: asked.request,
            candidate_id: asked.candidate_id.clone(),
            row_id: asked.row_id.clone(),
            stage: asked.stage,
            reward: answer.reward,
            objectives: answer.objectives.clone(),
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
        let failure =
            CallFailure { class: FailureClass::InvalidScore, message, retryable: false, usage, cached, models: None };
        self.rollout_not_answered(state, asked, &failure)
    }

    fn rollout_not_answered(&self, state: &State, asked: &Asked<'_>, failure: &CallFailure) -> Vec<Event> {
        let unit = self.rollout_amount(asked.stage);
        let retried = failure.retryable
            && asked.attempt < self.settings.gepa.rollout_max_attempts
            && state.may_request()
            && !self.time_is_up(state)
            && fits_after(state, asked.request, failure, &unit);
        let failed = Event::RolloutFailed(RolloutFailed {
            request: asked.request,
            candidate_id: asked.candidate_id.clone(),
            row_id: asked.row_id.clone(),
            stage: asked.stage,
            attempt: asked.attempt,
            class: failure.class,
            message: failure.message.clone(),
            usage: failure.usage,
            cached: failure.cached,
            retried,
        });
        if !retried {
            return vec![failed];
        }
        let again = Event::RolloutsRequested(RolloutsRequested {
            first_request: RequestId(state.next_request),
            evaluation: asked.evaluation,
            candidate_id: asked.candidate_id.clone(),
            stage: asked.stage,
            generation: asked.generation,
            row_ids: vec![asked.row_id.clone()],
            attempt: asked.attempt + 1,
            replicate: asked.replicate,
        });
        vec![failed, again]
    }

    fn proposals_answered(
        &self,
        state: &State,
        request: RequestId,
        number: u32,
        count: u32,
        turn: &ProposalAnswer,
    ) -> Vec<Event> {
        let mut events = vec![Event::ProposerCompleted(ProposerCompleted {
            request,
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
            let message = "the answer holds no proposal".to_owned();
            events.push(refuse(0, vec![Problem { code: "no_proposal".into(), field: None, message }]));
        }
        let parent_ids: Vec<CandidateId> =
            generation.parents.iter().map(|parent| state.candidate(*parent).id.clone()).collect();
        let mut fresh = BTreeSet::new();
        for (index, proposal) in turn.proposals.iter().take(count as usize).enumerate() {
            let sound = match self.check_proposal(generation, proposal) {
                Ok(sound) => sound,
                Err(problems) => {
                    events.push(refuse(index, problems));
                    continue;
                }
            };
            let candidate_id = CandidateId::of(&self.settings.candidate_id_prefix, &sound.payload);
            if state.index_of(&candidate_id).is_some() || !fresh.insert(candidate_id.clone()) {
                events.push(Event::DuplicateSkipped(DuplicateSkipped {
                    candidate_id,
                    generation: number,
                    index: index as u32,
                }));
                continue;
            }
            let leaks = sound.repeated.into_iter().map(|(field, row_id, chars)| {
                Event::LeakageDetected(LeakageDetected { candidate_id: candidate_id.clone(), field, row_id, chars })
            });
            events.extend(leaks);
            events.push(Event::CandidateRegistered(CandidateRegistered {
                candidate_id,
                operation: generation.operation,
                parent_ids: parent_ids.clone(),
                generation: Some(number),
                payload: sound.payload,
                changed_fields: sound.changed_fields,
                rationale: proposal.rationale.clone(),
            }));
        }
        events
    }

    fn proposals_failed(
        &self,
        state: &State,
        request: RequestId,
        number: u32,
        attempt: u32,
        failure: &CallFailure,
    ) -> Vec<Event> {
        let retried = failure.retryable
            && attempt < self.settings.max_attempts
            && state.may_request()
            && fits_after(state, request, failure, &self.settings.proposal);
        vec![Event::ProposerFailed(ProposerFailed {
            request,
            generation: number,
            attempt,
            class: failure.class,
            message: failure.message.clone(),
            usage: failure.usage,
            cached: failure.cached,
            models: failure.models.clone(),
            retried,
        })]
    }
}

/// Whether an amount fits once a failed call is settled.
fn fits_after(state: &State, request: RequestId, failure: &CallFailure, amount: &Amount) -> bool {
    let billing = failure.class.billing(&failure.usage, failure.cached);
    state.budget.fits_after(request, billing, &failure.usage, amount)
}

fn abandoned(sent: bool) -> CallFailure {
    CallFailure {
        class: if sent { FailureClass::Abandoned } else { FailureClass::Withdrawn },
        message: "the run ends".into(),
        retryable: false,
        usage: Usage::default(),
        cached: false,
        models: None,
    }
}

fn mixed_up(request: RequestId) -> OptimizerError {
    OptimizerError::new(ErrorCode::Invariant, format!("request {} got an answer of another kind", request.0))
}

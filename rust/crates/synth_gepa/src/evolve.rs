//! Applies events to the state. It decides nothing and cannot fail.

use std::collections::BTreeMap;

use synth_optimizer_core::model::answer::FailureClass;
use synth_optimizer_core::model::event::Event;
use synth_optimizer_core::model::event_fields::{
    CandidateDecided, CandidateRegistered, CarriedFailure, EvaluationCompleted, GenerationCompleted, GenerationStarted,
    HeldoutChosen, Operation, ProposalRejected, ProposerCompleted, ProposerFailed, ProposerStarted, RolloutFailed,
    RolloutFinished, RolloutsRequested, Stage, StopKind, StoppedBy,
};
use synth_optimizer_core::model::ids::{CandidateId, CallId, RowId, TrainRow};
use synth_optimizer_core::model::lifecycle::{CandidateStatus, CandidateTrigger, Lifecycle};

use crate::engine::GepaEngine;
use crate::objectives::objective_value;
use crate::state::{
    AnyRow, Candidate, Evaluation, Generation, Phase, Pooled, Rollout, Scores, State, Step, Stop, Work,
};

impl GepaEngine {
    pub(crate) fn apply(&self, state: &mut State, event: &Event) {
        state.settled = false;
        state.counts.count(event);
        if let Some(call) = event.settled_call() {
            state.budget.settle(call.call_id, call.billing, call.usage);
        }
        if let Some((id, trigger)) = event.candidate_trigger()
            && let Some(candidate) = candidate_mut(state, id)
        {
            move_on(candidate, trigger);
        }
        match event {
            Event::StateTransitioned(change) => state.run = change.to,
            Event::ObjectiveSetDeclared(_) => state.phase = Phase::Seed,
            Event::CandidateRegistered(fields) => self.registered(state, fields),
            Event::RolloutsRequested(fields) => self.rollouts_requested(state, fields),
            Event::RolloutFinished(fields) => self.rollout_finished(state, fields),
            Event::RolloutFailed(fields) => self.rollout_failed(state, fields),
            Event::SeedEvaluated(fields) | Event::FullTrainEvaluated(fields) | Event::MinibatchEvaluated(fields) => {
                evaluated(state, fields);
            }
            Event::ReferenceCompleted(fields) => {
                if let Some(generation) = fields.generation.and_then(|index| state.generations.get_mut(&index)) {
                    generation.step = Step::Propose;
                }
                evaluated(state, fields);
            }
            Event::HeldoutCompleted(fields) => {
                state.heldout_done.extend(state.index_of(&fields.candidate_id));
                evaluated(state, fields);
            }
            Event::CandidatePromoted(fields) => {
                if let Some(candidate) = candidate_mut(state, &fields.candidate_id) {
                    candidate.promoted = true;
                }
            }
            Event::CandidateAccepted(fields) => accepted(state, event, fields),
            Event::CandidateRejected(fields) => self.rejected(state, fields),
            Event::CandidateDeferred(fields) => forget(state, &fields.candidate_id),
            Event::GenerationStarted(fields) => self.generation_started(state, fields),
            Event::MinibatchSkipped(fields) => state.draws = state.draws.max(fields.draw + 1),
            Event::ProposerStarted(fields) => self.proposer_started(state, fields),
            Event::ProposerCompleted(fields) => proposer_completed(state, fields),
            Event::ProposerFailed(fields) => proposer_failed(state, fields),
            Event::ProposalRejected(fields) => proposal_rejected(state, fields),
            Event::DuplicateSkipped(fields) => {
                if let Some(generation) = state.generations.get_mut(&fields.generation) {
                    generation.duplicates += 1;
                }
            }
            Event::FrontierUpdated(fields) => {
                if let Some(index) = state.index_of(&fields.candidate_id) {
                    self.pooled(state, index, fields.merit);
                }
            }
            Event::GenerationCompleted(fields) => self.generation_completed(state, fields),
            Event::StopDecided(fields) => {
                state.stop = Some(Stop { stopped_by: fields.stopped_by.clone(), failure: fields.failure.clone() });
            }
            Event::CancelRequested(fields) => state.cancel = Some(fields.reason.clone()),
            Event::FailureRaised(failure) => {
                state.cancel = Some(failure.message.clone());
                let stopped_by = StoppedBy { kind: StopKind::Error, limit: None, value: None, reason: None };
                state.stop = Some(Stop { stopped_by, failure: Some(failure.clone()) });
            }
            Event::ClockObserved(fields) => state.budget.observe_elapsed(fields.elapsed_millis),
            Event::HeldoutStarted(fields) => heldout_started(state, fields),
            Event::HeldoutSkipped(_) => {
                state.phase = Phase::Heldout;
                state.budget.release_hold();
            }
            Event::RunFinished(_) | Event::RunFailed(_) | Event::RunCancelled(_) => {
                state.phase = Phase::Over;
                state.budget.release_hold();
            }
            // What was loaded, what happened to calls on their way, and why something was decided: nothing follows from it.
            _ => {}
        }
    }

    fn registered(&self, state: &mut State, fields: &CandidateRegistered) {
        let index = state.candidates.len() as u32;
        let parents: Vec<u32> = fields.parent_ids.iter().filter_map(|id| state.index_of(id)).collect();
        let component = parents.iter().map(|parent| state.candidate(*parent).component).max().unwrap_or(0);
        state.known.insert(fields.candidate_id.number(), index);
        state.candidates.push(Candidate {
            id: fields.candidate_id.clone(),
            payload: fields.payload.clone(),
            operation: fields.operation,
            parents,
            generation: fields.generation,
            status: CandidateStatus::INITIAL,
            train: Scores::default(),
            heldout: BTreeMap::new(),
            evaluation: None,
            promoted: false,
            pooled: None,
            component,
            failed_rows: Default::default(),
        });
        if let Some(generation) = fields.generation.and_then(|number| state.generations.get_mut(&number)) {
            generation.candidates.push(index);
            if !generation.needs_proposer() {
                generation.step = Step::Settled;
            }
        }
    }

    fn rollouts_requested(&self, state: &mut State, fields: &RolloutsRequested) {
        let Some(candidate) = state.index_of(&fields.candidate_id) else { return };
        let count = fields.row_ids.len() as u32;
        let RolloutsRequested { evaluation, stage, generation, attempt, replicate, .. } = *fields;
        for (offset, id) in fields.row_ids.iter().enumerate() {
            let Some(row) = self.row(id) else { continue };
            let call_id = CallId(fields.first_call_id.0 + offset as u64);
            let rollout = Rollout { evaluation, candidate, row, stage, attempt, replicate };
            let granted = state.budget.reserve(call_id, self.rollout_amount(row));
            debug_assert!(granted.is_ok(), "decide asked for more than the budget has");
            state.outstanding_calls.insert(call_id, Work::Rollout(rollout));
        }
        state.next_call_id = fields.first_call_id.0 + u64::from(count);
        // A retried rollout still counts as remaining in its evaluation.
        if evaluation != fields.first_call_id {
            return;
        }
        let begun = Evaluation { candidate, stage, generation, rows: count, remaining: count, failed: 0 };
        state.evaluations.insert(evaluation, begun);
        state.candidates[candidate as usize].evaluation = Some(evaluation);
        if stage == Stage::ParentMinibatchReference
            && let Some(generation) = generation.and_then(|number| state.generations.get_mut(&number))
        {
            generation.step = Step::Referencing;
        }
    }

    fn rollout_finished(&self, state: &mut State, fields: &RolloutFinished) {
        let Some(Work::Rollout(rollout)) = state.outstanding_calls.remove(&fields.call_id) else { return };
        let Rollout { evaluation, candidate, row, .. } = rollout;
        state.largest_reward = state.largest_reward.max(fields.reward);
        self.remember(state, false);
        let value = |name: &str| objective_value(fields, name).unwrap_or(f64::NAN);
        let values: Vec<f64> = self.settings.objectives.iter().map(|objective| value(&objective.name)).collect();
        debug_assert!(values.iter().all(|value| value.is_finite()), "decide lets no other score pass");
        let scored = &mut state.candidates[candidate as usize];
        match row {
            AnyRow::Train(row) => scored.train.insert(row, &values),
            AnyRow::Heldout(row) => {
                scored.heldout.insert(row, values[0]);
            }
        }
        // One more score decides nothing until it is the last of its evaluation.
        state.settled = !one_less(state, evaluation, false);
    }

    fn rollout_failed(&self, state: &mut State, fields: &RolloutFailed) {
        let Some(Work::Rollout(rollout)) = state.outstanding_calls.remove(&fields.call_id) else { return };
        let Rollout { evaluation, candidate, row, .. } = rollout;
        // What the run itself gave up says nothing about the container.
        let given_up = matches!(fields.class, FailureClass::Abandoned | FailureClass::Withdrawn);
        if !given_up {
            self.remember(state, true);
        }
        if fields.retried {
            return;
        }
        if let AnyRow::Train(row) = row
            && !given_up
        {
            state.candidates[candidate as usize].failed_rows.insert(row);
        }
        one_less(state, evaluation, true);
    }

    fn remember(&self, state: &mut State, failed: bool) {
        state.recent_failures.push_back(failed);
        if state.recent_failures.len() > self.settings.gepa.circuit_breaker.window as usize {
            state.recent_failures.pop_front();
        }
    }

    fn rejected(&self, state: &mut State, fields: &CandidateDecided) {
        state
            .rejected
            .push_back(CarriedFailure { candidate_id: fields.candidate_id.clone(), reason: fields.reason.clone() });
        while state.rejected.len() > self.settings.gepa.carry_failures as usize {
            if let Some(gone) = state.rejected.pop_front() {
                forget(state, &gone.candidate_id);
            }
        }
    }

    fn pooled(&self, state: &mut State, index: u32, merit: f64) {
        let Some(score) = self.train_score(state.candidate(index)) else { return };
        let values = self.cell_values(state, index);
        state.frontier.insert(merit, &values);
        state.candidates[index as usize].pooled = Some(Pooled { place: state.pool.len() as u32, score, merit });
        state.pool.push(index);
        state.pool_is_fresh = true;
    }

    fn generation_started(&self, state: &mut State, fields: &GenerationStarted) {
        let train = |id: &RowId| match self.row(id) {
            Some(AnyRow::Train(row)) => Some(row),
            Some(AnyRow::Heldout(_)) | None => None,
        };
        let rows = |ids: &[RowId]| ids.iter().filter_map(train).collect::<Vec<TrainRow>>();
        let parents: Vec<u32> = fields.parent_ids.iter().filter_map(|id| state.index_of(id)).collect();
        let ancestor = fields.ancestor_id.as_ref().and_then(|id| state.index_of(id));
        state.draws = state.draws.max(fields.draw + 1);
        state.next_generation = fields.generation + 1;
        state.pool_is_fresh = false;
        match fields.operation {
            Operation::Seed => {}
            Operation::Mutate => {
                state.budget.count_generation();
                if let Some(parent) = parents.first() {
                    state.candidates[*parent as usize].component += 1;
                }
            }
            Operation::Merge => {
                state.merges_built += 1;
                state.merges_due = state.merges_due.saturating_sub(1);
                if let ([first, second], Some(ancestor)) = (parents.as_slice(), ancestor) {
                    state.merges_tried.insert((*first.min(second), *first.max(second), ancestor));
                }
            }
        }
        let generation = Generation {
            number: fields.generation,
            operation: fields.operation,
            parents,
            ancestor,
            gate: rows(&fields.minibatch),
            evidence: rows(&fields.evidence),
            components: fields.components.clone(),
            base: fields.base.clone(),
            draw: fields.draw,
            step: Step::Reference,
            failures: 0,
            repairs: 0,
            problems: Vec::new(),
            answered: None,
            invalid: 0,
            duplicates: 0,
            candidates: Vec::new(),
            accepted: 0,
        };
        state.generations.insert(fields.generation, generation);
    }

    fn proposer_started(&self, state: &mut State, fields: &ProposerStarted) {
        let granted = state.budget.reserve(fields.call_id, self.settings.proposal);
        debug_assert!(granted.is_ok(), "decide asked for more than the budget has");
        if let Some(command) = self.question(state, fields) {
            state.outstanding_calls.insert(fields.call_id, Work::Proposal(Box::new(command)));
        }
        state.next_call_id = fields.call_id.0 + 1;
        if let Some(generation) = state.generations.get_mut(&fields.generation) {
            generation.repairs += u32::from(generation.step == Step::Answered);
            generation.step = Step::Proposing;
        }
    }

    fn generation_completed(&self, state: &mut State, fields: &GenerationCompleted) {
        let Some(generation) = state.generations.remove(&fields.generation) else { return };
        let broken = generation.invalid + generation.failures;
        if !generation.candidates.is_empty() {
            (state.invalid_turns, state.fruitless_turns) = (0, 0);
        } else if broken + generation.duplicates > 0 {
            state.fruitless_turns += 1;
            state.invalid_turns = if generation.duplicates == 0 { state.invalid_turns + 1 } else { 0 };
        }
        let pooled = generation.candidates.iter().any(|index| state.candidate(*index).pooled.is_some());
        if generation.operation == Operation::Mutate && pooled {
            let left = self.settings.gepa.merge.max_merges.saturating_sub(state.merges_built);
            state.merges_due = (state.merges_due + 1).min(left);
        }
        state.generations_without_gain = if state.gained { 0 } else { state.generations_without_gain + 1 };
        state.gained = false;
    }
}

fn evaluated(state: &mut State, fields: &EvaluationCompleted) {
    state.finished.retain(|id| *id != fields.evaluation);
    state.evaluations.remove(&fields.evaluation);
    if let Some(candidate) = candidate_mut(state, &fields.candidate_id) {
        candidate.evaluation = None;
    }
}

fn accepted(state: &mut State, event: &Event, fields: &CandidateDecided) {
    let Some(index) = state.index_of(&fields.candidate_id) else { return };
    if event.best_candidate().is_some() {
        state.best = Some(index);
    }
    if fields.comparison.as_ref().is_some_and(|comparison| comparison.primary_delta > 0.0) {
        state.gained = true;
    }
    if fields.stage == Stage::SeedFullTrain {
        state.phase = Phase::Search;
    }
    let number = state.candidate(index).generation;
    if let Some(generation) = number.and_then(|number| state.generations.get_mut(&number)) {
        generation.accepted += 1;
    }
}

fn candidate_mut<'s>(state: &'s mut State, id: &CandidateId) -> Option<&'s mut Candidate> {
    let index = state.index_of(id)?;
    state.candidates.get_mut(index as usize)
}

/// Drops the texts and scores of a candidate that nothing will be built on or compared with any more: most candidates
/// are rejected, and the log keeps what they were.
fn forget(state: &mut State, id: &CandidateId) {
    let shown = state.rejected.iter().any(|failure| failure.candidate_id == *id);
    let Some(candidate) = candidate_mut(state, id).filter(|_| !shown) else { return };
    if matches!(
        candidate.status,
        CandidateStatus::RejectedMinibatch
            | CandidateStatus::DeferredBudget
            | CandidateStatus::DeferredFailures
            | CandidateStatus::DeferredStop
    ) {
        candidate.payload = Default::default();
        candidate.train = Scores::default();
        candidate.failed_rows = Default::default();
    }
}

fn move_on(candidate: &mut Candidate, trigger: CandidateTrigger) {
    let next = candidate.status.next(trigger);
    debug_assert!(next.is_ok(), "{next:?}");
    if let Ok(status) = next {
        candidate.status = status;
    }
}

/// One answer less to wait for; true when it was the last.
fn one_less(state: &mut State, id: CallId, failed: bool) -> bool {
    let Some(evaluation) = state.evaluations.get_mut(&id) else { return true };
    evaluation.remaining -= 1;
    evaluation.failed += u32::from(failed);
    let last = evaluation.remaining == 0;
    if last {
        state.finished.push_back(id);
    }
    last
}

fn heldout_started(state: &mut State, fields: &HeldoutChosen) {
    state.phase = Phase::Heldout;
    state.heldout_queue = fields.candidate_ids.iter().filter_map(|id| state.index_of(id)).collect();
    state.budget.release_hold();
}

fn proposer_completed(state: &mut State, fields: &ProposerCompleted) {
    state.outstanding_calls.remove(&fields.call_id);
    if let Some(generation) = state.generations.get_mut(&fields.generation) {
        generation.step = Step::Answered;
        generation.answered = Some(fields.call_id);
        generation.problems.clear();
    }
}

fn proposer_failed(state: &mut State, fields: &ProposerFailed) {
    state.outstanding_calls.remove(&fields.call_id);
    if let Some(generation) = state.generations.get_mut(&fields.generation) {
        generation.failures += 1;
        generation.step = if fields.retried { Step::Propose } else { Step::Settled };
    }
}

fn proposal_rejected(state: &mut State, fields: &ProposalRejected) {
    if let Some(generation) = state.generations.get_mut(&fields.generation) {
        generation.invalid += 1;
        generation.problems.extend(fields.problems.iter().cloned());
    }
}

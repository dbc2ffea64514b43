//! Applies events to the state. This cannot fail and makes no decision.

use std::collections::BTreeMap;

use synth_optimizer_core::model::answer::FailureClass;
use synth_optimizer_core::model::budget::{Dimension, Resources};
use synth_optimizer_core::model::event::Event;
use synth_optimizer_core::model::event_effects::CallKind;
use synth_optimizer_core::model::event_fields::{
    CandidateDecided, CandidateRegistered, CarriedFailure, CheckVerdict, EvaluationCompleted, GenerationCompleted,
    GenerationStarted, HeldoutChosen, Operation, ProposalRejected, ProposerCompleted, ProposerFailed, ProposerStarted,
    RolloutFailed, RolloutFinished, RolloutsRequested, Stage, StopKind, StoppedBy,
};
use synth_optimizer_core::model::ids::{CallId, CandidateId, RowId, TrainRow};
use synth_optimizer_core::model::lifecycle::{CandidateStatus, CandidateTrigger, Lifecycle};
use synth_optimizer_core::model::usage::{Billing, Usage};

use crate::engine::GepaEngine;
use crate::objectives::objective_value;
use crate::outstanding::OutstandingCall;
use crate::state::{
    Candidate, Evaluation, Generation, GenerationStep, Phase, PoolEntry, Rollout, RowFailure, RowRef, Scores, State,
    Stop,
};

impl GepaEngine {
    pub(crate) fn apply(&self, state: &mut State, event: &Event) {
        state.has_nothing_to_decide = false;
        state.counts.count(event);
        if let Some(call) = event.settled_call() {
            state.budget.settle(call.call_id, call.billing, call.usage);
            // A retry is decided before this usage counts, so its reservation must not meet a smaller budget.
            let is_retried = matches!(event, Event::RolloutFailed(failed) if failed.retried);
            if call.kind == CallKind::Rollout && call.billing == Billing::Sent && !is_retried {
                self.record_usage(state, call.usage);
            }
            // A cached answer reports what the sent one did, so a run from the cache learns the same.
            if matches!(call.billing, Billing::Sent | Billing::Cached) && !is_retried {
                let is_success = matches!(event, Event::RolloutFinished(_) | Event::ProposerCompleted(_));
                self.learn_usage(state, call.kind, call.usage, is_success);
            }
        }
        if let Some((id, trigger)) = event.candidate_trigger()
            && let Some(candidate) = candidate_mut(state, id)
        {
            apply_trigger(candidate, trigger);
            let is_decided = candidate.status.is_final();
            if is_decided && state.grouped_evaluation == state.index_of(id) {
                state.grouped_evaluation = None;
            }
        }
        match event {
            Event::StateTransitioned(change) => state.run = change.to,
            Event::ObjectiveSetDeclared(_) => state.phase = Phase::Seed,
            Event::CandidateRegistered(fields) => self.register_candidate(state, fields),
            Event::RolloutsRequested(fields) => self.add_rollouts(state, fields),
            Event::RolloutFinished(fields) => self.record_score(state, fields),
            Event::RolloutFailed(fields) => self.record_failed_rollout(state, fields),
            Event::SeedEvaluated(fields) | Event::FullTrainEvaluated(fields) | Event::MinibatchEvaluated(fields) => {
                remove_evaluation(state, fields);
            }
            Event::MeasurementCompleted(fields) => end_evaluation(state, fields.evaluation, &fields.candidate_id),
            Event::NoiseMeasured(fields) => state.record_noise(fields),
            Event::WindowChanged(fields) => {
                state.window.is_wide = Some(fields.generations as usize == self.widest_window());
            }
            Event::HeadMoved(fields) => state.move_head(fields),
            Event::CheckStarted(fields) => state.start_check(fields),
            Event::CheckDecided(fields) => {
                // After a check with all rollouts that were left, the search ends.
                let is_limited = state.check().is_some_and(|check| check.max_rollouts.is_some());
                if fields.verdict == CheckVerdict::Adopted && is_limited {
                    state.generations_without_improvement = 0;
                }
                state.end_check(fields, self.settings.gepa.sprint.drop);
            }
            Event::CandidateSuperseded(fields) => state.settle_in_sprint(&fields.candidate_id),
            Event::ReferenceCompleted(fields) => {
                let is_sprint = state.sprint.is_some();
                if let Some(generation) = fields.generation.and_then(|index| state.generations.get_mut(&index)) {
                    // In sprints, other evaluations may still measure rows of this generation.
                    generation.step = if is_sprint { GenerationStep::Reference } else { GenerationStep::Propose };
                }
                remove_evaluation(state, fields);
            }
            Event::HeldoutCompleted(fields) => {
                state.heldout_measured.extend(state.index_of(&fields.candidate_id));
                remove_evaluation(state, fields);
            }
            Event::CandidatePromoted(fields) => {
                if let Some(candidate) = candidate_mut(state, &fields.candidate_id) {
                    candidate.promoted = true;
                }
                state.promote_in_sprint(fields);
            }
            Event::CandidateAccepted(fields) => {
                accept_candidate(state, event, fields);
                state.settle_in_sprint(&fields.candidate_id);
                if let Some(index) = state.index_of(&fields.candidate_id).filter(|_| fields.stage == Stage::Check) {
                    state.retire_scores(index);
                }
            }
            Event::CandidateRejected(fields) => {
                state.settle_in_sprint(&fields.candidate_id);
                self.carry_rejected(state, fields);
            }
            Event::CandidateDeferred(fields) => {
                state.settle_in_sprint(&fields.candidate_id);
                drop_evidence(state, &fields.candidate_id);
            }
            Event::GenerationStarted(fields) => self.add_generation(state, fields),
            Event::MinibatchSkipped(fields) => state.draws = state.draws.max(fields.draw + 1),
            Event::ProposerStarted(fields) => self.add_proposer_turn(state, fields),
            Event::ProposerCompleted(fields) => record_answered_turn(state, fields),
            Event::ProposerFailed(fields) => record_failed_turn(state, fields),
            Event::ProposalRejected(fields) => record_problems(state, fields),
            Event::DuplicateSkipped(fields) => {
                if let Some(generation) = state.generations.get_mut(&fields.generation) {
                    generation.duplicates += 1;
                }
            }
            Event::FrontierUpdated(fields) => {
                if let Some(index) = state.index_of(&fields.candidate_id) {
                    self.join_pool(state, index, fields.ranking_score);
                }
            }
            Event::GenerationCompleted(fields) => self.remove_generation(state, fields),
            Event::StopDecided(fields) => {
                state.stop = Some(Stop { stopped_by: fields.stopped_by.clone(), failure: fields.failure.clone() });
            }
            Event::CancelRequested(fields) => state.cancel = Some(fields.reason.clone()),
            Event::FailureRaised(failure) => {
                state.cancel = Some(failure.message.clone());
                let stopped_by = StoppedBy { kind: StopKind::Error, limit: None, value: None, reason: None };
                state.stop = Some(Stop { stopped_by, failure: Some(failure.clone()) });
            }
            Event::OutcomeUnknown(fields) => state.budget.charge_unknown(fields.call_id),
            Event::ClockObserved(fields) => state.budget.observe_elapsed(fields.elapsed_millis),
            Event::HeldoutPartial(fields) => {
                let left_out: Vec<u32> = fields.candidate_ids.iter().filter_map(|id| state.index_of(id)).collect();
                state.heldout_measured.extend(left_out);
            }
            Event::HeldoutStarted(fields) => start_heldout(state, fields),
            Event::HeldoutSkipped(_) => {
                state.phase = Phase::Heldout;
                state.budget.release_set_aside();
            }
            Event::RunFinished(_) | Event::RunFailed(_) | Event::RunCancelled(_) => {
                state.phase = Phase::Over;
                state.budget.release_set_aside();
            }
            // Other events describe inputs, execution and reasons. They do not affect the state.
            _ => {}
        }
    }

    fn register_candidate(&self, state: &mut State, fields: &CandidateRegistered) {
        let index = state.candidates.len() as u32;
        let parents: Vec<u32> = fields.parent_ids.iter().filter_map(|id| state.index_of(id)).collect();
        let component = parents.iter().map(|parent| state.candidate(*parent).component).max().unwrap_or(0);
        state.candidate_indexes.insert(fields.candidate_id.number(), index);
        if let Some(kept_share) = fields.kept_share {
            state.window.add_proposal(kept_share);
        }
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
            pool_entry: None,
            component,
            failed_rows: Default::default(),
            sprint: Default::default(),
        });
        if state.sprint.is_some() {
            state.register_in_sprint(index);
        }
        if let Some(generation) = fields.generation.and_then(|number| state.generations.get_mut(&number)) {
            generation.candidates.push(index);
            if !generation.needs_proposer() {
                generation.step = GenerationStep::Settled;
            }
        }
    }

    fn add_rollouts(&self, state: &mut State, fields: &RolloutsRequested) {
        let Some(candidate) = state.index_of(&fields.candidate_id) else { return };
        let count = fields.row_ids.len() as u32;
        let RolloutsRequested { evaluation, stage, generation, attempt, replicate, .. } = *fields;
        for (offset, id) in fields.row_ids.iter().enumerate() {
            let Some(row) = self.row(id) else { continue };
            let call_id = CallId(fields.first_call_id.0 + offset as u64);
            let rollout = Rollout { evaluation, candidate, row, stage, attempt, replicate };
            let granted = state.budget.reserve(call_id, self.rollout_amount(state, row));
            debug_assert!(granted.is_ok(), "decide requested more than the budget has");
            state.outstanding_calls.add(call_id, OutstandingCall::Rollout(rollout));
            if let (RowRef::Train(row), Some(_)) = (row, &state.sprint) {
                state.add_rollout_in_sprint(&rollout, row);
            }
        }
        state.next_call_id = fields.first_call_id.0 + u64::from(count);
        // A retried rollout still counts as remaining in its evaluation.
        if evaluation != fields.first_call_id {
            return;
        }
        let evaluation_state = Evaluation { candidate, stage, generation, rows: count, remaining: count, failed: 0 };
        state.evaluations.insert(evaluation, evaluation_state);
        state.candidates[candidate as usize].evaluation = Some(evaluation);
        if stage == Stage::CandidateFullTrain && self.settings.rebases() {
            state.grouped_evaluation.get_or_insert(candidate);
        }
        if stage == Stage::ParentMinibatchReference
            && let Some(generation) = generation.and_then(|number| state.generations.get_mut(&number))
        {
            generation.step = GenerationStep::Referencing;
        }
    }

    fn record_score(&self, state: &mut State, fields: &RolloutFinished) {
        let Some(OutstandingCall::Rollout(rollout)) = state.outstanding_calls.settle(fields.call_id) else { return };
        let Rollout { evaluation, candidate, row, .. } = rollout;
        state.largest_reward = state.largest_reward.max(fields.reward);
        self.record_outcome(state, None);
        state.has_other_outcome = true;
        let value = |name: &str| objective_value(fields, name).unwrap_or(f64::NAN);
        let values: Vec<f64> = self.settings.objectives.iter().map(|objective| value(&objective.name)).collect();
        debug_assert!(values.iter().all(|value| value.is_finite()), "decide accepts finite scores only");
        let scored = &mut state.candidates[candidate as usize];
        match row {
            RowRef::Train(row) => {
                scored.sprint.pending.remove(&row);
                if let Some(sprint) = &mut state.sprint {
                    sprint.record_score(self.settings.oriented(0, values[0]));
                    // Later repeats are of rows with perfect scores only.
                    let is_measured = rollout.stage == Stage::Repeat && !sprint.noise.is_noisy;
                    if let Some(before) = scored.score(row).filter(|_| is_measured) {
                        sprint.noise.add(values[0] - before);
                    }
                }
                scored.train.add(row, &values);
            }
            RowRef::Heldout(row) => {
                scored.heldout.insert(row, values[0]);
            }
        }
        // A score allows no decision until it is the last of its evaluation. In sprints, other evaluations wait for it too.
        let is_last = count_down(state, evaluation, false);
        state.has_nothing_to_decide = !is_last && state.sprint.is_none();
    }

    fn record_failed_rollout(&self, state: &mut State, fields: &RolloutFailed) {
        let Some(OutstandingCall::Rollout(rollout)) = state.outstanding_calls.settle(fields.call_id) else { return };
        let Rollout { evaluation, candidate, row, .. } = rollout;
        // Calls that the run itself abandoned are no evidence about the container.
        let given_up = matches!(fields.class, FailureClass::Abandoned | FailureClass::Withdrawn);
        match fields.class {
            FailureClass::Failed => state.task_failures = state.task_failures.saturating_add(1),
            FailureClass::Withdrawn => {}
            _ => state.has_other_outcome = true,
        }
        if fields.retried {
            return;
        }
        if !given_up {
            let RolloutFailed { class, row_id, message, .. } = fields;
            let failure = RowFailure { class: *class, row_id: row_id.clone(), message: message.clone() };
            self.record_outcome(state, Some(failure));
        }
        if let RowRef::Train(row) = row {
            let candidate = &mut state.candidates[candidate as usize];
            candidate.sprint.pending.remove(&row);
            // A repeat that failed leaves the score that the row has.
            if !given_up && candidate.score(row).is_none() {
                candidate.failed_rows.insert(row);
            }
        }
        count_down(state, evaluation, true);
    }

    /// Records the last outcome of a row: a score, or the failure of its last attempt.
    fn record_outcome(&self, state: &mut State, failure: Option<RowFailure>) {
        state.recent_rows.push_back(failure);
        if state.recent_rows.len() > self.settings.gepa.circuit_breaker.window as usize {
            state.recent_rows.pop_front();
        }
    }

    /// Records what a rollout has used. If rollouts use more than their estimate, more is set aside for the held-out
    /// evaluation, so that the search ends before it uses that up.
    fn record_usage(&self, state: &mut State, usage: &Usage) {
        if !self.settings.has_usage_caps {
            return;
        }
        state.rollout_usage.add(usage);
        let held = state.budget.set_aside_amount();
        if matches!(state.phase, Phase::Seed | Phase::Search) && held != Resources::ZERO {
            let rollouts = held.get(Dimension::HeldoutRollouts);
            let amount = self.heldout_rollout(state).times(rollouts);
            state.budget.raise_set_aside(&amount);
        }
    }

    /// Records what a call has used, if a limit has no estimate for it, and sets that much aside for each rollout of the
    /// held-out evaluation.
    fn learn_usage(&self, state: &mut State, kind: CallKind, usage: &Usage, is_success: bool) {
        let (learned, known) = match kind {
            CallKind::Rollout => (&self.settings.learned_rollout, &mut state.learned_rollout),
            CallKind::Proposer => (&self.settings.learned_proposal, &mut state.learned_proposal),
        };
        if learned.is_empty() {
            return;
        }
        known.add(usage, is_success);
        let held = state.budget.set_aside_amount();
        let is_open = matches!(state.phase, Phase::Seed | Phase::Search) && held != Resources::ZERO;
        if kind == CallKind::Rollout && is_open && !self.must_probe_rollout(state) {
            // Estimates may also become smaller, so the amount is set anew.
            let amount = self.heldout_rollout(state).times(held.get(Dimension::HeldoutRollouts));
            state.budget.release_set_aside();
            state.budget.raise_set_aside(&amount);
        }
    }

    fn carry_rejected(&self, state: &mut State, fields: &CandidateDecided) {
        let detail = fields.detail.as_ref().map_or(String::new(), |detail| format!(": {detail}"));
        let reason = format!("{}{detail}", fields.reason);
        state.rejected.push_back(CarriedFailure { candidate_id: fields.candidate_id.clone(), reason });
        while state.rejected.len() > self.settings.gepa.carry_failures as usize {
            if let Some(gone) = state.rejected.pop_front() {
                drop_evidence(state, &gone.candidate_id);
            }
        }
    }

    fn join_pool(&self, state: &mut State, index: u32, ranking_score: f64) {
        let Some(score) = self.train_score(state.candidate(index)) else { return };
        let values = self.cell_values(state, index);
        state.frontier.insert(ranking_score, &values);
        state.candidates[index as usize].pool_entry =
            Some(PoolEntry { place: state.pool.len() as u32, score, ranking_score });
        state.pool.push(index);
        state.pool_has_grown = true;
    }

    fn add_generation(&self, state: &mut State, fields: &GenerationStarted) {
        let train = |id: &RowId| match self.row(id) {
            Some(RowRef::Train(row)) => Some(row),
            Some(RowRef::Heldout(_)) | None => None,
        };
        let rows = |ids: &[RowId]| ids.iter().filter_map(train).collect::<Vec<TrainRow>>();
        let parents: Vec<u32> = fields.parent_ids.iter().filter_map(|id| state.index_of(id)).collect();
        let ancestor = fields.ancestor_id.as_ref().and_then(|id| state.index_of(id));
        state.draws = state.draws.max(fields.draw + 1);
        state.next_generation = fields.generation + 1;
        state.pool_has_grown = false;
        match fields.operation {
            Operation::Seed | Operation::Rebase => {}
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
            minibatch: rows(&fields.minibatch),
            evidence: rows(&fields.evidence),
            components: fields.components.clone(),
            base: fields.base.clone(),
            draw: fields.draw,
            sprint: state.sprint.as_ref().map_or(0, |sprint| sprint.number),
            step: GenerationStep::Reference,
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

    fn add_proposer_turn(&self, state: &mut State, fields: &ProposerStarted) {
        let granted = state.budget.reserve(fields.call_id, self.proposal(state));
        debug_assert!(granted.is_ok(), "decide requested more than the budget has");
        if let Some(command) = self.question(state, fields) {
            state.outstanding_calls.add(fields.call_id, OutstandingCall::Proposal(Box::new(command)));
        }
        state.next_call_id = fields.call_id.0 + 1;
        if let Some(generation) = state.generations.get_mut(&fields.generation) {
            generation.repairs += u32::from(generation.step == GenerationStep::Answered);
            generation.step = GenerationStep::Proposing;
        }
    }

    fn remove_generation(&self, state: &mut State, fields: &GenerationCompleted) {
        let Some(generation) = state.generations.remove(&fields.generation) else { return };
        let broken = generation.invalid + generation.failures;
        if !generation.candidates.is_empty() {
            (state.invalid_turns, state.turns_without_candidate) = (0, 0);
        } else if broken + generation.duplicates > 0 && generation.number >= state.turns_counted_from {
            state.turns_counted_from = state.next_generation;
            state.turns_without_candidate += 1;
            state.invalid_turns = if generation.duplicates == 0 { state.invalid_turns + 1 } else { 0 };
        }
        let pooled = generation.candidates.iter().any(|index| state.candidate(*index).pool_entry.is_some());
        if generation.operation == Operation::Mutate && pooled {
            let left = self.settings.gepa.merge.max_merges.saturating_sub(state.merges_built);
            state.merges_due = (state.merges_due + 1).min(left);
        }
        state.generations_without_improvement =
            if state.has_improved { 0 } else { state.generations_without_improvement + 1 };
        state.has_improved = false;
    }
}

fn remove_evaluation(state: &mut State, fields: &EvaluationCompleted) {
    end_evaluation(state, fields.evaluation, &fields.candidate_id);
}

fn end_evaluation(state: &mut State, evaluation: CallId, candidate_id: &CandidateId) {
    state.finished_evaluations.retain(|id| *id != evaluation);
    state.evaluations.remove(&evaluation);
    if let Some(candidate) = candidate_mut(state, candidate_id) {
        candidate.evaluation = None;
    }
}

fn accept_candidate(state: &mut State, event: &Event, fields: &CandidateDecided) {
    let Some(index) = state.index_of(&fields.candidate_id) else { return };
    if event.best_candidate().is_some() {
        state.best = Some(index);
    }
    if fields.comparison.as_ref().is_some_and(|comparison| comparison.primary_delta > 0.0) {
        state.has_improved = true;
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

/// Frees the texts and scores of a rejected or deferred candidate that the search no longer needs. The log still has them.
fn drop_evidence(state: &mut State, id: &CandidateId) {
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

fn apply_trigger(candidate: &mut Candidate, trigger: CandidateTrigger) {
    let next = candidate.status.next(trigger);
    debug_assert!(next.is_ok(), "{next:?}");
    if let Ok(status) = next {
        candidate.status = status;
    }
}

/// Counts down the remaining answers of an evaluation. Returns true after the last one.
fn count_down(state: &mut State, id: CallId, failed: bool) -> bool {
    let Some(evaluation) = state.evaluations.get_mut(&id) else { return true };
    evaluation.remaining -= 1;
    evaluation.failed += u32::from(failed);
    let last = evaluation.remaining == 0;
    if last {
        state.finished_evaluations.push_back(id);
    }
    last
}

fn start_heldout(state: &mut State, fields: &HeldoutChosen) {
    state.phase = Phase::Heldout;
    state.heldout_queue = fields.candidate_ids.iter().filter_map(|id| state.index_of(id)).collect();
    state.budget.release_set_aside();
}

fn record_answered_turn(state: &mut State, fields: &ProposerCompleted) {
    state.outstanding_calls.settle(fields.call_id);
    if let Some(generation) = state.generations.get_mut(&fields.generation) {
        generation.step = GenerationStep::Answered;
        generation.answered = Some(fields.call_id);
        generation.problems.clear();
    }
}

fn record_failed_turn(state: &mut State, fields: &ProposerFailed) {
    state.outstanding_calls.settle(fields.call_id);
    if let Some(generation) = state.generations.get_mut(&fields.generation) {
        generation.failures += 1;
        state.last_turn_problem = Some(fields.message.clone());
        generation.step = if fields.retried { GenerationStep::Propose } else { GenerationStep::Settled };
    }
}

fn record_problems(state: &mut State, fields: &ProposalRejected) {
    if let Some(generation) = state.generations.get_mut(&fields.generation) {
        generation.invalid += 1;
        state.last_turn_problem = fields.problems.first().map(|problem| problem.message.clone());
        generation.problems.extend(fields.problems.iter().cloned());
    }
}

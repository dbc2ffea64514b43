//! Applies the events of generations and proposer turns.

use synth_optimizer_core::model::event_fields::{
    GenerationCompleted, GenerationStarted, Operation, ProposalRejected, ProposerCompleted, ProposerFailed,
    ProposerStarted,
};
use synth_optimizer_core::model::ids::{RowId, TrainRow};

use crate::engine::GepaEngine;
use crate::state::{AnyRow, Generation, State, Step, Work};

impl GepaEngine {
    pub(crate) fn generation_started(&self, state: &mut State, fields: &GenerationStarted) {
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

    pub(crate) fn proposer_started(&self, state: &mut State, fields: &ProposerStarted) {
        let granted = state.budget.reserve(fields.request, self.settings.proposal);
        debug_assert!(granted.is_ok(), "decide asked for more than the budget has");
        if let Some(command) = self.question(state, fields) {
            state.requests.insert(fields.request, Work::Proposal(Box::new(command)));
        }
        state.next_request = fields.request.0 + 1;
        if let Some(generation) = state.generations.get_mut(&fields.generation) {
            generation.repairs += u32::from(generation.step == Step::Answered);
            generation.step = Step::Proposing;
        }
    }

    pub(crate) fn generation_completed(&self, state: &mut State, fields: &GenerationCompleted) {
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

pub(crate) fn proposer_completed(state: &mut State, fields: &ProposerCompleted) {
    state.requests.remove(&fields.request);
    if let Some(generation) = state.generations.get_mut(&fields.generation) {
        generation.step = Step::Answered;
        generation.answered = Some(fields.request);
        generation.problems.clear();
    }
}

pub(crate) fn proposer_failed(state: &mut State, fields: &ProposerFailed) {
    state.requests.remove(&fields.request);
    if let Some(generation) = state.generations.get_mut(&fields.generation) {
        generation.failures += 1;
        generation.step = if fields.retried { Step::Propose } else { Step::Settled };
    }
}

pub(crate) fn proposal_rejected(state: &mut State, fields: &ProposalRejected) {
    if let Some(generation) = state.generations.get_mut(&fields.generation) {
        generation.invalid += 1;
        generation.problems.extend(fields.problems.iter().cloned());
    }
}

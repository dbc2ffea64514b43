//! Decisions about late candidates, whose parent is not the one that the search builds on any more: their changes are carried
//! over, several at once, as a new candidate.

use synth_optimizer_core::model::event::Event;
use synth_optimizer_core::model::event_fields::{CandidateRegistered, Operation};
use synth_optimizer_core::model::ids::{CandidateId, Payload};
use synth_optimizer_core::model::lifecycle::CandidateStatus;

use crate::carry::{Carried, carry};
use crate::decide_check::is_ancestor;
use crate::decide_sprint::superseded;
use crate::engine::GepaEngine;
use crate::state::{Candidate, State};

/// Maximum number of changes that one full evaluation of the reference search tests together.
const MAX_GROUP: usize = 8;

/// Texts with the changes of several candidates.
pub(crate) struct Composition {
    pub texts: Payload,
    /// The candidates whose changes the texts have.
    pub carried: Vec<u32>,
    /// The others, and why: a conflict in words, or `None` if the texts had the change already.
    pub left_out: Vec<(u32, Option<String>)>,
}

impl GepaEngine {
    /// Lays the changes of candidates over texts, one after the other, at most `most` of them.
    pub(crate) fn compose(&self, state: &State, onto: &Payload, late: &[u32], most: usize) -> Composition {
        let mut composed = Composition { texts: onto.clone(), carried: Vec::new(), left_out: Vec::new() };
        for index in late {
            if composed.carried.len() == most {
                break;
            }
            match self.carried_over(state, state.candidate(*index), &composed.texts) {
                Ok(Some(texts)) => {
                    composed.texts = texts;
                    composed.carried.push(*index);
                }
                Ok(None) => composed.left_out.push((*index, None)),
                Err(why) => composed.left_out.push((*index, Some(why))),
            }
        }
        composed
    }

    /// Returns the texts with the change of a candidate; `None` if they already have it.
    fn carried_over(&self, state: &State, candidate: &Candidate, onto: &Payload) -> Result<Option<Payload>, String> {
        let Some(base) = candidate.parents.first().map(|parent| &state.candidate(*parent).payload) else {
            return Err("its parent is not known".to_owned());
        };
        let mut merged = onto.clone();
        for field in &self.inputs.program.targets {
            let text = |payload: &Payload| payload.get(field).cloned().unwrap_or_default();
            let (before, after, own) = (text(base), text(&candidate.payload), text(onto));
            match carry(&before, &after, &own) {
                Carried::Clean(found) => {
                    let problems = self.carried_problems(field, [&before, &own], &found);
                    if let Some(problem) = problems.first() {
                        return Err(problem.message.clone());
                    }
                    merged.insert(field.clone(), found);
                }
                Carried::Nothing => {}
                Carried::Conflict(why) => return Err(why.to_owned()),
            }
        }
        if let Some(problem) = self.length_problem(&merged) {
            return Err(problem.message);
        }
        Ok(Some(merged).filter(|merged| merged != onto))
    }

    /// Registers a composition as a candidate that takes the place of its members.
    pub(crate) fn register_rebase(
        &self,
        state: &State,
        onto: u32,
        generation: Option<u32>,
        composed: &Composition,
    ) -> Vec<Event> {
        let Composition { texts, carried, .. } = composed;
        let id = CandidateId::of(&self.settings.candidate_id_prefix, texts);
        let replaced = |reason: &str| -> Vec<Event> {
            carried.iter().map(|index| superseded(state.candidate(*index), Some(&id), reason)).collect()
        };
        if carried.is_empty() || state.index_of(&id).is_some() {
            return replaced("with its change carried over, the text is a known candidate");
        }
        let before = &state.candidate(onto).payload;
        let parents: Vec<u32> = [onto].into_iter().chain(carried.iter().copied()).collect();
        let changed = |field: &&String| before.get(*field) != texts.get(*field);
        let mut events = vec![Event::CandidateRegistered(CandidateRegistered {
            candidate_id: id.clone(),
            operation: Operation::Rebase,
            parent_ids: state.ids(&parents),
            generation,
            changed_fields: texts.keys().filter(changed).cloned().collect(),
            payload: texts.clone(),
            rationale: "changes of late candidates, carried over".to_owned(),
            dropped_fields: Vec::new(),
            kept_share: None,
        })];
        events.extend(replaced("its change was carried over"));
        events
    }

    /// Returns the next step of a promoted candidate of the reference search: its full evaluation.
    ///
    /// With several open generations, the best candidate has often changed since the parent was chosen. The change then waits
    /// for the full evaluation before it, is carried over to the best candidate of that moment, and is evaluated together with
    /// others that wait. A change that does not fit is evaluated at once, as it is.
    pub(crate) fn evaluate_promoted(&self, state: &State, index: u32) -> Vec<Event> {
        let candidate = state.candidate(index);
        let best = state.best.filter(|_| candidate.operation == Operation::Mutate && state.may_send_calls());
        let Some(best) = best.filter(|_| self.settings.rebases()) else {
            return self.request_full_evaluation(state, candidate);
        };
        let (stands_on_best, onto) = (stands_on(state, candidate, best), &state.candidate(best).payload);
        let mut composed = match stands_on_best {
            true => Composition { texts: candidate.payload.clone(), carried: vec![index], left_out: Vec::new() },
            false => self.compose(state, onto, &[index], 1),
        };
        match composed.left_out.first() {
            Some((_, Some(_))) => return self.request_full_evaluation(state, candidate),
            Some((_, None)) => {
                let best = &state.candidate(best).id;
                return vec![superseded(candidate, Some(best), "the best candidate already has its change")];
            }
            None => {}
        }
        if state.grouped_evaluation.is_some() {
            return Vec::new();
        }
        let others: Vec<u32> = waiting(state).filter(|other| *other != index).collect();
        let group = self.compose(state, &composed.texts, &others, MAX_GROUP - 1);
        composed.texts = group.texts;
        composed.carried.extend(group.carried);
        let rows = self.inputs.pareto_pool.len() as u64;
        let fits = state.budget.max_affordable(&self.train_rollout(state), rows).0 == rows;
        if !fits || (stands_on_best && composed.carried.len() == 1) {
            return self.request_full_evaluation(state, candidate);
        }
        self.register_rebase(state, best, candidate.generation, &composed)
    }
}

/// Returns the promoted candidates that wait for their full evaluation, oldest generation first.
fn waiting(state: &State) -> impl Iterator<Item = u32> {
    let is_waiting = |index: &u32| {
        let candidate = state.candidate(*index);
        let is_open = candidate.status == CandidateStatus::MinibatchEvaluated && candidate.evaluation.is_none();
        candidate.promoted && is_open && candidate.operation == Operation::Mutate
    };
    state.generations.values().flat_map(|generation| generation.candidates.iter().copied()).filter(is_waiting)
}

/// Returns whether a candidate already builds on another one.
fn stands_on(state: &State, candidate: &Candidate, best: u32) -> bool {
    candidate.parents.first().is_some_and(|parent| *parent == best || is_ancestor(state, best, *parent))
}

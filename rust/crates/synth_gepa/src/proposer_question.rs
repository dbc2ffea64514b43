//! Builds the question of a proposer turn: parents, evidence, related candidates and the frontier.

use synth_optimizer_core::model::command::{
    CarriedAttempt, EvidenceRow, FrontierMember, NamedPayload, ProposeCommand, ProposerQuestion, RelatedCandidate,
    Relation,
};
use synth_optimizer_core::model::event_fields::{CarriedFailure, ProposerStarted};

use crate::edits::edit_fields;
use crate::engine::GepaEngine;
use crate::state::{Candidate, State};

/// Limits of the shown candidates, so that a question does not grow with the search.
const MAX_ANCESTORS: usize = 4;
const MAX_CHILDREN: usize = 6;
const MAX_FRONTIER_MEMBERS: usize = 8;
/// Number of candidates scanned for children, newest first, and for frontier members, best first.
const MAX_SCANNED: usize = 64;

impl GepaEngine {
    /// Returns the command of a proposer turn that starts with this event.
    pub(crate) fn question(&self, state: &State, fields: &ProposerStarted) -> Option<ProposeCommand> {
        let generation = state.generations.get(&fields.generation)?;
        let parent = state.candidate(*generation.parents.first()?);
        let named = |index: &u32| {
            let candidate = state.candidate(*index);
            NamedPayload { candidate_id: candidate.id.clone(), payload: candidate.payload.clone() }
        };
        let evidence = generation
            .evidence
            .iter()
            .map(|row| EvidenceRow { row_id: self.inputs.train_id(*row).clone(), score: parent.score(*row) });
        // The command copies the texts, because the state may drop them before the call is sent.
        let carried = |failure: &CarriedFailure| {
            let payload = state.candidate(state.index_of(&failure.candidate_id)?).payload.clone();
            Some(CarriedAttempt { candidate_id: failure.candidate_id.clone(), payload, reason: failure.reason.clone() })
        };
        Some(ProposeCommand {
            call_id: fields.call_id,
            attempt: fields.attempt,
            evidence: evidence.collect(),
            repairs: generation.answered.filter(|_| !fields.problems.is_empty()),
            question: ProposerQuestion {
                operation: generation.operation,
                generation: fields.generation,
                parents: generation.parents.iter().map(named).collect(),
                ancestor: generation.ancestor.as_ref().map(named).map(Box::new),
                base: generation.base.clone(),
                components: generation.components.clone(),
                edit_fields: edit_fields(generation, self.settings.proposer.edits),
                proposal_count: fields.proposal_count,
                carried_failures: fields.carried_failures.iter().filter_map(carried).collect(),
                relatives: relatives(state, parent, &generation.parents),
                frontier: frontier(state),
                frontier_size: state.frontier.size(),
                problems: fields.problems.clone(),
                rules: Box::new(self.candidate_rules(generation)),
            },
        })
    }
}

/// Returns the ancestors of the first parent, and the newest children of all parents.
fn relatives(state: &State, parent: &Candidate, parents: &[u32]) -> Vec<RelatedCandidate> {
    let mut relatives = Vec::new();
    let mut next = parent.parents.first();
    while let Some(ancestor) = next.filter(|_| relatives.len() < MAX_ANCESTORS) {
        let ancestor = state.candidate(*ancestor);
        relatives.push(related_candidate(state, ancestor, Relation::Ancestor, parent));
        next = ancestor.parents.first();
    }
    let is_child = |candidate: &&Candidate| candidate.parents.iter().any(|of| parents.contains(of));
    let young = state.candidates.iter().rev().take(MAX_SCANNED).filter(is_child).take(MAX_CHILDREN);
    relatives.extend(young.map(|child| related_candidate(state, child, Relation::Child, parent)));
    relatives
}

/// Returns the best members of the frontier.
fn frontier(state: &State) -> Vec<FrontierMember> {
    let member = |place: &u32| {
        let candidate = state.candidate(*state.pool.get(*place as usize)?);
        let cells_won = Some(state.frontier.cells_won(*place)).filter(|won| *won > 0)?;
        let train_score = candidate.pool_entry?.score.mean;
        Some(FrontierMember { candidate_id: candidate.id.clone(), train_score, cells_won })
    };
    state.frontier.ranked().iter().rev().take(MAX_SCANNED).filter_map(member).take(MAX_FRONTIER_MEMBERS).collect()
}

fn related_candidate(state: &State, candidate: &Candidate, relation: Relation, parent: &Candidate) -> RelatedCandidate {
    let differs = |(field, text): &(&String, &String)| parent.payload.get(*field) != Some(*text);
    let own = candidate.payload.iter().filter(differs);
    let (mut sum, mut rows) = (0.0, 0);
    if let Some(before) = candidate.parents.first().map(|index| state.candidate(*index)) {
        for (row, score) in candidate.train.first_objective() {
            if let Some(reference) = before.score(row) {
                sum += score - reference;
                rows += 1;
            }
        }
    }
    RelatedCandidate {
        candidate_id: candidate.id.clone(),
        relation,
        status: candidate.status,
        train_score: candidate.pool_entry.map(|pooled| pooled.score.mean),
        delta: (rows > 0).then(|| sum / f64::from(rows)),
        rows,
        changed: own.map(|(field, text)| (field.clone(), text.clone())).collect(),
    }
}

//! What a proposer is shown of the search around the parents: where they came from, what was made of them, and the frontier.

use synth_optimizer_core::model::command::{FrontierMember, Relation, Relative};

use crate::state::{Candidate, State, Surroundings};

/// Most ancestors, children and members of the frontier that are shown, so that a question does not grow with the search.
const ANCESTORS: usize = 4;
const CHILDREN: usize = 6;
const MEMBERS: usize = 8;
/// Most candidates among which children are looked for, from the youngest on, and members, from the best on.
const LOOKED_AT: usize = 64;

/// The surroundings of a generation's parents as they stand now.
pub(crate) fn surroundings(state: &State, generation: u32) -> Surroundings {
    let parents = state.generations.get(&generation).map_or(&[][..], |generation| &generation.parents);
    let mut relatives = Vec::new();
    if let Some(first) = parents.first() {
        let parent = state.candidate(*first);
        let mut next = parent.parents.first();
        while let Some(ancestor) = next.filter(|_| relatives.len() < ANCESTORS) {
            let ancestor = state.candidate(*ancestor);
            relatives.push(relative(state, ancestor, Relation::Ancestor, parent));
            next = ancestor.parents.first();
        }
        let is_child = |candidate: &&Candidate| candidate.parents.iter().any(|of| parents.contains(of));
        let young = state.candidates.iter().rev().take(LOOKED_AT).filter(is_child).take(CHILDREN);
        relatives.extend(young.map(|child| relative(state, child, Relation::Child, parent)));
    }
    let highest = state.frontier.ranked().iter().rev().take(LOOKED_AT);
    let members = highest.filter_map(|place| {
        let candidate = state.candidate(*state.pool.get(*place as usize)?);
        let cells_won = Some(state.frontier.cells_won(*place)).filter(|won| *won > 0)?;
        Some(FrontierMember {
            candidate_id: candidate.id.clone(),
            train_score: candidate.pooled?.score.mean,
            cells_won,
        })
    });
    Surroundings { frontier: members.take(MEMBERS).collect(), frontier_size: state.frontier.size(), relatives }
}

fn relative(state: &State, candidate: &Candidate, relation: Relation, parent: &Candidate) -> Relative {
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
    Relative {
        candidate_id: candidate.id.clone(),
        relation,
        status: candidate.status,
        train_score: candidate.pooled.map(|pooled| pooled.score.mean),
        delta: (rows > 0).then(|| sum / f64::from(rows)),
        rows,
        changed: own.map(|(field, text)| (field.clone(), text.clone())).collect(),
    }
}

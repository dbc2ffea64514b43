//! System-aware merge: combines two candidates that descend from a common ancestor and changed different fields.

use std::collections::BTreeSet;

use synth_optimizer_core::config::gepa::MergeConflict;
use synth_optimizer_core::model::ids::{CandidateId, Payload, TrainRow};

use crate::engine::GepaEngine;
use crate::state::State;
use synth_optimizer_core::random::{RandomStream, random_stream};

/// Maximum number of random pairs that are tried before the search for a merge gives up.
const MAX_PAIR_DRAWS: u32 = 100;

/// A merge that can be built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MergePlan {
    pub parents: [u32; 2],
    pub ancestor: u32,
    /// The merged texts; conflicting fields hold the better parent's text.
    pub payload: Payload,
    /// Fields that the proposer has to merge.
    pub conflicts: Vec<String>,
    /// Rows on which the merge is screened.
    pub minibatch: Vec<TrainRow>,
}

impl GepaEngine {
    /// Returns a merge that was not tried before, if one is due and possible.
    pub fn plan_merge(&self, state: &State) -> Option<MergePlan> {
        let rules = &self.settings.gepa.merge;
        let due = rules.enabled && state.merges_due > 0 && state.merges_built < rules.max_merges;
        // A merge is planned once after each change of the pool. A single field can only be merged by the proposer.
        let alone = self.inputs.program.targets.len() < 2 && rules.conflict == MergeConflict::HigherScore;
        if !due || !state.pool_has_grown || alone {
            return None;
        }
        let places = state.frontier.undominated();
        if places.len() < 2 {
            return None;
        }
        let mut random = random_stream(self.settings.seed, "merge", u64::from(state.next_generation));
        for _ in 0..MAX_PAIR_DRAWS {
            let first = places[random.index(places.len())];
            let second = places[random.index(places.len())];
            let (first, second) = (first.min(second), first.max(second));
            if first == second {
                continue;
            }
            let pair = [state.pool[first as usize], state.pool[second as usize]];
            if let Some(plan) = self.plan_merge_of(state, pair, &mut random) {
                return Some(plan);
            }
        }
        None
    }

    fn plan_merge_of(&self, state: &State, [first, second]: [u32; 2], random: &mut RandomStream) -> Option<MergePlan> {
        let (ours, theirs) = (ancestors(state, first), ancestors(state, second));
        if ours.contains(&second) || theirs.contains(&first) {
            return None;
        }
        let ranking_score = |index: u32| state.candidate(index).ranking_score();
        let pair = (first.min(second), first.max(second));
        let common: Vec<u32> = ours
            .intersection(&theirs)
            .copied()
            .filter(|ancestor| {
                let fresh = !state.merges_tried.contains(&(pair.0, pair.1, *ancestor));
                let pooled = state.candidate(*ancestor).pool_entry.is_some();
                fresh
                    && pooled
                    && ranking_score(*ancestor) <= ranking_score(first)
                    && ranking_score(*ancestor) <= ranking_score(second)
            })
            .collect();
        let ancestor = *common.get(random.index(common.len()))?;
        let (payload, conflicts) = self.merge_payloads(state, first, second, ancestor)?;
        let id = CandidateId::of(&self.settings.candidate_id_prefix, &payload);
        let is_useless = || state.index_of(&id).is_some() || self.length_problem(&payload).is_some();
        if conflicts.is_empty() && is_useless() {
            return None;
        }
        let minibatch = self.merge_minibatch(state, first, second, random)?;
        Some(MergePlan { parents: [first, second], ancestor, payload, conflicts, minibatch })
    }

    /// Returns the merged texts and the conflicting fields; `None` if there is nothing to combine.
    fn merge_payloads(&self, state: &State, first: u32, second: u32, ancestor: u32) -> Option<(Payload, Vec<String>)> {
        let [ours, theirs, base] = [first, second, ancestor].map(|index| &state.candidate(index).payload);
        // Among equal scores, the newer candidate wins.
        let prefer_first = state.candidate(first).ranking_score() > state.candidate(second).ranking_score();
        let mut payload = base.clone();
        let mut conflicts = Vec::new();
        let mut combined = false;
        for field in &self.inputs.program.targets {
            let [a, b, old] = [ours.get(field)?, theirs.get(field)?, base.get(field)?];
            combined |= (a == old) != (b == old);
            let text = match (a == old, b == old) {
                _ if a == b => a,
                (true, false) => b,
                (false, true) => a,
                _ => {
                    conflicts.push(field.clone());
                    if prefer_first { a } else { b }
                }
            };
            payload.insert(field.clone(), text.clone());
        }
        match self.settings.gepa.merge.conflict {
            MergeConflict::HigherScore => combined.then_some((payload, Vec::new())),
            MergeConflict::Proposer => (combined || !conflicts.is_empty()).then_some((payload, conflicts)),
        }
    }

    /// Chooses rows evenly from three groups: the first parent is better, the second is better, both are equal.
    fn merge_minibatch(
        &self,
        state: &State,
        first: u32,
        second: u32,
        random: &mut RandomStream,
    ) -> Option<Vec<TrainRow>> {
        let rules = &self.settings.gepa.merge;
        let mut groups: [Vec<TrainRow>; 3] = Default::default();
        for row in &self.inputs.pareto_pool {
            let (Some(a), Some(b)) = (state.candidate(first).score(*row), state.candidate(second).score(*row)) else {
                continue;
            };
            let (a, b) = (self.settings.oriented(0, a), self.settings.oriented(0, b));
            let group = if a > b { 0 } else { 1 + usize::from(a == b) };
            groups[group].push(*row);
        }
        if groups.iter().map(Vec::len).sum::<usize>() < rules.min_shared_rows as usize {
            return None;
        }
        groups.iter_mut().for_each(|group| random.shuffle(group));
        let longest = groups.iter().map(Vec::len).max().unwrap_or(0);
        let spread = (0..longest).flat_map(|place| groups.iter().filter_map(move |group| group.get(place).copied()));
        Some(spread.take(rules.gate_rows as usize).collect())
    }
}

/// Returns all ancestors of a candidate.
fn ancestors(state: &State, index: u32) -> BTreeSet<u32> {
    let mut seen = BTreeSet::new();
    let mut open = state.candidate(index).parents.clone();
    while let Some(next) = open.pop() {
        if seen.insert(next) {
            open.extend(&state.candidate(next).parents);
        }
    }
    seen
}

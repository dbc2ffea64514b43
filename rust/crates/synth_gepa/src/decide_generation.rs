//! Decisions about generations: choose parents and rows, measure the parent, request proposals, and complete the generation.

use synth_optimizer_core::config::gepa::{ComponentSelector, Direction, OUTCOME_REWARD};
use synth_optimizer_core::model::budget::{BudgetRefusal, Dimension, Resources};
use synth_optimizer_core::model::event::Event;
use synth_optimizer_core::model::event_fields::{
    CandidateRegistered, GenerationCompleted, GenerationStarted, MinibatchSkipped, Operation, ProposerStarted, Stage,
};
use synth_optimizer_core::model::ids::{CallId, CandidateId, TrainRow};
use synth_optimizer_core::model::lifecycle::{CandidateStatus, Lifecycle as _};

use crate::decide_evaluation::missing_rows;
use crate::decide_sprint::is_settled;
use crate::engine::GepaEngine;
use crate::merge::MergePlan;
use crate::select::{self, MinibatchSampler};
use crate::state::{Candidate, Generation, GenerationStep, Phase, State, share};
use synth_optimizer_core::random::random_stream;

impl GepaEngine {
    /// Returns the next step of the oldest generation that has one.
    pub(crate) fn advance_generations(&self, state: &State) -> Vec<Event> {
        if state.cancel.is_some() {
            return Vec::new();
        }
        if state.phase == Phase::Seed {
            let judged = |seed: &&Candidate| seed.status == CandidateStatus::FullTrainEvaluated;
            return state.candidates.first().filter(judged).map_or_else(Vec::new, |_| self.judge_seed(state));
        }
        let steps = state.generations.values().map(|generation| self.advance_generation(state, generation));
        first_non_empty(steps)
    }

    fn advance_generation(&self, state: &State, generation: &Generation) -> Vec<Event> {
        if state.sprint.as_ref().is_some_and(|sprint| sprint.number != generation.sprint) {
            return self.end_stale_generation(state, generation);
        }
        let step = match generation.step {
            GenerationStep::Reference => self.measure_parent(state, generation),
            GenerationStep::Propose => self.propose(state, generation),
            GenerationStep::Answered if self.needs_repair(state, generation) => {
                vec![self.request_proposals(state, generation)]
            }
            GenerationStep::Referencing
            | GenerationStep::Proposing
            | GenerationStep::Answered
            | GenerationStep::Settled => Vec::new(),
        };
        if !step.is_empty() {
            return step;
        }
        let moved = first_non_empty(
            generation.candidates.iter().map(|index| self.advance_candidate(state, *index, generation)),
        );
        let settled = matches!(generation.step, GenerationStep::Answered | GenerationStep::Settled);
        if moved.is_empty() && settled { self.close_generation(state, generation, Vec::new()) } else { moved }
    }

    /// Ends a generation whose sprint was rolled back, once its calls have their answers.
    fn end_stale_generation(&self, state: &State, generation: &Generation) -> Vec<Event> {
        let ended = self.end_stale_candidates(state, generation);
        let is_idle = !matches!(generation.step, GenerationStep::Referencing | GenerationStep::Proposing);
        if ended.is_empty() && is_idle { self.close_generation(state, generation, Vec::new()) } else { ended }
    }

    /// Requests rollouts of the parent on rows of the generation where it has no score.
    fn measure_parent(&self, state: &State, generation: &Generation) -> Vec<Event> {
        if !state.may_send_calls() {
            return self.close_generation(state, generation, Vec::new());
        }
        if generation.operation == Operation::Merge {
            return self.propose(state, generation);
        }
        let Some(parent) = generation.parents.first().map(|parent| state.candidate(*parent)) else {
            return self.close_generation(state, generation, Vec::new());
        };
        let missing = missing_rows(parent, generation.minibatch.iter().chain(&generation.evidence));
        if missing.is_empty() {
            return self.propose(state, generation);
        }
        // Wait while another evaluation measures the same parent, so that no row is measured twice.
        let measured =
            |other: &Generation| other.step == GenerationStep::Referencing && other.parents == generation.parents;
        let is_measured = state.sprint.is_none() && state.generations.values().any(measured);
        let is_open = |row: &TrainRow| !parent.sprint.pending.contains(row);
        let missing: Vec<TrainRow> = missing.into_iter().filter(is_open).collect();
        if is_measured || missing.is_empty() {
            return Vec::new();
        }
        let stage = Stage::ParentMinibatchReference;
        match self.request_all(state, parent, stage, Some(generation.number), &missing) {
            Ok(call_id) => vec![call_id],
            Err(refused) => {
                self.close_generation(state, generation, vec![self.budget_refused(&refused, "evaluating the parent")])
            }
        }
    }

    /// Requests proposals, or registers a merge that needs no proposer.
    fn propose(&self, state: &State, generation: &Generation) -> Vec<Event> {
        if !state.may_send_calls() {
            return self.close_generation(state, generation, Vec::new());
        }
        if !generation.needs_proposer() {
            return vec![self.register_merge(state, generation)];
        }
        if generation.operation == Operation::Mutate
            && let Some(parent) = generation.parents.first().map(|parent| state.candidate(*parent))
        {
            let lost = generation.minibatch.iter().filter(|row| parent.score(**row).is_none()).count();
            if share(lost, generation.minibatch.len()) > self.settings.gepa.rollout_failure_rate_tolerance {
                return self.close_generation(state, generation, Vec::new());
            }
            if self.is_perfect(state, parent, &generation.minibatch) {
                let skipped = self.minibatch_skipped(parent, generation.draw, generation.minibatch.len());
                return self.close_generation(state, generation, vec![skipped]);
            }
        }
        match self.fits_search(state, &self.proposal(state)) {
            Ok(()) => vec![self.request_proposals(state, generation)],
            Err(refused) => self.close_generation(state, generation, vec![self.budget_refused(&refused, "a proposal")]),
        }
    }

    /// Completes the generation if all of its candidates are decided. `why` precedes the completion event.
    fn close_generation(&self, state: &State, generation: &Generation, mut why: Vec<Event>) -> Vec<Event> {
        // In sprints, a check decides about a screened candidate, after its generation.
        let is_decided = |candidate: &Candidate| match state.sprint {
            Some(_) => is_settled(candidate),
            None => candidate.status.is_final(),
        };
        if !generation.candidates.iter().all(|index| is_decided(state.candidate(*index))) {
            return Vec::new();
        }
        why.push(self.generation_completed_event(state, generation));
        why
    }

    fn needs_repair(&self, state: &State, generation: &Generation) -> bool {
        !generation.problems.is_empty()
            && generation.repairs < self.settings.proposer.max_repairs
            && state.may_send_calls()
            && self.fits_search(state, &self.proposal(state)).is_ok()
    }

    /// Checks whether an amount fits the budget and the remaining time of the search. A turn that may take longer than the
    /// whole search may use the time of the held-out evaluation.
    pub(crate) fn fits_search(&self, state: &State, amount: &Resources) -> Result<(), BudgetRefusal> {
        state.budget.fits(amount)?;
        let (dimension, wanted) = (Dimension::WallMillis, amount.get(Dimension::WallMillis));
        let deadline = self.settings.search_deadline_millis.filter(|deadline| wanted <= *deadline);
        let available = deadline.map_or(u64::MAX, |deadline| deadline.saturating_sub(state.budget.elapsed_millis()));
        if wanted <= available { Ok(()) } else { Err(BudgetRefusal { dimension, wanted, available }) }
    }

    fn request_proposals(&self, state: &State, generation: &Generation) -> Event {
        let wanted = match generation.operation {
            Operation::Merge => 1,
            Operation::Seed | Operation::Mutate | Operation::Rebase => self.settings.gepa.proposals_per_generation,
        };
        let found = generation.candidates.len() as u32 + generation.duplicates;
        Event::ProposerStarted(ProposerStarted {
            call_id: CallId(state.next_call_id),
            generation: generation.number,
            attempt: generation.failures + 1,
            proposal_count: wanted.saturating_sub(found).max(1),
            carried_failures: state.rejected.iter().cloned().collect(),
            problems: generation.problems.clone(),
        })
    }

    fn register_merge(&self, state: &State, generation: &Generation) -> Event {
        Event::CandidateRegistered(CandidateRegistered {
            candidate_id: CandidateId::of(&self.settings.candidate_id_prefix, &generation.base),
            operation: Operation::Merge,
            parent_ids: state.ids(&generation.parents),
            generation: Some(generation.number),
            payload: generation.base.clone(),
            changed_fields: merge_changed_fields(state, generation),
            rationale: "fields that either parent changed since their common ancestor".to_owned(),
            dropped_fields: Vec::new(),
            kept_share: None,
        })
    }

    fn generation_completed_event(&self, state: &State, generation: &Generation) -> Event {
        let best = state.best.map_or_else(|| state.candidate(0), |best| state.candidate(best));
        Event::GenerationCompleted(GenerationCompleted {
            generation: generation.number,
            operation: generation.operation,
            registered: generation.candidates.len() as u32,
            accepted: generation.accepted,
            best_candidate_id: best.id.clone(),
            best_train_score: best.pool_entry.map(|pooled| pooled.score),
            frontier_size: state.frontier.size(),
            candidates: state.candidates.len() as u32,
        })
    }

    /// Starts a generation if the limit of open generations, the stop rules and the budget allow it.
    pub(crate) fn start_generation(&self, state: &State) -> Vec<Event> {
        let open = state.phase == Phase::Search && state.stop.is_none() && state.cancel.is_none();
        if !open {
            return Vec::new();
        }
        if let Some(sprint) = &state.sprint {
            return self.start_sprint_generation(state, sprint);
        }
        if state.generations.len() >= self.max_open_generations(state) {
            return Vec::new();
        }
        // A proposer turn of unknown usage is sent alone.
        if self.must_probe_proposal(state) && !state.generations.is_empty() {
            return Vec::new();
        }
        if let Some(stop) = self.stop_by_rule(state) {
            return vec![stop];
        }
        if let Some(plan) = self.plan_merge(state) {
            let proposal = if plan.conflicts.is_empty() { Resources::ZERO } else { self.proposal(state) };
            let cost = self.train_rollout(state).times(plan.minibatch.len() as u64).plus(&proposal);
            if self.fits_search(state, &cost).is_ok() {
                return vec![self.start_merge(state, plan)];
            }
        }
        let generations = Resources::ZERO.with(Dimension::Generations, 1);
        if state.budget.fits(&generations).is_err() {
            return self.stop_at_limit(state, Dimension::Generations, &[]);
        }
        self.start_mutation(state)
    }

    fn start_merge(&self, state: &State, plan: MergePlan) -> Event {
        let id = |index: u32| state.candidate(index).id.clone();
        Event::GenerationStarted(GenerationStarted {
            generation: state.next_generation,
            operation: Operation::Merge,
            parent_ids: plan.parents.map(id).to_vec(),
            ancestor_id: Some(id(plan.ancestor)),
            selection: None,
            draw: state.draws,
            minibatch: self.train_ids(&plan.minibatch),
            evidence: self.train_ids(&plan.minibatch),
            components: plan.conflicts,
            base: plan.payload,
        })
    }

    fn start_mutation(&self, state: &State) -> Vec<Event> {
        let draw = state.draws;
        let Some((parent, selection)) = select::select_parent(&self.settings, state, draw) else {
            return Vec::new();
        };
        let mut minibatch = self.draw_rows("minibatch", &self.inputs.minibatch_pool, draw);
        minibatch.retain(|row| !state.candidate(parent).failed_rows.contains(row));
        let (parent, selection, minibatch) =
            if minibatch.is_empty() || self.is_perfect(state, state.candidate(parent), &minibatch) {
                // The parent has nothing to gain there: choose rows on which the best candidate can still gain.
                let Some(best) = state.best else { return Vec::new() };
                let rows = self.improvable_rows(state, state.candidate(best), draw);
                if rows.is_empty() {
                    return vec![self.stop_without_gain(state.candidate(best))];
                }
                (best, None, rows)
            } else {
                (parent, Some(selection), minibatch)
            };
        let evidence = if self.inputs.reflection_pool == self.inputs.minibatch_pool {
            minibatch.clone()
        } else {
            self.draw_rows("reflection", &self.inputs.reflection_pool, draw)
        };
        let candidate = state.candidate(parent);
        let rollouts = minibatch.len() + missing_rows(candidate, minibatch.iter().chain(&evidence)).len();
        let cost = self.train_rollout(state).times(rollouts as u64).plus(&self.proposal(state));
        if let Err(refused) = self.fits_search(state, &cost) {
            return self.stop_at_limit(state, refused.dimension, &[self.budget_refused(&refused, "a generation")]);
        }
        vec![Event::GenerationStarted(GenerationStarted {
            generation: state.next_generation,
            operation: Operation::Mutate,
            parent_ids: vec![candidate.id.clone()],
            ancestor_id: None,
            selection,
            draw,
            minibatch: self.train_ids(&minibatch),
            evidence: self.train_ids(&evidence),
            components: self.components(candidate),
            base: candidate.payload.clone(),
        })]
    }

    pub(crate) fn components(&self, parent: &Candidate) -> Vec<String> {
        let targets = &self.inputs.program.targets;
        match self.settings.gepa.component_selector {
            ComponentSelector::All => targets.clone(),
            ComponentSelector::RoundRobin => vec![targets[parent.component as usize % targets.len()].clone()],
        }
    }

    pub(crate) fn draw_rows(&self, label: &str, pool: &[TrainRow], draw: u64) -> Vec<TrainRow> {
        let size = self.settings.minibatch_size as usize;
        let sampler = &self.settings.gepa.batch_sampler;
        let width = sampler.epoch_width.map_or(size, |width| width as usize);
        let how = MinibatchSampler { sampler: self.sampler(), seed: self.settings.seed, label, size, width };
        how.rows(pool, &self.inputs.train, draw)
    }

    fn minibatch_skipped(&self, parent: &Candidate, draw: u64, rows: usize) -> Event {
        Event::MinibatchSkipped(MinibatchSkipped { parent_id: parent.id.clone(), draw, rows: rows as u32 })
    }

    /// Returns whether a candidate has the perfect score on all of these rows. A row without a score is not perfect.
    pub(crate) fn is_perfect(&self, state: &State, candidate: &Candidate, rows: &[TrainRow]) -> bool {
        let Some(perfect) = self.perfect_score(state) else { return false };
        rows.iter().all(|row| candidate.score(*row).is_some_and(|score| self.settings.oriented(0, score) >= perfect))
    }

    pub(crate) fn improvable_rows(&self, state: &State, candidate: &Candidate, draw: u64) -> Vec<TrainRow> {
        let pool = self.inputs.minibatch_pool.iter().copied();
        let open = |row: &TrainRow| !candidate.failed_rows.contains(row) && !self.is_perfect(state, candidate, &[*row]);
        let rows: Vec<TrainRow> = pool.filter(open).collect();
        random_stream(self.settings.seed, "improvable", draw).sample(&rows, self.settings.minibatch_size as usize)
    }

    /// Returns the perfect score, negated if lower is better; `None` if there is none.
    fn perfect_score(&self, state: &State) -> Option<f64> {
        let gepa = &self.settings.gepa;
        if !gepa.skip_perfect_score {
            return None;
        }
        // The largest reward is assumed to be 1 if higher is better, no reward was larger, and it is the only objective.
        let [only] = self.settings.objectives.as_slice() else {
            return gepa.perfect_score.map(|score| self.settings.oriented(0, score));
        };
        let reward = only.name == OUTCOME_REWARD && only.direction == Direction::Maximize;
        let assumed = (reward && state.largest_reward <= 1.0).then_some(1.0);
        gepa.perfect_score.or(assumed).map(|score| self.settings.oriented(0, score))
    }
}

/// Returns the first decision that has events.
pub(crate) fn first_non_empty(decisions: impl IntoIterator<Item = Vec<Event>>) -> Vec<Event> {
    decisions.into_iter().find(|events| !events.is_empty()).unwrap_or_default()
}

/// Returns the fields in which a merge differs from its first parent.
fn merge_changed_fields(state: &State, generation: &Generation) -> Vec<String> {
    let first = generation.parents.first().map(|parent| &state.candidate(*parent).payload);
    let differs = |field: &&String| first.is_none_or(|first| first.get(*field) != generation.base.get(*field));
    generation.base.keys().filter(differs).cloned().collect()
}

//! Decisions about evaluations: record finished ones, screen candidates, accept or reject them, and update the frontier.

use synth_optimizer_core::config::gepa::{AcceptanceCriterion, Sprint};
use synth_optimizer_core::model::event::Event;
use synth_optimizer_core::model::event_fields::{
    CandidateDecided, CandidateDeferred, EvaluationCompleted, FrontierUpdated, MeasurementCompleted, Operation, Stage,
};
use synth_optimizer_core::model::ids::{CallId, TrainRow};
use synth_optimizer_core::model::lifecycle::{CandidateStatus, CandidateTrigger};
use synth_optimizer_core::model::score::{Comparison, Score};

use crate::acceptance::{AcceptanceDecision, compare, judge};
use crate::check::{Differences, PooledVariance, Prior, probability_of_gain};
use crate::decide::decision_without_comparison;
use crate::engine::GepaEngine;
use crate::sprint::ScoreRange;
use crate::state::{Candidate, Generation, State};
use crate::steering::GuardViolation;
use synth_optimizer_core::random::random_stream;

/// The initial candidate of a run that is stopped needs scores on one of this many rows.
const MIN_INITIAL_SHARE: usize = 4;

impl GepaEngine {
    /// Returns the completion event of the oldest finished evaluation.
    pub(crate) fn complete_evaluation(&self, state: &State) -> Vec<Event> {
        let Some(id) = state.finished_evaluations.front() else { return Vec::new() };
        let Some(evaluation) = state.evaluations.get(id) else { return Vec::new() };
        let candidate = state.candidate(evaluation.candidate);
        let generation = evaluation.generation.and_then(|number| state.generations.get(&number));
        let minibatch = generation.map_or(&[][..], |generation| &generation.minibatch);
        if matches!(evaluation.stage, Stage::Repeat | Stage::Glance | Stage::Check) {
            return vec![Event::MeasurementCompleted(MeasurementCompleted {
                evaluation: *id,
                candidate_id: candidate.id.clone(),
                generation: evaluation.generation,
                stage: evaluation.stage,
                rows: evaluation.rows,
                failed: evaluation.failed,
            })];
        }
        let score = match evaluation.stage {
            Stage::Heldout => Score::of(candidate.heldout.values().copied()),
            Stage::SeedFullTrain | Stage::CandidateFullTrain => self.train_score(candidate),
            Stage::CandidateMinibatch if generation.is_none() => self.train_score(candidate),
            _ => score_on(candidate, minibatch),
        };
        let done = EvaluationCompleted {
            evaluation: *id,
            candidate_id: candidate.id.clone(),
            generation: evaluation.generation,
            rows: evaluation.rows,
            failed: evaluation.failed,
            score,
        };
        vec![match evaluation.stage {
            Stage::SeedFullTrain => Event::SeedEvaluated(done),
            Stage::ParentMinibatchReference => Event::ReferenceCompleted(done),
            Stage::CandidateMinibatch => Event::MinibatchEvaluated(done),
            Stage::CandidateFullTrain => Event::FullTrainEvaluated(done),
            Stage::Heldout => Event::HeldoutCompleted(done),
            Stage::Repeat | Stage::Glance | Stage::Check => return Vec::new(),
        }]
    }

    /// Returns the next step of a candidate that is not decided yet.
    pub(crate) fn advance_candidate(&self, state: &State, index: u32, generation: &Generation) -> Vec<Event> {
        let candidate = state.candidate(index);
        if candidate.evaluation.is_some() {
            return Vec::new();
        }
        match candidate.status {
            // The changes that it carries were screened.
            CandidateStatus::Registered if candidate.operation == Operation::Rebase => {
                self.request_full_evaluation(state, candidate)
            }
            CandidateStatus::Registered => self.request_screening(state, candidate, generation),
            // A check decides about it.
            CandidateStatus::MinibatchEvaluated if candidate.promoted && state.sprint.is_some() => Vec::new(),
            CandidateStatus::MinibatchEvaluated if candidate.promoted => self.evaluate_promoted(state, index),
            CandidateStatus::MinibatchEvaluated => self.judge_screening(state, candidate, generation),
            CandidateStatus::FullTrainEvaluated => self.judge_candidate(state, index),
            // The candidate is decided.
            _ => Vec::new(),
        }
    }

    /// Decides on the initial candidate or a fully evaluated candidate.
    pub(crate) fn judge_candidate(&self, state: &State, index: u32) -> Vec<Event> {
        let candidate = state.candidate(index);
        let stage = match candidate.operation {
            Operation::Seed => Stage::SeedFullTrain,
            Operation::Mutate | Operation::Merge | Operation::Rebase => Stage::CandidateFullTrain,
        };
        let tolerance = self.settings.gepa.rollout_failure_rate_tolerance;
        let rows = self.first_rows(state);
        if candidate.failed_share(&rows) > tolerance {
            return defer(candidate, stage, CandidateTrigger::TooManyFailures);
        }
        let is_complete = missing_rows(candidate, rows.iter()).is_empty();
        let incomplete = || {
            let trigger = match (is_complete, state.is_searching()) {
                (true, _) => CandidateTrigger::TooManyFailures,
                (false, true) => CandidateTrigger::BudgetRefused,
                (false, false) => CandidateTrigger::RunStopped,
            };
            defer(candidate, stage, trigger)
        };
        if self.train_score(candidate).is_none() {
            return incomplete();
        }
        let (verdict, comparison) = match state.best.map(|best| state.candidate(best)) {
            // There is no other candidate to return, so a part of the rows is enough for the initial one.
            None if MIN_INITIAL_SHARE * candidate.train.rows().len() < rows.len() => return incomplete(),
            None => (AcceptanceDecision { accepted: true, reason: "seed" }, None),
            Some(best) => match compare(&self.settings, candidate, best, &self.inputs.pareto_pool) {
                None => return defer(candidate, stage, CandidateTrigger::TooManyFailures),
                Some(_) if !is_complete && !self.is_clearly_better(candidate, best) => return incomplete(),
                Some(found) => {
                    let criterion = self.settings.gepa.acceptance_criterion;
                    (judge(&self.settings, criterion, 0.0, &found), Some(found))
                }
            },
        };
        let (verdict, detail) = guarded(verdict, || self.guard_violation(state, candidate, |_| true));
        let decision = CandidateDecided {
            comparison,
            detail,
            ..decision_without_comparison(&candidate.id, stage, verdict.reason)
        };
        // The candidate joins the pool before it can become the best, so that its ranking score uses the previous best.
        vec![
            Event::FrontierUpdated(self.frontier_update(state, index)),
            if verdict.accepted { Event::CandidateAccepted(decision) } else { Event::CandidateRejected(decision) },
        ]
    }

    /// Returns whether a part of the rows is enough to prefer a candidate, by the rule of a check. The rest of the rows does not
    /// fit the budget.
    fn is_clearly_better(&self, candidate: &Candidate, best: &Candidate) -> bool {
        // The rule of the reference search does not depend on the constants of sprints.
        let rules = Sprint::default();
        let pairs: Vec<[f64; 2]> = self
            .inputs
            .pareto_pool
            .iter()
            .filter_map(|row| Some([candidate.score(*row)?, best.score(*row)?]))
            .map(|scores| scores.map(|score| self.settings.oriented(0, score)))
            .collect();
        let mut range = ScoreRange::default();
        pairs.iter().flatten().for_each(|score| range.add(*score));
        let differences: Vec<f64> = pairs.iter().map(|[own, other]| (own - other) / range.width()).collect();
        let prior = Prior { pooled: PooledVariance::default(), steps: 1, step_scale: rules.step_scale, all_rows: None };
        Differences::of(&differences)
            .filter(|found| found.n >= rules.min_pairs)
            .is_some_and(|found| probability_of_gain(&found, &prior) >= rules.adopt)
    }

    /// Returns how the frontier changes with an evaluated candidate.
    pub(crate) fn frontier_update(&self, state: &State, index: u32) -> FrontierUpdated {
        let candidate = state.candidate(index);
        let values = self.cell_values(state, index);
        let change = state.frontier.preview_insert(&values);
        FrontierUpdated {
            candidate_id: candidate.id.clone(),
            ranking_score: self.mean(state, candidate, 0).unwrap_or_default(),
            cells_won: change.won.len() as u32,
            joined: !change.won.is_empty(),
            cells: change
                .won
                .iter()
                .filter_map(|(cell, alone)| Some(self.cell_won(*cell, values[*cell]?, *alone)))
                .collect(),
            removed: change.left.iter().map(|place| state.candidate(state.pool[*place as usize]).id.clone()).collect(),
            size: change.size,
        }
    }

    /// Requests the rollouts of the screening.
    fn request_screening(&self, state: &State, candidate: &Candidate, generation: &Generation) -> Vec<Event> {
        let stage = Stage::CandidateMinibatch;
        if !state.may_send_calls() {
            return defer(candidate, stage, CandidateTrigger::RunStopped);
        }
        match self.request_all(state, candidate, stage, candidate.generation, &generation.minibatch) {
            Ok(call_id) => vec![call_id],
            // The trigger already names the reason.
            Err(_) => defer(candidate, stage, CandidateTrigger::BudgetRefused),
        }
    }

    fn judge_screening(&self, state: &State, candidate: &Candidate, generation: &Generation) -> Vec<Event> {
        let stage = Stage::CandidateMinibatch;
        if let Some(decision) = self.rejected_at_glance(state, candidate) {
            return vec![Event::CandidateRejected(decision)];
        }
        if let Some(requested) = self.measure_parent_again(state, candidate, generation) {
            return requested;
        }
        let unanswered = !missing_rows(candidate, generation.minibatch.iter()).is_empty();
        if unanswered && !state.is_searching() {
            return defer(candidate, stage, CandidateTrigger::RunStopped);
        }
        if candidate.failed_share(&generation.minibatch) > self.settings.gepa.rollout_failure_rate_tolerance {
            return defer(candidate, stage, CandidateTrigger::TooManyFailures);
        }
        let Some((verdict, found)) = self.screening_verdict(state, candidate, generation) else {
            return defer(candidate, stage, CandidateTrigger::TooManyFailures);
        };
        // The full evaluation does not repeat these rows, so a loss on a guarded one is final.
        let is_measured = |row: &TrainRow| candidate.score(*row).is_some() || candidate.failed_rows.contains(row);
        let (verdict, detail) = guarded(verdict, || self.guard_violation(state, candidate, is_measured));
        let comparison = Some(found);
        let decision = CandidateDecided {
            comparison,
            detail,
            ..decision_without_comparison(&candidate.id, stage, verdict.reason)
        };
        match (verdict.accepted, &state.sprint) {
            (true, Some(_)) => self.promote_in_sprint(state, candidate, generation, decision),
            (true, None) => vec![Event::CandidatePromoted(decision)],
            (false, _) => vec![Event::CandidateRejected(decision)],
        }
    }

    /// Returns the rollouts of the parent on rows of the minibatch without a score; no events while they are under way, and
    /// `None` if there are none. In a noisy search in sprints, the adoption of the parent sets its scores aside.
    fn measure_parent_again(
        &self,
        state: &State,
        candidate: &Candidate,
        generation: &Generation,
    ) -> Option<Vec<Event>> {
        let parent = *generation.parents.first().filter(|_| state.sprint.is_some() && state.is_searching())?;
        let requested = self.measure_missing(state, state.candidate(parent), &generation.minibatch)?;
        let stage = Stage::CandidateMinibatch;
        Some(requested.unwrap_or_else(|_| defer(candidate, stage, CandidateTrigger::BudgetRefused)))
    }

    /// Compares a mutation with its parent. A merge must not be worse than either parent.
    fn screening_verdict(
        &self,
        state: &State,
        candidate: &Candidate,
        generation: &Generation,
    ) -> Option<(AcceptanceDecision, Comparison)> {
        let against =
            |parent: &u32| compare(&self.settings, candidate, state.candidate(*parent), &generation.minibatch);
        match generation.operation {
            Operation::Seed | Operation::Mutate | Operation::Rebase => {
                let found = against(generation.parents.first()?)?;
                Some((self.screening_rule(&found), found))
            }
            Operation::Merge => {
                let found: Vec<Comparison> = generation.parents.iter().map(against).collect::<Option<_>>()?;
                let hardest = found.into_iter().min_by(|a, b| a.primary_delta.total_cmp(&b.primary_delta))?;
                Some((judge(&self.settings, AcceptanceCriterion::ImprovementOrEqual, 0.0, &hardest), hardest))
            }
        }
    }

    /// Applies the criterion of the screening.
    pub(crate) fn screening_rule(&self, found: &Comparison) -> AcceptanceDecision {
        let gepa = &self.settings.gepa;
        judge(&self.settings, gepa.minibatch_acceptance_criterion, gepa.minibatch_accept_margin, found)
    }

    /// Requests rollouts on the rows of the full evaluation without a score, as many as the budget allows.
    pub(crate) fn request_full_evaluation(&self, state: &State, candidate: &Candidate) -> Vec<Event> {
        let stage = Stage::CandidateFullTrain;
        if !state.may_send_calls() {
            return defer(candidate, stage, CandidateTrigger::RunStopped);
        }
        let mut missing = missing_rows(candidate, self.inputs.pareto_pool.iter());
        let (fits, refused) = state.budget.max_affordable(&self.train_rollout(state), missing.len() as u64);
        if fits == 0 && !missing.is_empty() {
            return defer(candidate, stage, CandidateTrigger::BudgetRefused);
        }
        let mut events = Vec::new();
        if let Some(refused) = refused {
            // Choose a random subset of the rows, so that it is not biased towards easy ones.
            let label = state.index_of(&candidate.id).unwrap_or_default();
            random_stream(self.settings.seed, "partial", u64::from(label)).shuffle(&mut missing);
            self.put_guarded_first(&mut missing);
            missing.truncate(fits as usize);
            missing.sort_unstable();
            events.push(self.budget_refused(&refused, "a full evaluation"));
        }
        if missing.is_empty() {
            // The screening already covered every row.
            return vec![Event::FullTrainEvaluated(EvaluationCompleted {
                evaluation: CallId(state.next_call_id),
                candidate_id: candidate.id.clone(),
                generation: candidate.generation,
                rows: 0,
                failed: 0,
                score: self.train_score(candidate),
            })];
        }
        events.push(self.request_rollouts(state, candidate, stage, candidate.generation, self.train_ids(&missing)));
        events
    }

    pub(crate) fn train_score(&self, candidate: &Candidate) -> Option<Score> {
        score_on(candidate, &self.inputs.pareto_pool)
    }
}

/// Rejects an accepted candidate that violates a guard. Returns the decision and the violation in words.
fn guarded(
    verdict: AcceptanceDecision,
    violation: impl FnOnce() -> Option<GuardViolation>,
) -> (AcceptanceDecision, Option<String>) {
    match Some(&verdict).filter(|verdict| verdict.accepted).and_then(|_| violation()) {
        Some((reason, detail)) => (AcceptanceDecision { accepted: false, reason }, Some(detail)),
        None => (verdict, None),
    }
}

fn score_on(candidate: &Candidate, rows: &[TrainRow]) -> Option<Score> {
    Score::of(rows.iter().filter_map(|row| candidate.score(*row)))
}

/// Returns the rows without a score that may still get one, in ascending order.
pub(crate) fn missing_rows<'r>(candidate: &Candidate, rows: impl Iterator<Item = &'r TrainRow>) -> Vec<TrainRow> {
    let open = |row: &TrainRow| candidate.score(*row).is_none() && !candidate.failed_rows.contains(row);
    let mut missing: Vec<TrainRow> = rows.copied().filter(open).collect();
    missing.sort_unstable();
    missing.dedup();
    missing
}

pub(crate) fn defer(candidate: &Candidate, stage: Stage, trigger: CandidateTrigger) -> Vec<Event> {
    vec![Event::CandidateDeferred(CandidateDeferred { candidate_id: candidate.id.clone(), stage, reason: trigger })]
}

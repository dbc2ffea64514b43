//! Decisions after the search: the held-out evaluation, the candidate that the run returns, and its result.

use synth_optimizer_core::config::gepa::DeploymentRule;
use synth_optimizer_core::model::budget::Dimension;
use synth_optimizer_core::model::claim::{Claim, ClaimRules, HeldoutEvidence, MeasuredRows};
use synth_optimizer_core::model::event::Event;
use synth_optimizer_core::model::event_fields::{
    Bill, EstimateShortfall, HeldoutChosen, NamedScore, Reason, RunFinished, Stage, StoppedBy,
};
use synth_optimizer_core::model::ids::{HeldoutRow, RowId};
use synth_optimizer_core::model::lifecycle::RunTrigger;
use synth_optimizer_core::model::score::{Gain, Score};

use crate::decide::state_transitions;
use crate::decide_end::{in_display_units, stop_kind};
use crate::engine::GepaEngine;
use crate::state::{Candidate, Phase, Scores, State, share};

impl GepaEngine {
    /// Chooses the candidates of the held-out evaluation after the search, then requests their rollouts.
    pub(crate) fn measure_heldout(&self, state: &State) -> Vec<Event> {
        let over = state.stop.as_ref().is_some_and(|stop| stop.failure.is_none())
            && state.generations.is_empty()
            && state.cancel.is_none();
        match state.phase {
            Phase::Search if over && state.outstanding_calls.is_empty() => {
                let undecided = self.defer_undecided(state);
                if !undecided.is_empty() {
                    return undecided;
                }
                let stop = self.stop_without_any_proposal(state);
                stop.map_or_else(|| self.choose_heldout_candidates(state), |stop| vec![stop])
            }
            Phase::Heldout => self.request_next_heldout(state),
            Phase::New | Phase::Seed | Phase::Search | Phase::Over => Vec::new(),
        }
    }

    fn choose_heldout_candidates(&self, state: &State) -> Vec<Event> {
        let wanted = self.heldout_candidates(state);
        let rows = self.inputs.heldout_pool.len() as u32;
        if rows == 0 {
            return vec![Event::HeldoutSkipped(Reason { reason: "the dataset has no held-out rows".into() })];
        }
        // The amount that is set aside is released when the evaluation starts, so it counts as available here.
        let mut budget = state.budget.clone();
        budget.release_set_aside();
        let want = wanted.len() as u64 * u64::from(rows);
        let (fits, _) = budget.max_affordable(&self.heldout_rollout(state), want);
        let whole = (fits.min(self.rollouts_in_time(state)) / u64::from(rows)) as usize;
        let (measured, left_out) = wanted.split_at(whole.min(wanted.len()));
        let mut events = Vec::new();
        if !left_out.is_empty() {
            events.push(Event::HeldoutPartial(HeldoutChosen { candidate_ids: state.ids(left_out), rows }));
        }
        events.push(if measured.is_empty() {
            Event::HeldoutSkipped(Reason { reason: "the budget does not cover one candidate".into() })
        } else {
            Event::HeldoutStarted(HeldoutChosen { candidate_ids: state.ids(measured), rows })
        });
        events
    }

    /// Returns how many rollouts fit into the remaining time.
    fn rollouts_in_time(&self, state: &State) -> u64 {
        let each = self.settings.heldout_rollout.get(Dimension::WallMillis);
        let left = state.budget.available(Dimension::WallMillis).filter(|_| each > 0);
        let workers = u64::from(self.settings.gepa.pipeline.workers.rollout.max(1));
        left.map_or(u64::MAX, |left| left.div_ceil(each).saturating_mul(workers))
    }

    /// Returns the candidates to measure: the best, the initial one and, if held-out scores decide, all others by rank.
    fn heldout_candidates(&self, state: &State) -> Vec<u32> {
        let mut wanted: Vec<u32> = state.best.into_iter().collect();
        if !wanted.contains(&0) {
            wanted.push(0);
        }
        if self.settings.gepa.deployment_rule == DeploymentRule::HeldoutBest {
            let others = state.frontier.ranked().iter().rev().map(|place| state.pool[*place as usize]);
            let is_allowed = |index: &u32| self.guard_violation(state, state.candidate(*index), |_| true).is_none();
            let rest: Vec<u32> = others.filter(|index| !wanted.contains(index)).filter(is_allowed).collect();
            wanted.extend(rest);
        }
        wanted
    }

    fn request_next_heldout(&self, state: &State) -> Vec<Event> {
        if state.cancel.is_some() {
            return Vec::new();
        }
        let waiting =
            |index: &&u32| state.candidate(**index).evaluation.is_none() && !state.heldout_measured.contains(index);
        let Some(index) = state.heldout_queue.iter().find(waiting) else { return Vec::new() };
        let rows: Vec<RowId> =
            self.inputs.heldout_pool.iter().map(|row| self.inputs.heldout_id(*row).clone()).collect();
        // Calls may have used more than their estimates since the candidates were chosen.
        let (fits, _) = state.budget.max_affordable(&self.heldout_rollout(state), rows.len() as u64);
        if fits < rows.len() as u64 {
            let candidate_ids = vec![state.candidate(*index).id.clone()];
            return vec![Event::HeldoutPartial(HeldoutChosen { candidate_ids, rows: rows.len() as u32 })];
        }
        vec![self.request_rollouts(state, state.candidate(*index), Stage::Heldout, None, rows)]
    }

    /// Ends the run when no call is outstanding.
    pub(crate) fn finish(&self, state: &State) -> Vec<Event> {
        let Some(stop) = state.stop.as_ref().filter(|_| state.outstanding_calls.is_empty() && state.cancel.is_none())
        else {
            return Vec::new();
        };
        if let Some(failure) = &stop.failure {
            return if state.generations.is_empty() { self.fail(state, failure) } else { Vec::new() };
        }
        if state.phase != Phase::Heldout {
            return Vec::new();
        }
        let mut events = state_transitions(state.run, &[RunTrigger::RunCompleted]);
        events.push(Event::RunFinished(self.result(state, &stop.stopped_by)));
        events
    }

    fn result(&self, state: &State, stopped_by: &StoppedBy) -> RunFinished {
        let preferred = self.preferred_candidate(state);
        let claim = self.claim(state, preferred);
        let returned = self.returned_candidate(preferred, claim.as_ref());
        let pool = &self.inputs.pareto_pool;
        let [seed_train, best_train] = [0, returned].map(|index| all_scores(state.candidate(index)));
        let scores = [("seed", 0, &seed_train), ("best", returned, &best_train)]
            .into_iter()
            .flat_map(|(role, index, train)| {
                let candidate = state.candidate(index);
                let train = Score::of(pool.iter().filter_map(|row| train.get(*row, 0))).map(|score| ("train", score));
                let heldout = Score::of(candidate.heldout.values().copied()).map(|score| ("heldout", score));
                [train, heldout].into_iter().flatten().map(move |(split, score)| NamedScore {
                    role: role.to_owned(),
                    split: split.to_owned(),
                    candidate_id: candidate.id.clone(),
                    score,
                })
            })
            .collect();
        let (seed, best) = (state.candidate(0), state.candidate(returned));
        let better = |score: f64, other: f64| (self.settings.oriented(0, score), self.settings.oriented(0, other));
        let train = pool.iter().filter_map(|row| Some(better(best_train.get(*row, 0)?, seed_train.get(*row, 0)?)));
        let heldout = best.heldout.iter().filter_map(|(row, score)| Some(better(*score, *seed.heldout.get(row)?)));
        let changed = returned != 0;
        RunFinished {
            best_candidate_id: state.candidate(returned).id.clone(),
            stopped_by: stopped_by.clone(),
            scores,
            train_gain: Gain::of(train.filter(|_| changed)),
            heldout_gain: Gain::of(heldout.filter(|_| changed)),
            claim: claim.map(Box::new),
            generations: state.counts.generations as u32,
            candidates: state.candidates.len() as u32,
            rollouts: state.counts.rollout_count(),
            bill: self.bill(state),
        }
    }

    /// Returns what the held-out rows show about the preferred candidate of a search in sprints.
    fn claim(&self, state: &State, preferred: u32) -> Option<Claim> {
        let sprint = state.sprint.as_ref()?;
        let [initial, best] = [0, preferred].map(|index| state.candidate(index));
        let pair = |(row, score): (&HeldoutRow, &f64)| Some((*score, *initial.heldout.get(row)?));
        let rows = self.inputs.heldout_pool.len();
        let measured = |candidate: &Candidate| {
            let scored = candidate.heldout.len();
            MeasuredRows { scored, failed: rows.saturating_sub(scored) }
        };
        let evidence = HeldoutEvidence {
            initial: initial.id.clone(),
            preferred: best.id.clone(),
            pairs: best.heldout.iter().filter_map(pair).collect(),
            direction: self.settings.objectives[0].direction,
            sides: (measured(best), measured(initial)),
            tried: state.candidates.len(),
            candidates: state.candidates.iter().filter(|candidate| !candidate.heldout.is_empty()).count(),
            variance: sprint.noise.variance(),
        };
        let rules = ClaimRules {
            seed: self.settings.seed,
            failure_tolerance: self.settings.gepa.rollout_failure_rate_tolerance,
            returns_unproven: self.returns_unproven(),
        };
        Some(Claim::of(&evidence, &rules))
    }

    /// Returns whether a search in sprints returns a candidate that the held-out rows do not show to be better.
    fn returns_unproven(&self) -> bool {
        let gepa = &self.settings.gepa;
        gepa.sprint.return_unproven || gepa.deployment_rule == DeploymentRule::HeldoutBest
    }

    /// Returns the candidate that is the result of the run: the initial one if nothing is claimed for another one.
    fn returned_candidate(&self, preferred: u32, claim: Option<&Claim>) -> u32 {
        let is_proven = claim.is_none_or(Claim::is_better);
        if is_proven || self.returns_unproven() { preferred } else { 0 }
    }

    /// Returns the candidate that the search prefers.
    fn preferred_candidate(&self, state: &State) -> u32 {
        let best = state.best.unwrap_or(0);
        match self.settings.gepa.deployment_rule {
            DeploymentRule::OptimizationSelected => best,
            DeploymentRule::HeldoutBest => self.heldout_best(state).unwrap_or(best),
        }
    }

    /// Returns the best candidate on held-out rows. Compares only candidates with enough scores, on the rows that they share.
    fn heldout_best(&self, state: &State) -> Option<u32> {
        let pool = &self.inputs.heldout_pool;
        let tolerance = self.settings.gepa.rollout_failure_rate_tolerance;
        let enough = |index: &u32| {
            let scored = state.candidate(*index).heldout.len();
            scored > 0 && share(pool.len() - scored, pool.len()) <= tolerance
        };
        let measured = state.heldout_queue.iter().copied();
        let eligible: Vec<u32> = measured.filter(enough).collect();
        let shared = |row: &&HeldoutRow| eligible.iter().all(|index| state.candidate(*index).heldout.contains_key(row));
        let rows: Vec<&HeldoutRow> = pool.iter().filter(shared).collect();
        let total = |index: u32| {
            let heldout = &state.candidate(index).heldout;
            rows.iter().filter_map(|row| heldout.get(row)).map(|score| self.settings.oriented(0, *score)).sum::<f64>()
        };
        let ranking_score = |index: u32| state.candidate(index).ranking_score();
        let higher = |a: &u32, b: &u32| {
            total(*a).total_cmp(&total(*b)).then(ranking_score(*a).total_cmp(&ranking_score(*b))).then(a.cmp(b))
        };
        eligible.iter().copied().filter(|_| !rows.is_empty()).max_by(higher)
    }

    pub(crate) fn bill(&self, state: &State) -> Bill {
        let bill = state.counts.spend();
        Bill {
            cost_usd: bill.cost(),
            sent_calls: bill.sent_calls,
            cached_calls: bill.cached_calls,
            prompt_tokens: bill.prompt_tokens,
            completion_tokens: bill.completion_tokens,
            total_tokens: bill.total_tokens,
            elapsed_millis: self.settings.search_deadline_millis.map(|_| state.budget.elapsed_millis()),
            shortfalls: state
                .budget
                .exceeded()
                .map(|(dimension, limit, spent)| EstimateShortfall {
                    kind: stop_kind(dimension),
                    limit: in_display_units(dimension, limit),
                    spent: in_display_units(dimension, spent),
                })
                .collect(),
        }
    }
}

/// Returns all train scores of a candidate, also those that have decided about it.
fn all_scores(candidate: &Candidate) -> Scores {
    let mut scores = candidate.sprint.used.clone();
    scores.absorb(&candidate.train);
    scores
}

//! The end of a run: held-out rows are measured once, then the result is written down.

use synth_optimizer_core::config::gepa::DeploymentRule;
use synth_optimizer_core::model::budget::Dimension;
use synth_optimizer_core::model::event::Event;
use synth_optimizer_core::model::event_fields::{
    Bill, HeldoutChosen, NamedScore, Reason, RunFinished, Stage, StoppedBy,
};
use synth_optimizer_core::model::ids::{CandidateId, HeldoutRow, RowId};
use synth_optimizer_core::model::lifecycle::RunTrigger;
use synth_optimizer_core::model::score::{Gain, Score};

use crate::decide::path;
use crate::engine::GepaEngine;
use crate::state::{Phase, State, share};

impl GepaEngine {
    /// Chooses who is measured when the search is over, then asks for their rollouts.
    pub(crate) fn measure_heldout(&self, state: &State) -> Vec<Event> {
        let over = state.stop.as_ref().is_some_and(|stop| stop.failure.is_none())
            && state.generations.is_empty()
            && state.cancel.is_none();
        match state.phase {
            Phase::Search if over && state.requests.is_empty() => {
                self.proposer_never_answered(state).map_or_else(|| self.choose_measured(state), |stop| vec![stop])
            }
            Phase::Heldout => self.measure_next(state),
            Phase::New | Phase::Seed | Phase::Search | Phase::Over => Vec::new(),
        }
    }

    fn choose_measured(&self, state: &State) -> Vec<Event> {
        let wanted = self.wanted_measurements(state);
        let rows = self.inputs.heldout_pool.len() as u32;
        if rows == 0 {
            return vec![Event::HeldoutSkipped(Reason { reason: "there are no held-out rows".into() })];
        }
        // The hold is released when the evaluation begins, so it counts as available here.
        let mut budget = state.budget.clone();
        budget.release_hold();
        let want = wanted.len() as u64 * u64::from(rows);
        let (fits, _) = budget.how_many(&self.settings.heldout_rollout, want);
        let whole = (fits.min(self.rollouts_in_time(state)) / u64::from(rows)) as usize;
        let (measured, left_out) = wanted.split_at(whole.min(wanted.len()));
        let mut events = Vec::new();
        if !left_out.is_empty() {
            events.push(Event::HeldoutPartial(HeldoutChosen { candidate_ids: state.ids(left_out), rows }));
        }
        events.push(if measured.is_empty() {
            Event::HeldoutSkipped(Reason { reason: "the budget does not reach for one candidate".into() })
        } else {
            Event::HeldoutStarted(HeldoutChosen { candidate_ids: state.ids(measured), rows })
        });
        events
    }

    /// How many rollouts can be done until time is up.
    fn rollouts_in_time(&self, state: &State) -> u64 {
        let each = self.settings.heldout_rollout.get(Dimension::WallMillis);
        let left = state.budget.available(Dimension::WallMillis).filter(|_| each > 0);
        let workers = u64::from(self.settings.gepa.pipeline.workers.rollout.max(1));
        left.map_or(u64::MAX, |left| left.div_ceil(each).saturating_mul(workers))
    }

    /// Best first, then the seed, then, where held-out scores decide, everyone else by train score.
    fn wanted_measurements(&self, state: &State) -> Vec<u32> {
        let mut wanted: Vec<u32> = state.best.into_iter().collect();
        if !wanted.contains(&0) {
            wanted.push(0);
        }
        if self.settings.gepa.deployment_rule == DeploymentRule::HeldoutBest {
            let others = state.frontier.ranked().iter().rev().map(|place| state.pool[*place as usize]);
            let rest: Vec<u32> = others.filter(|index| !wanted.contains(index)).collect();
            wanted.extend(rest);
        }
        wanted
    }

    fn measure_next(&self, state: &State) -> Vec<Event> {
        if state.cancel.is_some() {
            return Vec::new();
        }
        let waiting =
            |index: &&u32| state.candidate(**index).evaluation.is_none() && !state.heldout_done.contains(index);
        let Some(index) = state.heldout_queue.iter().find(waiting) else { return Vec::new() };
        let rows: Vec<RowId> =
            self.inputs.heldout_pool.iter().map(|row| self.inputs.heldout_id(*row).clone()).collect();
        vec![self.request_rollouts(state, &state.candidate(*index).id, Stage::Heldout, None, rows)]
    }

    /// Ends the run when nothing is outstanding.
    pub(crate) fn finish(&self, state: &State) -> Vec<Event> {
        let Some(stop) = state.stop.as_ref().filter(|_| state.requests.is_empty() && state.cancel.is_none()) else {
            return Vec::new();
        };
        if let Some(failure) = &stop.failure {
            return if state.generations.is_empty() { self.fail(state, failure) } else { Vec::new() };
        }
        if state.phase != Phase::Heldout {
            return Vec::new();
        }
        let mut events = path(state.run, &[RunTrigger::RunCompleted]);
        events.push(Event::RunFinished(self.result(state, &stop.stopped_by)));
        events
    }

    fn result(&self, state: &State, stopped_by: &StoppedBy) -> RunFinished {
        let returned = self.returned(state);
        let scores = [("seed", 0), ("best", returned)]
            .into_iter()
            .flat_map(|(role, index)| {
                let candidate = state.candidate(index);
                let train = self.train_score(candidate).map(|score| ("train", score));
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
        let pool = self.inputs.pareto_pool.iter();
        let train = pool.filter_map(|row| Some(better(best.score(*row)?, seed.score(*row)?)));
        let heldout = best.heldout.iter().filter_map(|(row, score)| Some(better(*score, *seed.heldout.get(row)?)));
        let changed = returned != 0;
        RunFinished {
            best_candidate_id: state.candidate(returned).id.clone(),
            stopped_by: stopped_by.clone(),
            scores,
            train_gain: Gain::of(train.filter(|_| changed)),
            heldout_gain: Gain::of(heldout.filter(|_| changed)),
            generations: state.counts.generations as u32,
            candidates: state.candidates.len() as u32,
            rollouts: state.counts.rollout_count(),
            bill: self.bill(state),
        }
    }

    /// The candidate that the run returns.
    fn returned(&self, state: &State) -> u32 {
        let best = state.best.unwrap_or(0);
        match self.settings.gepa.deployment_rule {
            DeploymentRule::OptimizationSelected => best,
            DeploymentRule::HeldoutBest => self.heldout_best(state).unwrap_or(best),
        }
    }

    /// The best on the held-out rows that all candidates with enough of them share.
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
        let merit = |index: u32| state.candidate(index).merit();
        let higher =
            |a: &u32, b: &u32| total(*a).total_cmp(&total(*b)).then(merit(*a).total_cmp(&merit(*b))).then(a.cmp(b));
        eligible.iter().copied().filter(|_| !rows.is_empty()).max_by(higher)
    }

    pub(crate) fn best_id(&self, state: &State) -> Option<CandidateId> {
        state.best.map(|best| state.candidate(best).id.clone())
    }

    pub(crate) fn bill(&self, state: &State) -> Bill {
        let bill = state.counts.spend();
        Bill {
            cost_usd: bill.cost(),
            paid_calls: bill.paid_calls,
            cached_calls: bill.cached_calls,
            prompt_tokens: bill.prompt_tokens,
            completion_tokens: bill.completion_tokens,
            total_tokens: bill.total_tokens,
            elapsed_millis: self.settings.search_deadline_millis.map(|_| state.budget.elapsed_millis()),
        }
    }
}

//! Decisions of a search in sprints: the first rollouts, noise, the start of generations, and the head of the sprint.

use std::collections::BTreeMap;

use synth_optimizer_core::config::gepa::Sampler;
use synth_optimizer_core::model::budget::{BudgetRefusal, Dimension, Resources};
use synth_optimizer_core::model::event::Event;
use synth_optimizer_core::model::event_fields::{
    CandidateDecided, CandidateDeferred, CandidateSuperseded, GenerationStarted, HeadMoved, NoiseMeasured, Operation,
    Stage, StopKind,
};
use synth_optimizer_core::model::ids::{CallId, CandidateId, TrainRow};
use synth_optimizer_core::model::lifecycle::{CandidateStatus, CandidateTrigger, Lifecycle as _};
use synth_optimizer_core::model::score::Comparison;

use crate::acceptance::compare;
use crate::decide::{decision_without_comparison, first_attempt};
use crate::decide_evaluation::{defer, missing_rows};
use crate::decide_generation::first_non_empty;
use crate::engine::GepaEngine;
use crate::sprint::{Rebase, Sprint, Waiting};
use crate::state::{Candidate, Generation, Phase, State};
use synth_optimizer_core::random::random_stream;

/// As long as scores repeat exactly, one rollout is repeated before every fifth generation.
const GENERATIONS_PER_PROBE: u32 = 5;
/// A glance rejects a candidate that has less than this part of its parent's score.
const GLANCE_SHARE: f64 = 0.5;
/// Maximum number of late changes that one rebase carries over.
const MAX_CARRIED: usize = 24;

impl GepaEngine {
    /// Returns the rows of the initial evaluation, in ascending order.
    pub(crate) fn initial_rows(&self) -> Vec<TrainRow> {
        let pool = &self.inputs.pareto_pool;
        let wanted = self.settings.initial_rows(pool.len());
        let mut rows = random_stream(self.settings.seed, "initial", 0).sample(pool, wanted as usize);
        rows.sort_unstable();
        rows
    }

    /// Rolls the initial candidate out once more, and records whether rollouts repeat exactly.
    pub(crate) fn measure_noise(&self, state: &State) -> Vec<Event> {
        let Some(sprint) = state.sprint.as_ref().filter(|_| state.phase == Phase::Search) else { return Vec::new() };
        let is_repeating = state.evaluations.values().any(|evaluation| evaluation.stage == Stage::Repeat);
        if is_repeating || !state.is_searching() {
            return Vec::new();
        }
        let noise = &sprint.noise;
        if !noise.requested && !noise.is_known {
            let seed = state.candidate(0);
            let mut rows = seed.train.rows().to_vec();
            rows.truncate(self.settings.gepa.sprint.repeats as usize);
            let (fits, _) = state.budget.max_affordable(&self.train_rollout(state), rows.len() as u64);
            rows.truncate(fits as usize);
            if !rows.is_empty() {
                return vec![self.request_repeat(state, seed, &rows)];
            }
        }
        let turns_out_noisy = !noise.is_noisy && noise.differing > 0;
        if noise.is_known && !turns_out_noisy {
            return Vec::new();
        }
        vec![Event::NoiseMeasured(NoiseMeasured {
            pairs: noise.pairs,
            differing: noise.differing,
            variance: noise.variance(),
            is_noisy: noise.pairs == 0 || noise.differing > 0,
        })]
    }

    /// Requests rollouts of a candidate on rows on which it has a score.
    fn request_repeat(&self, state: &State, candidate: &Candidate, rows: &[TrainRow]) -> Event {
        let (first, replicate) = (CallId(state.next_call_id), candidate.sprint.replicate + 1);
        Event::RolloutsRequested(first_attempt(first, candidate, Stage::Repeat, self.train_ids(rows), replicate))
    }

    /// Starts a generation from the head of the sprint, or ends the search.
    pub(crate) fn start_sprint_generation(&self, state: &State, sprint: &Sprint) -> Vec<Event> {
        // A check and a rebase each take the place of a generation.
        let others = usize::from(sprint.check.is_some()) + usize::from(sprint.rebase.is_some());
        let is_full = state.generations.len() + others >= self.max_open_generations(state);
        let is_probing = self.must_probe_proposal(state) && !state.generations.is_empty();
        if is_full || is_probing || !sprint.noise.is_known {
            return Vec::new();
        }
        if let Some(stop) = self.stop_by_rule(state) {
            let check = self.check_before_no_improvement(state, sprint, &stop);
            return check.unwrap_or_else(|| self.stop_after_check(state, sprint, vec![stop]));
        }
        let generations = Resources::ZERO.with(Dimension::Generations, 1);
        if state.budget.fits(&generations).is_err() {
            return self.stop_after_check(state, sprint, self.stop_at_limit(state, Dimension::Generations, &[]));
        }
        if let Some(probe) = self.probe_noise(state, sprint) {
            return vec![probe];
        }
        let head = state.candidate(sprint.head);
        let draw = state.draws;
        let Some(minibatch) = self.sprint_minibatch(state, head, draw) else {
            if let Some(again) = self.doubt_perfect_scores(state, sprint, head) {
                return again;
            }
            let stop = if state.generations.is_empty() { vec![self.stop_without_gain(head)] } else { Vec::new() };
            return self.stop_after_check(state, sprint, stop);
        };
        let evidence = if self.inputs.reflection_pool == self.inputs.minibatch_pool {
            minibatch.clone()
        } else {
            self.draw_rows("reflection", &self.inputs.reflection_pool, draw)
        };
        let rollouts = minibatch.len() + missing_rows(head, minibatch.iter().chain(&evidence)).len();
        let cost = self.train_rollout(state).times(rollouts as u64).plus(&self.proposal(state));
        if let Err(refused) = self.fits_search(state, &cost) {
            let refusal = self.budget_refused(&refused, "a generation");
            return self.stop_after_check(state, sprint, self.stop_at_limit(state, refused.dimension, &[refusal]));
        }
        vec![Event::GenerationStarted(GenerationStarted {
            generation: state.next_generation,
            operation: Operation::Mutate,
            parent_ids: vec![head.id.clone()],
            ancestor_id: None,
            selection: None,
            draw,
            minibatch: self.train_ids(&minibatch),
            evidence: self.train_ids(&evidence),
            components: self.components(head),
            base: head.payload.clone(),
        })]
    }

    /// Repeats one rollout of the head now and then, as long as scores repeat exactly.
    fn probe_noise(&self, state: &State, sprint: &Sprint) -> Option<Event> {
        let (noise, next) = (&sprint.noise, state.next_generation);
        let is_due = next > 0 && next.is_multiple_of(GENERATIONS_PER_PROBE) && noise.probed != Some(next);
        if noise.is_noisy || !is_due || self.settings.gepa.sprint.repeats == 0 {
            return None;
        }
        let head = state.candidate(sprint.head);
        let is_free = |row: &TrainRow| !head.sprint.pending.contains(row);
        let known: Vec<TrainRow> = head.train.rows().iter().copied().filter(is_free).collect();
        let row = random_stream(self.settings.seed, "repeat", next.into()).sample(&known, 1);
        let fits = !row.is_empty() && state.budget.fits(&self.train_rollout(state)).is_ok();
        fits.then(|| self.request_repeat(state, head, &row))
    }

    /// Returns the rows of a generation: the next minibatch, or rows on which the head can gain. `None` if there are none.
    fn sprint_minibatch(&self, state: &State, head: &Candidate, draw: u64) -> Option<Vec<TrainRow>> {
        let mut rows = self.draw_rows("minibatch", &self.inputs.minibatch_pool, draw);
        rows.retain(|row| !head.failed_rows.contains(row));
        if rows.is_empty() || self.is_perfect(state, head, &rows) {
            rows = self.improvable_rows(state, head, draw);
        }
        Some(rows).filter(|rows| !rows.is_empty())
    }

    /// Rolls the head out again on a few rows, if it is perfect on all of them and scores are noisy: some of these scores are
    /// luck. Returns no events while such rollouts are under way, and `None` if there is nothing to doubt.
    fn doubt_perfect_scores(&self, state: &State, sprint: &Sprint, head: &Candidate) -> Option<Vec<Event>> {
        if !sprint.noise.is_noisy || head.train.rows().is_empty() {
            return None;
        }
        let is_under_way = |stage: Stage| state.evaluations.values().any(|evaluation| evaluation.stage == stage);
        if is_under_way(Stage::Repeat) || !head.sprint.pending.is_empty() {
            return Some(Vec::new());
        }
        let mut random = random_stream(self.settings.seed, "doubt", state.next_call_id);
        let rows = random.sample(head.train.rows(), self.settings.minibatch_size as usize);
        let cost = self.train_rollout(state).times(rows.len() as u64);
        self.fits_search(state, &cost).is_ok().then(|| vec![self.request_repeat(state, head, &rows)])
    }

    /// Returns the sampler of minibatches. Sprints use every row before they repeat one, unless another sampler is set.
    pub(crate) fn sampler(&self) -> Sampler {
        match self.settings.gepa.batch_sampler.name {
            Sampler::SeededShuffle if self.settings.is_sprint() => Sampler::EpochShuffled,
            other => other,
        }
    }

    /// Checks the changes since the best candidate early, if the search would end because the best score does not improve: it
    /// cannot improve before a check, and continues if this one adopts the head. Returns `None` if there is nothing to check.
    fn check_before_no_improvement(&self, state: &State, sprint: &Sprint, stop: &Event) -> Option<Vec<Event>> {
        let Event::StopDecided(decided) = stop else { return None };
        let is_unchecked = state.best != Some(sprint.head)
            && sprint.last_checked != Some((sprint.head, state.best.unwrap_or(0)))
            && sprint.check.is_none();
        if decided.stopped_by.kind != StopKind::NoImprovement || !is_unchecked {
            return None;
        }
        if !state.generations.is_empty() || sprint.is_moving() {
            return Some(Vec::new());
        }
        Some(self.check_started(state, sprint, false)).filter(|check| !check.is_empty())
    }

    /// Ends the search, after a last check of the head. Waits while generations, a check or a rebase are open.
    fn stop_after_check(&self, state: &State, sprint: &Sprint, stop: Vec<Event>) -> Vec<Event> {
        if !state.generations.is_empty() || sprint.check.is_some() || sprint.is_moving() {
            return Vec::new();
        }
        let anchor = state.best.unwrap_or(0);
        let pair = Some((sprint.head, anchor));
        // A check that its limit has ended may be able to tell with the rollouts that are left.
        let is_checked = sprint.fully_checked == pair
            || (sprint.last_checked == pair && !self.can_compare_more(state, sprint, anchor));
        if anchor != sprint.head && !is_checked {
            let check = self.check_started(state, sprint, true);
            if !check.is_empty() {
                return check;
            }
        }
        stop
    }

    /// Returns whether further rollouts tell more about head and anchor.
    fn can_compare_more(&self, state: &State, sprint: &Sprint, anchor: u32) -> bool {
        let sides = [sprint.head, anchor].map(|index| state.candidate(index));
        let is_open = |row: &TrainRow| {
            let is_usable = sides.iter().all(|side| !side.failed_rows.contains(row));
            is_usable && (sprint.noise.is_noisy || sides.iter().any(|side| side.score(*row).is_none()))
        };
        self.inputs.pareto_pool.iter().any(is_open)
    }

    /// Returns the next step of a screened candidate: a glance at other rows, or its promotion.
    pub(crate) fn promote_in_sprint(
        &self,
        state: &State,
        candidate: &Candidate,
        generation: &Generation,
        decision: CandidateDecided,
    ) -> Vec<Event> {
        let rows = self.glance_rows(state, candidate, generation);
        if rows.is_empty() || !state.may_send_calls() {
            return vec![Event::CandidatePromoted(decision)];
        }
        match self.request_all(state, candidate, Stage::Glance, candidate.generation, &rows) {
            Ok(request) => vec![request],
            Err(_) => defer(candidate, Stage::Glance, CandidateTrigger::BudgetRefused),
        }
    }

    /// Returns the rows of a glance: rows outside of the screening on which the parent is good. Empty if no sprint was
    /// clearly worse, if there are too few rows, or after the glance.
    fn glance_rows(&self, state: &State, candidate: &Candidate, generation: &Generation) -> Vec<TrainRow> {
        let count = self.settings.gepa.sprint.glance_rows as usize;
        let was_worse = state.sprint.as_ref().is_some_and(|sprint| sprint.clearly_worse > 0);
        let Some(parent) = generation.parents.first().map(|parent| state.candidate(*parent)) else { return Vec::new() };
        if !was_worse || !candidate.sprint.glance.is_empty() {
            return Vec::new();
        }
        let known = |row: &TrainRow| self.relative_score(state, known_score(parent, *row)?).into();
        let best = parent.train.rows().iter().chain(parent.sprint.used.rows()).filter_map(known).fold(0.0, f64::max);
        let is_good = |row: &TrainRow| {
            let is_new = !generation.minibatch.contains(row) && candidate.score(*row).is_none();
            is_new && known(row).is_some_and(|score| score > GLANCE_SHARE * best)
        };
        let good: Vec<TrainRow> = self.inputs.pareto_pool.iter().copied().filter(is_good).collect();
        if good.len() < count {
            return Vec::new();
        }
        let label = state.index_of(&candidate.id).unwrap_or_default();
        let mut rows = random_stream(self.settings.seed, "glance", label.into()).sample(&good, count);
        rows.sort_unstable();
        rows
    }

    /// Returns the rejection of a candidate that lost most of its parent's score on the rows of its glance.
    pub(crate) fn rejected_at_glance(&self, state: &State, candidate: &Candidate) -> Option<CandidateDecided> {
        let parent = candidate.parents.first().map(|parent| state.candidate(*parent))?;
        let pair = |row: &TrainRow| Some((candidate.score(*row)?, known_score(parent, *row)?));
        let pairs: Vec<(f64, f64)> = candidate.sprint.glance.iter().filter_map(pair).collect();
        let sum =
            |side: fn(&(f64, f64)) -> f64| pairs.iter().map(|pair| self.relative_score(state, side(pair))).sum::<f64>();
        if sum(|pair| pair.0) >= GLANCE_SHARE * sum(|pair| pair.1) {
            return None;
        }
        let mean = |side: fn(&(f64, f64)) -> f64| pairs.iter().map(side).sum::<f64>() / pairs.len() as f64;
        let (own, before) = (mean(|pair| pair.0), mean(|pair| pair.1));
        let comparison = Comparison {
            rows: pairs.len() as u32,
            primary_delta: self.settings.oriented(0, own) - self.settings.oriented(0, before),
            candidate_score: own,
            incumbent_score: before,
            objective_deltas: BTreeMap::new(),
        };
        let decision = decision_without_comparison(&candidate.id, Stage::Glance, "glance_lost");
        Some(CandidateDecided { comparison: Some(comparison), ..decision })
    }

    /// Returns a score as a share of the range of scores; larger is better.
    fn relative_score(&self, state: &State, score: f64) -> f64 {
        let range = state.sprint.as_ref().map(|sprint| sprint.range).unwrap_or_default();
        (self.settings.oriented(0, score) - range.low()) / range.width()
    }

    /// Makes the first screened candidate the head, or carries late ones over to the head.
    pub(crate) fn move_head(&self, state: &State) -> Vec<Event> {
        let Some(sprint) = state.sprint.as_ref().filter(|sprint| sprint.rebase.is_none()) else { return Vec::new() };
        let ready = self.ready_candidates(state, sprint);
        let Some(first) = ready.first() else { return Vec::new() };
        if !state.is_searching() {
            return ready.iter().flat_map(|index| stopped(state.candidate(*index))).collect();
        }
        let candidate = state.candidate(*first);
        if candidate.parents.first() == Some(&sprint.head) {
            let anchor = state.best.unwrap_or(0);
            return vec![Event::HeadMoved(HeadMoved {
                candidate_id: candidate.id.clone(),
                sprint: sprint.number,
                steps: candidate.sprint.depth.saturating_sub(state.candidate(anchor).sprint.depth),
            })];
        }
        self.carry_over(state, sprint, &ready)
    }

    /// Returns the waiting candidates whose siblings are all screened, oldest generation first, and within a generation the
    /// one with the largest gain first.
    fn ready_candidates(&self, state: &State, sprint: &Sprint) -> Vec<u32> {
        let is_screened = |index: &u32| is_settled(state.candidate(*index));
        let is_ready = |waiting: &&Waiting| {
            let generation = waiting.generation.and_then(|number| state.generations.get(&number));
            generation.is_none_or(|generation| generation.candidates.iter().all(is_screened))
        };
        let mut ready: Vec<&Waiting> = sprint.waiting.iter().filter(is_ready).collect();
        ready.sort_by(|one, other| {
            one.generation
                .cmp(&other.generation)
                .then(other.gain.total_cmp(&one.gain))
                .then(one.candidate.cmp(&other.candidate))
        });
        ready.into_iter().map(|waiting| waiting.candidate).collect()
    }

    /// Lays the changes of late candidates over the head, one after the other, as one new candidate.
    fn carry_over(&self, state: &State, sprint: &Sprint, late: &[u32]) -> Vec<Event> {
        let head = state.candidate(sprint.head);
        let composed = self.compose(state, &head.payload, late, MAX_CARRIED);
        let mut events: Vec<Event> = composed
            .left_out
            .iter()
            .map(|(index, why)| match why {
                None => superseded(state.candidate(*index), Some(&head.id), "the head already has its change"),
                Some(why) => superseded(
                    state.candidate(*index),
                    Some(&head.id),
                    &format!("its change does not fit the head: {why}"),
                ),
            })
            .collect();
        events.extend(self.register_rebase(state, sprint.head, None, &composed));
        events
    }

    /// Returns the next step of the candidate that carries late changes: measure the head on its rows, screen it, decide.
    pub(crate) fn advance_rebase(&self, state: &State) -> Vec<Event> {
        let Some((sprint, rebase)) = state.sprint.as_ref().and_then(|sprint| Some((sprint, sprint.rebase.as_ref()?)))
        else {
            return Vec::new();
        };
        let (head, candidate) = (state.candidate(sprint.head), state.candidate(rebase.candidate));
        if candidate.evaluation.is_some() || state.cancel.is_some() {
            return Vec::new();
        }
        if rebase.sprint != sprint.number {
            return vec![superseded(candidate, None, "its sprint was rolled back")];
        }
        if !state.may_send_calls() {
            return stopped(candidate);
        }
        let stage = Stage::CandidateMinibatch;
        let refused = |_: BudgetRefusal| defer(candidate, stage, CandidateTrigger::BudgetRefused);
        // An adoption of the head may have set its scores aside, so it is measured again also after the screening.
        if let Some(requested) = self.measure_missing(state, head, &rebase.rows) {
            return requested.unwrap_or_else(refused);
        }
        match candidate.status {
            CandidateStatus::Registered => {
                let requested = self.request_all(state, candidate, stage, None, &rebase.rows);
                requested.map_or_else(refused, |request| vec![request])
            }
            _ => self.judge_rebase(head, candidate, rebase),
        }
    }

    /// Requests rollouts of a candidate on those of these rows on which it has no score. Returns no events while they are under
    /// way, and `None` if there are none.
    pub(crate) fn measure_missing(
        &self,
        state: &State,
        candidate: &Candidate,
        rows: &[TrainRow],
    ) -> Option<Result<Vec<Event>, BudgetRefusal>> {
        let missing = missing_rows(candidate, rows.iter());
        let unasked: Vec<TrainRow> =
            missing.iter().copied().filter(|row| !candidate.sprint.pending.contains(row)).collect();
        match (unasked.is_empty(), missing.is_empty()) {
            (true, true) => None,
            (true, false) => Some(Ok(Vec::new())),
            (false, _) => {
                let requested = self.request_all(state, candidate, Stage::ParentMinibatchReference, None, &unasked);
                Some(requested.map(|request| vec![request]))
            }
        }
    }

    fn judge_rebase(&self, head: &Candidate, candidate: &Candidate, rebase: &Rebase) -> Vec<Event> {
        let stage = Stage::CandidateMinibatch;
        let tolerance = self.settings.gepa.rollout_failure_rate_tolerance;
        let found = compare(&self.settings, candidate, head, &rebase.rows);
        let Some(found) = found.filter(|_| candidate.failed_share(&rebase.rows) <= tolerance) else {
            return defer(candidate, stage, CandidateTrigger::TooManyFailures);
        };
        let verdict = self.screening_rule(&found);
        let decision = CandidateDecided {
            comparison: Some(found),
            ..decision_without_comparison(&candidate.id, stage, verdict.reason)
        };
        vec![if verdict.accepted { Event::CandidatePromoted(decision) } else { Event::CandidateRejected(decision) }]
    }

    /// Ends the candidates of a generation whose sprint was rolled back.
    pub(crate) fn end_stale_candidates(&self, state: &State, generation: &Generation) -> Vec<Event> {
        let open = |index: &&u32| {
            let candidate = state.candidate(**index);
            candidate.evaluation.is_none() && !is_settled(candidate)
        };
        let stale = generation.candidates.iter().filter(open).map(|index| state.candidate(*index));
        first_non_empty(stale.map(|candidate| vec![superseded(candidate, None, "its sprint was rolled back")]))
    }

    /// Defers screened candidates that no check has decided before the end of the search.
    pub(crate) fn defer_undecided(&self, state: &State) -> Vec<Event> {
        let undecided = state.sprint.iter().flat_map(|sprint| &sprint.undecided);
        undecided.flat_map(|index| stopped(state.candidate(*index))).collect()
    }
}

/// Returns whether a candidate of a search in sprints is screened or decided.
pub(crate) fn is_settled(candidate: &Candidate) -> bool {
    candidate.promoted || candidate.status.is_final()
}

/// Returns the score of a candidate on a row, also if it has decided about the candidate.
fn known_score(candidate: &Candidate, row: TrainRow) -> Option<f64> {
    candidate.score(row).or_else(|| candidate.sprint.used.get(row, 0))
}

pub(crate) fn superseded(candidate: &Candidate, by: Option<&CandidateId>, reason: &str) -> Event {
    let candidate_id = candidate.id.clone();
    Event::CandidateSuperseded(CandidateSuperseded { candidate_id, by: by.cloned(), reason: reason.to_owned() })
}

fn stopped(candidate: &Candidate) -> Vec<Event> {
    let (candidate_id, reason) = (candidate.id.clone(), CandidateTrigger::RunStopped);
    vec![Event::CandidateDeferred(CandidateDeferred { candidate_id, stage: Stage::Check, reason })]
}

//! Decisions that end a run: stop rules, limits, failures and control requests, then the held-out evaluation and the result.

use synth_optimizer_core::config::gepa::DeploymentRule;
use synth_optimizer_core::engine::Engine as _;
use synth_optimizer_core::model::answer::FailureClass;
use synth_optimizer_core::model::budget::{BudgetRefusal, Dimension};
use synth_optimizer_core::model::claim::{Claim, ClaimRules, HeldoutEvidence, MeasuredRows};
use synth_optimizer_core::model::error::ErrorCode;
use synth_optimizer_core::model::event::Event;
use synth_optimizer_core::model::event_fields::{
    Bill, BudgetRefused, CircuitBreakerTripped, EstimateShortfall, Failure, HeldoutChosen, NamedScore, Reason,
    RolloutFailed, RolloutsRequested, RunCancelled, RunFailed, RunFinished, Stage, StopDecided, StopKind, StoppedBy,
};
use synth_optimizer_core::model::ids::{CallId, HeldoutRow, RowId};
use synth_optimizer_core::model::lifecycle::RunTrigger;
use synth_optimizer_core::model::score::{Gain, Score};
use synth_optimizer_core::model::usage::Usage;

use crate::decide::state_transitions;
use crate::decide_answer::abandoned;
use crate::engine::GepaEngine;
use crate::state::{Candidate, Phase, Rollout, RowFailure, Scores, State, Stop, share};

impl GepaEngine {
    /// Checks the stop rules that apply before a generation starts, in the order in which they are reported.
    pub(crate) fn stop_by_rule(&self, state: &State) -> Option<Event> {
        let gepa = &self.settings.gepa;
        let most = self.settings.proposer.max_consecutive_invalid;
        if state.turns_without_candidate >= most {
            // A proposer that only repeats known candidates ends the search; one that returns invalid proposals fails it.
            let failure = (state.invalid_turns >= most).then(|| proposer_failure(state));
            let value = Some(state.turns_without_candidate.into());
            return Some(stop(StopKind::ProposerExhausted, Some(most.into()), value, failure));
        }
        let without = state.generations_without_improvement;
        let most = gepa.no_improvement_generations.filter(|most| without >= *most)?;
        Some(stop(StopKind::NoImprovement, Some(most.into()), Some(without.into()), None))
    }

    /// Fails a search in which every proposer turn was invalid.
    fn stop_without_any_proposal(&self, state: &State) -> Option<Event> {
        let at_rest = state.stop.as_ref().is_some_and(Stop::lets_generations_finish);
        // Turns that only repeated the initial candidate were valid.
        let all_invalid = state.invalid_turns > 0 && state.invalid_turns == state.turns_without_candidate;
        let never = at_rest && state.candidates.len() == 1 && all_invalid;
        let turns = Some(state.invalid_turns.into());
        never.then(|| stop(StopKind::ProposerExhausted, None, turns, Some(proposer_failure(state))))
    }

    /// Returns whether the time limit is reached.
    pub(crate) fn time_is_up(&self, state: &State) -> bool {
        state.budget.available(Dimension::WallMillis) == Some(0)
    }

    /// Stops the search at once if the time limit or the score threshold is reached.
    pub(crate) fn stop_at_score_or_time(&self, state: &State) -> Vec<Event> {
        if !state.is_searching() {
            return Vec::new();
        }
        let elapsed = state.budget.elapsed_millis();
        if self.settings.search_deadline_millis.is_some_and(|deadline| elapsed >= deadline) {
            let time = Dimension::WallMillis;
            let limit = self.settings.caps.get(time).map(|cap| in_display_units(time, cap));
            let value = in_display_units(time, elapsed);
            // Without a score of the initial candidate there is no result.
            let failure = (state.phase == Phase::Seed).then(|| Failure {
                code: ErrorCode::BudgetExceeded,
                message: "the time limit passed before the initial candidate was evaluated".into(),
                hint: None,
            });
            return vec![stop(StopKind::MaxTime, limit, Some(value), failure)];
        }
        let Some(threshold) = self.settings.gepa.score_threshold_value else { return Vec::new() };
        let Some(best) = state.best.and_then(|best| state.candidate(best).pool_entry) else { return Vec::new() };
        // Both the measured mean and the ranking score, which fills in missing rows, must reach the threshold.
        let reached = best.ranking_score.min(self.settings.oriented(0, best.score.mean));
        if reached < self.settings.oriented(0, threshold) {
            return Vec::new();
        }
        vec![stop(StopKind::ScoreThreshold, Some(threshold), Some(best.score.mean), None)]
    }

    /// Fails a run whose calls do not report what a limit counts, if there is no estimate either: the limit cannot be kept.
    pub(crate) fn stop_without_usage(&self, state: &State) -> Vec<Event> {
        if !state.is_searching() || !state.outstanding_calls.is_empty() {
            return Vec::new();
        }
        let settings = &self.settings;
        let kinds = [
            ("rollout", &settings.learned_rollout, &state.learned_rollout),
            ("proposer", &settings.learned_proposal, &state.learned_proposal),
        ];
        for (kind, learned, usage) in kinds {
            let unknown = |dimension: &&Dimension| usage.successes > 0 && usage.estimate(**dimension).is_none();
            if let Some(dimension) = learned.iter().find(unknown) {
                let failure = unreported_usage(kind, *dimension);
                let limit = settings.caps.get(*dimension).map(|cap| in_display_units(*dimension, cap));
                return vec![stop(stop_kind(*dimension), limit, None, Some(failure))];
            }
        }
        Vec::new()
    }

    /// Stops the search if too many of the recent rollouts failed.
    pub(crate) fn trip_circuit_breaker(&self, state: &State) -> Vec<Event> {
        let rules = &self.settings.gepa.circuit_breaker;
        if !rules.enabled || !state.is_searching() {
            return Vec::new();
        }
        let looked_at = state.recent_rows.len() as u32;
        let failures = state.recent_rows.iter().flatten().count() as u32;
        let tolerance = self.settings.gepa.rollout_failure_rate_tolerance;
        if failures < rules.min_failures || f64::from(failures) <= tolerance * f64::from(looked_at) {
            return Vec::new();
        }
        let failure = rows_failure(state, &format!("{failures} of the last {looked_at} rows failed"));
        vec![
            Event::CircuitBreakerTripped(CircuitBreakerTripped { failures, window: looked_at, tolerance }),
            stop(StopKind::CircuitBreaker, Some(rules.min_failures.into()), Some(failures.into()), Some(failure)),
        ]
    }

    /// Withdraws the remaining rollouts if the task failed on every row until the circuit breaker tripped. No row after the
    /// last failed one was sent: until a rollout succeeds, the platform sends one rollout at a time, in order.
    pub(crate) fn withdraw_rollouts_of_broken_task(&self, state: &State) -> Vec<Event> {
        let is_broken = state.stop.as_ref().is_some_and(|stop| stop.stopped_by.kind == StopKind::CircuitBreaker);
        if !is_broken || state.has_other_outcome {
            return Vec::new();
        }
        let withdrawn = |(call_id, rollout)| self.events_for_failed_rollout(state, call_id, rollout, &abandoned(false));
        state.outstanding_rollouts().flat_map(withdrawn).collect()
    }

    /// Requests the rows that were not tried yet again, behind the retries of the failed ones, if the task fails on every row
    /// so far. So a broken task is called only for as many rows as the circuit breaker needs.
    pub(crate) fn retry_failed_rows_first(&self, state: &State) -> Vec<Event> {
        let rules = &self.settings.gepa.circuit_breaker;
        let is_suspect = rules.enabled && !state.has_other_outcome && state.task_failures >= rules.min_failures;
        if !is_suspect || !state.is_searching() || !state.may_send_calls() || self.time_is_up(state) {
            return Vec::new();
        }
        let rollouts: Vec<(CallId, &Rollout)> = state.outstanding_rollouts().collect();
        let is_untried = |rollout: &Rollout| rollout.attempt == 1;
        let Some((_, first)) = rollouts.first().copied().filter(|(_, first)| is_untried(first)) else {
            return Vec::new();
        };
        if rollouts.iter().all(|(_, rollout)| is_untried(rollout)) {
            return Vec::new();
        }
        let waits = |rollout: &Rollout| is_untried(rollout) && rollout.evaluation == first.evaluation;
        let (mut events, mut row_ids) = (Vec::new(), Vec::new());
        for (call_id, rollout) in rollouts.into_iter().filter(|(_, rollout)| waits(rollout)) {
            row_ids.push(self.row_id(rollout.row).clone());
            events.push(Event::RolloutFailed(RolloutFailed {
                call_id,
                candidate_id: state.candidate(rollout.candidate).id.clone(),
                row_id: self.row_id(rollout.row).clone(),
                stage: rollout.stage,
                attempt: rollout.attempt,
                class: FailureClass::Withdrawn,
                message: "the failed rows are retried first".to_owned(),
                usage: Usage::default(),
                cached: false,
                retried: true,
            }));
        }
        // The failed rows may have raised the estimate of a rollout.
        let mut after = state.clone();
        events.iter().for_each(|event| self.evolve(&mut after, event));
        let rows = row_ids.len() as u64;
        if after.budget.max_affordable(&self.train_rollout(&after), rows).0 < rows {
            return Vec::new();
        }
        events.push(Event::RolloutsRequested(RolloutsRequested {
            first_call_id: CallId(state.next_call_id),
            evaluation: first.evaluation,
            candidate_id: state.candidate(first.candidate).id.clone(),
            stage: first.stage,
            generation: state.evaluations.get(&first.evaluation).and_then(|evaluation| evaluation.generation),
            row_ids,
            attempt: first.attempt,
            replicate: first.replicate,
        }));
        events
    }

    pub(crate) fn stop_on_request(&self, state: &State, reason: &str) -> Vec<Event> {
        // Before the first call there is nothing to finish.
        if state.phase == Phase::New && state.cancel.is_none() {
            return vec![Event::CancelRequested(Reason { reason: reason.to_owned() })];
        }
        if !state.is_searching() {
            return Vec::new();
        }
        let stopped_by =
            StoppedBy { kind: StopKind::External, limit: None, value: None, reason: Some(reason.to_owned()) };
        vec![
            Event::StopRequested(Reason { reason: reason.to_owned() }),
            Event::StopDecided(StopDecided { stopped_by, failure: None }),
        ]
    }

    /// Stops the search because no measurable row has room for improvement.
    pub(crate) fn stop_without_gain(&self, best: &Candidate) -> Event {
        let measured = self.inputs.minibatch_pool.iter().any(|row| best.score(*row).is_some());
        let kind = if measured { StopKind::PerfectScore } else { StopKind::NothingMeasurable };
        stop(kind, None, None, None)
    }

    /// Stops the search at a limit. Waits while generations are open, because they may release reserved budget.
    pub(crate) fn stop_at_limit(&self, state: &State, dimension: Dimension, before: &[Event]) -> Vec<Event> {
        if !state.generations.is_empty() && dimension != Dimension::Generations {
            return Vec::new();
        }
        let limit = state.budget.caps().get(dimension).map(|cap| in_display_units(dimension, cap));
        let value = in_display_units(dimension, state.budget.spent(dimension));
        let mut events = before.to_vec();
        events.push(stop(stop_kind(dimension), limit, Some(value), None));
        events
    }

    /// Stops the run because the budget does not cover the evaluation of the initial candidate.
    pub(crate) fn stop_before_seed(&self, refused: &BudgetRefusal, purpose: &str) -> Vec<Event> {
        let shown = |amount| in_display_units(refused.dimension, amount);
        let message = format!(
            "{purpose} requires {} of {}, and {} are left",
            shown(refused.wanted),
            stop_kind(refused.dimension).as_str(),
            shown(refused.available)
        );
        let failure = Failure { code: ErrorCode::BudgetExceeded, message, hint: None };
        let limit = self.settings.caps.get(refused.dimension).map(shown);
        vec![
            self.budget_refused(refused, purpose),
            stop(stop_kind(refused.dimension), limit, Some(shown(refused.wanted)), Some(failure)),
        ]
    }

    /// Decides on the initial candidate. Stops the run if too many of its rollouts failed.
    pub(crate) fn judge_seed(&self, state: &State) -> Vec<Event> {
        let mut events = self.judge_candidate(state, 0);
        let deferred = events.iter().any(|event| matches!(event, Event::CandidateDeferred(_)));
        if !deferred || state.stop.as_ref().is_some_and(|stop| stop.failure.is_some()) {
            return events;
        }
        // A stop request interrupted the first evaluation: without a score there is no result, so the run is cancelled.
        if let Some(stop) = state.stop.as_ref().filter(|stop| !stop.lets_generations_finish()) {
            let reason = stop.stopped_by.reason.clone().unwrap_or_else(|| stop.stopped_by.kind.as_str().to_owned());
            events.push(Event::CancelRequested(Reason { reason }));
            return events;
        }
        let share = state.candidate(0).failed_share(&self.first_rows(state));
        let failure =
            rows_failure(state, &format!("{:.0} % of the rows of the initial candidate failed", share * 100.0));
        let tolerance = self.settings.gepa.rollout_failure_rate_tolerance;
        events.push(stop(StopKind::SeedFailed, Some(tolerance), Some(share), Some(failure)));
        events
    }

    pub(crate) fn budget_refused(&self, refused: &BudgetRefusal, purpose: &str) -> Event {
        Event::BudgetRefused(BudgetRefused {
            dimension: refused.dimension,
            required: refused.wanted,
            available: refused.available,
            purpose: purpose.to_owned(),
        })
    }

    pub(crate) fn finish_cancel(&self, state: &State) -> Vec<Event> {
        let Some(reason) = state.cancel.as_ref().filter(|_| state.outstanding_calls.is_empty()) else {
            return Vec::new();
        };
        // A failure raised from outside uses the same path, and ends in `failed`.
        let raised = state.stop.as_ref().filter(|stop| stop.stopped_by.kind == StopKind::Error);
        if let Some(failure) = raised.and_then(|stop| stop.failure.as_ref()) {
            return self.fail(state, failure);
        }
        let mut events = state_transitions(state.run, &[RunTrigger::CancelRequested]);
        events.push(Event::RunCancelled(RunCancelled {
            reason: reason.clone(),
            best_candidate_id: state.best.map(|best| state.candidate(best).id.clone()),
            rollouts: state.counts.rollout_count(),
            bill: self.bill(state),
        }));
        events
    }

    /// Fails the run, after the last answer has retired.
    fn fail(&self, state: &State, failure: &Failure) -> Vec<Event> {
        let mut events = state_transitions(state.run, &[RunTrigger::FailureRaised]);
        events.push(Event::RunFailed(RunFailed {
            error_code: failure.code,
            message: failure.message.clone(),
            hint: failure.hint.clone(),
            best_candidate_id: state.best.map(|best| state.candidate(best).id.clone()),
            rollouts: state.counts.rollout_count(),
            bill: self.bill(state),
        }));
        events
    }

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

    fn bill(&self, state: &State) -> Bill {
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

fn stop(kind: StopKind, limit: Option<f64>, value: Option<f64>, failure: Option<Failure>) -> Event {
    Event::StopDecided(StopDecided { stopped_by: StoppedBy { kind, limit, value, reason: None }, failure })
}

/// Returns the failure of a run whose calls do not report a limited amount.
fn unreported_usage(kind: &str, dimension: Dimension) -> Failure {
    let (limit, what, estimate) = match dimension {
        Dimension::PromptTokens => ("max_prompt_tokens", "prompt tokens", "prompt_tokens"),
        Dimension::CompletionTokens => ("max_completion_tokens", "completion tokens", "completion_tokens"),
        Dimension::TotalTokens => ("max_total_tokens", "tokens", "total_tokens"),
        _ => ("max_cost_usd", "cost", "cost_usd"),
    };
    let (call, source) = match (kind, dimension) {
        ("rollout", Dimension::Cost) => ("the first rollout", "Return `cost_usd` in the usage of a rollout"),
        ("rollout", _) => ("the first rollout", "Return the tokens in the usage of a rollout"),
        (_, Dimension::Cost) => ("the first proposer turn", "Set the prices of its model in [proposer.prices]"),
        _ => ("the first proposer turn", "Use an endpoint that reports its tokens"),
    };
    Failure {
        code: ErrorCode::BudgetExceeded,
        message: format!("`gepa.{limit}` is set, but {call} reported no {what}, so that the limit cannot be kept"),
        hint: Some(format!(
            "{source}, set `gepa.{kind}_estimated_{estimate}` to the maximum of one call, or remove the limit."
        )),
    }
}

fn proposer_failure(state: &State) -> Failure {
    let turns = if state.invalid_turns == 1 { "turn" } else { "turns" };
    let count = format!("{} {turns} in a row returned no valid proposal", state.invalid_turns);
    let message = match &state.last_turn_problem {
        Some(cause) => format!("{cause} ({count})"),
        None => count,
    };
    let hint = "Read the transcripts of the turns below proposer_transcripts in the run directory.".to_owned();
    Failure { code: ErrorCode::Proposer, message, hint: Some(hint) }
}

/// Returns the failure of a run whose rows fail. It begins with the most frequent cause and names one row.
fn rows_failure(state: &State, count: &str) -> Failure {
    let failures: Vec<&RowFailure> = state.recent_rows.iter().flatten().collect();
    let frequency = |failure: &RowFailure| {
        let is_same = |other: &&&RowFailure| (other.class, &other.message) == (failure.class, &failure.message);
        failures.iter().filter(is_same).count()
    };
    // Among equally frequent causes, the last one.
    let Some(example) = failures.iter().max_by_key(|failure| frequency(failure)) else {
        return Failure { code: ErrorCode::Container, message: count.to_owned(), hint: None };
    };
    let unanswered = failures.iter().filter(|failure| !failure.class.was_answered()).count();
    let unanswered = if unanswered > 0 { format!(", {unanswered} of them without an answer") } else { String::new() };
    let message = format!("{} ({count}{unanswered}; for example row {})", example.message, example.row_id);
    Failure { code: example.class.error_code(), message, hint: Some(example.class.hint().to_owned()) }
}

/// Converts an amount to the unit that users see: dollars and seconds.
pub(crate) fn in_display_units(dimension: Dimension, amount: u64) -> f64 {
    match dimension {
        Dimension::Cost => amount as f64 / 1e9,
        Dimension::WallMillis => amount as f64 / 1e3,
        _ => amount as f64,
    }
}

fn stop_kind(dimension: Dimension) -> StopKind {
    match dimension {
        Dimension::TrainRollouts | Dimension::HeldoutRollouts | Dimension::TotalRollouts => StopKind::MaxRollouts,
        Dimension::Cost => StopKind::MaxCost,
        Dimension::PromptTokens | Dimension::CompletionTokens | Dimension::TotalTokens => StopKind::MaxTokens,
        Dimension::WallMillis => StopKind::MaxTime,
        Dimension::Generations => StopKind::MaxGenerations,
    }
}

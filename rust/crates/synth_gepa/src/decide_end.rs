//! Decisions that end a search or a run: stop rules, limits, failures and control requests.

use synth_optimizer_core::engine::Engine as _;
use synth_optimizer_core::model::answer::FailureClass;
use synth_optimizer_core::model::budget::{BudgetRefusal, Dimension};
use synth_optimizer_core::model::error::ErrorCode;
use synth_optimizer_core::model::event::Event;
use synth_optimizer_core::model::event_fields::{
    BudgetRefused, CircuitBreakerTripped, Failure, Reason, RolloutFailed, RolloutsRequested, RunCancelled, RunFailed,
    StopDecided, StopKind, StoppedBy,
};
use synth_optimizer_core::model::ids::CallId;
use synth_optimizer_core::model::lifecycle::RunTrigger;
use synth_optimizer_core::model::usage::Usage;

use crate::decide::state_transitions;
use crate::decide_answer::abandoned;
use crate::engine::GepaEngine;
use crate::state::{Candidate, Phase, Rollout, RowFailure, State, Stop};

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
    pub(crate) fn stop_without_any_proposal(&self, state: &State) -> Option<Event> {
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
        state.outstanding_calls.rollouts().flat_map(withdrawn).collect()
    }

    /// Requests the rows that were not tried yet again, behind the retries of the failed ones, if the task fails on every row
    /// so far. So a broken task is called only for as many rows as the circuit breaker needs.
    pub(crate) fn retry_failed_rows_first(&self, state: &State) -> Vec<Event> {
        let rules = &self.settings.gepa.circuit_breaker;
        let is_suspect = rules.enabled && !state.has_other_outcome && state.task_failures >= rules.min_failures;
        if !is_suspect || !state.is_searching() || !state.may_send_calls() || self.time_is_up(state) {
            return Vec::new();
        }
        let rollouts: Vec<(CallId, &Rollout)> = state.outstanding_calls.rollouts().collect();
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
    pub(crate) fn fail(&self, state: &State, failure: &Failure) -> Vec<Event> {
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

pub(crate) fn stop_kind(dimension: Dimension) -> StopKind {
    match dimension {
        Dimension::TrainRollouts | Dimension::HeldoutRollouts | Dimension::TotalRollouts => StopKind::MaxRollouts,
        Dimension::Cost => StopKind::MaxCost,
        Dimension::PromptTokens | Dimension::CompletionTokens | Dimension::TotalTokens => StopKind::MaxTokens,
        Dimension::WallMillis => StopKind::MaxTime,
        Dimension::Generations => StopKind::MaxGenerations,
    }
}

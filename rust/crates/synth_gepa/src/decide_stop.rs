//! Stop rules, and everything that ends a run: enough, too much, too broken, or somebody said so.

use synth_optimizer_core::model::budget::{Dimension, Refused};
use synth_optimizer_core::model::error::ErrorCode;
use synth_optimizer_core::model::event::Event;
use synth_optimizer_core::model::event_fields::{
    BudgetRefused, CircuitBreakerTripped, Failure, Reason, RunEnded, RunFailed, StopDecided, StopKind, StoppedBy,
};
use synth_optimizer_core::model::lifecycle::RunTrigger;

use crate::decide::path;
use crate::engine::GepaEngine;
use crate::state::{Candidate, Phase, State, Stop};

impl GepaEngine {
    /// Rules that are looked at before a generation begins, in the order in which they are reported.
    pub(crate) fn stop_by_rule(&self, state: &State) -> Option<Event> {
        let gepa = &self.settings.gepa;
        let most = self.settings.max_consecutive_invalid;
        if state.fruitless_turns >= most {
            // A proposer that only repeats itself has nothing more to say; one that breaks the rules is broken.
            let failure = (state.invalid_turns >= most).then(|| proposer_failure(state));
            let value = Some(state.fruitless_turns.into());
            return Some(stop(StopKind::ProposerExhausted, Some(most.into()), value, failure));
        }
        let without = state.generations_without_gain;
        let most = gepa.no_improvement_generations.filter(|most| without >= *most)?;
        Some(stop(StopKind::NoImprovement, Some(most.into()), Some(without.into()), None))
    }

    /// A search in which every turn of the proposer was invalid has not searched.
    pub(crate) fn proposer_never_answered(&self, state: &State) -> Option<Event> {
        let at_rest = state.stop.as_ref().is_some_and(Stop::lets_work_end);
        // Turns that only repeated the seed were valid.
        let all_invalid = state.invalid_turns > 0 && state.invalid_turns == state.fruitless_turns;
        let never = at_rest && state.candidates.len() == 1 && all_invalid;
        let turns = Some(state.invalid_turns.into());
        never.then(|| stop(StopKind::ProposerExhausted, None, turns, Some(proposer_failure(state))))
    }

    /// Whether the time limit is reached.
    pub(crate) fn time_is_up(&self, state: &State) -> bool {
        state.budget.available(Dimension::WallMillis) == Some(0)
    }

    /// Rules that end the search at once: the score is reached, or time is up.
    pub(crate) fn watch_limits(&self, state: &State) -> Vec<Event> {
        if !state.is_searching() {
            return Vec::new();
        }
        let elapsed = state.budget.elapsed_millis();
        if self.settings.search_deadline_millis.is_some_and(|deadline| elapsed >= deadline) {
            let time = Dimension::WallMillis;
            let limit = self.settings.caps.get(time).map(|cap| in_units(time, cap));
            let value = in_units(time, elapsed);
            // Without a seed score there is nothing to return.
            let failure = (state.phase == Phase::Seed).then(|| Failure {
                code: ErrorCode::BudgetExceeded,
                message: "time was up before the seed was evaluated".into(),
            });
            return vec![stop(StopKind::MaxTime, limit, Some(value), failure)];
        }
        let Some(threshold) = self.settings.gepa.score_threshold_value else { return Vec::new() };
        let Some(best) = state.best.and_then(|best| state.candidate(best).pooled) else { return Vec::new() };
        // Both the measured mean and the one in which missing rows are made up for must reach it.
        let reached = best.merit.min(self.settings.oriented(0, best.score.mean));
        if reached < self.settings.oriented(0, threshold) {
            return Vec::new();
        }
        vec![stop(StopKind::ScoreThreshold, Some(threshold), Some(best.score.mean), None)]
    }

    /// Ends the run when so many rollouts fail that further ones are money thrown away.
    pub(crate) fn watch_failures(&self, state: &State) -> Vec<Event> {
        let rules = &self.settings.gepa.circuit_breaker;
        if !rules.enabled || !state.is_searching() {
            return Vec::new();
        }
        let looked_at = state.recent_failures.len() as u32;
        let failures = state.recent_failures.iter().filter(|failed| **failed).count() as u32;
        let tolerance = self.settings.gepa.rollout_failure_rate_tolerance;
        if failures < rules.min_failures || f64::from(failures) <= tolerance * f64::from(looked_at) {
            return Vec::new();
        }
        let message = format!("{failures} of the last {looked_at} rollouts failed");
        let failure = Failure { code: ErrorCode::Container, message };
        vec![
            Event::CircuitBreakerTripped(CircuitBreakerTripped { failures, window: looked_at, tolerance }),
            stop(StopKind::CircuitBreaker, Some(rules.min_failures.into()), Some(failures.into()), Some(failure)),
        ]
    }

    pub(crate) fn stop_requested(&self, state: &State, reason: &str) -> Vec<Event> {
        // Before anything has been asked for there is nothing to finish.
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

    /// Nothing is left to gain on the rows that can be measured.
    pub(crate) fn stop_without_gain(&self, best: &Candidate) -> Event {
        let measured = self.inputs.minibatch_pool.iter().any(|row| best.score(*row).is_some());
        let kind = if measured { StopKind::PerfectScore } else { StopKind::NothingMeasurable };
        stop(kind, None, None, None)
    }

    /// The search ends at a limit, unless work that is under way may still give something back.
    pub(crate) fn stop_at_limit(&self, state: &State, dimension: Dimension, before: &[Event]) -> Vec<Event> {
        if !state.generations.is_empty() && dimension != Dimension::Generations {
            return Vec::new();
        }
        let limit = state.budget.caps().get(dimension).map(|cap| in_units(dimension, cap));
        let value = in_units(dimension, state.budget.spent(dimension));
        let mut events = before.to_vec();
        events.push(stop(kind_of(dimension), limit, Some(value), None));
        events
    }

    /// The seed cannot be paid for: the run cannot begin.
    pub(crate) fn out_of_budget(&self, refused: &Refused, purpose: &str) -> Vec<Event> {
        let shown = |amount| in_units(refused.dimension, amount);
        let message = format!(
            "{purpose} needs {} of {}, and {} are left",
            shown(refused.wanted),
            kind_of(refused.dimension).word(),
            shown(refused.available)
        );
        let failure = Failure { code: ErrorCode::BudgetExceeded, message };
        let limit = self.settings.caps.get(refused.dimension).map(shown);
        vec![
            self.refusal(refused, purpose),
            stop(kind_of(refused.dimension), limit, Some(shown(refused.wanted)), Some(failure)),
        ]
    }

    /// The seed has no score worth the name: the container does not do its work.
    pub(crate) fn judge_seed(&self, state: &State) -> Vec<Event> {
        let mut events = self.judge_candidate(state, 0);
        let deferred = events.iter().any(|event| matches!(event, Event::CandidateDeferred(_)));
        if !deferred || state.stop.as_ref().is_some_and(|stop| stop.failure.is_some()) {
            return events;
        }
        // Cut short by a stop from outside, the seed has no score to finish with.
        if let Some(stop) = state.stop.as_ref().filter(|stop| !stop.lets_work_end()) {
            let reason = stop.stopped_by.reason.clone().unwrap_or_else(|| stop.stopped_by.kind.word().to_owned());
            events.push(Event::CancelRequested(Reason { reason }));
            return events;
        }
        let share = state.candidate(0).failed_share(&self.inputs.pareto_pool);
        let message = format!("{:.0} % of the rollouts of the seed failed", share * 100.0);
        let failure = Failure { code: ErrorCode::Container, message };
        let tolerance = self.settings.gepa.rollout_failure_rate_tolerance;
        events.push(stop(StopKind::SeedFailed, Some(tolerance), Some(share), Some(failure)));
        events
    }

    pub(crate) fn refusal(&self, refused: &Refused, purpose: &str) -> Event {
        Event::BudgetRefused(BudgetRefused {
            dimension: refused.dimension,
            wanted: refused.wanted,
            available: refused.available,
            purpose: purpose.to_owned(),
        })
    }

    pub(crate) fn finish_cancel(&self, state: &State) -> Vec<Event> {
        let Some(reason) = state.cancel.as_ref().filter(|_| state.requests.is_empty()) else { return Vec::new() };
        // A failure that came from outside ends the run in the same way, under another name.
        let raised = state.stop.as_ref().filter(|stop| stop.stopped_by.kind == StopKind::Error);
        if let Some(failure) = raised.and_then(|stop| stop.failure.as_ref()) {
            return self.fail(state, failure);
        }
        let mut events = path(state.run, &[RunTrigger::CancelRequested]);
        events.push(Event::RunCancelled(RunEnded {
            reason: reason.clone(),
            best_candidate_id: self.best_id(state),
            rollouts: state.counts.rollout_count(),
            bill: self.bill(state),
        }));
        events
    }

    /// A run that cannot end well ends when the last answer is in.
    pub(crate) fn fail(&self, state: &State, failure: &Failure) -> Vec<Event> {
        let mut events = path(state.run, &[RunTrigger::FailureRaised]);
        events.push(Event::RunFailed(RunFailed {
            error_code: failure.code,
            message: failure.message.clone(),
            best_candidate_id: self.best_id(state),
            rollouts: state.counts.rollout_count(),
            bill: self.bill(state),
        }));
        events
    }
}

fn stop(kind: StopKind, limit: Option<f64>, value: Option<f64>, failure: Option<Failure>) -> Event {
    Event::StopDecided(StopDecided { stopped_by: StoppedBy { kind, limit, value, reason: None }, failure })
}

fn proposer_failure(state: &State) -> Failure {
    let turns = if state.invalid_turns == 1 { "turn" } else { "turns" };
    let message = format!("{} {turns} in a row brought no valid proposal", state.invalid_turns);
    Failure { code: ErrorCode::Proposer, message }
}

/// An amount as people read it: dollars and seconds.
pub(crate) fn in_units(dimension: Dimension, amount: u64) -> f64 {
    match dimension {
        Dimension::Cost => amount as f64 / 1e9,
        Dimension::WallMillis => amount as f64 / 1e3,
        _ => amount as f64,
    }
}

fn kind_of(dimension: Dimension) -> StopKind {
    match dimension {
        Dimension::TrainRollouts | Dimension::HeldoutRollouts | Dimension::TotalRollouts => StopKind::MaxRollouts,
        Dimension::Cost => StopKind::MaxCost,
        Dimension::PromptTokens | Dimension::CompletionTokens | Dimension::TotalTokens => StopKind::MaxTokens,
        Dimension::WallMillis => StopKind::MaxTime,
        Dimension::Generations => StopKind::MaxGenerations,
    }
}

//! Decides the next events. Each call makes one small step, so that every event is derived from a state that is in the log.

use std::borrow::Cow;

use synth_optimizer_core::config::SearchChoice;
use synth_optimizer_core::model::answer::Observation;
use synth_optimizer_core::model::budget::{BudgetRefusal, Dimension};
use synth_optimizer_core::model::error::OptimizerError;
use synth_optimizer_core::model::event::Event;
use synth_optimizer_core::model::event_effects::CallKind;
use synth_optimizer_core::model::event_fields::{
    CandidateDecided, CandidateRegistered, ClockObserved, EvaluationCompleted, ObjectiveSetDeclared, Operation,
    OutcomeUnknown, ProgramLoaded, Reason, RolloutsRequested, RowsLoaded, SearchChosen, Stage, StateTransitioned,
};
use synth_optimizer_core::model::ids::{CallId, CandidateId, RowId, TrainRow};
use synth_optimizer_core::model::lifecycle::{CandidateStatus, Lifecycle, RunState, RunTrigger};

use crate::decide_evaluation::missing_rows;
use crate::decide_generation::first_non_empty;
use crate::engine::GepaEngine;
use crate::outstanding::OutstandingCall;
use crate::state::{Candidate, Phase, State};

/// Shortest interval between two recorded clock observations.
const CLOCK_RESOLUTION_MILLIS: u64 = 1000;

impl GepaEngine {
    pub(crate) fn next_events(&self, state: &State, observation: &Observation) -> Result<Vec<Event>, OptimizerError> {
        if state.phase == Phase::Over {
            return Ok(Vec::new());
        }
        match observation {
            Observation::Begin => Ok(self.opening_events(state)),
            Observation::Advance => Ok(self.advance(state)),
            Observation::Answer { call_id, answer } => self.events_for_answer(state, *call_id, answer),
            Observation::OutcomeUnknown { call_id, cause } => Ok(self.charge_unknown_outcome(state, *call_id, cause)),
            Observation::Clock { elapsed_millis } => Ok(self.observe_clock(state, *elapsed_millis)),
            Observation::StopRequested { reason } => Ok(self.stop_on_request(state, reason)),
            Observation::CancelRequested { reason } if state.cancel.is_none() => {
                Ok(vec![Event::CancelRequested(Reason { reason: reason.clone() })])
            }
            Observation::FailureRaised { failure } if state.cancel.is_none() => {
                Ok(vec![Event::FailureRaised(failure.clone())])
            }
            Observation::CancelRequested { .. } | Observation::FailureRaised { .. } => Ok(Vec::new()),
        }
    }

    /// Returns the first events: the loaded inputs, the objectives and the initial candidate.
    fn opening_events(&self, state: &State) -> Vec<Event> {
        if state.phase != Phase::New {
            return Vec::new();
        }
        let (inputs, program) = (&self.inputs, &self.inputs.program);
        let mut events = vec![
            Event::ProgramLoaded(ProgramLoaded {
                program_id: program.program_id.clone(),
                program_digest: inputs.program_digest(),
                mutable_fields: program.modules.iter().map(|module| module.field.clone()).collect(),
                target_fields: program.targets.clone(),
            }),
            Event::RowsLoaded(RowsLoaded {
                train_rows: inputs.train.len() as u32,
                heldout_rows: inputs.heldout.len() as u32,
                pareto_pool: inputs.pareto_pool.len() as u32,
                minibatch_pool: inputs.minibatch_pool.len() as u32,
                reflection_pool: inputs.reflection_pool.len() as u32,
                heldout_pool: inputs.heldout_pool.len() as u32,
                rows_digest: inputs.rows_digest(),
            }),
            Event::ObjectiveSetDeclared(ObjectiveSetDeclared {
                selection_objective: self.settings.objectives[0].name.clone(),
                frontier_type: self.settings.gepa.frontier_type,
                objectives: self.settings.objectives.clone(),
            }),
        ];
        if let Some(choice) = &self.settings.search_choice {
            let SearchChoice { search, reason } = choice.clone();
            events.push(Event::SearchChosen(SearchChosen { search, reason }));
        }
        events.extend(state_transitions(state.run, &[RunTrigger::ContainerReady]));
        events.push(Event::CandidateRegistered(CandidateRegistered {
            candidate_id: CandidateId::of(&self.settings.candidate_id_prefix, &program.seed),
            operation: Operation::Seed,
            parent_ids: Vec::new(),
            generation: None,
            payload: program.seed.clone(),
            changed_fields: Vec::new(),
            rationale: String::new(),
            dropped_fields: Vec::new(),
            kept_share: None,
        }));
        events
    }

    /// Returns the first step that is possible without a new observation.
    fn advance(&self, state: &State) -> Vec<Event> {
        if state.has_nothing_to_decide {
            return Vec::new();
        }
        let steps = [
            Self::sync_state_with_rollouts,
            Self::finish_cancel,
            Self::complete_evaluation,
            Self::trip_circuit_breaker,
            Self::withdraw_rollouts_of_broken_task,
            Self::retry_failed_rows_first,
            Self::stop_without_usage,
            Self::evaluate_seed,
            Self::stop_at_score_or_time,
            Self::measure_noise,
            Self::move_head,
            Self::advance_rebase,
            Self::advance_check,
            Self::advance_generations,
            Self::start_check,
            Self::change_window,
            Self::start_generation,
            Self::sync_state_when_idle,
            Self::measure_heldout,
            Self::finish,
        ];
        first_non_empty(steps.iter().map(|step| step(self, state)))
    }

    /// Moves the run state to `rollout_running` when rollouts are outstanding, and to `evaluating` after the last one.
    fn sync_state_with_rollouts(&self, state: &State) -> Vec<Event> {
        let hops: &[RunTrigger] = match (state.run, state.counts.rollouts_outstanding() > 0) {
            (RunState::Evaluating, true) => {
                &[RunTrigger::EvaluationFinished, RunTrigger::RolloutsQueued, RunTrigger::RolloutsStarted]
            }
            (RunState::Ready | RunState::Proposing, true) => &[RunTrigger::RolloutsQueued, RunTrigger::RolloutsStarted],
            (RunState::RolloutRunning, false) => &[RunTrigger::RolloutsFinished],
            _ => &[],
        };
        state_transitions(state.run, hops)
    }

    /// Moves the run state to `proposing` or `ready` when there is nothing else to decide.
    fn sync_state_when_idle(&self, state: &State) -> Vec<Event> {
        let proposing = state.proposals_outstanding() > 0;
        let hops: &[RunTrigger] = match (state.run, proposing) {
            (RunState::Evaluating, false) => &[RunTrigger::EvaluationFinished],
            (RunState::Evaluating, true) => &[RunTrigger::EvaluationFinished, RunTrigger::ProposerStarted],
            (RunState::Ready, true) => &[RunTrigger::ProposerStarted],
            (RunState::Proposing, false) => &[RunTrigger::ProposerFinished],
            _ => &[],
        };
        state_transitions(state.run, hops)
    }

    fn evaluate_seed(&self, state: &State) -> Vec<Event> {
        let waiting = state.phase == Phase::Seed && state.stop.is_none() && state.cancel.is_none();
        let unasked = |seed: &&Candidate| seed.status == CandidateStatus::Registered && seed.evaluation.is_none();
        let Some(seed) = state.candidates.first().filter(unasked).filter(|_| waiting) else { return Vec::new() };
        let rows = self.first_rows(state);
        if !self.settings.learned_rollout.is_empty() {
            return self.evaluate_seed_in_parts(state, seed, &rows);
        }
        match self.request_all(state, seed, Stage::SeedFullTrain, None, &rows) {
            Ok(call_id) => vec![call_id],
            Err(refused) => self.stop_before_seed(&refused, "the evaluation of the initial candidate"),
        }
    }

    /// Returns the rows on which the initial candidate is evaluated: all of the full evaluation, or a sample in sprints.
    pub(crate) fn first_rows(&self, state: &State) -> Cow<'_, [TrainRow]> {
        if state.sprint.is_some() { Cow::Owned(self.initial_rows()) } else { Cow::Borrowed(&self.inputs.pareto_pool) }
    }

    /// Evaluates the initial candidate while its usage is learned: one row alone, then as many rows as the limits cover with
    /// what is known.
    fn evaluate_seed_in_parts(&self, state: &State, seed: &Candidate, rows: &[TrainRow]) -> Vec<Event> {
        let mut missing = missing_rows(seed, rows.iter());
        if missing.is_empty() {
            return vec![Event::SeedEvaluated(EvaluationCompleted {
                evaluation: CallId(state.next_call_id),
                candidate_id: seed.id.clone(),
                generation: None,
                rows: 0,
                failed: 0,
                score: self.train_score(seed),
            })];
        }
        let wanted = if self.must_probe_rollout(state) { 1 } else { missing.len() as u64 };
        let (stage, fits) = match state.budget.max_affordable(&self.train_rollout(state), wanted) {
            (0, Some(refused)) => return self.stop_before_seed(&refused, "the evaluation of the initial candidate"),
            (fits, _) if fits == missing.len() as u64 => (Stage::SeedFullTrain, fits),
            (fits, _) => (Stage::ParentMinibatchReference, fits),
        };
        missing.truncate(fits as usize);
        vec![self.request_rollouts(state, seed, stage, None, self.train_ids(&missing))]
    }

    /// Charges a call whose outcome is unknown, if the budget covers sending it again.
    fn charge_unknown_outcome(&self, state: &State, call_id: CallId, cause: &str) -> Vec<Event> {
        let Some(call) = state.outstanding_calls.get(call_id) else { return Vec::new() };
        if !state.may_send_calls() || !state.budget.covers_resend(call_id) {
            return Vec::new();
        }
        let (kind, stage) = match call {
            OutstandingCall::Rollout(rollout) => (CallKind::Rollout, Some(rollout.stage)),
            OutstandingCall::Proposal(_) => (CallKind::Proposer, None),
        };
        vec![Event::OutcomeUnknown(OutcomeUnknown { call_id, kind, stage, cause: cause.to_owned() })]
    }

    fn observe_clock(&self, state: &State, elapsed_millis: u64) -> Vec<Event> {
        let Some(deadline) = self.settings.search_deadline_millis else { return Vec::new() };
        let before = state.budget.elapsed_millis();
        let crosses = |moment: u64| before < moment && elapsed_millis >= moment;
        let cap = self.settings.caps.get(Dimension::WallMillis).unwrap_or(deadline);
        let due = elapsed_millis >= before + CLOCK_RESOLUTION_MILLIS || crosses(deadline) || crosses(cap);
        if due { vec![Event::ClockObserved(ClockObserved { elapsed_millis })] } else { Vec::new() }
    }

    /// Requests rollouts of a candidate on these train rows, if the budget covers all of them.
    pub(crate) fn request_all(
        &self,
        state: &State,
        candidate: &Candidate,
        stage: Stage,
        generation: Option<u32>,
        rows: &[TrainRow],
    ) -> Result<Event, BudgetRefusal> {
        match state.budget.max_affordable(&self.train_rollout(state), rows.len() as u64) {
            (fits, Some(refused)) if fits < rows.len() as u64 => Err(refused),
            _ => Ok(self.request_rollouts(state, candidate, stage, generation, self.train_ids(rows))),
        }
    }

    pub(crate) fn request_rollouts(
        &self,
        state: &State,
        candidate: &Candidate,
        stage: Stage,
        generation: Option<u32>,
        row_ids: Vec<RowId>,
    ) -> Event {
        // Held-out rows are measured once.
        let replicate = if stage == Stage::Heldout { 0 } else { candidate.sprint.replicate };
        Event::RolloutsRequested(RolloutsRequested {
            generation,
            ..first_attempt(CallId(state.next_call_id), candidate, stage, row_ids, replicate)
        })
    }
}

/// Returns the request of an evaluation that begins with this call.
pub(crate) fn first_attempt(
    first_call_id: CallId,
    candidate: &Candidate,
    stage: Stage,
    row_ids: Vec<RowId>,
    replicate: u32,
) -> RolloutsRequested {
    RolloutsRequested {
        first_call_id,
        evaluation: first_call_id,
        candidate_id: candidate.id.clone(),
        stage,
        generation: None,
        row_ids,
        attempt: 1,
        replicate,
    }
}

/// Returns the events that move the run state along these triggers.
pub(crate) fn state_transitions(from: RunState, triggers: &[RunTrigger]) -> Vec<Event> {
    let mut at = from;
    let mut events = Vec::new();
    for trigger in triggers {
        let next = at.next(*trigger);
        debug_assert!(next.is_ok(), "{next:?}");
        let Ok(to) = next else { break };
        events.push(Event::StateTransitioned(StateTransitioned { from: at, to, trigger: *trigger }));
        at = to;
    }
    events
}

/// Returns a decision about a candidate without a comparison.
pub(crate) fn decision_without_comparison(candidate_id: &CandidateId, stage: Stage, reason: &str) -> CandidateDecided {
    let candidate_id = candidate_id.clone();
    CandidateDecided { candidate_id, stage, reason: reason.to_owned(), detail: None, comparison: None }
}

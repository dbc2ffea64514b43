//! `GepaEngine`: the implementation of the `Engine` contract over the settings and inputs of a run.

use std::collections::{BTreeMap, BTreeSet};

use synth_optimizer_core::config::sections::Config;
use synth_optimizer_core::engine::Engine;
use synth_optimizer_core::model::answer::Observation;
use synth_optimizer_core::model::budget::{Dimension, Resources};
use synth_optimizer_core::model::command::{Command, KeptText, RolloutCommand};
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::event::Event;
use synth_optimizer_core::model::ids::{CallId, HeldoutRow, RowId, TrainRow};
use synth_optimizer_core::model::program::Inputs;

use crate::frontier::Frontier;
use crate::leakage::LeakIndex;
use crate::objectives::{FrontierCell, cells};
use crate::outstanding::OutstandingCall;
use crate::settings::Settings;
use crate::sprint::Sprint;
use crate::state::{Phase, RowRef, State, UsageMaximum};
use crate::steering::{guarded_rows, kept_texts};

/// The GEPA algorithm for one program and its rows.
#[derive(Debug)]
pub struct GepaEngine {
    pub(crate) settings: Settings,
    pub(crate) inputs: Inputs,
    rows: BTreeMap<RowId, RowRef>,
    pub(crate) cells: Vec<FrontierCell>,
    pub(crate) train_leaks: LeakIndex,
    pub(crate) heldout_leaks: LeakIndex,
    /// Texts that fields must keep.
    pub(crate) kept: Vec<KeptText>,
    /// Rows that must not get worse, in ascending order.
    pub(crate) guarded: Vec<TrainRow>,
}

impl GepaEngine {
    pub(crate) fn row(&self, id: &RowId) -> Option<RowRef> {
        self.rows.get(id).copied()
    }

    pub(crate) fn row_id(&self, row: RowRef) -> &RowId {
        match row {
            RowRef::Train(row) => self.inputs.train_id(row),
            RowRef::Heldout(row) => self.inputs.heldout_id(row),
        }
    }

    pub(crate) fn train_ids(&self, rows: &[TrainRow]) -> Vec<RowId> {
        rows.iter().map(|row| self.inputs.train_id(*row).clone()).collect()
    }

    /// Returns the amount that a rollout of a train or held-out row reserves: the estimate of the configuration, or the mean
    /// of what rollouts have used so far, if that is more.
    pub(crate) fn rollout_amount(&self, state: &State, row: RowRef) -> Resources {
        match row {
            RowRef::Heldout(_) => self.heldout_rollout(state),
            RowRef::Train(_) => self.train_rollout(state),
        }
    }

    pub(crate) fn train_rollout(&self, state: &State) -> Resources {
        let estimate = state.rollout_usage.at_least(&self.settings.train_rollout);
        with_learned(state, estimate, &self.settings.learned_rollout, &state.learned_rollout)
    }

    pub(crate) fn heldout_rollout(&self, state: &State) -> Resources {
        let estimate = state.rollout_usage.at_least(&self.settings.heldout_rollout);
        with_learned(state, estimate, &self.settings.learned_rollout, &state.learned_rollout)
    }

    /// Returns the amount that a proposer turn reserves.
    pub(crate) fn proposal(&self, state: &State) -> Resources {
        with_learned(state, self.settings.proposal, &self.settings.learned_proposal, &state.learned_proposal)
    }

    /// Returns whether a limit has neither an estimate for rollouts nor a rollout that has shown what one uses. Such a rollout
    /// is sent alone.
    pub(crate) fn must_probe_rollout(&self, state: &State) -> bool {
        has_unknown(&self.settings.learned_rollout, &state.learned_rollout)
    }

    /// Returns whether a limit has neither an estimate for proposer turns nor a turn that has shown what one uses.
    pub(crate) fn must_probe_proposal(&self, state: &State) -> bool {
        has_unknown(&self.settings.learned_proposal, &state.learned_proposal)
    }
}

impl Engine for GepaEngine {
    const NAME: &'static str = "gepa";

    type State = State;

    fn new(config: &Config, inputs: Inputs) -> Result<Self, OptimizerError> {
        check(config, &inputs)?;
        let span = config.gepa.leakage.min_span_chars as usize;
        let seed = &inputs.program.seed;
        let places = 0u32..;
        let train = inputs.train.iter().zip(places.clone()).map(|(row, place)| (row, RowRef::Train(TrainRow(place))));
        let heldout = inputs.heldout.iter().zip(places).map(|(row, place)| (row, RowRef::Heldout(HeldoutRow(place))));
        let settings = Settings::new(config, inputs.pareto_pool.len(), inputs.heldout_pool.len());
        Ok(Self {
            cells: cells(config.gepa.frontier_type, settings.objectives.len(), &inputs.pareto_pool),
            train_leaks: LeakIndex::train(&inputs.train, seed, span),
            heldout_leaks: LeakIndex::heldout(&inputs.heldout, &inputs.train, seed, span),
            kept: kept_texts(config, &inputs.program)?,
            guarded: guarded_rows(config, &inputs)?,
            settings,
            rows: train.chain(heldout).map(|(row, place)| (row.id.clone(), place)).collect(),
            inputs,
        })
    }

    fn initial_state(&self) -> State {
        State {
            sprint: self.settings.is_sprint().then(Sprint::default),
            frontier: Frontier::new(self.cells.len()),
            budget: self.settings.initial_budget(self.inputs.pareto_pool.len(), self.inputs.heldout_pool.len()),
            ..State::default()
        }
    }

    fn decide(&self, state: &State, observation: &Observation) -> Result<Vec<Event>, OptimizerError> {
        self.next_events(state, observation)
    }

    fn evolve(&self, state: &mut State, event: &Event) {
        self.apply(state, event);
    }

    fn next_to_retire(&self, state: &State) -> Option<CallId> {
        state.outstanding_calls.next()
    }

    fn is_outstanding(&self, state: &State, call_id: CallId) -> bool {
        state.outstanding_calls.contains(call_id)
    }

    fn outstanding(&self, state: &State) -> Vec<Command> {
        state.outstanding_calls.ids().filter_map(|call_id| self.command(state, call_id)).collect()
    }

    fn command(&self, state: &State, call_id: CallId) -> Option<Command> {
        let rollout = match state.outstanding_calls.get(call_id)? {
            OutstandingCall::Rollout(rollout) => rollout,
            OutstandingCall::Proposal(command) => return Some(Command::Propose(command.as_ref().clone())),
        };
        let candidate = state.candidate(rollout.candidate);
        Some(Command::Rollout(RolloutCommand {
            call_id,
            evaluation: rollout.evaluation,
            candidate_id: candidate.id.clone(),
            payload: candidate.payload.clone(),
            row_id: self.row_id(rollout.row).clone(),
            heldout: matches!(rollout.row, RowRef::Heldout(_)),
            stage: rollout.stage,
            replicate: rollout.replicate,
            attempt: rollout.attempt,
        }))
    }

    fn next_wakeup(&self, state: &State) -> Option<u64> {
        match state.phase {
            Phase::Seed | Phase::Search => self.settings.search_deadline_millis.filter(|_| state.is_searching()),
            Phase::Heldout => self.settings.caps.get(Dimension::WallMillis).filter(|_| !self.time_is_up(state)),
            Phase::New | Phase::Over => None,
        }
    }

    fn is_terminal(&self, state: &State) -> bool {
        state.phase == Phase::Over
    }

    fn is_cancelling(&self, state: &State) -> bool {
        state.cancel.is_some() && state.phase != Phase::Over
    }
}

/// The share of the available budget that a call reserves whose usage is unknown. Nothing else is in flight beside it, so the
/// share only decides what an unknown outcome costs, and that a lost call can be sent again.
const UNKNOWN_USAGE_SHARE: u64 = 4;

/// Returns an estimate with the resources that are learned from calls.
fn with_learned(state: &State, estimate: Resources, learned: &[Dimension], usage: &UsageMaximum) -> Resources {
    learned.iter().fold(estimate, |amount, dimension| {
        let unknown = || (state.budget.available(*dimension).unwrap_or(0) / UNKNOWN_USAGE_SHARE).max(1);
        amount.with(*dimension, usage.estimate(*dimension).unwrap_or_else(unknown))
    })
}

fn has_unknown(learned: &[Dimension], usage: &UsageMaximum) -> bool {
    learned.iter().any(|dimension| usage.estimate(*dimension).is_none())
}

/// Checks the assumptions of the search. The platform reports such problems earlier, with more detail.
fn check(config: &Config, inputs: &Inputs) -> Result<(), OptimizerError> {
    let program = &inputs.program;
    let has_text = |field: &String| {
        let is_declared = program.modules.iter().any(|module| module.field == *field);
        is_declared && program.seed.get(field).is_some_and(|text| !text.trim().is_empty())
    };
    let is_pool = |pool: &Vec<TrainRow>| {
        let loaded: BTreeSet<&TrainRow> = pool.iter().filter(|row| (row.0 as usize) < inputs.train.len()).collect();
        !pool.is_empty() && loaded.len() == pool.len()
    };
    let is_heldout = |row: &HeldoutRow| (row.0 as usize) < inputs.heldout.len();
    let pools = [&inputs.pareto_pool, &inputs.minibatch_pool, &inputs.reflection_pool];
    let ids: BTreeSet<&RowId> = inputs.train.iter().chain(&inputs.heldout).map(|row| &row.id).collect();
    let targets = &program.targets;
    let wrong = if targets.is_empty() || *targets != config.candidate.target_modules || !targets.iter().all(has_text) {
        "the program and its initial candidate lack a field that the run may change"
    } else if !pools.into_iter().all(is_pool) || !inputs.heldout_pool.iter().all(is_heldout) {
        "a pool is empty, names a row twice or names one that was not loaded"
    } else if ids.len() < inputs.train.len() + inputs.heldout.len() {
        "a row was loaded twice; train and held-out rows must be distinct"
    } else {
        return Ok(());
    };
    Err(OptimizerError::new(ErrorCode::Container, wrong))
}

//! The engine: settings and inputs on one side, the contract of every optimizer on the other.

use std::collections::{BTreeMap, BTreeSet};

use synth_optimizer_core::config::sections::Config;
use synth_optimizer_core::model::answer::Observation;
use synth_optimizer_core::model::budget::{Amount, Dimension};
use synth_optimizer_core::model::command::{Command, RolloutCommand};
use synth_optimizer_core::model::engine::Engine;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::event::Event;
use synth_optimizer_core::model::ids::{HeldoutRow, RequestId, RowId, TrainRow};
use synth_optimizer_core::model::program::Inputs;

use crate::frontier::Frontier;
use crate::leakage::LeakIndex;
use crate::settings::Settings;
use crate::state::{AnyRow, Phase, State, Work};

/// GEPA over one program and its rows.
#[derive(Debug)]
pub struct GepaEngine {
    pub(crate) settings: Settings,
    pub(crate) inputs: Inputs,
    rows: BTreeMap<RowId, AnyRow>,
    pub(crate) train_leaks: LeakIndex,
    pub(crate) heldout_leaks: LeakIndex,
}

impl GepaEngine {
    pub(crate) fn row(&self, id: &RowId) -> Option<AnyRow> {
        self.rows.get(id).copied()
    }

    pub(crate) fn row_id(&self, row: AnyRow) -> &RowId {
        match row {
            AnyRow::Train(row) => self.inputs.train_id(row),
            AnyRow::Heldout(row) => self.inputs.heldout_id(row),
        }
    }

    pub(crate) fn train_ids(&self, rows: &[TrainRow]) -> Vec<RowId> {
        rows.iter().map(|row| self.inputs.train_id(*row).clone()).collect()
    }

    pub(crate) fn rollout_amount(&self, row: AnyRow) -> Amount {
        match row {
            AnyRow::Heldout(_) => self.settings.heldout_rollout,
            AnyRow::Train(_) => self.settings.train_rollout,
        }
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
        let train = inputs.train.iter().zip(places.clone()).map(|(row, place)| (row, AnyRow::Train(TrainRow(place))));
        let heldout = inputs.heldout.iter().zip(places).map(|(row, place)| (row, AnyRow::Heldout(HeldoutRow(place))));
        Ok(Self {
            train_leaks: LeakIndex::train(&inputs.train, seed, span),
            heldout_leaks: LeakIndex::heldout(&inputs.heldout, &inputs.train, seed, span),
            settings: Settings::new(config, inputs.heldout_pool.len()),
            rows: train.chain(heldout).map(|(row, place)| (row.id.clone(), place)).collect(),
            inputs,
        })
    }

    fn initial(&self) -> State {
        State {
            frontier: Frontier::new(self.cell_count()),
            budget: self.settings.opening_budget(self.inputs.pareto_pool.len(), self.inputs.heldout_pool.len()),
            ..State::default()
        }
    }

    fn decide(&self, state: &State, observation: &Observation) -> Result<Vec<Event>, OptimizerError> {
        self.next_events(state, observation)
    }

    fn evolve(&self, state: &mut State, event: &Event) {
        self.apply(state, event);
    }

    fn turn(&self, state: &State) -> Option<RequestId> {
        state.requests.first_key_value().map(|(request, _)| *request)
    }

    fn is_outstanding(&self, state: &State, request: RequestId) -> bool {
        state.requests.contains_key(&request)
    }

    fn outstanding(&self, state: &State) -> Vec<Command> {
        state.requests.keys().filter_map(|request| self.command(state, *request)).collect()
    }

    fn command(&self, state: &State, request: RequestId) -> Option<Command> {
        let rollout = match state.requests.get(&request)? {
            Work::Rollout(rollout) => rollout,
            Work::Proposal(command) => return Some(Command::Propose(command.as_ref().clone())),
        };
        let candidate = state.candidate(rollout.candidate);
        Some(Command::Rollout(RolloutCommand {
            request,
            evaluation: rollout.evaluation,
            candidate_id: candidate.id.clone(),
            payload: candidate.payload.clone(),
            row_id: self.row_id(rollout.row).clone(),
            heldout: matches!(rollout.row, AnyRow::Heldout(_)),
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

    fn is_over(&self, state: &State) -> bool {
        state.phase == Phase::Over
    }

    fn is_cancelling(&self, state: &State) -> bool {
        state.cancel.is_some() && state.phase != Phase::Over
    }
}

/// Checks what the container gave against what the config asks for.
fn check(config: &Config, inputs: &Inputs) -> Result<(), OptimizerError> {
    let broken = |message: String| Err(OptimizerError::new(ErrorCode::Container, message));
    let program = &inputs.program;
    let declared: BTreeSet<&str> = program.modules.iter().map(|module| module.field.as_str()).collect();
    if program.targets.is_empty() {
        return broken("the program has no field to change".into());
    }
    let wanted = &config.candidate.target_modules;
    if *wanted != program.targets {
        return broken(format!(
            "candidate.target_modules is {wanted:?}, the program was read for {:?}",
            program.targets
        ));
    }
    for field in &program.targets {
        if !declared.contains(field.as_str()) {
            let known: Vec<&str> = declared.iter().copied().collect();
            return broken(format!("{field:?} is not a mutable field of the program; it has {}", known.join(", ")));
        }
        if program.seed.get(field).is_none_or(|text| text.trim().is_empty()) {
            return broken(format!("the seed candidate has no text for {field:?}"));
        }
    }
    if let Some(field) = program.seed.keys().find(|field| !declared.contains(field.as_str())) {
        return broken(format!("the seed candidate has text for {field:?}, which the program does not declare"));
    }
    if inputs.pareto_pool.is_empty() || inputs.minibatch_pool.is_empty() || inputs.reflection_pool.is_empty() {
        return broken("there are no train rows".into());
    }
    let in_train = |row: &TrainRow| (row.0 as usize) < inputs.train.len();
    let pools = [&inputs.pareto_pool, &inputs.minibatch_pool, &inputs.reflection_pool];
    if !pools.iter().all(|pool| pool.iter().all(in_train))
        || !inputs.heldout_pool.iter().all(|row| (row.0 as usize) < inputs.heldout.len())
    {
        return broken("a pool names a row that was not loaded".into());
    }
    if pools.iter().any(|pool| pool.iter().collect::<BTreeSet<_>>().len() < pool.len()) {
        return broken("a pool names a row twice".into());
    }
    let mut seen = BTreeSet::new();
    for row in inputs.train.iter().chain(&inputs.heldout) {
        if !seen.insert(&row.id) {
            return broken(format!("row {} was loaded twice; train and held-out rows must be distinct", row.id));
        }
    }
    Ok(())
}

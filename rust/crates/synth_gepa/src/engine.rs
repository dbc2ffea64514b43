//! The engine: settings and inputs on one side, the contract of every optimizer on the other.

use std::collections::{BTreeMap, BTreeSet};

use synth_optimizer_core::config::sections::Config;
use synth_optimizer_core::model::answer::Observation;
use synth_optimizer_core::model::budget::{Amount, Dimension};
use synth_optimizer_core::model::command::{
    Command, EvidenceRow, NamedPayload, ProposeCommand, Question, RolloutCommand,
};
use synth_optimizer_core::model::engine::Engine;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::event::Event;
use synth_optimizer_core::model::event_fields::Stage;
use synth_optimizer_core::model::ids::{HeldoutRow, RequestId, RowId, TrainRow};
use synth_optimizer_core::model::program::{Inputs, Row};

use crate::leakage::LeakIndex;
use crate::settings::Settings;
use crate::state::{AnyRow, Phase, State, Work};

/// GEPA over one program and its rows.
#[derive(Debug)]
pub struct GepaEngine {
    pub(crate) settings: Settings,
    pub(crate) inputs: Inputs,
    train_rows: BTreeMap<RowId, TrainRow>,
    heldout_rows: BTreeMap<RowId, HeldoutRow>,
    pub(crate) train_leaks: LeakIndex,
    pub(crate) heldout_leaks: LeakIndex,
}

impl GepaEngine {
    /// Checks what the container gave against what the config asks for.
    pub fn new(config: &Config, inputs: Inputs) -> Result<Self, OptimizerError> {
        check(config, &inputs)?;
        let span = config.gepa.leakage.min_span_chars as usize;
        let seed = &inputs.program.seed;
        Ok(Self {
            train_leaks: LeakIndex::train(&inputs.train, seed, span),
            heldout_leaks: LeakIndex::heldout(&inputs.heldout, &inputs.train, seed, span),
            settings: Settings::new(config, inputs.heldout_pool.len()),
            train_rows: index(&inputs.train).map(|(id, place)| (id, TrainRow(place))).collect(),
            heldout_rows: index(&inputs.heldout).map(|(id, place)| (id, HeldoutRow(place))).collect(),
            inputs,
        })
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    pub fn inputs(&self) -> &Inputs {
        &self.inputs
    }

    pub(crate) fn train_row(&self, id: &RowId) -> Option<TrainRow> {
        self.train_rows.get(id).copied()
    }

    pub(crate) fn row(&self, stage: Stage, id: &RowId) -> Option<AnyRow> {
        match stage {
            Stage::Heldout => self.heldout_rows.get(id).copied().map(AnyRow::Heldout),
            Stage::SeedFullTrain
            | Stage::ParentMinibatchReference
            | Stage::CandidateMinibatch
            | Stage::CandidateFullTrain => self.train_row(id).map(AnyRow::Train),
        }
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

    pub(crate) fn rollout_amount(&self, stage: Stage) -> Amount {
        match stage {
            Stage::Heldout => self.settings.heldout_rollout,
            Stage::SeedFullTrain
            | Stage::ParentMinibatchReference
            | Stage::CandidateMinibatch
            | Stage::CandidateFullTrain => self.settings.train_rollout,
        }
    }
}

impl Engine for GepaEngine {
    type State = State;

    fn initial(&self) -> State {
        self.initial_state()
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
        let named = |index: &u32| {
            let candidate = state.candidate(*index);
            NamedPayload { candidate_id: candidate.id.clone(), payload: candidate.payload.clone() }
        };
        match state.requests.get(&request)? {
            Work::Rollout { evaluation, candidate, row, stage, attempt, replicate } => {
                let NamedPayload { candidate_id, payload } = named(candidate);
                Some(Command::Rollout(RolloutCommand {
                    request,
                    evaluation: *evaluation,
                    candidate_id,
                    payload,
                    row_id: self.row_id(*row).clone(),
                    heldout: matches!(row, AnyRow::Heldout(_)),
                    stage: *stage,
                    replicate: *replicate,
                    attempt: *attempt,
                }))
            }
            Work::Proposal { generation: number, attempt, count, carried, surroundings, problems, repairs } => {
                let generation = state.generations.get(number)?;
                let parent = state.candidate(*generation.parents.first()?);
                let evidence = generation
                    .evidence
                    .iter()
                    .map(|row| EvidenceRow { row_id: self.inputs.train_id(*row).clone(), score: parent.score(*row) });
                let question = Question {
                    operation: generation.operation,
                    generation: *number,
                    parents: generation.parents.iter().map(named).collect(),
                    ancestor: generation.ancestor.as_ref().map(named),
                    base: generation.base.clone(),
                    components: generation.components.clone(),
                    proposal_count: *count,
                    carried_failures: carried.clone(),
                    relatives: surroundings.relatives.clone(),
                    frontier: surroundings.frontier.clone(),
                    frontier_size: surroundings.frontier_size,
                    problems: problems.clone(),
                };
                let (attempt, repairs) = (*attempt, *repairs);
                Some(Command::Propose(ProposeCommand {
                    request,
                    attempt,
                    question,
                    evidence: evidence.collect(),
                    repairs,
                }))
            }
        }
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

fn index(rows: &[Row]) -> impl Iterator<Item = (RowId, u32)> + '_ {
    rows.iter().enumerate().map(|(place, row)| (row.id.clone(), place as u32))
}

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

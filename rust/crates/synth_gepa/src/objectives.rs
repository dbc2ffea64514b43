//! What a score is worth: objectives of an answer, and the cells of the frontier that they fill.

use synth_optimizer_core::config::gepa::{FrontierType, OUTCOME_REWARD};
use synth_optimizer_core::model::event_fields::{CellWon, RolloutFinished};
use synth_optimizer_core::model::ids::TrainRow;

use crate::engine::GepaEngine;
use crate::state::{Candidate, State};

impl GepaEngine {
    /// How many cells the frontier has.
    pub(crate) fn cell_count(&self) -> usize {
        let (rows, objectives) = (self.inputs.pareto_pool.len(), self.settings.objectives.len());
        match self.settings.gepa.frontier_type {
            FrontierType::PerExample => rows,
            FrontierType::PerObjective => objectives,
            FrontierType::PerExampleObjective => rows * objectives,
        }
    }

    /// The value of every frontier cell for a candidate, such that larger is better.
    pub(crate) fn cell_values(&self, state: &State, index: u32) -> Vec<Option<f64>> {
        let candidate = state.candidate(index);
        let pool = &self.inputs.pareto_pool;
        let at = |objective: usize, row: &TrainRow| {
            candidate.train.get(*row, objective).map(|value| self.settings.oriented(objective, value))
        };
        let objectives = 0..self.settings.objectives.len();
        match self.settings.gepa.frontier_type {
            FrontierType::PerExample => pool.iter().map(|row| at(0, row)).collect(),
            FrontierType::PerObjective => objectives.map(|objective| self.mean(state, candidate, objective)).collect(),
            FrontierType::PerExampleObjective => {
                objectives.flat_map(|objective| pool.iter().map(move |row| at(objective, row))).collect()
            }
        }
    }

    /// A cell of the frontier as it is written down. `value` is such that larger is better.
    pub(crate) fn cell_won(&self, cell: usize, value: f64, alone: bool) -> Option<CellWon> {
        let rows = self.inputs.pareto_pool.len();
        let (objective, row) = match self.settings.gepa.frontier_type {
            FrontierType::PerExample => (0, Some(cell)),
            FrontierType::PerObjective => (cell, None),
            FrontierType::PerExampleObjective => (cell / rows, Some(cell % rows)),
        };
        Some(CellWon {
            row_id: row.map(|row| self.inputs.train_id(self.inputs.pareto_pool[row]).clone()),
            objective: self.settings.objectives.get(objective)?.name.clone(),
            // Turning a value round twice gives it back.
            value: self.settings.oriented(objective, value),
            alone,
        })
    }

    /// The mean of an objective over the train rows, such that larger is better. A row without a score counts as the
    /// best candidate's: to leave out hard rows must not make a candidate look better.
    pub(crate) fn mean(&self, state: &State, candidate: &Candidate, objective: usize) -> Option<f64> {
        let best = state.best.map(|best| state.candidate(best));
        let value = |row: &TrainRow| {
            let own = candidate.train.get(*row, objective);
            own.or_else(|| best.and_then(|best| best.train.get(*row, objective)))
        };
        let values: Vec<f64> = self.inputs.pareto_pool.iter().filter_map(value).collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        (!values.is_empty()).then(|| self.settings.oriented(objective, mean))
    }
}

/// The value of an objective in a rollout's answer.
pub(crate) fn objective_value(fields: &RolloutFinished, name: &str) -> Option<f64> {
    fields.objectives.get(name).copied().or_else(|| (name == OUTCOME_REWARD).then_some(fields.reward))
}

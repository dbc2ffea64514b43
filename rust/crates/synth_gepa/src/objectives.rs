//! Objective values of answers, and the frontier cells that they fill.

use synth_optimizer_core::config::gepa::{CANDIDATE_TOKENS, FrontierType, OUTCOME_REWARD};
use synth_optimizer_core::model::event_fields::{CellWon, RolloutFinished};
use synth_optimizer_core::model::ids::TrainRow;

use crate::engine::GepaEngine;
use crate::state::{Candidate, State};

/// A cell of the frontier: an objective on one row, or over all of them.
pub(crate) type FrontierCell = (usize, Option<TrainRow>);

/// Returns the cells of a frontier of this type.
pub(crate) fn cells(frontier_type: FrontierType, objectives: usize, pool: &[TrainRow]) -> Vec<FrontierCell> {
    let on_rows = |objective: usize| pool.iter().map(move |row| (objective, Some(*row)));
    match frontier_type {
        FrontierType::PerExample => on_rows(0).collect(),
        FrontierType::PerObjective => (0..objectives).map(|objective| (objective, None)).collect(),
        FrontierType::PerExampleObjective => (0..objectives).flat_map(on_rows).collect(),
    }
}

impl GepaEngine {
    /// Returns a candidate's value for every frontier cell; larger is better.
    pub(crate) fn cell_values(&self, state: &State, index: u32) -> Vec<Option<f64>> {
        let candidate = state.candidate(index);
        let value = |(objective, row): &FrontierCell| match row {
            Some(row) => candidate.train.get(*row, *objective).map(|value| self.settings.oriented(*objective, value)),
            None => self.mean(state, candidate, *objective),
        };
        self.cells.iter().map(value).collect()
    }

    /// Returns a frontier cell as events contain it. Larger values of `value` are better.
    pub(crate) fn cell_won(&self, cell: usize, value: f64, alone: bool) -> CellWon {
        let (objective, row) = self.cells[cell];
        CellWon {
            row_id: row.map(|row| self.inputs.train_id(row).clone()),
            objective: self.settings.objectives[objective].name.clone(),
            // Orienting twice restores the original value.
            value: self.settings.oriented(objective, value),
            alone,
        }
    }

    /// Returns the mean of an objective over the train rows; larger is better. On a row without a score, the best candidate's
    /// score counts, so that failing on hard rows does not improve the mean. The length of a candidate needs no row.
    pub(crate) fn mean(&self, state: &State, candidate: &Candidate, objective: usize) -> Option<f64> {
        if self.settings.objectives[objective].name == CANDIDATE_TOKENS {
            return Some(self.settings.oriented(objective, self.tokens(&candidate.payload) as f64));
        }
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

/// Returns the value of an objective in a rollout's answer.
pub(crate) fn objective_value(fields: &RolloutFinished, name: &str) -> Option<f64> {
    fields.objectives.get(name).copied().or_else(|| (name == OUTCOME_REWARD).then_some(fields.reward))
}

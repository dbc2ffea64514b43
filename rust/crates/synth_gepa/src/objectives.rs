//! What a score is worth: objectives of an answer, and the cells of the frontier that they fill.

use synth_optimizer_platform::config::gepa::{FrontierType, OUTCOME_REWARD};
use synth_optimizer_platform::model::event_fields::RolloutFinished;
use synth_optimizer_platform::model::ids::TrainRow;

use crate::engine::GepaEngine;
use crate::state::State;

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
            FrontierType::PerObjective => objectives
                .map(|objective| {
                    // A mean over fewer rows is no match for one over all of them.
                    let values: Vec<f64> = pool.iter().map(|row| at(objective, row)).collect::<Option<_>>()?;
                    Some(values.iter().sum::<f64>() / values.len() as f64)
                })
                .collect(),
            FrontierType::PerExampleObjective => {
                objectives.flat_map(|objective| pool.iter().map(move |row| at(objective, row))).collect()
            }
        }
    }
}

/// The value of an objective in a rollout's answer.
pub(crate) fn objective_value(fields: &RolloutFinished, name: &str) -> Option<f64> {
    fields.objectives.get(name).copied().or_else(|| (name == OUTCOME_REWARD).then_some(fields.reward))
}

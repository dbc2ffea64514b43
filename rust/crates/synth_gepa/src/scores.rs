//! Scores of one candidate by row, small and close together: there are as many of these as candidates.

use synth_optimizer_core::model::ids::TrainRow;

/// Values of every objective on the rows that have been measured.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Scores {
    /// In ascending order.
    rows: Vec<TrainRow>,
    /// The values of the first row, then those of the second, and so on.
    values: Vec<f64>,
}

impl Scores {
    /// Sets the values of a row, one per objective.
    pub fn insert(&mut self, row: TrainRow, values: &[f64]) {
        match self.rows.binary_search(&row) {
            Ok(place) => self.values[place * values.len()..][..values.len()].copy_from_slice(values),
            Err(place) => {
                self.rows.insert(place, row);
                let start = place * values.len();
                self.values.splice(start..start, values.iter().copied());
            }
        }
    }

    pub fn contains(&self, row: TrainRow) -> bool {
        self.rows.binary_search(&row).is_ok()
    }

    /// The measured rows with their values of the deciding objective.
    pub fn first_objective(&self) -> impl Iterator<Item = (TrainRow, f64)> + '_ {
        let width = self.values.len() / self.rows.len().max(1);
        self.rows.iter().copied().zip(self.values.iter().copied().step_by(width.max(1)))
    }

    /// The value of an objective on a row.
    pub fn get(&self, row: TrainRow, objective: usize) -> Option<f64> {
        let place = self.rows.binary_search(&row).ok()?;
        let width = self.values.len() / self.rows.len();
        self.values.get(place * width + objective).copied()
    }
}

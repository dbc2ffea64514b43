//! Scores with their uncertainty. Every mean comes with its number of rows.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The largest magnitude of a score. Sums of squares over any number of rows stay finite within it.
pub const MAX_REWARD: f64 = 1e100;

/// The default objective: the reward of the rollout.
pub const OUTCOME_REWARD: &str = "outcome_reward";

/// A mean over rows, with its standard error and 95 % interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Score {
    /// The mean.
    pub mean: f64,
    /// Number of rows.
    pub n: u32,
    /// Unknown for fewer than two rows.
    pub standard_error: Option<f64>,
    /// Lower end of the interval. Unknown for a single row, unless its score is 0 or 1.
    pub low: Option<f64>,
    /// Upper end of the interval.
    pub high: Option<f64>,
}

/// A paired difference on the same rows, with its 95 % interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Gain {
    /// Mean difference, positive when the candidate is better.
    pub difference: f64,
    /// Rows that both have scores for.
    pub n: u32,
    /// Lower end of the interval; unknown for fewer than two rows.
    pub low: Option<f64>,
    /// Upper end of the interval.
    pub high: Option<f64>,
    /// Rows on which the candidate is better.
    pub wins: u32,
    /// Rows on which the candidate is worse.
    pub losses: u32,
    /// Rows on which both are equal.
    pub ties: u32,
}

/// Compares a candidate with another one on the rows that both have scores for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Comparison {
    /// Rows that both have scores for.
    pub rows: u32,
    /// Difference on the deciding objective, positive when the candidate is better.
    pub primary_delta: f64,
    /// Mean of the candidate on these rows.
    pub candidate_score: f64,
    /// Mean of the other candidate on these rows.
    pub incumbent_score: f64,
    /// Differences by objective, positive when the candidate is better.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub objective_deltas: BTreeMap<String, f64>,
}

impl Score {
    /// Returns the score of these values, or `None` if there are none. Values that are all 0 or 1 get Wilson's interval.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let values: Vec<f64> = values.into_iter().collect();
        let mut score = Self::with_t_interval(&values)?;
        if values.iter().all(|value| *value == 0.0 || *value == 1.0) {
            let (low, high) = wilson(score.mean, score.n);
            (score.low, score.high) = (Some(low), Some(high));
        }
        Some(score)
    }

    fn with_t_interval(values: &[f64]) -> Option<Self> {
        if values.is_empty() {
            return None;
        }
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let standard_error = (values.len() > 1).then(|| {
            let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
            (squares / (n - 1.0) / n).sqrt()
        });
        let half = standard_error.map(|error| student_t(values.len() as u32 - 1) * error);
        let (low, high) = (half.map(|half| mean - half), half.map(|half| mean + half));
        Some(Self { mean, n: values.len() as u32, standard_error, low, high })
    }
}

impl Gain {
    /// Returns the gain over pairs of (candidate, other), where larger is better. `None` without pairs.
    pub fn of(pairs: impl IntoIterator<Item = (f64, f64)>) -> Option<Self> {
        let differences: Vec<f64> = pairs.into_iter().map(|(candidate, other)| candidate - other).collect();
        let Score { mean: difference, n, low, high, .. } = Score::with_t_interval(&differences)?;
        let count = |keep: fn(&f64) -> bool| differences.iter().filter(|value| keep(value)).count() as u32;
        let (wins, losses) = (count(|value| *value > 0.0), count(|value| *value < 0.0));
        Some(Self { difference, n, low, high, wins, losses, ties: count(|value| *value == 0.0) })
    }
}

/// Returns the 97.5 % point of Student's t by the Cornish-Fisher expansion. Low degrees of freedom use exact values,
/// because the expansion is inaccurate there.
fn student_t(degrees: u32) -> f64 {
    const Z: f64 = 1.959_963_984_540_054;
    match degrees {
        0 => f64::INFINITY,
        1 => 12.706_204_736,
        2 => 4.302_652_73,
        3 => 3.182_446_305,
        4 => 2.776_445_105,
        5 => 2.570_581_836,
        6 => 2.446_911_851,
        7 => 2.364_624_252,
        _ => {
            let d = f64::from(degrees);
            let z3 = Z.powi(3);
            let z5 = Z.powi(5);
            let z7 = Z.powi(7);
            Z + (z3 + Z) / (4.0 * d)
                + (5.0 * z5 + 16.0 * z3 + 3.0 * Z) / (96.0 * d * d)
                + (3.0 * z7 + 19.0 * z5 + 17.0 * z3 - 15.0 * Z) / (384.0 * d.powi(3))
        }
    }
}

/// Returns Wilson's interval of a share. It stays within 0..1 and has a width also at 0 and 1.
fn wilson(share: f64, n: u32) -> (f64, f64) {
    const Z2: f64 = 3.841_458_820_694_124;
    let n = f64::from(n);
    let centre = (share + Z2 / (2.0 * n)) / (1.0 + Z2 / n);
    let half = (Z2 * (share * (1.0 - share) / n + Z2 / (4.0 * n * n))).sqrt() / (1.0 + Z2 / n);
    ((centre - half).max(0.0), (centre + half).min(1.0))
}

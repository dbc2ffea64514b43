//! The statistics of a check: how probable it is that the head of a sprint is better than the last confirmed candidate.

/// The variance of paired differences before the first check, in units of the squared range of scores, and the number of
/// pairs that it is worth.
const INITIAL_VARIANCE: f64 = 0.15;
const PRIOR_PAIRS: f64 = 4.0;
/// The weight that earlier checks keep with each further check.
const DECAY: f64 = 0.9;

/// The pooled variance of paired differences of earlier checks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PooledVariance {
    squares: f64,
    degrees: f64,
}

impl Default for PooledVariance {
    fn default() -> Self {
        Self::INITIAL
    }
}

impl PooledVariance {
    /// What is assumed before the first check.
    pub const INITIAL: Self = Self { squares: INITIAL_VARIANCE * PRIOR_PAIRS, degrees: PRIOR_PAIRS };

    /// Returns what is assumed before the first check if a pair is not one row, but the mean of this many.
    pub fn of_means(rows: u32) -> Self {
        Self { squares: Self::INITIAL.squares / f64::from(rows.max(1)), degrees: PRIOR_PAIRS }
    }

    /// Adds the variance of the differences of a check with `n` pairs.
    pub fn add(&mut self, variance: f64, n: u32) {
        let degrees = f64::from(n.saturating_sub(1));
        self.squares = DECAY * self.squares + variance * degrees;
        self.degrees = DECAY * self.degrees + degrees;
    }

    fn value(&self) -> f64 {
        self.squares / self.degrees
    }
}

/// The paired differences between head and anchor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Differences {
    pub n: u32,
    pub mean: f64,
    /// Sum of squared deviations from the mean.
    pub squares: f64,
}

impl Differences {
    /// Returns the summary of these differences, or `None` if there are none.
    pub fn of(differences: &[f64]) -> Option<Self> {
        let n = differences.len();
        let mean = differences.iter().sum::<f64>() / n as f64;
        let squares = differences.iter().map(|value| (value - mean).powi(2)).sum();
        (n > 0).then_some(Self { n: n as u32, mean, squares })
    }

    /// Returns the sample variance; `None` for fewer than two pairs.
    pub fn variance(&self) -> Option<f64> {
        (self.n > 1).then(|| self.squares / f64::from(self.n - 1))
    }
}

/// What is known before a check.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prior {
    pub pooled: PooledVariance,
    /// Number of changes between anchor and head.
    pub steps: u32,
    /// Standard deviation of the gain of one change, as a share of the range of scores.
    pub step_scale: f64,
    /// Number of rows, if scores repeat exactly: once all rows are measured, nothing is unknown.
    pub all_rows: Option<u32>,
}

/// Returns the probability that the mean gain over all rows is above 0. Differences are in units of the range of scores.
///
/// The prior of the gain is normal around 0, with a variance that grows with the number of changes, so that early looks are
/// drawn towards "no gain".
pub fn probability_of_gain(found: &Differences, prior: &Prior) -> f64 {
    let n = f64::from(found.n);
    let spread = (found.squares + PRIOR_PAIRS * prior.pooled.value()) / (n - 1.0 + PRIOR_PAIRS);
    let unseen = prior.all_rows.map_or(1.0, |rows| (1.0 - n / f64::from(rows.max(1))).max(0.0));
    let error = spread / n * unseen;
    let scale = f64::from(prior.steps.max(1)) * prior.step_scale.powi(2);
    let weight = scale / (scale + error);
    let deviation = (weight * error).sqrt();
    if deviation > 0.0 {
        normal_cdf(weight * found.mean / deviation)
    } else if found.mean == 0.0 {
        0.5
    } else {
        f64::from(u8::from(found.mean > 0.0))
    }
}

/// Returns the distribution function of the standard normal distribution.
fn normal_cdf(value: f64) -> f64 {
    0.5 * libm::erfc(-value / std::f64::consts::SQRT_2)
}

#[cfg(test)]
#[path = "check_tests.rs"]
mod tests;

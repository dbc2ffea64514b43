//! The vertical axis of a chart: round numbers around the scores.

use synth_optimizer_core::model::score::Score;

/// Maps scores to heights.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Scale {
    low: f64,
    high: f64,
    step: f64,
    /// Heights of the two ends; heights grow downwards.
    top: f64,
    bottom: f64,
}

impl Scale {
    /// Room for all scores with their intervals. Scores between 0 and 1 have the whole of it.
    pub(super) fn over(scores: impl Iterator<Item = Score>, top: f64, bottom: f64) -> Self {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for score in scores {
            for value in [Some(score.mean), score.low, score.high].into_iter().flatten().filter(|v| v.is_finite()) {
                low = low.min(value);
                high = high.max(value);
            }
        }
        if low > high || (low >= 0.0 && high <= 1.0) {
            (low, high) = (0.0, 1.0);
        }
        let span = (high - low).max(high.abs() * 1e-9).max(1e-9);
        let step = round_step(span / 5.0);
        Self { low: (low / step).floor() * step, high: (high / step).ceil() * step, step, top, bottom }
    }

    pub(super) fn y(&self, value: f64) -> f64 {
        let share = (value - self.low) / (self.high - self.low);
        let share = if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 };
        self.bottom - share * (self.bottom - self.top)
    }

    /// Values with their labels, from below.
    pub(super) fn ticks(&self) -> Vec<(f64, String)> {
        let count = ((self.high - self.low) / self.step).round() as usize;
        let digits = (-self.step.log10().floor()).clamp(0.0, 9.0) as usize;
        (0..=count.min(20))
            .map(|index| {
                let value = self.low + self.step * index as f64;
                // No negative zero.
                let value = if value.abs() < self.step / 2.0 { 0.0 } else { value };
                (value, format!("{value:.digits$}"))
            })
            .collect()
    }
}

/// 1, 2 or 5 times a power of ten, not smaller than the given step.
fn round_step(step: f64) -> f64 {
    let power = 10_f64.powf(step.log10().floor());
    let factor = [1.0, 2.0, 5.0, 10.0].into_iter().find(|factor| factor * power >= step * 0.999).unwrap_or(10.0);
    factor * power
}

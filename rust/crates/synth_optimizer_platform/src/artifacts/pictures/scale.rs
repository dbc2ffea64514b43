//! Axes: even ticks at 1, 2 or 5 times a power of ten, with as many digits as they need.

/// A linear axis from `low` to `high`, both of them ticks.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Scale {
    low: f64,
    high: f64,
    step: f64,
    /// Positions of the two ends in the drawing.
    from: f64,
    to: f64,
}

impl Scale {
    /// Creates an axis of scores that covers all values. It is 0 to 1 if they lie in between and are not close together.
    pub(super) fn of_scores(values: impl Iterator<Item = f64>, from: f64, to: f64) -> Self {
        const CLOSE: f64 = 0.35;
        // The difference of two such values is still a number.
        const LARGEST: f64 = 1e150;
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values.filter(|value| value.is_finite()) {
            let value = value.clamp(-LARGEST, LARGEST);
            low = low.min(value);
            high = high.max(value);
        }
        let is_share = low >= 0.0 && high <= 1.0;
        if low > high || (is_share && high - low >= CLOSE) {
            (low, high) = (0.0, 1.0);
        } else if low == high {
            // One value: some space on both sides of it.
            let margin = if is_share { 0.1 } else { (low.abs() * 0.1).max(1e-6) };
            (low, high) = (low - margin, high + margin);
            if is_share {
                (low, high) = (low.max(0.0), high.min(1.0));
            }
        }
        Self::over(low, high, 5.0, from, to)
    }

    /// Creates an axis from 0 that covers `most`. `ticks` is about how many it may have.
    pub(super) fn from_zero(most: f64, ticks: f64, from: f64, to: f64) -> Self {
        let most = if most.is_finite() && most > 0.0 { most.min(1e150) } else { 1.0 };
        Self::over(0.0, most, ticks, from, to)
    }

    /// Creates an axis of counts from 0: its ticks are whole numbers.
    pub(super) fn of_counts(most: u64, ticks: f64, from: f64, to: f64) -> Self {
        let scale = Self::from_zero(most as f64, ticks, from, to);
        if scale.step >= 1.0 { scale } else { Self { step: 1.0, high: scale.high.ceil(), ..scale } }
    }

    fn over(low: f64, high: f64, ticks: f64, from: f64, to: f64) -> Self {
        let span = (high - low).max(high.abs().max(low.abs()) * 1e-9).max(1e-9);
        let step = round_step(span / ticks.max(1.0));
        // A tick that a rounding error has moved past the data is not skipped.
        let low = ((low / step) + 1e-6).floor() * step;
        let high = (((high / step) - 1e-6).ceil() * step).max(low + step);
        Self { low, high, step, from, to }
    }

    /// Returns the same axis between other positions.
    pub(super) fn between(&self, from: f64, to: f64) -> Self {
        Self { from, to, ..self.clone() }
    }

    /// Returns the position of a value. Values outside of the axis are at its ends.
    pub(super) fn at(&self, value: f64) -> f64 {
        let share = (value - self.low) / (self.high - self.low);
        let share = if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 };
        self.from + share * (self.to - self.from)
    }

    /// Returns the ticks with their labels, from the lowest on.
    pub(super) fn ticks(&self) -> Vec<(f64, String)> {
        let count = ((self.high - self.low) / self.step).round().clamp(1.0, 20.0) as usize;
        let value = |index: usize| {
            let value = self.low + self.step * index as f64;
            // No negative zero.
            if value.abs() < self.step / 2.0 { 0.0 } else { value }
        };
        (0..=count).map(|index| (value(index), self.label(value(index)))).collect()
    }

    fn label(&self, value: f64) -> String {
        const LARGE: f64 = 1e6;
        const SMALL: f64 = 1e-5;
        let largest = self.low.abs().max(self.high.abs());
        if value == 0.0 {
            return "0".to_owned();
        }
        if largest >= LARGE || self.step < SMALL {
            let digits = (value.abs().log10().floor() - self.step.log10().floor()).clamp(0.0, 9.0) as usize;
            return format!("{value:.digits$e}");
        }
        let digits = (-(self.step * 1.000_001).log10().floor()).clamp(0.0, 9.0) as usize;
        grouped(&format!("{value:.digits$}"))
    }
}

/// Separates thousands by commas.
pub(crate) fn grouped(text: &str) -> String {
    let (sign, digits) = text.strip_prefix('-').map_or(("", text), |digits| ("-", digits));
    let (whole, rest) = digits.split_once('.').map_or((digits, None), |(whole, rest)| (whole, Some(rest)));
    let mut out = sign.to_owned();
    for (place, digit) in whole.chars().enumerate() {
        if place > 0 && (whole.len() - place) % 3 == 0 {
            out.push(',');
        }
        out.push(digit);
    }
    if let Some(rest) = rest {
        out.push('.');
        out.push_str(rest);
    }
    out
}

/// Formats a score for a label: three digits after the point, or powers of ten for very large and small ones.
pub(crate) fn score_label(value: f64) -> String {
    let size = value.abs();
    if !value.is_finite() {
        "unknown".to_owned()
    } else if size >= 1e6 || (size > 0.0 && size < 1e-3) {
        format!("{value:.2e}")
    } else {
        let text = format!("{value:.3}");
        if text == "-0.000" { "0.000".to_owned() } else { text }
    }
}

/// Rounds a step up to 1, 2 or 5 times a power of ten.
fn round_step(step: f64) -> f64 {
    let power = 10_f64.powf(step.log10().floor());
    let factor = [1.0, 2.0, 5.0, 10.0].into_iter().find(|factor| factor * power >= step * 0.999).unwrap_or(10.0);
    factor * power
}

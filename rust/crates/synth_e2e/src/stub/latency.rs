//! How long rollouts take, and how many of them run.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use synth_optimizer_core::random::random_stream;

/// The time of a rollout, which depends on its id only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Latency {
    pub usual: Duration,
    /// One of this many rollouts takes `slow_factor` times as long; 0 for none.
    pub slow_every: u64,
    pub slow_factor: u32,
    /// The standard deviation of the logarithm, in percent. The mean stays `usual`.
    pub spread_percent: u32,
}

impl Latency {
    /// Returns how long the rollout with this id takes.
    #[must_use]
    pub fn of(&self, id: &str) -> Duration {
        let mut draws = random_stream(0, id, 0);
        let sigma = f64::from(self.spread_percent) / 100.0;
        let angle = std::f64::consts::TAU * draws.unit();
        let normal = (-2.0 * (1.0 - draws.unit()).ln()).sqrt() * angle.cos();
        let spread = (sigma * normal - sigma * sigma / 2.0).exp();
        let is_slow = self.slow_every > 0 && draws.below(self.slow_every) == 0;
        self.usual.mul_f64(spread) * if is_slow { self.slow_factor } else { 1 }
    }
}

/// The rollouts that run, over time.
#[derive(Debug)]
pub(super) struct Running {
    began: Instant,
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    running: u32,
    most: u32,
    /// The moment of the last change, and the sum of the times of all rollouts until then.
    changed: Duration,
    sum: Duration,
}

impl Counts {
    fn advance(&mut self, at: Duration) {
        self.sum += at.saturating_sub(self.changed) * self.running;
        self.changed = at;
    }
}

impl Default for Running {
    fn default() -> Self {
        Self { began: Instant::now(), counts: Mutex::default() }
    }
}

impl Running {
    pub(super) fn begin(&self) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.advance(self.began.elapsed());
        counts.running += 1;
        counts.most = counts.most.max(counts.running);
    }

    pub(super) fn end(&self) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.advance(self.began.elapsed());
        counts.running -= 1;
    }

    /// Returns the largest number at the same time.
    pub(super) fn most(&self) -> u32 {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).most
    }

    /// Returns the time since the start, and the sum of the times of all rollouts until now.
    pub(super) fn times(&self) -> (Duration, Duration) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.advance(self.began.elapsed());
        (counts.changed, counts.sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stragglers_and_spread_have_the_stated_share_and_mean() {
        let usual = Duration::from_millis(200);
        let times = |latency: Latency| (0..20_000).map(move |number| latency.of(&format!("r{number}")));
        let exact = Latency { usual, ..Latency::default() };
        assert!(times(exact).all(|time| time == usual));
        let slow = times(Latency { slow_every: 50, slow_factor: 20, ..exact }).filter(|time| *time == usual * 20);
        let share = slow.count() as f64 / 20_000.0;
        assert!((share - 0.02).abs() < 0.004, "{share}");
        let spread = Latency { spread_percent: 100, ..exact };
        let mean = times(spread).sum::<Duration>().as_secs_f64() / 20_000.0;
        assert!((mean / 0.2 - 1.0).abs() < 0.05, "{mean}");
        assert_eq!(spread.of("r1"), spread.of("r1"));
    }
}

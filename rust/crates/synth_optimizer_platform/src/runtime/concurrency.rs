//! How many rollouts run at once: up by steps while all goes well, halved when the container is overloaded.

use tracing::{debug, warn};

use synth_optimizer_core::config::gepa::{AdaptiveConcurrency, Pipeline};
use synth_optimizer_core::model::event_fields::ConcurrencyAdjusted;

/// The limit on rollouts at once. It never passes `workers.rollout`.
#[derive(Debug)]
pub(super) struct Concurrency {
    rules: AdaptiveConcurrency,
    most: u32,
    limit: u32,
    successes: u32,
    /// Calls that were sent before the last decrease tell about the load before it.
    decreased_at: u64,
}

impl Concurrency {
    pub(super) fn new(pipeline: &Pipeline) -> Self {
        let rules = pipeline.adaptive_rollout_concurrency.clone();
        let workers = pipeline.workers.rollout.max(1);
        let (most, limit) = if rules.enabled {
            let most = workers.min(rules.max).max(1);
            (most, rules.initial.clamp(1, most))
        } else {
            (workers, workers)
        };
        Self { rules, most, limit, successes: 0, decreased_at: 0 }
    }

    pub(super) fn limit(&self) -> usize {
        self.limit as usize
    }

    /// A call came back well.
    pub(super) fn succeeded(&mut self) -> Option<ConcurrencyAdjusted> {
        if !self.rules.enabled || self.limit >= self.most {
            return None;
        }
        self.successes += 1;
        if self.successes < self.rules.increase_after_successes {
            return None;
        }
        self.set((self.limit + self.rules.increase_step).min(self.most), None)
    }

    /// A call met an overload. `sent` and `now` count calls in the order in which they were sent.
    pub(super) fn overloaded(&mut self, status: u16, sent: u64, now: u64) -> Option<ConcurrencyAdjusted> {
        if !self.rules.enabled || sent < self.decreased_at {
            return None;
        }
        self.decreased_at = now;
        let lower = (self.limit / 2).min(self.limit.saturating_sub(self.rules.decrease_step));
        self.set(lower.max(self.rules.min.min(self.most)).max(1), Some(status))
    }

    fn set(&mut self, limit: u32, status: Option<u16>) -> Option<ConcurrencyAdjusted> {
        self.successes = 0;
        let old_limit = std::mem::replace(&mut self.limit, limit);
        match status {
            Some(status) if old_limit != limit => {
                warn!(status, old_limit, new_limit = limit, "the container is overloaded: fewer rollouts at once");
            }
            _ => debug!(old_limit, new_limit = limit, "rollouts at once"),
        }
        (old_limit != limit).then_some(ConcurrencyAdjusted { old_limit, new_limit: limit, status })
    }
}

#[cfg(test)]
#[path = "concurrency_tests.rs"]
mod tests;

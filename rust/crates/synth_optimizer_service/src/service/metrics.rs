//! Metrics for Prometheus: counters since the start of the service, and gauges of the queue at the time of the scrape.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric, Registry, Unit};

use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::run_totals::RunCounts;
use synth_optimizer_platform::workspace::StoredEvent;

/// A label: name and value.
type Label = [(&'static str, String); 1];

fn kind_label(kind: &str) -> Label {
    [("kind", kind.to_owned())]
}

fn status_label(status: impl ToString) -> Label {
    [("status", status.to_string())]
}

/// All metrics.
#[derive(Debug)]
pub(super) struct Metrics {
    registry: Registry,
    /// Totals over all runs of this process.
    counts: Mutex<RunCounts>,
    answers: Family<Label, Counter>,
    requests: Family<Label, Gauge>,
    lease_age: Gauge<f64, AtomicU64>,
    oldest_queued: Gauge<f64, AtomicU64>,
    jobs: Gauge,
    pub(super) streams: Gauge,
    pub(super) dropped_streams: Counter,
    rollouts: Family<Label, Counter>,
    proposer_turns: Family<Label, Counter>,
    cache_hits: Family<Label, Counter>,
    tokens: Family<Label, Counter>,
    cost: Counter<f64, AtomicU64>,
    unpriced: Counter,
    pub(super) recovered: Counter,
    pub(super) fenced: Counter,
    commits: Family<Label, Histogram, fn() -> Histogram>,
}

/// Registers a metric.
fn register<M: Metric + Clone>(registry: &mut Registry, name: &str, help: &str, metric: M) -> M {
    registry.register(name, help, metric.clone());
    metric
}

/// Registers a metric in seconds.
fn register_seconds<M: Metric + Clone>(registry: &mut Registry, name: &str, help: &str, metric: M) -> M {
    registry.register_with_unit(name, help, Unit::Seconds, metric.clone());
    metric
}

fn commit_buckets() -> Histogram {
    Histogram::new([0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0])
}

impl Metrics {
    pub(super) fn new() -> Self {
        let mut registry = Registry::with_prefix("synth_optimizers");
        let all = &mut registry;
        let commits = Family::new_with_constructor(commit_buckets as fn() -> Histogram);
        let (oldest, waited) = ("Age of the oldest lease", "Age of the oldest queued run request");
        let (dropped, recovered) =
            ("Event streams closed because the client did not read", "Run requests recovered from lost workers");
        let (turns, tokens) =
            ("Proposer turns with an outcome, by outcome", "Tokens of sent calls, by boundary, as far as known");
        Self {
            answers: register(all, "http_responses", "HTTP responses by status", Family::default()),
            requests: register(all, "run_requests", "Run requests by state", Family::default()),
            lease_age: register_seconds(all, "oldest_lease_age", oldest, Gauge::default()),
            oldest_queued: register_seconds(all, "oldest_queued_age", waited, Gauge::default()),
            jobs: register(all, "active_runs", "Runs that this service executes", Gauge::default()),
            streams: register(all, "event_streams", "Open event streams", Gauge::default()),
            dropped_streams: register(all, "event_streams_dropped", dropped, Counter::default()),
            rollouts: register(all, "rollouts", "Rollouts with an outcome, by outcome", Family::default()),
            proposer_turns: register(all, "proposer_turns", turns, Family::default()),
            cache_hits: register(all, "cache_hits", "Calls answered from the cache, by boundary", Family::default()),
            tokens: register(all, "tokens", tokens, Family::default()),
            cost: register(all, "cost_usd", "Cost of sent calls, as far as known", Counter::default()),
            unpriced: register(all, "unpriced_calls", "Sent calls of unknown cost", Counter::default()),
            recovered: register(all, "run_requests_recovered", recovered, Counter::default()),
            fenced: register(all, "runs_fenced", "Runs that lost their lease", Counter::default()),
            commits: register_seconds(all, "commit_duration", "Duration of a commit, by database", commits),
            counts: Mutex::default(),
            registry,
        }
    }

    pub(super) fn count_answer(&self, code: u16) {
        self.answers.get_or_create(&status_label(code)).inc();
    }

    pub(super) fn observe_commit(&self, database: &'static str, time: Duration) {
        self.commits.get_or_create(&kind_label(database)).observe(time.as_secs_f64());
    }

    /// Counts an event of a run, in the same way as the run itself.
    pub(super) fn count_event(&self, stored: &StoredEvent) {
        self.counts.lock().count(&stored.event);
    }

    /// Copies the totals into the registered metrics.
    fn update_counters(&self, counts: &RunCounts) {
        let set = |family: &Family<Label, Counter>, label: &str, count: u64| {
            family.get_or_create(&kind_label(label)).inner().store(count, Ordering::Relaxed);
        };
        set(&self.rollouts, "finished", counts.rollouts_finished);
        set(&self.rollouts, "failed", counts.rollouts_failed);
        set(&self.proposer_turns, "completed", counts.proposer.calls() - counts.turns_failed);
        set(&self.proposer_turns, "failed", counts.turns_failed);
        for (boundary, spend) in [("rollout", counts.rollouts), ("proposer", counts.proposer)] {
            set(&self.cache_hits, boundary, spend.cached_calls);
            set(&self.tokens, boundary, spend.total_tokens);
        }
        let spend = counts.spend();
        self.cost.inner().store(spend.known_cost.usd().to_bits(), Ordering::Relaxed);
        self.unpriced.inner().store(spend.unpriced_calls, Ordering::Relaxed);
    }

    /// Returns the metrics as OpenMetrics text. The caller passes the gauges of the queue: requests by state, the age of the
    /// oldest lease and of the oldest queued request in seconds, and the number of running jobs.
    pub(super) fn encode_text(
        &self,
        requests: &BTreeMap<String, i64>,
        lease_age: f64,
        oldest_queued: f64,
        jobs: usize,
    ) -> Result<String, OptimizerError> {
        self.requests.clear();
        for (state, count) in requests {
            self.requests.get_or_create(&status_label(state)).set(*count);
        }
        self.lease_age.set(lease_age);
        self.oldest_queued.set(oldest_queued);
        self.jobs.set(i64::try_from(jobs).unwrap_or(i64::MAX));
        self.update_counters(&self.counts.lock());
        let mut text = String::new();
        encode(&mut text, &self.registry)
            .map_err(|error| OptimizerError::from_cause(ErrorCode::Invariant, "encoding the metrics failed", error))?;
        Ok(text)
    }
}

#[cfg(test)]
#[path = "metrics_tests.rs"]
mod tests;

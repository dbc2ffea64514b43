//! How work is sent, ordered and run at once: transport words, the pipeline and the circuit breaker.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::words::words;

words! {
    /// How rollouts are sent.
    SubmissionMode {
        /// Sent and waited for.
        Sync = "sync",
        /// Sent, then asked for until it is at its end.
        Async = "async",
    }
}
words! {
    /// How work is ordered.
    PipelineMode {
        /// One generation at a time.
        SyncSerial = "sync_serial" | "sync" | "serial",
        /// As many generations as fit into `max_in_flight_candidates`.
        AsyncPipelined = "async_pipelined" | "async" | "pipelined",
    }
}
words! {
    /// What happens to a proposal whose parent is no longer the newest.
    StalenessPolicy {
        /// It is evaluated like any other.
        Full = "full" | "full_async",
    }
}

/// Stops a run whose container has broken.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CircuitBreaker {
    /// Whether a broken container stops the run.
    pub enabled: bool,
    /// How many of the last rollouts are looked at.
    #[schemars(range(min = 1))]
    pub window: u32,
    /// How many of them must have failed, beyond the tolerated share.
    #[schemars(range(min = 1))]
    pub min_failures: u32,
}

impl Default for CircuitBreaker {
    fn default() -> Self {
        Self { enabled: true, window: 32, min_failures: 8 }
    }
}

/// How work is ordered and how much of it runs at once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Pipeline {
    pub mode: PipelineMode,
    pub staleness_policy: StalenessPolicy,
    /// The logical window of `async_pipelined`: candidates that are proposed or evaluated at once.
    #[schemars(range(min = 1))]
    pub max_in_flight_candidates: u32,
    pub workers: Workers,
    pub adaptive_rollout_concurrency: AdaptiveConcurrency,
}

impl Default for Pipeline {
    fn default() -> Self {
        Self {
            mode: PipelineMode::SyncSerial,
            staleness_policy: StalenessPolicy::Full,
            max_in_flight_candidates: 8,
            workers: Workers::default(),
            adaptive_rollout_concurrency: AdaptiveConcurrency::default(),
        }
    }
}

/// How much runs at once in each lane. Never changes what is decided, unless time is limited.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Workers {
    /// Proposer turns.
    #[schemars(range(min = 1))]
    pub propose: u32,
    /// Rollouts.
    #[schemars(range(min = 1))]
    pub rollout: u32,
    /// Answers that are decoded and stored.
    #[schemars(range(min = 1))]
    pub evaluate: u32,
}

impl Default for Workers {
    fn default() -> Self {
        Self { propose: 1, rollout: 8, evaluate: 1 }
    }
}

/// Rollout concurrency that follows the container's load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AdaptiveConcurrency {
    /// Whether the concurrency follows the load.
    pub enabled: bool,
    /// Rollouts at once in the beginning, within `workers.rollout`.
    #[schemars(range(min = 1))]
    pub initial: u32,
    /// Fewest rollouts at once.
    #[schemars(range(min = 1))]
    pub min: u32,
    /// Most rollouts at once.
    #[schemars(range(min = 1))]
    pub max: u32,
    /// How many more after enough successes.
    #[schemars(range(min = 1))]
    pub increase_step: u32,
    /// How many fewer after an overload, at least: the number is halved.
    #[schemars(range(min = 1))]
    pub decrease_step: u32,
    /// Successes in a row that count as enough.
    #[schemars(range(min = 1))]
    pub increase_after_successes: u32,
    /// HTTP statuses that mean overload.
    pub overload_status_codes: Vec<u16>,
}

impl Default for AdaptiveConcurrency {
    fn default() -> Self {
        Self {
            enabled: true,
            initial: 50,
            min: 1,
            max: 120,
            increase_step: 10,
            decrease_step: 10,
            increase_after_successes: 40,
            overload_status_codes: vec![408, 425, 429, 500, 502, 503, 504, 529],
        }
    }
}

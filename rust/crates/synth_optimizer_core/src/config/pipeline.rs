//! How work is sent, ordered and run at once: transport words, the pipeline and the circuit breaker.

use super::section::section;
use crate::words;

words! {
    /// How rollouts are sent.
    SubmissionMode {
        /// Sent and waited for.
        Sync = "sync",
        /// Sent, then asked for until it is at its end.
        Async = "async",
    }
    /// How work is ordered.
    PipelineMode {
        /// One generation at a time.
        SyncSerial = "sync_serial" | "sync" | "serial",
        /// As many generations as fit into `max_in_flight_candidates`.
        AsyncPipelined = "async_pipelined" | "async" | "pipelined",
    }
    /// What happens to a proposal whose parent is no longer the newest.
    StalenessPolicy {
        /// It is evaluated like any other.
        Full = "full" | "full_async",
    }
}

section! {
    /// Stops a run whose container has broken.
    CircuitBreaker {
        /// Whether a broken container stops the run.
        enabled: bool = true,
        /// How many of the last rollouts are looked at.
        window: u32 [min = 1] = 32,
        /// How many of them must have failed, beyond the tolerated share.
        min_failures: u32 [min = 1] = 8,
    }
    /// How work is ordered and how much of it runs at once.
    Pipeline {
        mode: PipelineMode = PipelineMode::SyncSerial,
        staleness_policy: StalenessPolicy = StalenessPolicy::Full,
        /// The logical window of `async_pipelined`: candidates that are proposed or evaluated at once.
        max_in_flight_candidates: u32 [min = 1] = 8,
        workers: Workers,
        adaptive_rollout_concurrency: AdaptiveConcurrency,
    }
    /// How much runs at once in each lane. Never changes what is decided, unless time is limited.
    Workers {
        /// Proposer turns.
        propose: u32 [min = 1] = 1,
        /// Rollouts.
        rollout: u32 [min = 1] = 8,
        /// Answers that are decoded and stored.
        evaluate: u32 [min = 1] = 1,
    }
    /// Rollout concurrency that follows the container's load.
    AdaptiveConcurrency {
        /// Whether the concurrency follows the load.
        enabled: bool = true,
        /// Rollouts at once in the beginning, within `workers.rollout`.
        initial: u32 [min = 1] = 50,
        /// Fewest rollouts at once.
        min: u32 [min = 1] = 1,
        /// Most rollouts at once.
        max: u32 [min = 1] = 120,
        /// How many more after enough successes.
        increase_step: u32 [min = 1] = 10,
        /// How many fewer after an overload, at least: the number is halved.
        decrease_step: u32 [min = 1] = 10,
        /// Successes in a row that count as enough.
        increase_after_successes: u32 [min = 1] = 40,
        /// HTTP statuses that mean overload.
        overload_status_codes: Vec<u16> = vec![408, 425, 429, 500, 502, 503, 504, 529],
    }
}

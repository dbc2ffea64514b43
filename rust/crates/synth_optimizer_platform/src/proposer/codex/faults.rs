//! What the errors of codex mean for a run: try again, give the turn up, or stop.

use serde_json::Value;

use crate::model::error::{ErrorCode, OptimizerError};

/// What a failed turn leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The same may succeed later.
    Retry,
    /// The same would fail again; another turn may not.
    GiveUp,
    /// Every turn would fail.
    Stop,
}

/// Reads the error of a turn. Values that are not known yet are taken as passing ones; the number of tries is bounded.
pub(super) fn verdict(error: &Value) -> Verdict {
    if message(error).starts_with("Missing environment variable") {
        return Verdict::Stop;
    }
    match error.get("codexErrorInfo") {
        Some(Value::String(name)) => by_name(name),
        // Connections that failed, with the status if there was one.
        Some(Value::Object(entries)) => {
            match entries.values().find_map(|entry| entry.get("httpStatusCode")?.as_u64()) {
                Some(401..=404) => Verdict::Stop,
                Some(400 | 405..=407 | 410..=424 | 426..=428) => Verdict::GiveUp,
                Some(_) | None => Verdict::Retry,
            }
        }
        _ => Verdict::Retry,
    }
}

fn by_name(name: &str) -> Verdict {
    match name {
        "unauthorized" | "usageLimitExceeded" | "badRequest" | "sandboxError" => Verdict::Stop,
        "cyberPolicy" | "misalignmentPolicyViolation" | "tooManyDenials" | "sessionBudgetExceeded" => Verdict::GiveUp,
        _ => Verdict::Retry,
    }
}

/// What codex says.
pub(super) fn message(error: &Value) -> &str {
    error.get("message").and_then(Value::as_str).filter(|text| !text.is_empty()).unwrap_or("codex gives no reason")
}

/// The error that ends the run.
pub(super) fn fatal(message: String) -> OptimizerError {
    OptimizerError::new(ErrorCode::Proposer, message)
        .with_hint("Check proposer.model, proposer.base_url and the key or sign-in; proposer.log has what codex said.")
}

#[cfg(test)]
#[path = "faults_tests.rs"]
mod tests;

//! What a turn has come to so far, and the failures that it can end with.

use serde_json::Value;

use super::Plan;
use super::wire::RpcFault;
use crate::proposer::TurnFailure;
use crate::proposer::transcript::Redactor;
use synth_optimizer_core::model::answer::{CallFailure, FailureClass};
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::event_fields::TurnModels;
use synth_optimizer_core::model::usage::Usage;

/// Most characters of a message that is stored.
const SHOWN: usize = 600;

/// Why a turn is no longer watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cause {
    Ended,
    /// The process is gone.
    Gone,
    /// The run ends.
    Stopped,
    Deadline,
    OtherModel,
    Commands,
    Tokens,
}

/// Models and usage of a turn.
#[derive(Debug, Clone)]
pub(super) struct Outcome {
    requested: String,
    /// The model that codex has named: for its thread, or later in the turn. A server that answers with another model and
    /// says so in the body of its responses alone is not found out, because codex does not pass that on.
    pub(super) effective: Option<String>,
    pub(super) usage: Usage,
    /// Whether the model may have been asked.
    pub(super) is_sent: bool,
    /// Hides credentials in whatever is told of the turn.
    pub(super) redactor: Redactor,
}

impl Outcome {
    pub(super) fn new(plan: &Plan) -> Self {
        Self {
            requested: plan.model.clone(),
            effective: None,
            usage: Usage::default(),
            is_sent: false,
            redactor: Redactor::default(),
        }
    }

    /// A failed turn; one after which no other can succeed ends the run.
    pub(super) fn failure(&self, class: FailureClass, message: String, verdict: Verdict) -> TurnFailure {
        let message: String = self.redactor.text(&message).chars().take(SHOWN).collect();
        let fatal = match verdict {
            Verdict::Stop => Some(fatal(message.clone())),
            Verdict::Retry | Verdict::GiveUp => None,
        };
        let models = self.effective.as_deref().map(|effective| {
            Box::new(TurnModels { requested: self.requested.clone(), effective: Some(self.redactor.text(effective)) })
        });
        let retryable = verdict == Verdict::Retry;
        TurnFailure {
            failure: CallFailure { class, message, retryable, usage: self.usage, cached: false, models },
            fatal,
        }
    }

    /// A turn that fails with the run.
    pub(super) fn stop(&self, class: FailureClass, error: OptimizerError) -> TurnFailure {
        let turn = self.failure(class, error.message.clone(), Verdict::Stop);
        let detail = error.detail.as_deref().map(|detail| self.redactor.text(detail));
        TurnFailure {
            fatal: Some(OptimizerError { message: self.redactor.text(&error.message), detail, ..error }),
            ..turn
        }
    }

    /// A turn that never reached a model.
    pub(super) fn unsent(&self, fault: &RpcFault) -> TurnFailure {
        self.failure(FailureClass::NotSent, fault.to_string(), Verdict::Retry)
    }
}

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

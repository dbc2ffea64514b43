//! What a turn has come to so far, and the failures that it can end with.

use super::Plan;
use super::faults::{Verdict, fatal};
use super::wire::RpcFault;
use crate::model::answer::{CallFailure, FailureClass};
use crate::model::error::OptimizerError;
use crate::model::event_fields::TurnModels;
use crate::model::usage::Usage;
use crate::proposer::TurnFailure;
use crate::proposer::transcript::Redactor;

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

//! What a turn has come to, whichever backend takes it, and how it fails.

use super::TurnFailure;
use super::transcript::Redactor;
use synth_optimizer_core::model::answer::{CallFailure, FailureClass};
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::event_fields::TurnModels;
use synth_optimizer_core::model::usage::Usage;

/// Most characters of a message that is stored.
const SHOWN: usize = 600;

/// Models and usage of a turn so far.
#[derive(Debug, Clone, Default)]
pub(super) struct Outcome {
    /// What a failure tells of the models.
    pub(super) models: Option<TurnModels>,
    pub(super) usage: Usage,
    /// Hides credentials in whatever is told of the turn.
    pub(super) redactor: Redactor,
}

/// What a failed turn leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The same may succeed later.
    Retry,
    /// The same would fail again; another turn may not.
    GiveUp,
    /// Every turn would fail: the run ends, with this hint.
    Stop(&'static str),
}

/// Why a turn has failed, in words, and what that leads to.
pub(super) type Reason = (FailureClass, String, Verdict);

impl Outcome {
    pub(super) fn failed(&self, (class, message, verdict): Reason) -> TurnFailure {
        let message: String = self.redactor.text(&message).chars().take(SHOWN).collect();
        let fatal = match verdict {
            Verdict::Stop(hint) => Some(OptimizerError::new(ErrorCode::Proposer, message.clone()).with_hint(hint)),
            Verdict::Retry | Verdict::GiveUp => None,
        };
        let (models, retryable) = (self.models.clone().map(Box::new), verdict == Verdict::Retry);
        let failure = CallFailure { class, message, retryable, usage: self.usage, cached: false, models };
        TurnFailure { failure, fatal }
    }

    /// A turn that cannot begin, and with it the run.
    pub(super) fn cannot_begin(&self, error: OptimizerError) -> TurnFailure {
        let failed = self.failed((FailureClass::NotSent, error.message.clone(), Verdict::GiveUp));
        TurnFailure { fatal: Some(error), ..failed }
    }
}

//! How turns end without an answer, and what they have used by then.

use std::time::Duration;

use serde_json::json;

use super::turn::Course;
use crate::http::{Raw, excerpt, shortened};
use crate::model::answer::{CallFailure, FailureClass};
use crate::model::error::{ErrorCode, OptimizerError};
use crate::model::event_fields::TurnModels;
use crate::model::usage::{Cost, NanoUsd, Usage};
use crate::proposer::TurnFailure;

/// The worst that has become of the requests of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fate {
    Unsent,
    /// Refused before any work was done.
    Refused,
    /// The endpoint answered.
    Worked,
    /// It broke, and may have charged for what it did before.
    Broke,
    /// Nobody knows: it is under way, or its answer was lost.
    Unknown,
}

/// Whether another turn may end better.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Retry {
    MayHelp,
    IsVain,
}

impl Course<'_> {
    /// What the turn used. A sum with an unknown part is unknown.
    pub(super) fn usage(&self) -> Usage {
        match (self.fate, self.told) {
            (Fate::Unknown, _) => Usage::default(),
            (Fate::Broke, Some(usage)) => Usage { cost: Cost::Unknown, ..usage },
            (_, Some(usage)) => usage,
            (Fate::Worked | Fate::Broke, None) => Usage::default(),
            (Fate::Unsent | Fate::Refused, None) => Usage {
                prompt_tokens: Some(0),
                completion_tokens: Some(0),
                total_tokens: Some(0),
                cost: Cost::Known(NanoUsd(0)),
            },
        }
    }

    /// The run ends. What is under way may be paid for.
    pub(super) fn interrupted(&mut self) -> TurnFailure {
        let class = if self.settle() <= Fate::Refused { FailureClass::Withdrawn } else { FailureClass::Abandoned };
        self.failure(class, "the turn was interrupted", Retry::IsVain).into()
    }

    pub(super) fn timed_out(&mut self, timeout: Duration) -> TurnFailure {
        let class = if self.settle() == Fate::Unsent { FailureClass::NotSent } else { FailureClass::Timeout };
        let message = format!("there was no answer within proposer.timeout_seconds = {}", timeout.as_secs());
        self.failure(class, &message, Retry::MayHelp).into()
    }

    pub(super) fn cannot_begin(&mut self, error: &OptimizerError) -> TurnFailure {
        let failure = self.failure(FailureClass::NotSent, &error.message, Retry::IsVain);
        TurnFailure { failure, fatal: Some(error.clone()) }
    }

    pub(super) fn gave_up(&mut self, why: String, tries: u32) -> CallFailure {
        let class = match self.fate {
            Fate::Unsent => FailureClass::NotSent,
            Fate::Refused | Fate::Worked | Fate::Broke => FailureClass::Failed,
            Fate::Unknown => FailureClass::UnknownOutcome,
        };
        self.failure(class, &format!("{why} (tried {tries} times)"), Retry::MayHelp)
    }

    pub(super) fn too_large(&mut self, status: u16) -> CallFailure {
        let limit = self.proposer.section.max_answer_kb;
        let message = format!("the answer ({status}) is larger than proposer.max_answer_kb = {limit}");
        self.failure(FailureClass::Contract, &message, Retry::IsVain)
    }

    pub(super) fn fatal(&mut self, class: FailureClass, message: String, hint: &str) -> TurnFailure {
        let failure = self.failure(class, &message, Retry::IsVain);
        let error = OptimizerError::new(ErrorCode::Proposer, failure.message.clone()).with_hint(hint);
        TurnFailure { failure, fatal: Some(error) }
    }

    pub(super) fn failure(&mut self, class: FailureClass, message: &str, retry: Retry) -> CallFailure {
        let message = self.proposer.redactor.text(message);
        self.note(&message);
        let models = TurnModels { requested: self.proposer.model.clone(), effective: self.effective.clone() };
        CallFailure {
            class,
            message,
            retryable: retry == Retry::MayHelp,
            usage: self.usage(),
            cached: false,
            models: Some(Box::new(models)),
        }
    }

    /// A request that is broken off in flight may have been taken.
    pub(super) fn settle(&mut self) -> Fate {
        if std::mem::take(&mut self.in_flight) {
            self.fate = Fate::Unknown;
        }
        self.fate
    }

    pub(super) fn note(&mut self, text: &str) {
        self.transcript.add("note", &json!(text));
    }

    pub(super) fn shown(&self, text: &str) -> String {
        shortened(&self.proposer.redactor.text(text))
    }

    /// The beginning of a reply. Credentials go before the end is cut off, so that no half of one is left.
    pub(super) fn beginning_of(&self, raw: &Raw) -> String {
        excerpt(self.proposer.redactor.known_hidden(&String::from_utf8_lossy(&raw.body)).as_bytes())
    }
}

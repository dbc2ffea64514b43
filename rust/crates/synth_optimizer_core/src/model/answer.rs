//! Observations, which are the inputs of the engine, and the answers to calls that they carry.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::edit::Edit;
use super::error::ErrorCode;
use super::event_fields::{Failure, Problem, TurnModels};
use super::ids::{CallId, Payload};
use super::usage::{Billing, Usage};
use crate::string_enum;

/// An input of the engine from outside.
#[derive(Debug, Clone, PartialEq)]
pub enum Observation {
    /// The inputs are loaded; the search may begin.
    Begin,
    /// No new input: the engine continues with its state.
    Advance,
    /// The answer to the call that retires next.
    Answer { call_id: CallId, answer: Answer },
    /// A sent call has no answer, and its outcome cannot be determined.
    OutcomeUnknown { call_id: CallId, cause: String },
    /// Measured running time of the run. Time in which no process worked on it does not count.
    Clock { elapsed_millis: u64 },
    /// Finish early: no new search work, then the held-out evaluation.
    StopRequested { reason: String },
    /// Cancel the run now and abandon calls in flight.
    CancelRequested { reason: String },
    /// Fail the run now, because something that it needs is broken.
    FailureRaised { failure: Failure },
}

/// The answer to a call. The runtime stores it in the inbox as soon as it arrives.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Answer {
    Rollout(RolloutAnswer),
    Proposal(ProposalAnswer),
    /// The call failed.
    Failed(CallFailure),
    /// The call has no answer because the run ends. `sent` is true if the call left the process, so that it may have
    /// cost something. A stop request also withdraws calls that are not sent yet in this way.
    Abandoned {
        sent: bool,
    },
}

/// The result of a rollout.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RolloutAnswer {
    pub reward: f64,
    /// Scores by objective name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub objectives: BTreeMap<String, f64>,
    pub usage: Usage,
    /// Whether the answer came from the cache.
    pub cached: bool,
    /// Digest of the stored trace and feedback.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace_digest: Option<String>,
}

/// The answer of a proposer turn, valid or invalid.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProposalAnswer {
    pub proposals: Vec<Proposal>,
    /// Problems of the answer as a whole: it cannot be parsed, or it does not have the shape of a manifest.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<Problem>,
    pub usage: Usage,
    pub cached: bool,
    pub requested_model: String,
    pub effective_model: String,
}

/// One proposed change.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proposal {
    /// New texts by field. Other fields keep the parent's text.
    pub fields: Payload,
    /// Edits by field, which the engine lays over the parent's text. A field has a new text or edits.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub edits: BTreeMap<String, Vec<Edit>>,
    #[serde(default)]
    pub rationale: String,
}

string_enum! {
    /// The kind of a call's failure.
    FailureClass {
        /// The call was not sent: connection refused, or no address.
        NotSent = "not_sent",
        /// The call was sent, and it is unknown whether it ran.
        UnknownOutcome = "unknown_outcome",
        /// The container or proposer reported a failure.
        Failed = "failed",
        /// The call exceeded its timeout, and is known to have ended.
        Timeout = "timeout",
        /// The answer violates the contract.
        Contract = "contract",
        /// The score is missing, not a number or not finite.
        InvalidScore = "invalid_score",
        /// The call was sent, and the run ended without waiting for the answer.
        Abandoned = "abandoned",
        /// The call was not sent, because the run ended.
        Withdrawn = "withdrawn",
    }
}

impl FailureClass {
    /// Returns whether the call left this process. A call that did not costs nothing and is no evidence about the task.
    pub const fn was_sent(self) -> bool {
        !matches!(self, Self::NotSent | Self::Withdrawn)
    }

    /// Returns whether the container or proposer answered the call.
    pub const fn was_answered(self) -> bool {
        self.was_sent() && !matches!(self, Self::UnknownOutcome | Self::Abandoned)
    }

    /// Returns what to do if rollouts fail this way.
    pub const fn hint(self) -> &'static str {
        match self {
            Self::Failed => {
                "The container answers, but its task fails: read the log of the container and fix the task. Then start another run."
            }
            Self::InvalidScore => "Return a finite number as the reward of every rollout. Then start another run.",
            Self::Contract => {
                "Compare the replies of the container with the contract in docs/reference/containers.md. Then start another run."
            }
            Self::Timeout => {
                "Raise container.rollout_timeout_seconds or gepa.rollout_async_timeout_seconds, or make the rollouts faster."
            }
            Self::NotSent | Self::UnknownOutcome | Self::Abandoned | Self::Withdrawn => {
                "The container closes connections without an answer: read its log."
            }
        }
    }

    /// Returns the error of a run whose rollouts fail this way. A task that fails is no fault of the container.
    pub const fn error_code(self) -> ErrorCode {
        match self {
            Self::Failed => ErrorCode::RunFailed,
            Self::InvalidScore
            | Self::Contract
            | Self::Timeout
            | Self::NotSent
            | Self::UnknownOutcome
            | Self::Abandoned
            | Self::Withdrawn => ErrorCode::Container,
        }
    }

    /// Returns how a call that failed this way is billed.
    pub const fn billing(self, usage: &Usage, cached: bool) -> Billing {
        match self {
            Self::NotSent | Self::Withdrawn => Billing::Unsent,
            Self::UnknownOutcome => Billing::Unknown,
            // An abandoned call may have reported its usage before the end.
            Self::Abandoned if usage.total().is_none() => Billing::Unknown,
            Self::Abandoned | Self::Failed | Self::Timeout | Self::Contract | Self::InvalidScore => {
                Billing::answered(cached)
            }
        }
    }
}

/// The failure of a call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CallFailure {
    pub class: FailureClass,
    pub message: String,
    /// Whether the same call may succeed later.
    pub retryable: bool,
    pub usage: Usage,
    pub cached: bool,
    /// The models of a proposer turn that reached one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub models: Option<Box<TurnModels>>,
}

impl CallFailure {
    /// Returns a failure that is not retryable and used nothing.
    pub fn new(class: FailureClass, message: impl Into<String>) -> Self {
        let (message, usage) = (message.into(), Usage::default());
        Self { class, message, retryable: false, usage, cached: false, models: None }
    }
}

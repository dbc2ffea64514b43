//! What comes back from outside: observations of the engine and the answers they carry.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::event_fields::{Failure, Problem, TurnModels};
use super::ids::{CallId, Payload};
use super::usage::{Billing, Usage};
use crate::string_enum;

/// Something that happened outside.
#[derive(Debug, Clone, PartialEq)]
pub enum Observation {
    /// The inputs are loaded; the search may begin.
    Begin,
    /// Nothing new: go on with what is known.
    Advance,
    /// The answer to a request whose turn it is.
    Answer { call_id: CallId, answer: Answer },
    /// Measured time since the run began, without the time in which it did not run.
    Clock { elapsed_millis: u64 },
    /// Finish early: no new work, then the held-out evaluation.
    StopRequested { reason: String },
    /// End now: whatever is under way is given up.
    CancelRequested { reason: String },
    /// End now, and not well: something broke that the run cannot go on without.
    FailureRaised { failure: Failure },
}

/// The answer to a request. It is stored in the inbox the moment it arrives.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Answer {
    Rollout(RolloutAnswer),
    Proposal(ProposalAnswer),
    /// The call failed.
    Failed(CallFailure),
    /// The run ends before an answer came; `sent` tells whether it may have been paid for. Requests that wait for a
    /// worker when a stop from outside comes may be answered so.
    Abandoned {
        sent: bool,
    },
}

/// A rollout that ran.
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

/// A proposer turn that ended with an answer, good or bad.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProposalAnswer {
    pub proposals: Vec<Proposal>,
    /// What is wrong with the answer as a whole: it cannot be read, or breaks the shape of a manifest.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<Problem>,
    pub usage: Usage,
    pub cached: bool,
    pub requested_model: String,
    pub effective_model: String,
}

/// One proposed change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proposal {
    /// New texts by field; fields that are not named keep the parent's text.
    pub fields: Payload,
    #[serde(default)]
    pub rationale: String,
}

string_enum! {
    /// What kind of failure it was.
    FailureClass {
        /// The call was never sent: refused connection, no address.
        NotSent = "not_sent",
        /// It was sent, and nobody knows whether it ran.
        UnknownOutcome = "unknown_outcome",
        /// The container or proposer said that it failed.
        Failed = "failed",
        /// It took longer than allowed, and is known to have ended.
        Timeout = "timeout",
        /// The answer broke the contract.
        Contract = "contract",
        /// The score was missing, not a number or not finite.
        InvalidScore = "invalid_score",
        /// It was sent, and the run ends without waiting for it.
        Abandoned = "abandoned",
        /// It was never sent, because the run ends.
        Withdrawn = "withdrawn",
    }
}

impl FailureClass {
    /// Whether the call left this process. One that did not costs nothing and says nothing about the task.
    pub const fn was_sent(self) -> bool {
        !matches!(self, Self::NotSent | Self::Withdrawn)
    }

    /// How a call that failed this way is billed.
    pub const fn billing(self, usage: &Usage, cached: bool) -> Billing {
        match self {
            Self::NotSent | Self::Withdrawn => Billing::Unsent,
            Self::UnknownOutcome => Billing::Unknown,
            // A call that was given up may have reported what it had used up to then.
            Self::Abandoned if usage.total().is_none() => Billing::Unknown,
            Self::Abandoned | Self::Failed | Self::Timeout | Self::Contract | Self::InvalidScore => {
                Billing::answered(cached)
            }
        }
    }
}

/// A call that gave no result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CallFailure {
    pub class: FailureClass,
    pub message: String,
    /// Whether the same call may succeed later.
    pub retryable: bool,
    pub usage: Usage,
    pub cached: bool,
    /// Set for proposer turns that reached a model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub models: Option<Box<TurnModels>>,
}

impl CallFailure {
    /// A failure that another try does not mend and that has used nothing.
    pub fn new(class: FailureClass, message: impl Into<String>) -> Self {
        let (message, usage) = (message.into(), Usage::default());
        Self { class, message, retryable: false, usage, cached: false, models: None }
    }
}

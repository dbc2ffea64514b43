//! The status words of a rollout: which are active, which are final, and where they are found.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};

use super::leaf::{Leaf, Name};
use super::record::Loose;
use crate::http::excerpt;
use crate::model::answer::{CallFailure, FailureClass};
use crate::model::usage::Usage;

/// What a status word means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Status {
    Active,
    Succeeded,
    Failed,
    /// The record has no status; a whole record without one is a completed one.
    Absent,
}

/// The head of a record or state. Every entry may be missing or null.
#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(super) struct Head<'a> {
    rollout_id: Leaf<'a>,
    status: Leaf<'a>,
    state: Leaf<'a>,
    phase: Leaf<'a>,
    success_status: Leaf<'a>,
}

impl<'a> Head<'a> {
    /// The head of a reply body; anything but a JSON object breaks the contract.
    pub(super) fn read(body: &'a [u8]) -> Result<Self, CallFailure> {
        object(body)
    }

    pub(super) fn class(&self) -> Result<Status, CallFailure> {
        classify([&self.status, &self.state, &self.phase, &self.success_status])
    }

    /// Whether the record belongs to another rollout.
    pub(super) fn is_of_another(&self, rollout_id: &str) -> bool {
        self.rollout_id.as_str().is_some_and(|id| !id.trim().is_empty() && id != rollout_id)
    }
}

/// The class of the first entry that is there, of `status`, `state`, `phase` and `success_status`.
pub(super) fn classify(entries: [&Leaf<'_>; 4]) -> Result<Status, CallFailure> {
    let Some(entry) = entries.into_iter().find(|entry| !entry.is_null()) else { return Ok(Status::Absent) };
    let word = entry.as_str().map(|word| word.trim().to_ascii_lowercase());
    match word.as_deref() {
        Some("queued" | "pending" | "running" | "in_progress" | "starting" | "submitted" | "paused") => {
            Ok(Status::Active)
        }
        Some("completed" | "success" | "succeeded" | "ok" | "done") => Ok(Status::Succeeded),
        Some("failed" | "error" | "cancelled" | "canceled" | "terminated" | "expired" | "timeout" | "timed_out") => {
            Ok(Status::Failed)
        }
        Some(_) | None => {
            let message = format!("the rollout's status is {:?}, which is no status word", entry.shown());
            Err(failure(FailureClass::Contract, message))
        }
    }
}

/// Whether a body says that its rollout is at its end, as far as that is known without reading what stands after the
/// status. Most replies are such, and whoever reads their scores reads the rest.
pub(super) fn says_it_ended(body: &[u8]) -> bool {
    let mut status = Status::Absent;
    // What follows the status is left unread, which ends in an error.
    let mut reader = serde_json::Deserializer::from_slice(body);
    let _ = reader.deserialize_map(UpToStatus(&mut status));
    matches!(status, Status::Succeeded | Status::Failed)
}

struct UpToStatus<'s>(&'s mut Status);

impl<'de> Visitor<'de> for UpToStatus<'_> {
    type Value = ();

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(Name(name)) = map.next_key()? {
            if name == "status" {
                let entry = map.next_value()?;
                *self.0 = classify([&entry, &Leaf::Null, &Leaf::Null, &Leaf::Null]).unwrap_or(Status::Absent);
                return Ok(());
            }
            map.next_value::<IgnoredAny>()?;
        }
        Ok(())
    }
}

/// A failure that the same call would meet again, unless its class says otherwise.
pub(super) fn failure(class: FailureClass, message: String) -> CallFailure {
    let retryable = match class {
        FailureClass::NotSent | FailureClass::UnknownOutcome | FailureClass::Failed | FailureClass::Timeout => true,
        FailureClass::Contract | FailureClass::InvalidScore | FailureClass::Abandoned | FailureClass::Withdrawn => {
            false
        }
    };
    CallFailure { class, message, retryable, usage: Usage::default(), cached: false, models: None }
}

/// A body that must be a JSON object. A derived reader alone would take a list for its fields in order.
pub(super) fn object<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, CallFailure> {
    match serde_json::from_slice::<Loose<T>>(body) {
        Ok(Loose(Some(object))) => Ok(object),
        Ok(Loose(None)) => {
            Err(failure(FailureClass::Contract, format!("the reply is no JSON object: {}", excerpt(body))))
        }
        Err(error) => Err(unreadable(body, &error)),
    }
}

/// Why a body could not be read. Python writes NaN and infinities that JSON does not have: then the score is bad, not
/// the container.
fn unreadable(body: &[u8], error: &serde_json::Error) -> CallFailure {
    let holds = |word: &[u8]| body.windows(word.len()).any(|part| part == word);
    if error.is_syntax() && (holds(b"NaN") || holds(b"Infinity") || error.to_string().contains("number out of range")) {
        let message = "the reply holds a number that is not finite (NaN or infinity)".to_owned();
        return failure(FailureClass::InvalidScore, message);
    }
    failure(FailureClass::Contract, format!("the reply is not JSON: {}", excerpt(body)))
}

#[cfg(test)]
#[path = "status_tests.rs"]
mod tests;

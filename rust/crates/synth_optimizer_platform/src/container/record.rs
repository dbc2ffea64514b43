//! A rollout record as a container gave it: the parts that are read, its status, and what is wrong with it.
//!
//! Everything else, the trace above all, is skipped without being built.

use std::fmt;
use std::marker::PhantomData;

use bytes::Bytes;
use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use crate::http::{excerpt, shown_value};
use synth_optimizer_core::model::answer::{CallFailure, FailureClass};
use synth_optimizer_core::model::usage::Usage;

/// A body from a container, read once.
#[derive(Debug)]
pub struct Received {
    pub body: Bytes,
    pub record: Result<Box<Record>, CallFailure>,
}

impl Received {
    pub fn read(body: Bytes) -> Self {
        // A derived reader alone would take a list for its fields in order.
        let mut json = serde_json::Deserializer::from_slice(&body);
        let record = match object::<_, Box<Record>>(&mut json).and_then(|record| json.end().map(|()| record)) {
            Ok(Some(record)) => Ok(record),
            Ok(None) => {
                Err(failure(FailureClass::Contract, format!("the reply is no JSON object: {}", excerpt(&body))))
            }
            Err(error) => Err(unreadable(&body, &error)),
        };
        Self { body, record }
    }
}

/// What a status word means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Status {
    Active,
    Succeeded,
    Failed,
    /// The record has no status; a whole record without one is a completed one.
    Absent,
}

/// A record, or the state of a rollout. Leaves are open values, because any of them may be null or of a wrong type.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Record {
    pub(super) rollout_id: Value,
    pub(super) status: Value,
    pub(super) state: Value,
    pub(super) phase: Value,
    pub(super) success_status: Value,
    pub(super) status_detail: Value,
    pub(super) detail: Value,
    pub(super) error: Value,
    pub(super) reward: Value,
    #[serde(deserialize_with = "object")]
    pub(super) reward_info: Option<RewardInfo>,
    pub(super) objective_scores: Value,
    #[serde(deserialize_with = "object")]
    pub(super) summary: Option<Part>,
    pub(super) usage: Value,
    #[serde(deserialize_with = "object")]
    pub(super) trace: Option<Trace>,
    #[serde(deserialize_with = "object")]
    pub(super) metadata: Option<Part>,
    pub(super) seed: Value,
    pub(super) example_id: Value,
    pub(super) task_instance_id: Value,
}

impl Record {
    /// The class of the first entry that is there, of `status`, `state`, `phase` and `success_status`.
    pub(super) fn status(&self) -> Result<Status, CallFailure> {
        let Some(entry) = self.status_entry() else { return Ok(Status::Absent) };
        let word = entry.as_str().map(|word| word.trim().to_ascii_lowercase());
        match word.as_deref() {
            Some("queued" | "pending" | "running" | "in_progress" | "starting" | "submitted" | "paused") => {
                Ok(Status::Active)
            }
            Some("completed" | "success" | "succeeded" | "ok" | "done") => Ok(Status::Succeeded),
            Some(
                "failed" | "error" | "cancelled" | "canceled" | "terminated" | "expired" | "timeout" | "timed_out",
            ) => Ok(Status::Failed),
            Some(_) | None => {
                let message = format!("the rollout's status is {:?}, which is no status word", shown_value(entry));
                Err(failure(FailureClass::Contract, message))
            }
        }
    }

    pub(super) fn status_entry(&self) -> Option<&Value> {
        [&self.status, &self.state, &self.phase, &self.success_status].into_iter().find(|entry| !entry.is_null())
    }

    /// Whether the record belongs to another rollout.
    pub(super) fn is_of_another(&self, rollout_id: &str) -> bool {
        self.rollout_id.as_str().is_some_and(|id| !id.trim().is_empty() && id != rollout_id)
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct RewardInfo {
    pub(super) outcome_reward: Value,
    pub(super) score: Value,
    #[serde(deserialize_with = "object")]
    pub(super) details: Option<Part>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Trace {
    #[serde(deserialize_with = "object")]
    pub(super) metadata: Option<Part>,
}

/// Any of the free objects of a record.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Part {
    pub(super) outcome_reward: Value,
    pub(super) objective_scores: Value,
    pub(super) seed: Value,
    pub(super) example_id: Value,
    pub(super) task_instance_id: Value,
    pub(super) task_id: Value,
    pub(super) candidate: Value,
}

/// An object, or nothing where something else stands.
fn object<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    deserializer.deserialize_any(ObjectVisitor(PhantomData))
}

struct ObjectVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
    type Value = Option<T>;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("anything")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(Some)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(None)
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_str<E>(self, _: &str) -> Result<Self::Value, E> {
        Ok(None)
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
#[path = "record_tests.rs"]
mod tests;

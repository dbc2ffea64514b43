//! Reads the record of a rollout: first its status, then its scores, then whether it belongs to the expected row and
//! candidate.
//!
//! Parts that are not needed, such as the trace, are skipped without allocating them.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use bytes::Bytes;
use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use super::contract::TaskRow;
use crate::http::{describe_value, excerpt};
use synth_optimizer_core::config::gepa::OUTCOME_REWARD;
use synth_optimizer_core::model::answer::{CallFailure, FailureClass, RolloutAnswer};
use synth_optimizer_core::model::canonical::canonical_json;
use synth_optimizer_core::model::ids::{Payload, RowId};
use synth_optimizer_core::model::usage::{Cost, Usage};

/// A response body from a container and the record in it.
#[derive(Debug)]
pub struct ReceivedRecord {
    pub body: Bytes,
    pub record: Result<Box<RolloutRecord>, CallFailure>,
}

impl ReceivedRecord {
    pub fn read(body: Bytes) -> Self {
        // A derived `Deserialize` would also accept a JSON list as the fields in order.
        let mut json = serde_json::Deserializer::from_slice(&body);
        let record = match object::<_, Box<RolloutRecord>>(&mut json).and_then(|record| json.end().map(|()| record)) {
            Ok(Some(record)) => Ok(record),
            Ok(None) => {
                Err(failure(FailureClass::Contract, format!("the reply is not a JSON object: {}", excerpt(&body))))
            }
            Err(error) => Err(unreadable(&body, &error)),
        };
        Self { body, record }
    }
}

/// Meaning of a status word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RolloutStatus {
    Active,
    Succeeded,
    Failed,
    /// The record has no status. A complete record without a status counts as succeeded.
    Absent,
}

/// The record or the state of a rollout. Fields are untyped values because any of them may be null or of a wrong type.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct RolloutRecord {
    rollout_id: Value,
    status: Value,
    state: Value,
    phase: Value,
    success_status: Value,
    status_detail: Value,
    detail: Value,
    error: Value,
    reward: Value,
    #[serde(deserialize_with = "object")]
    reward_info: Option<RewardInfo>,
    objective_scores: Value,
    #[serde(deserialize_with = "object")]
    summary: Option<RecordSection>,
    usage: Value,
    #[serde(deserialize_with = "object")]
    trace: Option<RecordTrace>,
    #[serde(deserialize_with = "object")]
    metadata: Option<RecordSection>,
    seed: Value,
    example_id: Value,
    task_instance_id: Value,
}

impl RolloutRecord {
    /// Returns the meaning of the first non-null entry of `status`, `state`, `phase` and `success_status`.
    pub(super) fn status(&self) -> Result<RolloutStatus, CallFailure> {
        let Some(entry) = self.status_entry() else { return Ok(RolloutStatus::Absent) };
        let word = entry.as_str().map(|word| word.trim().to_ascii_lowercase());
        match word.as_deref() {
            Some("queued" | "pending" | "running" | "in_progress" | "starting" | "submitted" | "paused") => {
                Ok(RolloutStatus::Active)
            }
            Some("completed" | "success" | "succeeded" | "ok" | "done") => Ok(RolloutStatus::Succeeded),
            Some(
                "failed" | "error" | "cancelled" | "canceled" | "terminated" | "expired" | "timeout" | "timed_out",
            ) => Ok(RolloutStatus::Failed),
            Some(_) | None => {
                let message = format!("the rollout's status is {:?}, not a known status", describe_value(entry));
                Err(failure(FailureClass::Contract, message))
            }
        }
    }

    fn status_entry(&self) -> Option<&Value> {
        [&self.status, &self.state, &self.phase, &self.success_status].into_iter().find(|entry| !entry.is_null())
    }

    /// Returns whether the record names another rollout.
    pub(super) fn is_of_another(&self, rollout_id: &str) -> bool {
        self.rollout_id.as_str().is_some_and(|id| !id.trim().is_empty() && id != rollout_id)
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RewardInfo {
    outcome_reward: Value,
    score: Value,
    #[serde(deserialize_with = "object")]
    details: Option<RecordSection>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RecordTrace {
    #[serde(deserialize_with = "object")]
    metadata: Option<RecordSection>,
}

/// One of the nested objects of a record: `summary`, `metadata`, the reward details or the trace metadata.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RecordSection {
    outcome_reward: Value,
    objective_scores: Value,
    seed: Value,
    example_id: Value,
    task_instance_id: Value,
    task_id: Value,
    candidate: Value,
}

/// Deserializes an object. Returns `None` for every other kind of value.
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

/// Creates a failure. Its class decides whether the call may be retried.
pub(super) fn failure(class: FailureClass, message: String) -> CallFailure {
    let retryable = match class {
        FailureClass::NotSent | FailureClass::UnknownOutcome | FailureClass::Failed | FailureClass::Timeout => true,
        FailureClass::Contract | FailureClass::InvalidScore | FailureClass::Abandoned | FailureClass::Withdrawn => {
            false
        }
    };
    CallFailure { class, message, retryable, usage: Usage::default(), cached: false, models: None }
}

/// Explains why a body is not readable. Python writes NaN and infinities, which are not JSON: such a reply is an
/// invalid score and not a broken contract.
fn unreadable(body: &[u8], error: &serde_json::Error) -> CallFailure {
    let holds = |word: &[u8]| body.windows(word.len()).any(|part| part == word);
    if error.is_syntax() && (holds(b"NaN") || holds(b"Infinity") || error.to_string().contains("number out of range")) {
        let message = "the reply contains a number that is not finite (NaN or infinity)".to_owned();
        return failure(FailureClass::InvalidScore, message);
    }
    failure(FailureClass::Contract, format!("the reply is not JSON: {}", excerpt(body)))
}

/// Keys that identify the row. `task_id` is missing here: it may be the task family, so it can confirm a row but not
/// contradict one.
const ROW_KEYS: [&str; 3] = ["seed", "example_id", "task_instance_id"];

/// The rollout that a reply must belong to.
#[derive(Debug, Clone, Copy)]
pub struct ExpectedRollout<'a> {
    /// `None` for a cached answer, which may come from another run.
    pub rollout_id: Option<&'a str>,
    pub row: &'a TaskRow,
    pub row_id: &'a RowId,
    pub payload: &'a Payload,
    /// Name of the selection objective.
    pub deciding: &'a str,
}

/// Result of comparing the row and candidate in a reply with the expected ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IdentityCheck {
    /// The reply names the expected row.
    Confirmed,
    /// The reply does not name a row.
    Absent,
    /// The reply names another rollout, row or candidate; the text says which.
    Contradicted(String),
}

/// The answer of a completed rollout, and whether it belongs to the expected row.
#[derive(Debug, Clone, PartialEq)]
pub struct RolloutReply {
    pub answer: RolloutAnswer,
    pub identity: IdentityCheck,
}

/// Reads the answer from a record. A `null` counts as missing everywhere.
///
/// The caller sets `cached` and the trace digest of the answer.
pub fn read_reply(record: Box<RolloutRecord>, expected: &ExpectedRollout<'_>) -> Result<RolloutReply, CallFailure> {
    let usage = usage(&record.usage);
    read(&record, expected, usage).map_err(|failure| CallFailure { usage, ..failure })
}

fn read(record: &RolloutRecord, expected: &ExpectedRollout<'_>, usage: Usage) -> Result<RolloutReply, CallFailure> {
    check_status(record)?;
    let (no_info, no_part) = (RewardInfo::default(), RecordSection::default());
    let info = record.reward_info.as_ref();
    let RewardInfo { outcome_reward, score, details } = info.unwrap_or(&no_info);
    let details = details.as_ref().unwrap_or(&no_part);
    let summary = record.summary.as_ref().unwrap_or(&no_part);
    let metadata = record.metadata.as_ref().unwrap_or(&no_part);
    let trace = record.trace.as_ref().and_then(|trace| trace.metadata.as_ref()).unwrap_or(&no_part);
    let rewards = [
        ("reward_info.outcome_reward", outcome_reward),
        ("reward_info.score", score),
        ("summary.outcome_reward", &summary.outcome_reward),
        ("reward", &record.reward),
    ];
    let reward = reward(rewards, info.is_some())?;
    let places = [
        ("objective_scores", &record.objective_scores),
        ("metadata.objective_scores", &metadata.objective_scores),
        ("reward_info.details.objective_scores", &details.objective_scores),
    ];
    let objectives = objectives(places, reward, expected.deciding)?;
    let identity = check_identity(expected, record, &metadata.candidate, [summary, details, trace]);
    Ok(RolloutReply {
        answer: RolloutAnswer { reward, objectives, usage, cached: false, trace_digest: None },
        identity,
    })
}

/// Fails unless the rollout succeeded. The reward of a rollout with another status is ignored.
fn check_status(record: &RolloutRecord) -> Result<(), CallFailure> {
    let word = || record.status_entry().map(describe_value).unwrap_or_default();
    match record.status()? {
        RolloutStatus::Succeeded | RolloutStatus::Absent => Ok(()),
        RolloutStatus::Active => {
            let message = format!("the rollout has not ended: its status is {}", word());
            Err(failure(FailureClass::Contract, message))
        }
        RolloutStatus::Failed => {
            let reasons = [&record.status_detail, &record.detail, &record.error];
            let reason =
                reasons.into_iter().map(describe_value).find(|reason| !matches!(reason.as_str(), "null" | "(empty)"));
            let message = reason.map_or_else(word, |reason| format!("{}: {reason}", word()));
            Err(failure(FailureClass::Failed, message))
        }
    }
}

/// Returns the first number in reading order. A NaN in Python becomes a null in `reward_info`; then the number that
/// some containers keep in the summary must not replace it.
fn reward(places: [(&str, &Value); 4], has_info: bool) -> Result<f64, CallFailure> {
    let Some((place, value)) = places.into_iter().find(|(_, value)| value.is_number()) else {
        let met = places.into_iter().find(|(_, value)| !value.is_null());
        let message = match met {
            Some((place, value)) => format!("{place} is {}, not a number", describe_value(value)),
            None => "the reply has no reward".to_owned(),
        };
        return Err(failure(FailureClass::InvalidScore, message));
    };
    let [(first, outcome), ..] = places;
    if has_info && matches!(place, "summary.outcome_reward" | "reward") {
        let message = format!(
            "{first} is {} and {place} is {}: the score is ambiguous",
            describe_value(outcome),
            describe_value(value)
        );
        return Err(failure(FailureClass::InvalidScore, message));
    }
    finite(|| place.to_owned(), value)
}

/// Returns the scores by objective from the first place that has any. Adds the selection objective if it is missing,
/// unless it is the reward itself.
fn objectives(places: [(&str, &Value); 3], reward: f64, deciding: &str) -> Result<BTreeMap<String, f64>, CallFailure> {
    let mut scores = BTreeMap::new();
    if let Some((place, value)) = places.into_iter().find(|(_, value)| !value.is_null()) {
        let Value::Array(entries) = value else {
            return Err(failure(FailureClass::Contract, format!("{place} is {}, not a list", describe_value(value))));
        };
        for (index, entry) in entries.iter().enumerate() {
            let name = entry.get("objective").and_then(Value::as_str).map(str::trim).filter(|name| !name.is_empty());
            let Some(name) = name else {
                return Err(failure(FailureClass::Contract, format!("{place}[{index}] has no objective")));
            };
            let value = entry.get("value").unwrap_or(&Value::Null);
            let value = finite(|| format!("{place}[{index}].value ({name})"), value)?;
            if scores.insert(name.to_owned(), value).is_some() {
                return Err(failure(FailureClass::Contract, format!("{place}[{index}] repeats {name:?}")));
            }
        }
    }
    if deciding != OUTCOME_REWARD {
        scores.entry(deciding.to_owned()).or_insert(reward);
    }
    Ok(scores)
}

/// Reads tokens and cost. A cost of 0.0 next to tokens counts as unknown: containers write it when they have no prices.
fn usage(reported: &Value) -> Usage {
    let tokens = |names: &[&str]| names.iter().find_map(|name| reported.get(name)?.as_u64());
    let usage = Usage {
        prompt_tokens: tokens(&["prompt_tokens", "input_tokens", "promptTokens", "inputTokens"]),
        completion_tokens: tokens(&["completion_tokens", "output_tokens", "completionTokens", "outputTokens"]),
        total_tokens: tokens(&["total_tokens", "totalTokens"]),
        cost: Cost::Unknown,
    };
    let cost = reported.get("cost_usd").and_then(Value::as_f64);
    let is_free_of_tokens = usage.total() == Some(0);
    let cost = cost.filter(|cost| *cost > 0.0 || is_free_of_tokens);
    Usage { cost: Cost::from_usd(cost), ..usage }
}

fn finite(place: impl FnOnce() -> String, value: &Value) -> Result<f64, CallFailure> {
    value.as_f64().filter(|number| number.is_finite()).ok_or_else(|| {
        failure(FailureClass::InvalidScore, format!("{} is {}, not a finite number", place(), describe_value(value)))
    })
}

/// Compares the row and candidate in a reply with the expected ones, because some containers answer an unknown row with
/// a default one. `parts` are the summary, the reward details and the trace metadata.
fn check_identity(
    expected: &ExpectedRollout<'_>,
    record: &RolloutRecord,
    candidate: &Value,
    parts: [&RecordSection; 3],
) -> IdentityCheck {
    if let (Some(expected), Some(met)) = (expected.rollout_id, text_of(&record.rollout_id))
        && met != expected
    {
        let met = describe_value(&record.rollout_id);
        return IdentityCheck::Contradicted(format!("the reply belongs to rollout {met}, not to {expected}"));
    }
    if let Some(field) = changed_field(expected, candidate) {
        return IdentityCheck::Contradicted(format!("metadata.candidate.{field} differs from the text that was sent"));
    }
    let top = [&record.seed, &record.example_id, &record.task_instance_id];
    let [summary, details, trace] = parts.map(|part| [&part.seed, &part.example_id, &part.task_instance_id]);
    let mut confirmed = false;
    for (place, values) in
        [("the reply", top), ("summary", summary), ("reward_info.details", details), ("trace.metadata", trace)]
    {
        for (key, met) in ROW_KEYS.into_iter().zip(values) {
            let Some(met) = text_of(met) else { continue };
            let Some(wanted) = expected.row.value.get(key).and_then(text_of) else { continue };
            if wanted != met {
                let (wanted, met) = (describe_value(&(*wanted).into()), describe_value(&(*met).into()));
                let row = expected.row_id;
                return IdentityCheck::Contradicted(format!("{key} in {place} is {met}, but row {row} has {wanted}"));
            }
            confirmed = true;
        }
    }
    let task = expected.row.value.get("task_id").and_then(text_of);
    let by_task = parts.into_iter().any(|part| task.is_some() && text_of(&part.task_id) == task);
    if confirmed || by_task { IdentityCheck::Confirmed } else { IdentityCheck::Absent }
}

/// Returns the first field whose echoed text differs from the text that was sent. Ignores fields that were not sent.
fn changed_field<'a>(expected: &ExpectedRollout<'a>, echoed: &Value) -> Option<&'a str> {
    expected.payload.iter().find_map(|(field, sent)| {
        let met = echoed.get(field)?.as_str()?;
        (met.trim() != sent.trim()).then_some(field.as_str())
    })
}

/// Returns an identifier as text, so that 1, 1.0 and "1" identify the same row.
fn text_of(value: &Value) -> Option<Cow<'_, str>> {
    match value {
        Value::String(text) if !text.trim().is_empty() => Some(text.trim().into()),
        Value::Number(_) => Some(canonical_json(value).into()),
        Value::String(_) | Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    }
}

#[cfg(test)]
#[path = "record_tests.rs"]
mod tests;

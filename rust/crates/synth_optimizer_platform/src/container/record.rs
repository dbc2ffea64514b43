//! A rollout record as a container gave it, read once, and against what was asked: status before reward, no score that is
//! not a number, and whose row it was.
//!
//! Everything that is not read, the trace above all, is skipped without being built.

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
use crate::http::{excerpt, shown_value};
use synth_optimizer_core::config::gepa::OUTCOME_REWARD;
use synth_optimizer_core::model::answer::{CallFailure, FailureClass, RolloutAnswer};
use synth_optimizer_core::model::canonical::canonical_json;
use synth_optimizer_core::model::ids::{Payload, RowId};
use synth_optimizer_core::model::usage::{Cost, Usage};

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
    summary: Option<Part>,
    usage: Value,
    #[serde(deserialize_with = "object")]
    trace: Option<Trace>,
    #[serde(deserialize_with = "object")]
    metadata: Option<Part>,
    seed: Value,
    example_id: Value,
    task_instance_id: Value,
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

    fn status_entry(&self) -> Option<&Value> {
        [&self.status, &self.state, &self.phase, &self.success_status].into_iter().find(|entry| !entry.is_null())
    }

    /// Whether the record belongs to another rollout.
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
    details: Option<Part>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Trace {
    #[serde(deserialize_with = "object")]
    metadata: Option<Part>,
}

/// Any of the free objects of a record.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Part {
    outcome_reward: Value,
    objective_scores: Value,
    seed: Value,
    example_id: Value,
    task_instance_id: Value,
    task_id: Value,
    candidate: Value,
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

/// Keys that name the row itself. `task_id` may be the task family, so it can confirm but not contradict.
const ROW_KEYS: [&str; 3] = ["seed", "example_id", "task_instance_id"];

/// What the rollout was asked to run.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    /// Unset for an answer out of the cache, which may have been another run's.
    pub rollout_id: Option<&'a str>,
    pub row: &'a TaskRow,
    pub row_id: &'a RowId,
    pub payload: &'a Payload,
    /// The deciding objective.
    pub deciding: &'a str,
}

/// What the reply says about which row and candidate it belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Echo {
    /// It names the row that was asked for.
    Confirmed,
    /// It does not name a row.
    Absent,
    /// It names another rollout, row or candidate; the sentence says which.
    Contradicted(String),
}

/// A rollout that ran, and whose it was.
#[derive(Debug, Clone, PartialEq)]
pub struct Reply {
    pub answer: RolloutAnswer,
    pub echo: Echo,
}

/// Reads a record. `null` is the same as absent everywhere.
///
/// The answer is not marked as cached and has no trace digest: both are the caller's to know.
pub fn read_reply(record: Box<Record>, asked: &Asked<'_>) -> Result<Reply, CallFailure> {
    let usage = usage(&record.usage);
    read(&record, asked, usage).map_err(|failure| CallFailure { usage, ..failure })
}

fn read(record: &Record, asked: &Asked<'_>, usage: Usage) -> Result<Reply, CallFailure> {
    check_status(record)?;
    let (no_info, no_part) = (RewardInfo::default(), Part::default());
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
    let objectives = objectives(places, reward, asked.deciding)?;
    let echo = compare(asked, record, &metadata.candidate, [summary, details, trace]);
    Ok(Reply { answer: RolloutAnswer { reward, objectives, usage, cached: false, trace_digest: None }, echo })
}

/// Only a rollout that came to a good end has a score, whatever reward stands beside another status.
fn check_status(record: &Record) -> Result<(), CallFailure> {
    let word = || record.status_entry().map(shown_value).unwrap_or_default();
    match record.status()? {
        Status::Succeeded | Status::Absent => Ok(()),
        Status::Active => {
            let message = format!("the rollout is not at its end: its status is {}", word());
            Err(failure(FailureClass::Contract, message))
        }
        Status::Failed => {
            let reasons = [&record.status_detail, &record.detail, &record.error];
            let reason =
                reasons.into_iter().map(shown_value).find(|reason| !matches!(reason.as_str(), "null" | "(empty)"));
            let message = reason.map_or_else(word, |reason| format!("{}: {reason}", word()));
            Err(failure(FailureClass::Failed, message))
        }
    }
}

/// The first number in reading order. A NaN in Python becomes a null in `reward_info`; the number that some containers
/// keep in the summary must then not stand in for it.
fn reward(places: [(&str, &Value); 4], has_info: bool) -> Result<f64, CallFailure> {
    let Some((place, value)) = places.into_iter().find(|(_, value)| value.is_number()) else {
        let met = places.into_iter().find(|(_, value)| !value.is_null());
        let message = match met {
            Some((place, value)) => format!("{place} is {}, not a number", shown_value(value)),
            None => "the reply has no reward".to_owned(),
        };
        return Err(failure(FailureClass::InvalidScore, message));
    };
    let [(first, outcome), ..] = places;
    if has_info && matches!(place, "summary.outcome_reward" | "reward") {
        let message = format!(
            "{first} is {}, while {place} is {}: the score is not certain",
            shown_value(outcome),
            shown_value(value)
        );
        return Err(failure(FailureClass::InvalidScore, message));
    }
    finite(|| place.to_owned(), value)
}

/// The scores by objective, from the first place that has any. The deciding objective is always among them, unless it is
/// the reward itself.
fn objectives(places: [(&str, &Value); 3], reward: f64, deciding: &str) -> Result<BTreeMap<String, f64>, CallFailure> {
    let mut scores = BTreeMap::new();
    if let Some((place, value)) = places.into_iter().find(|(_, value)| !value.is_null()) {
        let Value::Array(entries) = value else {
            return Err(failure(FailureClass::Contract, format!("{place} is {}, not a list", shown_value(value))));
        };
        for (index, entry) in entries.iter().enumerate() {
            let name = entry.get("objective").and_then(Value::as_str).map(str::trim).filter(|name| !name.is_empty());
            let Some(name) = name else {
                return Err(failure(FailureClass::Contract, format!("{place}[{index}] names no objective")));
            };
            let value = entry.get("value").unwrap_or(&Value::Null);
            let value = finite(|| format!("{place}[{index}].value ({name})"), value)?;
            if scores.insert(name.to_owned(), value).is_some() {
                return Err(failure(FailureClass::Contract, format!("{place}[{index}] names {name:?} a second time")));
            }
        }
    }
    if deciding != OUTCOME_REWARD {
        scores.entry(deciding.to_owned()).or_insert(reward);
    }
    Ok(scores)
}

/// Tokens and cost. Containers write a cost of 0.0 beside tokens when nobody has priced them.
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
        failure(FailureClass::InvalidScore, format!("{} is {}, not a finite number", place(), shown_value(value)))
    })
}

/// Compares what a reply says about its row and candidate with what was asked for: some containers answer an unknown row
/// with a default one. `parts` are the summary, the details of the reward and the metadata of the trace.
fn compare(asked: &Asked<'_>, record: &Record, candidate: &Value, parts: [&Part; 3]) -> Echo {
    if let (Some(asked), Some(met)) = (asked.rollout_id, text_of(&record.rollout_id))
        && met != asked
    {
        let met = shown_value(&record.rollout_id);
        return Echo::Contradicted(format!("the reply is of rollout {met}, not of {asked}"));
    }
    if let Some(field) = changed_field(asked, candidate) {
        return Echo::Contradicted(format!("metadata.candidate.{field} is not the text that was sent"));
    }
    let top = [&record.seed, &record.example_id, &record.task_instance_id];
    let [summary, details, trace] = parts.map(|part| [&part.seed, &part.example_id, &part.task_instance_id]);
    let mut confirmed = false;
    for (place, values) in
        [("the reply", top), ("summary", summary), ("reward_info.details", details), ("trace.metadata", trace)]
    {
        for (key, met) in ROW_KEYS.into_iter().zip(values) {
            let Some(met) = text_of(met) else { continue };
            let Some(wanted) = asked.row.value.get(key).and_then(text_of) else { continue };
            if wanted != met {
                let (wanted, met) = (shown_value(&(*wanted).into()), shown_value(&(*met).into()));
                let row = asked.row_id;
                return Echo::Contradicted(format!("{key} in {place} is {met}, but row {row} has {wanted}"));
            }
            confirmed = true;
        }
    }
    let task = asked.row.value.get("task_id").and_then(text_of);
    let by_task = parts.into_iter().any(|part| task.is_some() && text_of(&part.task_id) == task);
    if confirmed || by_task { Echo::Confirmed } else { Echo::Absent }
}

/// The first field of the echoed candidate that is not what was sent. Fields that were not sent are the container's own.
fn changed_field<'a>(asked: &Asked<'a>, echoed: &Value) -> Option<&'a str> {
    asked.payload.iter().find_map(|(field, sent)| {
        let met = echoed.get(field)?.as_str()?;
        (met.trim() != sent.trim()).then_some(field.as_str())
    })
}

/// Names are compared as text: 1, 1.0 and "1" name the same row.
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

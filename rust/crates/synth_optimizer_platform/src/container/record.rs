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
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use super::contract::TaskRow;
use crate::http::{describe_value, excerpt};
use crate::json_text::{Alterations, normalize};
use crate::model_name::is_same_model;
use synth_optimizer_core::config::gepa::OUTCOME_REWARD;
use synth_optimizer_core::model::answer::{CallFailure, FailureClass, RolloutAnswer};
use synth_optimizer_core::model::canonical::{CONTENT_ID_DIGITS, canonical_json};
use synth_optimizer_core::model::ids::{CandidateId, Payload, RowId};
use synth_optimizer_core::model::score::MAX_REWARD;
use synth_optimizer_core::model::usage::{Cost, Usage, UsageReader};

/// A response body from a container and the record in it.
#[derive(Debug)]
pub struct ReceivedRecord {
    /// The body in a form that every later reader accepts.
    pub body: Bytes,
    /// What was changed in the body.
    pub altered: Option<Alterations>,
    pub record: Result<Box<RolloutRecord>, CallFailure>,
}

impl ReceivedRecord {
    /// Reads a body once, when it arrives.
    pub fn read(body: Bytes) -> Self {
        let (body, altered) = match normalize(&body) {
            None => (body, None),
            Some((text, altered)) => (Bytes::from(text), Some(altered)),
        };
        // A derived `Deserialize` would also accept a JSON list as the fields in order.
        let mut json = serde_json::Deserializer::from_slice(&body);
        let record =
            match lenient::<_, Option<Box<RolloutRecord>>>(&mut json).and_then(|record| json.end().map(|()| record)) {
                Ok(Some(record)) => Ok(record),
                Ok(None) => {
                    Err(failure(FailureClass::Contract, format!("the reply is not a JSON object: {}", excerpt(&body))))
                }
                Err(_) => Err(failure(FailureClass::Contract, format!("the reply is not JSON: {}", excerpt(&body)))),
            };
        Self { body, altered, record }
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
    #[serde(deserialize_with = "lenient")]
    reward_info: Option<RewardInfo>,
    #[serde(deserialize_with = "lenient")]
    objective_scores: ScoreList,
    #[serde(deserialize_with = "lenient")]
    summary: Option<RecordSection>,
    #[serde(deserialize_with = "lenient")]
    usage: Option<BTreeMap<String, Value>>,
    #[serde(deserialize_with = "lenient")]
    trace: Option<RecordTrace>,
    #[serde(deserialize_with = "lenient")]
    metadata: Option<RecordSection>,
    #[serde(deserialize_with = "lenient")]
    policy: Option<RecordPolicy>,
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

    /// Returns tokens and cost, and the values that cannot be true and are refused. A cost of 0.0 next to tokens counts as
    /// unknown: containers write it when they have no prices.
    pub fn reported_usage(&self) -> (Usage, Vec<String>) {
        let mut reader = UsageReader::default();
        let Some(reported) = &self.usage else { return (Usage::default(), Vec::new()) };
        let mut tokens = |names: &[&str]| {
            let met =
                names.iter().find_map(|name| Some((*name, reported.get(*name).filter(|value| !value.is_null())?)));
            met.and_then(|(name, value)| reader.tokens(name, value))
        };
        let usage = Usage {
            prompt_tokens: tokens(&["prompt_tokens", "input_tokens", "promptTokens", "inputTokens"]),
            completion_tokens: tokens(&["completion_tokens", "output_tokens", "completionTokens", "outputTokens"]),
            total_tokens: tokens(&["total_tokens", "totalTokens"]),
            cost: Cost::Unknown,
        };
        let cost = reported.get("cost_usd").and_then(|value| reader.cost("cost_usd", value));
        let is_free_of_tokens = usage.total() == Some(0);
        let cost = cost.filter(|cost| *cost > 0.0 || is_free_of_tokens);
        (Usage { cost: Cost::from_usd(cost), ..usage }, reader.refused)
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
    #[serde(deserialize_with = "lenient")]
    details: Option<RecordSection>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RecordTrace {
    #[serde(deserialize_with = "lenient")]
    metadata: Option<RecordSection>,
}

/// One of the nested objects of a record: `summary`, `metadata`, the reward details or the trace metadata.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RecordSection {
    outcome_reward: Value,
    #[serde(deserialize_with = "lenient")]
    objective_scores: ScoreList,
    seed: Value,
    example_id: Value,
    task_instance_id: Value,
    task_id: Value,
    candidate_id: Value,
    #[serde(deserialize_with = "lenient")]
    candidate: Option<BTreeMap<String, Value>>,
    policy_model: Value,
    #[serde(deserialize_with = "lenient")]
    policy: Option<RecordPolicy>,
}

/// The policy that a container ran, if it reports it.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RecordPolicy {
    model: Value,
}

/// Scores by objective.
#[derive(Debug, Default)]
enum ScoreList {
    #[default]
    Missing,
    /// The entries of a list. An entry that is no object is `None`.
    Entries(Vec<Option<ObjectiveScore>>),
    /// A value that is no list.
    Other(Value),
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ObjectiveScore {
    objective: Value,
    value: Value,
}

/// Deserializes a value of any kind.
fn lenient<'de, D: Deserializer<'de>, T: Lenient<'de>>(deserializer: D) -> Result<T, D::Error> {
    deserializer.deserialize_any(LenientVisitor(PhantomData))
}

/// A type that is read from a value of any kind.
trait Lenient<'de>: Sized {
    fn from_map<A: MapAccess<'de>>(map: A) -> Result<Self, A::Error>;
    fn from_list<A: SeqAccess<'de>>(items: A) -> Result<Self, A::Error>;
    fn from_scalar(value: Value) -> Self;
}

/// An object. Every other kind of value is `None`.
impl<'de, T: Deserialize<'de>> Lenient<'de> for Option<T> {
    fn from_map<A: MapAccess<'de>>(map: A) -> Result<Self, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(Some)
    }

    fn from_list<A: SeqAccess<'de>>(mut items: A) -> Result<Self, A::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(None)
    }

    fn from_scalar(_: Value) -> Self {
        None
    }
}

impl<'de> Lenient<'de> for ScoreList {
    fn from_map<A: MapAccess<'de>>(map: A) -> Result<Self, A::Error> {
        Value::deserialize(MapAccessDeserializer::new(map)).map(Self::Other)
    }

    fn from_list<A: SeqAccess<'de>>(mut items: A) -> Result<Self, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = items.next_element_seed(LenientVisitor(PhantomData))? {
            entries.push(entry);
        }
        Ok(Self::Entries(entries))
    }

    fn from_scalar(value: Value) -> Self {
        if value.is_null() { Self::Missing } else { Self::Other(value) }
    }
}

struct LenientVisitor<T>(PhantomData<T>);

macro_rules! scalars {
    ($($visit:ident: $type:ty),+) => {
        $(fn $visit<E>(self, value: $type) -> Result<T, E> {
            Ok(T::from_scalar(value.into()))
        })+
    };
}

impl<'de, T: Lenient<'de>> DeserializeSeed<'de> for LenientVisitor<T> {
    type Value = T;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<T, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, T: Lenient<'de>> Visitor<'de> for LenientVisitor<T> {
    type Value = T;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("anything")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
        T::from_map(map)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<T, A::Error> {
        T::from_list(items)
    }

    scalars!(visit_bool: bool, visit_i64: i64, visit_u64: u64, visit_f64: f64, visit_str: &str);

    fn visit_unit<E>(self) -> Result<T, E> {
        Ok(T::from_scalar(Value::Null))
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
    pub candidate_id: &'a CandidateId,
    pub payload: &'a Payload,
    /// The policy as it was sent.
    pub policy: &'a Value,
    /// Name of the selection objective.
    pub deciding: &'a str,
}

/// Result of comparing the row, candidate and policy in a reply with the expected ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IdentityCheck {
    /// The reply names the expected row.
    Confirmed,
    /// The reply does not name a row.
    Absent,
    /// The reply names another rollout, row, candidate or model; the text says which.
    Contradicted(String),
}

/// The answer of a completed rollout, and whether it belongs to the expected rollout.
#[derive(Debug, Clone, PartialEq)]
pub struct RolloutReply {
    pub answer: RolloutAnswer,
    pub identity: IdentityCheck,
}

/// Reads the answer from a record. A `null` counts as missing everywhere.
///
/// The caller sets `cached` and the trace digest of the answer.
pub fn read_reply(record: Box<RolloutRecord>, expected: &ExpectedRollout<'_>) -> Result<RolloutReply, CallFailure> {
    let usage = record.reported_usage().0;
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
    let identity = check_identity(expected, record, [summary, details, trace, metadata]);
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

/// Returns the first number in reading order. A NaN in Python becomes a null in `reward_info` or the text `NaN`; then the
/// number that some containers keep elsewhere must not replace it.
fn reward(places: [(&str, &Value); 4], has_info: bool) -> Result<f64, CallFailure> {
    let names_no_finite_number =
        |value: &Value| value.as_str().is_some_and(|text| text.parse().is_ok_and(|number: f64| !number.is_finite()));
    let is_met = |value: &Value| value.is_number() || names_no_finite_number(value);
    let Some((place, value)) = places.into_iter().find(|(_, value)| is_met(value)) else {
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
fn objectives(
    places: [(&str, &ScoreList); 3],
    reward: f64,
    deciding: &str,
) -> Result<BTreeMap<String, f64>, CallFailure> {
    let mut scores = BTreeMap::new();
    for (place, list) in places {
        let entries = match list {
            ScoreList::Missing => continue,
            ScoreList::Entries(entries) => entries,
            ScoreList::Other(value) => {
                let message = format!("{place} is {}, not a list", describe_value(value));
                return Err(failure(FailureClass::Contract, message));
            }
        };
        for (index, entry) in entries.iter().enumerate() {
            let named = entry.as_ref().and_then(|entry| Some((entry.objective.as_str()?.trim(), &entry.value)));
            let Some((name, value)) = named.filter(|(name, _)| !name.is_empty()) else {
                return Err(failure(FailureClass::Contract, format!("{place}[{index}] has no objective")));
            };
            let value = finite(|| format!("{place}[{index}].value ({name})"), value)?;
            if scores.insert(name.to_owned(), value).is_some() {
                return Err(failure(FailureClass::Contract, format!("{place}[{index}] repeats {name:?}")));
            }
        }
        break;
    }
    if deciding != OUTCOME_REWARD {
        scores.entry(deciding.to_owned()).or_insert(reward);
    }
    Ok(scores)
}

/// Returns a score whose sums and squares over all rows are finite.
fn finite(place: impl FnOnce() -> String, value: &Value) -> Result<f64, CallFailure> {
    value.as_f64().filter(|number| number.abs() <= MAX_REWARD).ok_or_else(|| {
        let expected = format!("a finite number from -{MAX_REWARD:e} to {MAX_REWARD:e}");
        failure(FailureClass::InvalidScore, format!("{} is {}, not {expected}", place(), describe_value(value)))
    })
}

/// Compares the rollout, candidate, model and row in a reply with the expected ones, because some containers answer an
/// unknown row with a default one, or a known id with a stored record. `parts` are the summary, the reward details, the
/// trace metadata and the metadata.
fn check_identity(expected: &ExpectedRollout<'_>, record: &RolloutRecord, parts: [&RecordSection; 4]) -> IdentityCheck {
    if let (Some(expected), Some(met)) = (expected.rollout_id, text_of(&record.rollout_id))
        && met != expected
    {
        let met = describe_value(&record.rollout_id);
        return IdentityCheck::Contradicted(format!("the reply belongs to rollout {met}, not to {expected}"));
    }
    let [.., metadata] = parts;
    if let Some(field) = metadata.candidate.as_ref().and_then(|echoed| changed_field(expected, echoed)) {
        return IdentityCheck::Contradicted(format!("metadata.candidate.{field} differs from the text that was sent"));
    }
    if let Some(met) = parts.into_iter().find_map(|part| other_candidate(expected.candidate_id, &part.candidate_id)) {
        let asked = expected.candidate_id;
        return IdentityCheck::Contradicted(format!("the reply belongs to candidate {met}, not to {asked}"));
    }
    let policies = [record.policy.as_ref(), metadata.policy.as_ref()].into_iter().flatten().map(|policy| &policy.model);
    let models = parts.into_iter().map(|part| &part.policy_model).chain(policies).filter_map(Value::as_str);
    if let Some(asked) = expected.policy["model"].as_str()
        && let Some(met) = models.into_iter().find(|met| !met.trim().is_empty() && !is_same_model(asked, met))
    {
        let met = describe_value(&met.into());
        return IdentityCheck::Contradicted(format!("the reply is of model {met}, but the policy has {asked}"));
    }
    let top = [&record.seed, &record.example_id, &record.task_instance_id];
    let [summary, details, trace, _] = parts.map(|part| [&part.seed, &part.example_id, &part.task_instance_id]);
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
    let by_task = parts[..3].iter().any(|part| task.is_some() && text_of(&part.task_id) == task);
    if confirmed || by_task { IdentityCheck::Confirmed } else { IdentityCheck::Absent }
}

/// Returns the first field whose echoed text differs from the text that was sent. Ignores fields that were not sent.
fn changed_field<'a>(expected: &ExpectedRollout<'a>, echoed: &BTreeMap<String, Value>) -> Option<&'a str> {
    expected.payload.iter().find_map(|(field, sent)| {
        let met = echoed.get(field)?.as_str()?;
        (met.trim() != sent.trim()).then_some(field.as_str())
    })
}

/// Returns the candidate id in a reply if it is one of ours and not the expected one. Other ids are the container's own.
fn other_candidate<'a>(expected: &CandidateId, met: &'a Value) -> Option<&'a str> {
    fn prefix(id: &str) -> Option<&str> {
        id.get(..id.len().checked_sub(CONTENT_ID_DIGITS)?)
    }
    let (met, asked) = (met.as_str()?, expected.as_str());
    (met != asked && met.len() == asked.len() && prefix(met)? == prefix(asked)?).then_some(met)
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

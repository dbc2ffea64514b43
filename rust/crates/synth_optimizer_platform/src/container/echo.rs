//! Compares what a reply says about its row and candidate with what was asked for: some containers answer an unknown row
//! with a default one.

use std::borrow::Cow;

use serde_json::{Number, Value};

use super::leaf::{Fields, Leaf};
use super::record::{Part, Record};
use super::reply::{Asked, Echo};
use crate::http::shown_value;
use crate::model::canonical::canonical_json;

/// Keys that name the row itself. `task_id` may be the task family, so it can confirm but not contradict.
const ROW_KEYS: [&str; 3] = ["seed", "example_id", "task_instance_id"];

/// Where a reply may name its row.
#[derive(Debug)]
pub(super) struct Places<'a> {
    pub(super) record: &'a Record<'a>,
    pub(super) summary: &'a Part<'a>,
    pub(super) details: &'a Part<'a>,
    pub(super) trace: &'a Part<'a>,
    pub(super) candidate: Option<&'a Fields<'a>>,
}

pub(super) fn compare(asked: &Asked<'_>, places: &Places<'_>) -> Echo {
    if let (Some(asked), Some(met)) = (asked.rollout_id, name_of(&places.record.rollout_id))
        && met != asked
    {
        let met = places.record.rollout_id.shown();
        return Echo::Contradicted(format!("the reply is of rollout {met}, not of {asked}"));
    }
    if let Some(field) = changed_field(asked, places.candidate) {
        return Echo::Contradicted(format!("metadata.candidate.{field} is not the text that was sent"));
    }
    let record = places.record;
    let top = [&record.seed, &record.example_id, &record.task_instance_id];
    let mut confirmed = false;
    for (place, values) in [
        ("the reply", top),
        ("summary", row_values(places.summary)),
        ("reward_info.details", row_values(places.details)),
        ("trace.metadata", row_values(places.trace)),
    ] {
        for (key, met) in ROW_KEYS.into_iter().zip(values) {
            let Some(met) = name_of(met) else { continue };
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
    let by_task = [places.summary, places.details, places.trace]
        .into_iter()
        .any(|part| task.is_some() && name_of(&part.task_id) == task);
    if confirmed || by_task { Echo::Confirmed } else { Echo::Absent }
}

fn row_values<'p, 'a>(part: &'p Part<'a>) -> [&'p Leaf<'a>; 3] {
    [&part.seed, &part.example_id, &part.task_instance_id]
}

/// The first field of the echoed candidate that is not what was sent. Fields that were not sent are the container's own.
fn changed_field<'a>(asked: &Asked<'a>, echoed: Option<&Fields<'_>>) -> Option<&'a str> {
    let echoed = echoed?;
    asked.payload.iter().find_map(|(field, sent)| {
        let met = echoed.get(field)?.as_str()?;
        (met.trim() != sent.trim()).then_some(field.as_str())
    })
}

/// Names are compared as text: 1, 1.0 and "1" name the same row.
fn text_of(value: &Value) -> Option<Cow<'_, str>> {
    match value {
        Value::String(text) if !text.trim().is_empty() => Some(text.trim().into()),
        Value::Number(number) => Some(number_text(number)),
        Value::String(_) | Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    }
}

/// The same for what a reply says.
fn name_of<'l>(leaf: &'l Leaf<'_>) -> Option<Cow<'l, str>> {
    match leaf {
        Leaf::Text(text) if !text.trim().is_empty() => Some(text.trim().into()),
        Leaf::Number(number) => Some(number_text(number)),
        Leaf::Text(_) | Leaf::Null | Leaf::Bool(_) | Leaf::List(_) | Leaf::Object(_) => None,
    }
}

fn number_text(number: &Number) -> Cow<'static, str> {
    canonical_json(&Value::Number(number.clone())).into()
}

//! Checks the rows that a container gives: as many as asked for, each with an identity of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::contract::TaskRow;
use super::screen::credential_place;
use super::seeds::{Name, Wanted};
use crate::http::shown_value;
use synth_optimizer_core::model::canonical::{canonical_json, digest};
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::ids::RowId;
use synth_optimizer_core::model::program::Row;

/// The body that asks for the rows of a split.
pub(super) fn rows_request(wanted: &Wanted, filters: &BTreeMap<String, Value>) -> Value {
    let name = |name: &Name| match name {
        Name::Seed(seed) => json!(seed),
        Name::Id(id, _) => json!(id),
    };
    let names: Vec<Value> = wanted.names.iter().map(name).collect();
    let key = if wanted.is_by_id() { "task_ids" } else { "seeds" };
    json!({ "split": wanted.split, key: names, "filters": filters })
}

/// The rows of a reply, in the order in which they were asked for.
pub(super) fn read_rows(route: &str, wanted: &Wanted, reply: Value) -> Result<Vec<(RowId, TaskRow)>, OptimizerError> {
    let (key, asked) = (if wanted.is_by_id() { "tasks" } else { "rows" }, wanted.names.len());
    let place = format!("{key} of POST {route} (split {:?})", wanted.split);
    let list = match reply {
        Value::Object(mut reply) => reply.remove(key).unwrap_or_default(),
        _ => Value::Null,
    };
    let Value::Array(list) = list else { return Err(broken(format!("{place} is no list"))) };
    if list.len() != asked {
        return Err(broken(format!("{place} has {} entries, but {asked} were asked for", list.len())));
    }
    let mut rows = Vec::with_capacity(asked);
    for (index, (value, name)) in list.into_iter().zip(&wanted.names).enumerate() {
        let Value::Object(object) = &value else {
            return Err(broken(format!("{place}: entry {index} is {}, not an object", shown_value(&value))));
        };
        if let Some(found) = credential_place(&format!("{key}[{index}]"), &value) {
            return Err(broken(format!("{found} in the reply of POST {route} has the name of a credential"))
                .with_hint("Keys stay in the container's environment; rename the field if it holds none."));
        }
        let (id, requested) = match name {
            Name::Seed(seed) => (dataset_identity(object, &wanted.split, *seed), Some(*seed)),
            Name::Id(asked, seed) => match task_identity(object, asked) {
                Ok(id) => (id, *seed),
                Err(met) => {
                    return Err(broken(format!("{place}: entry {index} is {met}, but {asked:?} was asked for")));
                }
            },
        };
        let seed = object.get("seed").and_then(Value::as_i64).or(requested);
        let digest = digest(&value);
        rows.push((RowId::new(&id), TaskRow { value, digest, seed }));
    }
    check_unique(&place, wanted, &rows)?;
    check_order(&place, wanted, &rows)?;
    Ok(rows)
}

/// All rows by id; a row may not be in train and held-out.
pub(super) fn join_splits(
    train: Vec<(RowId, TaskRow)>,
    heldout: Vec<(RowId, TaskRow)>,
) -> Result<BTreeMap<RowId, Arc<TaskRow>>, OptimizerError> {
    let mut rows: BTreeMap<RowId, Arc<TaskRow>> = BTreeMap::new();
    let nameless: BTreeSet<String> =
        train.iter().filter(|(_, row)| is_nameless(&row.value)).map(|(_, row)| row.digest.clone()).collect();
    rows.extend(train.into_iter().map(|(id, row)| (id, Arc::new(row))));
    for (id, row) in heldout {
        if rows.contains_key(&id) || (is_nameless(&row.value) && nameless.contains(&row.digest)) {
            return Err(broken(format!("row {:?} is both a train row and a held-out row", id.as_str()))
                .with_hint("Held-out rows measure what the search has not seen: choose other seeds, ids or splits."));
        }
        rows.insert(id, Arc::new(row));
    }
    Ok(rows)
}

/// What the search needs to know of a row.
pub(super) fn search_row(id: &RowId, row: &TaskRow, stratum_path: &str) -> Row {
    let mut texts = Vec::new();
    collect_texts(&row.value, &mut texts);
    Row { id: id.clone(), stratum: stratum(&row.value, stratum_path), texts }
}

const DATASET_KEYS: [&str; 3] = ["example_id", "id", "task_instance_id"];
const TASK_KEYS: [&str; 4] = ["task_id", "task_instance_id", "example_id", "id"];

/// The row's own name, else its split and seed. A row that says nothing is named by what was asked for.
fn dataset_identity(row: &Map<String, Value>, split: &str, requested: i64) -> String {
    DATASET_KEYS.iter().find_map(|key| name(row, key)).unwrap_or_else(|| {
        let split = name(row, "split").unwrap_or_else(|| split.to_owned());
        format!("{split}:{}", row.get("seed").and_then(Value::as_i64).unwrap_or(requested))
    })
}

/// The task's name, if the task is the one that was asked for; else what it calls itself.
fn task_identity(task: &Map<String, Value>, asked: &str) -> Result<String, String> {
    let names: Vec<String> = TASK_KEYS.iter().filter_map(|key| name(task, key)).collect();
    let place = name(task, "split").zip(name(task, "seed")).map(|(split, seed)| format!("{split}:{seed}"));
    let Some(first) = names.first() else {
        return if place.as_deref() == Some(asked) { Ok(asked.to_owned()) } else { Err("without a task_id".into()) };
    };
    let is_asked = names.iter().chain(place.iter()).any(|name| name == asked);
    if is_asked { Ok(first.clone()) } else { Err(format!("{:?}", shown_value(&Value::from(first.as_str())))) }
}

/// A text or whole number that names something.
fn name(row: &Map<String, Value>, key: &str) -> Option<String> {
    match row.get(key)? {
        Value::String(text) if !text.trim().is_empty() => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::String(_) | Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    }
}

/// Whether nothing in a row tells it from another one but its content.
fn is_nameless(row: &Value) -> bool {
    let Value::Object(row) = row else { return true };
    TASK_KEYS.iter().chain(["seed"].iter()).all(|key| name(row, key).is_none())
}

/// Containers wrap seeds around the number of rows, so that two seeds can give one row.
fn check_unique(place: &str, wanted: &Wanted, rows: &[(RowId, TaskRow)]) -> Result<(), OptimizerError> {
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    for (index, (id, row)) in rows.iter().enumerate() {
        let by_content = is_nameless(&row.value).then_some(row.digest.as_str());
        for key in [Some(id.as_str()), by_content].into_iter().flatten() {
            if let Some(first) = seen.insert(key, index) {
                let (first, second) = (asked_as(wanted, first), asked_as(wanted, index));
                return Err(broken(format!("{place}: {first} and {second} are the same row, {:?}", id.as_str()))
                    .with_hint("The container may have fewer rows than the config names; name every row once."));
            }
        }
    }
    Ok(())
}

/// Pools name rows by their place in the config, so rows that say their seed must stand where it was asked for.
fn check_order(place: &str, wanted: &Wanted, rows: &[(RowId, TaskRow)]) -> Result<(), OptimizerError> {
    for (index, (name, (_, row))) in wanted.names.iter().zip(rows).enumerate() {
        let (Name::Seed(asked), Some(met)) = (name, row.seed) else { continue };
        if met != *asked && wanted.names.iter().any(|name| matches!(name, Name::Seed(other) if *other == met)) {
            let message = format!("{place}: entry {index} has seed {met}, but seed {asked} was asked for");
            return Err(broken(message).with_hint("The rows must come in the order of the seeds."));
        }
    }
    Ok(())
}

/// How a row was asked for, in words.
pub(super) fn asked_as(wanted: &Wanted, index: usize) -> String {
    match &wanted.names[index] {
        Name::Seed(seed) => format!("seed {seed}"),
        Name::Id(id, _) => format!("task {id:?}"),
    }
}

fn stratum(row: &Value, path: &str) -> Option<String> {
    let found = path.split('.').try_fold(row, |value, step| value.get(step))?;
    match found {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => Some(canonical_json(found)),
    }
}

fn collect_texts(value: &Value, texts: &mut Vec<String>) {
    match value {
        Value::String(text) => texts.push(text.clone()),
        Value::Array(items) => items.iter().for_each(|item| collect_texts(item, texts)),
        Value::Object(entries) => entries.values().for_each(|entry| collect_texts(entry, texts)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn broken(message: String) -> OptimizerError {
    OptimizerError::new(ErrorCode::Container, message)
        .with_hint("Compare the container's rows with the seeds or ids of the config.")
}

//! Requests the rows of the task and checks the reply.
//!
//! Rows are requested by row number (seed) or by task id. If the container supports only the other kind, the names of
//! the config are mapped. Every returned row must be the requested one and have a unique identity.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::contract::{Routes, TaskRow};
use super::credential_check::find_credential;
use crate::http::describe_value;
use synth_optimizer_core::config::Config;
use synth_optimizer_core::model::canonical::{canonical_digest, canonical_json};
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::event_fields::RowsMapped;
use synth_optimizer_core::model::ids::RowId;
use synth_optimizer_core::model::program::Row;

/// A request for the rows of one split, in order.
#[derive(Debug, Clone)]
pub(super) struct RowsRequest {
    /// The route that serves rows by this kind of name.
    pub(super) route: String,
    split: String,
    /// All by row number or all by task id.
    pub(super) names: Vec<RowName>,
    filters: BTreeMap<String, Value>,
}

/// The name of a row in a request.
#[derive(Debug, Clone)]
pub(super) enum RowName {
    Seed(i64),
    /// A task id, and the row number from which it was derived, if any.
    Id(String, Option<i64>),
}

impl RowsRequest {
    fn is_by_id(&self) -> bool {
        matches!(self.names.first(), Some(RowName::Id(..)))
    }

    /// Returns a request for a range of these rows.
    pub(super) fn part(&self, places: Range<usize>) -> Self {
        Self { names: self.names[places].to_vec(), ..self.clone() }
    }

    /// Returns the body of the request.
    pub(super) fn request(&self) -> Value {
        let name = |name: &RowName| match name {
            RowName::Seed(seed) => json!(seed),
            RowName::Id(id, _) => json!(id),
        };
        let names: Vec<Value> = self.names.iter().map(name).collect();
        let key = if self.is_by_id() { "task_ids" } else { "seeds" };
        json!({ "split": self.split, key: names, "filters": self.filters })
    }

    /// Describes the name of a row for messages.
    pub(super) fn describe(&self, index: usize) -> String {
        match &self.names[index] {
            RowName::Seed(seed) => format!("seed {seed}"),
            RowName::Id(id, _) => format!("task {id:?}"),
        }
    }
}

/// The row requests of both splits.
#[derive(Debug, Clone)]
pub(super) struct RowPlan {
    pub(super) train: RowsRequest,
    pub(super) heldout: RowsRequest,
    /// Set if row numbers of the config were mapped to task ids.
    pub(super) mapping: Option<RowsMapped>,
}

/// Plans the row requests. `info` is the reply of the dataset or taskset route.
pub(super) fn plan_rows(config: &Config, routes: &Routes, info: &Value) -> Result<RowPlan, OptimizerError> {
    let (splits, filters, ([train, heldout], mapping)) = match (&config.dataset, &config.taskset) {
        (Some(rows), _) => {
            let train = SplitSeeds { name: &rows.train_split, seeds: rows.train_seeds.known(), info };
            let heldout = SplitSeeds { name: &rows.heldout_split, seeds: rows.heldout_seeds.known(), info };
            ([&rows.train_split, &rows.heldout_split], &rows.filters, names_from_seeds(&train, &heldout, routes)?)
        }
        (None, Some(rows)) => {
            let names = |split: &str, ids: &[String], field| match &routes.taskset {
                Some(_) => Ok(ids.iter().map(|id| RowName::Id(id.clone(), None)).collect::<Vec<_>>()),
                None => seeds_from_ids(split, ids, field),
            };
            let train = names(&rows.train_split, rows.train_ids.known(), "taskset.train_ids")?;
            let heldout = names(&rows.heldout_split, rows.heldout_ids.known(), "taskset.heldout_ids")?;
            ([&rows.train_split, &rows.heldout_split], &rows.filters, ([train, heldout], None))
        }
        (None, None) => {
            return Err(OptimizerError::new(ErrorCode::Invariant, "the rows of the configuration were not resolved"));
        }
    };
    let rows_request = |split: &str, names: Vec<RowName>| {
        let pair = if matches!(names.first(), Some(RowName::Id(..))) { &routes.taskset } else { &routes.dataset };
        let (_, route) = pair.as_ref().ok_or_else(|| {
            OptimizerError::new(ErrorCode::Container, "the container advertises no route for these rows")
        })?;
        Ok::<_, OptimizerError>(RowsRequest {
            route: route.clone(),
            split: split.to_owned(),
            names,
            filters: filters.clone(),
        })
    };
    Ok(RowPlan { train: rows_request(splits[0], train)?, heldout: rows_request(splits[1], heldout)?, mapping })
}

/// The names of the train and held-out rows, and the mapping of row numbers to task ids, if there is one.
type NamedRows = ([Vec<RowName>; 2], Option<RowsMapped>);

fn names_from_seeds(
    train: &SplitSeeds<'_>,
    heldout: &SplitSeeds<'_>,
    routes: &Routes,
) -> Result<NamedRows, OptimizerError> {
    let ids = match (&routes.dataset, &routes.taskset) {
        (_, None) => None,
        (None, Some(_)) => Some([train.ids()?, heldout.ids()?]),
        // Derived ids would be a guess. With both dialects, row numbers are exact, so ids are used only if they are
        // listed.
        (Some(_), Some(_)) => match (train.listed_ids(), heldout.listed_ids()) {
            (Some(Ok(train)), Some(Ok(heldout))) => Some([(train, RULE_SPLIT_LIST), (heldout, RULE_SPLIT_LIST)]),
            (_, _) => None,
        },
    };
    let Some([(train_ids, train_rule), (heldout_ids, heldout_rule)]) = ids else {
        let by_seed = |split: &SplitSeeds<'_>| split.seeds.iter().copied().map(RowName::Seed).collect();
        return Ok(([by_seed(train), by_seed(heldout)], None));
    };
    let mapping = RowsMapped {
        // Report one rule: the weaker one if they differ.
        rule: if train_rule == heldout_rule { train_rule } else { RULE_SPLIT_AND_SEED }.to_owned(),
        train: train.seeds.iter().copied().zip(train_ids).collect(),
        heldout: heldout.seeds.iter().copied().zip(heldout_ids).collect(),
    };
    let by_id = |pairs: &[(i64, String)]| pairs.iter().map(|(seed, id)| RowName::Id(id.clone(), Some(*seed))).collect();
    Ok(([by_id(&mapping.train), by_id(&mapping.heldout)], Some(mapping)))
}

const RULE_SPLIT_LIST: &str = "split_list";
const RULE_SPLIT_AND_SEED: &str = "split_and_seed";

/// Row numbers of one split that are mapped to task ids.
struct SplitSeeds<'a> {
    name: &'a str,
    seeds: &'a [i64],
    info: &'a Value,
}

impl SplitSeeds<'_> {
    /// Returns the task ids and the rule that produced them.
    fn ids(&self) -> Result<(Vec<String>, &'static str), OptimizerError> {
        match self.listed_ids() {
            Some(ids) => ids.map(|ids| (ids, RULE_SPLIT_LIST)),
            None => Ok((self.seeds.iter().map(|seed| self.derived_id(*seed)).collect(), RULE_SPLIT_AND_SEED)),
        }
    }

    /// Returns the task ids from the container's list of the split, if it has one. Uses ids of the form `split:seed` if
    /// all of them are listed; otherwise a row number is an index into the list. The two ways are never mixed, so two
    /// row numbers cannot map to the same id.
    fn listed_ids(&self) -> Option<Result<Vec<String>, OptimizerError>> {
        let list = self.info.get("splits")?.get(self.name)?.as_array()?;
        let list: Vec<&str> = list.iter().map(Value::as_str).collect::<Option<_>>()?;
        let known: BTreeSet<&str> = list.iter().copied().collect();
        let by_name: Vec<String> = self.seeds.iter().map(|seed| self.derived_id(*seed)).collect();
        if by_name.iter().all(|id| known.contains(id.as_str())) {
            return Some(Ok(by_name));
        }
        let by_place = |seed: &i64| {
            let id = usize::try_from(*seed).ok().and_then(|place| list.get(place));
            id.map(|id| (*id).to_owned()).ok_or_else(|| {
                let (name, made, length) = (self.name, self.derived_id(*seed), list.len());
                let message = format!(
                    "row number {seed} has no task in split {name:?}: the container lists {length} ids, and none is {made:?}"
                );
                super::container_error(message, format!("Use row numbers below {length}, or list task ids under [taskset]."))
            })
        };
        Some(self.seeds.iter().map(by_place).collect())
    }

    fn derived_id(&self, seed: i64) -> String {
        format!("{}:{seed}", self.name)
    }
}

/// Reads row numbers from ids like `train:3` or `3`, for a container that supports only row numbers.
fn seeds_from_ids(split: &str, ids: &[String], field: &str) -> Result<Vec<RowName>, OptimizerError> {
    let seed = |(index, id): (usize, &String)| {
        let number = id.strip_prefix(split).and_then(|rest| rest.strip_prefix(':')).unwrap_or(id);
        number.trim().parse().map(RowName::Seed).map_err(|error: std::num::ParseIntError| {
            let message = format!("`{field}[{index}]` is {id:?}, but this container has row numbers only");
            super::container_error(message, format!("Write ids like \"{split}:3\", or row numbers under [dataset]."))
                .caused_by(error)
        })
    };
    ids.iter().enumerate().map(seed).collect()
}

/// Reads the rows of a reply in the requested order.
pub(super) fn read_rows(rows_request: &RowsRequest, reply: Value) -> Result<Vec<(RowId, TaskRow)>, OptimizerError> {
    let route = &rows_request.route;
    let (key, asked) = (if rows_request.is_by_id() { "tasks" } else { "rows" }, rows_request.names.len());
    let place = format!("{key} of POST {route} (split {:?})", rows_request.split);
    let list = match reply {
        Value::Object(mut reply) => reply.remove(key).unwrap_or_default(),
        _ => Value::Null,
    };
    let Value::Array(list) = list else { return Err(container_error(format!("{place} is not a list"))) };
    if list.len() != asked {
        return Err(container_error(format!("{place} has {} entries, but {asked} were requested", list.len())));
    }
    let mut rows = Vec::with_capacity(asked);
    for (index, (value, name)) in list.into_iter().zip(&rows_request.names).enumerate() {
        let Value::Object(object) = &value else {
            return Err(container_error(format!(
                "{place}: entry {index} is {}, not an object",
                describe_value(&value)
            )));
        };
        if let Some(found) = find_credential(&format!("{key}[{index}]"), &value) {
            return Err(container_error(format!("{found} in the reply of POST {route} is named like a credential"))
                .with_hint("Keep keys in the container's environment; rename the field if it holds no key."));
        }
        let (id, requested) = match name {
            RowName::Seed(seed) => (dataset_identity(object, &rows_request.split, *seed), Some(*seed)),
            RowName::Id(asked, seed) => match task_identity(object, asked) {
                Ok(id) => (id, *seed),
                Err(met) => {
                    return Err(container_error(format!(
                        "{place}: entry {index} is {met}, but {asked:?} was requested"
                    )));
                }
            },
        };
        let seed = object.get("seed").and_then(Value::as_i64).or(requested);
        let digest = canonical_digest(&value);
        rows.push((RowId::new(&id), TaskRow { value, digest, seed }));
    }
    check_unique(&place, rows_request, &rows)?;
    check_order(&place, rows_request, &rows)?;
    Ok(rows)
}

/// Collects the rows of both splits by id. Fails if a row is in both splits.
pub(super) fn join_splits(
    train: Vec<(RowId, TaskRow)>,
    heldout: Vec<(RowId, TaskRow)>,
) -> Result<BTreeMap<RowId, Arc<TaskRow>>, OptimizerError> {
    let mut rows: BTreeMap<RowId, Arc<TaskRow>> = BTreeMap::new();
    let nameless: BTreeSet<String> =
        train.iter().filter(|(_, row)| has_no_identity(&row.value)).map(|(_, row)| row.digest.clone()).collect();
    rows.extend(train.into_iter().map(|(id, row)| (id, Arc::new(row))));
    for (id, row) in heldout {
        if rows.contains_key(&id) || (has_no_identity(&row.value) && nameless.contains(&row.digest)) {
            return Err(container_error(format!("row {:?} is both a train row and a held-out row", id.as_str()))
                .with_hint("Choose other row numbers, ids or splits: the search must not see held-out rows."));
        }
        rows.insert(id, Arc::new(row));
    }
    Ok(rows)
}

/// Returns the parts of a row that the search needs.
pub(super) fn search_row(id: &RowId, row: &TaskRow, stratum_path: &str) -> Row {
    let mut texts = Vec::new();
    collect_texts(&row.value, &mut texts);
    Row { id: id.clone(), stratum: stratum(&row.value, stratum_path), texts }
}

const DATASET_KEYS: [&str; 3] = ["example_id", "id", "task_instance_id"];
const TASK_KEYS: [&str; 4] = ["task_id", "task_instance_id", "example_id", "id"];

/// Returns the id of a row, else its split and row number. Uses the requested values where the row has none.
fn dataset_identity(row: &Map<String, Value>, split: &str, requested: i64) -> String {
    DATASET_KEYS.iter().find_map(|key| name(row, key)).unwrap_or_else(|| {
        let split = name(row, "split").unwrap_or_else(|| split.to_owned());
        format!("{split}:{}", row.get("seed").and_then(Value::as_i64).unwrap_or(requested))
    })
}

/// Returns the id of a task if the task is the requested one. An error is the id that the task has instead.
fn task_identity(task: &Map<String, Value>, asked: &str) -> Result<String, String> {
    let names: Vec<String> = TASK_KEYS.iter().filter_map(|key| name(task, key)).collect();
    let place = name(task, "split").zip(name(task, "seed")).map(|(split, seed)| format!("{split}:{seed}"));
    let Some(first) = names.first() else {
        return if place.as_deref() == Some(asked) { Ok(asked.to_owned()) } else { Err("without a task_id".into()) };
    };
    let is_asked = names.iter().chain(place.iter()).any(|name| name == asked);
    if is_asked { Ok(first.clone()) } else { Err(format!("{:?}", describe_value(&Value::from(first.as_str())))) }
}

/// Returns the value of a key if it is a non-empty text or a number.
fn name(row: &Map<String, Value>, key: &str) -> Option<String> {
    match row.get(key)? {
        Value::String(text) if !text.trim().is_empty() => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::String(_) | Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    }
}

/// Returns whether a row has neither an id nor a row number, so that only its content identifies it.
fn has_no_identity(row: &Value) -> bool {
    let Value::Object(row) = row else { return true };
    TASK_KEYS.iter().chain(["seed"].iter()).all(|key| name(row, key).is_none())
}

/// Fails if two names returned the same row. Some containers take row numbers modulo the number of rows.
fn check_unique(place: &str, rows_request: &RowsRequest, rows: &[(RowId, TaskRow)]) -> Result<(), OptimizerError> {
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    for (index, (id, row)) in rows.iter().enumerate() {
        let by_content = has_no_identity(&row.value).then_some(row.digest.as_str());
        for key in [Some(id.as_str()), by_content].into_iter().flatten() {
            if let Some(first) = seen.insert(key, index) {
                let (first, second) = (rows_request.describe(first), rows_request.describe(index));
                return Err(container_error(format!(
                    "{place}: {first} and {second} are the same row, {:?}",
                    id.as_str()
                ))
                .with_hint("List every row once; the container may have fewer rows than the configuration lists."));
            }
        }
    }
    Ok(())
}

/// Fails if a row with a row number is not at the position where it was requested. Pools refer to rows by that
/// position.
fn check_order(place: &str, rows_request: &RowsRequest, rows: &[(RowId, TaskRow)]) -> Result<(), OptimizerError> {
    for (index, (name, (_, row))) in rows_request.names.iter().zip(rows).enumerate() {
        let (RowName::Seed(asked), Some(met)) = (name, row.seed) else { continue };
        if met != *asked && rows_request.names.iter().any(|name| matches!(name, RowName::Seed(other) if *other == met))
        {
            let message = format!("{place}: entry {index} has row number {met}, but row number {asked} was requested");
            return Err(container_error(message).with_hint("Return the rows in the requested order."));
        }
    }
    Ok(())
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

fn container_error(message: String) -> OptimizerError {
    super::container_error(message, "Compare the container's rows with the row numbers or ids of the configuration.")
}

//! The rows of the task: by which names they are asked for, which are the config's seeds or task ids as they are or mapped
//! onto the other, and whether what comes is what was asked for, each row with an identity of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::contract::{Routes, TaskRow};
use super::screen::credential_place;
use crate::http::shown_value;
use synth_optimizer_core::config::Config;
use synth_optimizer_core::model::canonical::{canonical_json, digest_of};
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::event_fields::RowsMapped;
use synth_optimizer_core::model::ids::RowId;
use synth_optimizer_core::model::program::Row;

/// The rows of one split, in the order in which they are asked for.
#[derive(Debug, Clone)]
pub(super) struct Wanted {
    /// The route that serves rows by this kind of name.
    pub(super) route: String,
    split: String,
    /// Either all by seed or all by id.
    pub(super) names: Vec<Name>,
    filters: BTreeMap<String, Value>,
}

/// How a row is named to the container.
#[derive(Debug, Clone)]
pub(super) enum Name {
    Seed(i64),
    /// A task id, and the seed from which it was made, if it was.
    Id(String, Option<i64>),
}

impl Wanted {
    fn is_by_id(&self) -> bool {
        matches!(self.names.first(), Some(Name::Id(..)))
    }

    /// Some of the rows, by their places.
    pub(super) fn part(&self, places: Range<usize>) -> Self {
        Self { names: self.names[places].to_vec(), ..self.clone() }
    }

    /// The body that asks for the rows.
    pub(super) fn request(&self) -> Value {
        let name = |name: &Name| match name {
            Name::Seed(seed) => json!(seed),
            Name::Id(id, _) => json!(id),
        };
        let names: Vec<Value> = self.names.iter().map(name).collect();
        let key = if self.is_by_id() { "task_ids" } else { "seeds" };
        json!({ "split": self.split, key: names, "filters": self.filters })
    }

    /// How a row is asked for, in words.
    pub(super) fn asked_as(&self, index: usize) -> String {
        match &self.names[index] {
            Name::Seed(seed) => format!("seed {seed}"),
            Name::Id(id, _) => format!("task {id:?}"),
        }
    }
}

/// Everything that is asked for.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) train: Wanted,
    pub(super) heldout: Wanted,
    /// Set when seeds of the config became task ids.
    pub(super) mapping: Option<RowsMapped>,
}

/// `info` is the reply of the dataset or taskset route.
pub(super) fn plan(config: &Config, routes: &Routes, info: &Value) -> Result<Plan, OptimizerError> {
    let (splits, filters, ([train, heldout], mapping)) = match (&config.dataset, &config.taskset) {
        (Some(rows), _) => {
            let train = Split { name: &rows.train_split, seeds: &rows.train_seeds, info };
            let heldout = Split { name: &rows.heldout_split, seeds: &rows.heldout_seeds, info };
            ([&rows.train_split, &rows.heldout_split], &rows.filters, names_of_seeds(&train, &heldout, routes)?)
        }
        (None, Some(rows)) => {
            let names = |split: &str, ids: &[String], field| match &routes.taskset {
                Some(_) => Ok(ids.iter().map(|id| Name::Id(id.clone(), None)).collect::<Vec<_>>()),
                None => seeds_of(split, ids, field),
            };
            let train = names(&rows.train_split, &rows.train_ids, "taskset.train_ids")?;
            let heldout = names(&rows.heldout_split, &rows.heldout_ids, "taskset.heldout_ids")?;
            ([&rows.train_split, &rows.heldout_split], &rows.filters, ([train, heldout], None))
        }
        (None, None) => {
            return Err(OptimizerError::new(ErrorCode::Config, "no rows are given: [dataset] is required")
                .with_hint("Write train_seeds and heldout_seeds under [dataset]."));
        }
    };
    let wanted = |split: &str, names: Vec<Name>| {
        let pair = if matches!(names.first(), Some(Name::Id(..))) { &routes.taskset } else { &routes.dataset };
        let (_, route) = pair.as_ref().ok_or_else(|| {
            OptimizerError::new(ErrorCode::Container, "the container advertises no route for rows of this kind")
        })?;
        Ok::<_, OptimizerError>(Wanted {
            route: route.clone(),
            split: split.to_owned(),
            names,
            filters: filters.clone(),
        })
    };
    Ok(Plan { train: wanted(splits[0], train)?, heldout: wanted(splits[1], heldout)?, mapping })
}

/// The names of the train and of the held-out rows, and how seeds became ids, if they did.
type Named = ([Vec<Name>; 2], Option<RowsMapped>);

fn names_of_seeds(train: &Split<'_>, heldout: &Split<'_>, routes: &Routes) -> Result<Named, OptimizerError> {
    let ids = match (&routes.dataset, &routes.taskset) {
        (_, None) => None,
        (None, Some(_)) => Some([train.ids()?, heldout.ids()?]),
        // Where both are served, made-up ids would be a guess, and the seeds are none.
        (Some(_), Some(_)) => match (train.listed_ids(), heldout.listed_ids()) {
            (Some(Ok(train)), Some(Ok(heldout))) => Some([(train, LISTED), (heldout, LISTED)]),
            (_, _) => None,
        },
    };
    let Some([(train_ids, train_rule), (heldout_ids, heldout_rule)]) = ids else {
        let by_seed = |split: &Split<'_>| split.seeds.iter().copied().map(Name::Seed).collect();
        return Ok(([by_seed(train), by_seed(heldout)], None));
    };
    let mapping = RowsMapped {
        // One rule is reported; the weaker one if they differ.
        rule: if train_rule == heldout_rule { train_rule } else { MADE }.to_owned(),
        train: train.seeds.iter().copied().zip(train_ids).collect(),
        heldout: heldout.seeds.iter().copied().zip(heldout_ids).collect(),
    };
    let by_id = |pairs: &[(i64, String)]| pairs.iter().map(|(seed, id)| Name::Id(id.clone(), Some(*seed))).collect();
    Ok(([by_id(&mapping.train), by_id(&mapping.heldout)], Some(mapping)))
}

const LISTED: &str = "split_list";
const MADE: &str = "split_and_seed";

/// Seeds of one split that are to become task ids.
struct Split<'a> {
    name: &'a str,
    seeds: &'a [i64],
    info: &'a Value,
}

impl Split<'_> {
    /// The ids and the rule that gave them.
    fn ids(&self) -> Result<(Vec<String>, &'static str), OptimizerError> {
        match self.listed_ids() {
            Some(ids) => ids.map(|ids| (ids, LISTED)),
            None => Ok((self.seeds.iter().map(|seed| self.made_id(*seed)).collect(), MADE)),
        }
    }

    /// The ids out of the container's own list of the split, if it has one. Ids that hold the seed in their name are
    /// taken by name; otherwise a seed is a place in the list. Seeds are never read in both ways at once, so that two
    /// seeds cannot meet in one id.
    fn listed_ids(&self) -> Option<Result<Vec<String>, OptimizerError>> {
        let list = self.info.get("splits")?.get(self.name)?.as_array()?;
        let list: Vec<&str> = list.iter().map(Value::as_str).collect::<Option<_>>()?;
        let known: BTreeSet<&str> = list.iter().copied().collect();
        let by_name: Vec<String> = self.seeds.iter().map(|seed| self.made_id(*seed)).collect();
        if by_name.iter().all(|id| known.contains(id.as_str())) {
            return Some(Ok(by_name));
        }
        let by_place = |seed: &i64| {
            let id = usize::try_from(*seed).ok().and_then(|place| list.get(place));
            id.map(|id| (*id).to_owned()).ok_or_else(|| {
                let (name, made, length) = (self.name, self.made_id(*seed), list.len());
                let message = format!(
                    "seed {seed} names no task of split {name:?}: the container lists {length} ids, and none is {made:?}"
                );
                super::broken(message, format!("Use seeds below {length}, or name the tasks under [taskset]."))
            })
        };
        Some(self.seeds.iter().map(by_place).collect())
    }

    fn made_id(&self, seed: i64) -> String {
        format!("{}:{seed}", self.name)
    }
}

/// The seeds in ids like `train:3` or `3`, for a container that knows rows by seed alone.
fn seeds_of(split: &str, ids: &[String], field: &str) -> Result<Vec<Name>, OptimizerError> {
    let seed = |(index, id): (usize, &String)| {
        let number = id.strip_prefix(split).and_then(|rest| rest.strip_prefix(':')).unwrap_or(id);
        number.trim().parse().map(Name::Seed).map_err(|_| {
            let message = format!("`{field}[{index}]` is {id:?}, but this container knows rows by seed alone");
            super::broken(message, format!("Write ids like \"{split}:3\", or seeds under [dataset]."))
        })
    };
    ids.iter().enumerate().map(seed).collect()
}

/// The rows of a reply, in the order in which they were asked for.
pub(super) fn read_rows(wanted: &Wanted, reply: Value) -> Result<Vec<(RowId, TaskRow)>, OptimizerError> {
    let route = &wanted.route;
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
        let digest = digest_of(&value);
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
                let (first, second) = (wanted.asked_as(first), wanted.asked_as(index));
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
    super::broken(message, "Compare the container's rows with the seeds or ids of the config.")
}

//! The splits that a container names in the reply of its dataset or taskset route.

use std::collections::BTreeMap;

use serde_json::Value;

use super::contract::Routes;
use synth_optimizer_core::config::{Config, SplitRows, resolve};
use synth_optimizer_core::model::error::OptimizerError;

/// Returns the configuration with every row named and every derived size set. `info` is the reply of the dataset or taskset
/// route.
pub(super) fn resolve_rows(config: &Config, routes: &Routes, info: &Value) -> Result<Config, OptimizerError> {
    resolve(config, &read_splits(info), routes.taskset.is_some())
}

/// Reads `splits`: by name a number of rows, a list of task ids, or an object with one of them. Ignores everything else, so
/// that only a run that needs the split fails.
fn read_splits(info: &Value) -> BTreeMap<String, SplitRows> {
    let splits = info.get("splits").and_then(Value::as_object);
    let named = |(name, rows): (&String, &Value)| Some((name.clone(), read_split(rows)?));
    splits.into_iter().flatten().filter_map(named).collect()
}

fn read_split(rows: &Value) -> Option<SplitRows> {
    const KEYS: [&str; 5] = ["task_ids", "ids", "count", "size", "num_rows"];
    match rows {
        Value::Number(count) => count.as_u64().map(SplitRows::Count),
        Value::Array(ids) => {
            let ids = ids.iter().map(|id| id.as_str().map(str::to_owned)).collect::<Option<_>>();
            Some(ids.map_or(SplitRows::Count(rows.as_array()?.len() as u64), SplitRows::Ids))
        }
        Value::Object(entries) => KEYS.iter().find_map(|key| read_split(entries.get(*key)?)),
        Value::Null | Value::Bool(_) | Value::String(_) => None,
    }
}

#[cfg(test)]
#[path = "splits_tests.rs"]
mod tests;

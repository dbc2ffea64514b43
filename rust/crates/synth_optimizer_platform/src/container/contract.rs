//! What a container has told about its task, and the reading of its contract from `/metadata`: its version, its routes and,
//! by them, its dialect.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::broken;
use crate::http::shown_value;
use synth_optimizer_core::model::error::OptimizerError;
use synth_optimizer_core::model::event_fields::RowsMapped;
use synth_optimizer_core::model::ids::RowId;
use synth_optimizer_core::model::program::Inputs;

/// The versions that are spoken. They differ in nothing that is sent or read here.
const VERSIONS: [&str; 2] = ["synth_optimizers.gepa.v1", "synth_optimizers.gepa.v2"];

/// The canonical place of the advertisement, and two copies that some containers keep.
const PLACES: [&str; 3] =
    ["/metadata/optimizer_contracts/gepa", "/optimizer_contracts/gepa", "/capabilities/optimizer_contracts/gepa"];

/// The contract, or what is missing in it. Unknown keys are left alone.
pub(super) fn read_contract(metadata: &Value) -> Result<Contract, OptimizerError> {
    let found = PLACES.iter().find_map(|place| metadata.pointer(place).filter(|value| !value.is_null()));
    let Some(advert) = found else {
        return Err(broken(
            "GET /metadata has no metadata.optimizer_contracts.gepa: this is no GEPA container",
            "A container of the SDK advertises it when program, taskset, taskset_tasks and rollout are all registered.",
        ));
    };
    let Some(advert) = advert.as_object() else {
        return Err(broken(
            format!("metadata.optimizer_contracts.gepa is {}, not an object", shown_value(advert)),
            "It holds version, program_route, rollout_route and the routes of the rows.",
        ));
    };
    let version = match advert.get("version").and_then(Value::as_str).map(str::trim) {
        Some(version) if VERSIONS.contains(&version) => version.to_owned(),
        _ => {
            let met = advert.get("version").map_or_else(|| "missing".to_owned(), shown_value);
            return Err(broken(
                format!("the version of the container's GEPA contract is {met}"),
                format!("Known versions are {}.", VERSIONS.join(" and ")),
            ));
        }
    };
    let routes = Routes {
        program: required(advert, "program_route")?,
        rollout: required(advert, "rollout_route")?,
        dataset: pair(advert, "dataset_route", "dataset_rows_route")?,
        taskset: pair(advert, "taskset_route", "taskset_tasks_route")?,
    };
    if routes.dataset.is_none() && routes.taskset.is_none() {
        return Err(broken(
            "the container's GEPA contract names no routes of rows",
            "It must name taskset_route and taskset_tasks_route, or dataset_route and dataset_rows_route.",
        ));
    }
    let modes = metadata.pointer("/capabilities/rollout_modes").and_then(Value::as_array);
    let rollout_modes = modes.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect();
    Ok(Contract { version, routes, rollout_modes })
}

/// Both routes of a dialect. One alone does not make it, and says nothing against the other dialect.
fn pair(advert: &Map<String, Value>, info: &str, rows: &str) -> Result<Option<(String, String)>, OptimizerError> {
    Ok(optional(advert, info)?.zip(optional(advert, rows)?))
}

fn required(advert: &Map<String, Value>, name: &str) -> Result<String, OptimizerError> {
    optional(advert, name)?.ok_or_else(|| {
        broken(format!("the container's GEPA contract has no {name}"), "Advertise a route that begins with `/`.")
    })
}

fn optional(advert: &Map<String, Value>, name: &str) -> Result<Option<String>, OptimizerError> {
    match advert.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(route)) if is_route(route) => Ok(Some(route.clone())),
        Some(other) => Err(broken(
            format!("{name} of the container's GEPA contract is {}", shown_value(other)),
            "A route is a path that begins with `/`.",
        )),
    }
}

fn is_route(route: &str) -> bool {
    route.starts_with('/') && !route.chars().any(|c| c.is_whitespace() || c.is_control())
}

/// The advertised routes. Those of the rows tell the dialect, or both: rows are then fetched by task id where ids are known,
/// and sent under both keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Routes {
    pub program: String,
    pub rollout: String,
    /// `dataset_route` and `dataset_rows_route`: rows are named by seed and sent as `dataset_row`.
    pub dataset: Option<(String, String)>,
    /// `taskset_route` and `taskset_tasks_route`: rows are named by task id and sent as `task`.
    pub taskset: Option<(String, String)>,
}

impl Routes {
    /// The dialects by name.
    pub fn dialects(&self) -> Vec<String> {
        let dataset = self.dataset.iter().map(|_| "dataset".to_owned());
        dataset.chain(self.taskset.iter().map(|_| "taskset".to_owned())).collect()
    }

    /// The routes by the keys under which they are advertised.
    pub fn named(&self) -> BTreeMap<String, String> {
        let one = |key: &str, route: &String| (key.to_owned(), route.clone());
        let mut named = BTreeMap::from([one("program_route", &self.program), one("rollout_route", &self.rollout)]);
        if let Some((dataset, rows)) = &self.dataset {
            named.extend([one("dataset_route", dataset), one("dataset_rows_route", rows)]);
        }
        if let Some((taskset, tasks)) = &self.taskset {
            named.extend([one("taskset_route", taskset), one("taskset_tasks_route", tasks)]);
        }
        named
    }
}

/// The container's contract.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contract {
    pub version: String,
    pub routes: Routes,
    /// `capabilities.rollout_modes`; empty when the container does not say.
    pub rollout_modes: Vec<String>,
}

impl Contract {
    /// Whether async rollouts can be sent. A container that does not say may take them.
    pub(super) fn advertises_async(&self) -> bool {
        let modes = &self.rollout_modes;
        modes.is_empty() || modes.iter().any(|mode| mode.trim().eq_ignore_ascii_case("async"))
    }
}

/// One row as the container gave it.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskRow {
    pub value: Value,
    /// Digest of `value`.
    pub digest: String,
    pub seed: Option<i64>,
}

/// Everything that was loaded before the search begins.
#[derive(Debug, Clone)]
pub struct Task {
    pub contract: Contract,
    pub metadata: Value,
    pub program: Value,
    /// Digest of the program's modules, for cache keys.
    pub program_digest: String,
    /// The task family, `task_id` at the top of a rollout request.
    pub family: String,
    /// What the container says about its task, or why it says nothing.
    pub task_info: Result<Value, String>,
    /// The reply of the dataset or taskset route.
    pub dataset: Value,
    pub inputs: Inputs,
    pub rows: BTreeMap<RowId, Arc<TaskRow>>,
    /// Set when seeds of the config became task ids.
    pub mapping: Option<RowsMapped>,
}

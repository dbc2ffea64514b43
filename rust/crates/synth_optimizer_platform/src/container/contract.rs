//! Reads the GEPA contract from `/metadata` (version, routes and dialect), and defines the task that a container
//! describes.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::container_error;
use crate::http::describe_value;
use synth_optimizer_core::config::Config;
use synth_optimizer_core::model::error::OptimizerError;
use synth_optimizer_core::model::event_fields::RowsMapped;
use synth_optimizer_core::model::ids::RowId;
use synth_optimizer_core::model::program::Inputs;

/// Supported contract versions. They do not differ in anything that this client sends or reads.
const SUPPORTED_VERSIONS: [&str; 2] = ["synth_optimizers.gepa.v1", "synth_optimizers.gepa.v2"];

/// JSON pointers to the contract in `/metadata`: the canonical one, then two alternatives that some containers use.
const ADVERTISEMENT_POINTERS: [&str; 3] =
    ["/metadata/optimizer_contracts/gepa", "/optimizer_contracts/gepa", "/capabilities/optimizer_contracts/gepa"];

/// Reads the contract, or returns the first problem in it. Ignores unknown keys.
pub(super) fn read_contract(metadata: &Value) -> Result<Contract, OptimizerError> {
    let found =
        ADVERTISEMENT_POINTERS.iter().find_map(|place| metadata.pointer(place).filter(|value| !value.is_null()));
    let Some(advert) = found else {
        return Err(container_error(
            "GET /metadata has no metadata.optimizer_contracts.gepa: the container does not support GEPA",
            "Register program, taskset, taskset_tasks and rollout; a container of the SDK then advertises the contract.",
        ));
    };
    let Some(advert) = advert.as_object() else {
        return Err(container_error(
            format!("metadata.optimizer_contracts.gepa is {}, not an object", describe_value(advert)),
            "Advertise an object with version, program_route, rollout_route and the routes of the rows.",
        ));
    };
    let version = match advert.get("version").and_then(Value::as_str).map(str::trim) {
        Some(version) if SUPPORTED_VERSIONS.contains(&version) => version.to_owned(),
        _ => {
            let met = advert.get("version").map_or_else(|| "missing".to_owned(), describe_value);
            return Err(container_error(
                format!("the container's GEPA contract has the unsupported version {met}"),
                format!("Use one of the supported versions: {}.", SUPPORTED_VERSIONS.join(" and ")),
            ));
        }
    };
    let routes = Routes {
        program: required_route(advert, "program_route")?,
        rollout: required_route(advert, "rollout_route")?,
        dataset: route_pair(advert, "dataset_route", "dataset_rows_route")?,
        taskset: route_pair(advert, "taskset_route", "taskset_tasks_route")?,
    };
    if routes.dataset.is_none() && routes.taskset.is_none() {
        return Err(container_error(
            "the container's GEPA contract has no routes for rows",
            "Advertise taskset_route and taskset_tasks_route, or dataset_route and dataset_rows_route.",
        ));
    }
    let modes = metadata.pointer("/capabilities/rollout_modes").and_then(Value::as_array);
    let rollout_modes = modes.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect();
    let remembers_rollouts = advert.get("remembers_rollouts") == Some(&Value::Bool(true));
    Ok(Contract { version, routes, rollout_modes, remembers_rollouts })
}

/// Returns both routes of a dialect, or `None` if one of them is missing. The container may still serve the other
/// dialect.
fn route_pair(advert: &Map<String, Value>, info: &str, rows: &str) -> Result<Option<(String, String)>, OptimizerError> {
    Ok(optional_route(advert, info)?.zip(optional_route(advert, rows)?))
}

fn required_route(advert: &Map<String, Value>, name: &str) -> Result<String, OptimizerError> {
    optional_route(advert, name)?.ok_or_else(|| {
        container_error(
            format!("the container's GEPA contract has no {name}"),
            "Advertise a route that begins with `/`.",
        )
    })
}

fn optional_route(advert: &Map<String, Value>, name: &str) -> Result<Option<String>, OptimizerError> {
    match advert.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(route)) if is_route(route) => Ok(Some(route.clone())),
        Some(other) => Err(container_error(
            format!("{name} of the container's GEPA contract is {}", describe_value(other)),
            "Advertise a path that begins with `/`.",
        )),
    }
}

fn is_route(route: &str) -> bool {
    route.starts_with('/') && !route.chars().any(|c| c.is_whitespace() || c.is_control())
}

/// The advertised routes. The row routes define the dialect: dataset, taskset or both. With both, rows are fetched by
/// task id where ids are known and sent under both keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Routes {
    pub program: String,
    pub rollout: String,
    /// `dataset_route` and `dataset_rows_route`: rows are requested by row number and sent as `dataset_row`.
    pub dataset: Option<(String, String)>,
    /// `taskset_route` and `taskset_tasks_route`: rows are requested by task id and sent as `task`.
    pub taskset: Option<(String, String)>,
}

impl Routes {
    /// Returns the names of the supported dialects.
    pub fn dialects(&self) -> Vec<String> {
        let dataset = self.dataset.iter().map(|_| "dataset".to_owned());
        dataset.chain(self.taskset.iter().map(|_| "taskset".to_owned())).collect()
    }

    /// Returns the routes by the keys under which the container advertises them.
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
    /// `capabilities.rollout_modes`; empty if the container does not report them.
    pub rollout_modes: Vec<String>,
    /// Whether the container remembers every rollout id that it received, also while the rollout runs and after a restart. An
    /// id that it does not know then belongs to a rollout that never ran.
    pub remembers_rollouts: bool,
}

impl Contract {
    /// Returns whether the container may accept async rollouts. True if it reports no modes.
    pub(super) fn advertises_async(&self) -> bool {
        let modes = &self.rollout_modes;
        modes.is_empty() || modes.iter().any(|mode| mode.trim().eq_ignore_ascii_case("async"))
    }
}

/// One row as the container returned it.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskRow {
    pub value: Value,
    /// Digest of `value`.
    pub digest: String,
    pub seed: Option<i64>,
}

/// Everything that is loaded from the container before the search starts.
#[derive(Debug, Clone)]
pub struct Task {
    pub contract: Contract,
    pub metadata: Value,
    pub program: Value,
    /// Digest of the program's modules; part of the cache keys.
    pub program_digest: String,
    /// The task family, `task_id` at the top of a rollout request.
    pub family: String,
    /// Reply of `/task_info`, or why it is missing.
    pub task_info: Result<Value, String>,
    /// The reply of the dataset or taskset route.
    pub dataset: Value,
    pub inputs: Inputs,
    pub rows: BTreeMap<RowId, Arc<TaskRow>>,
    /// Set if row numbers of the config were mapped to task ids.
    pub mapping: Option<RowsMapped>,
    /// The configuration with every row named and every derived size set.
    pub config: Config,
}

//! Reads the container's contract from `/metadata`: its version, its routes and, by them, its dialect.

use serde_json::{Map, Value};

use super::task::{Contract, Dialect, Routes};
use crate::http::shown_value;
use crate::model::error::{ErrorCode, OptimizerError};

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
            &format!("metadata.optimizer_contracts.gepa is {}, not an object", shown_value(advert)),
            "It holds version, program_route, rollout_route and the routes of the rows.",
        ));
    };
    let version = match advert.get("version").and_then(Value::as_str).map(str::trim) {
        Some(version) if VERSIONS.contains(&version) => version.to_owned(),
        _ => {
            let met = advert.get("version").map_or_else(|| "missing".to_owned(), shown_value);
            return Err(broken(
                &format!("the version of the container's GEPA contract is {met}"),
                &format!("Known versions are {}.", VERSIONS.join(" and ")),
            ));
        }
    };
    let routes = Routes {
        program: required(advert, "program_route")?,
        rollout: required(advert, "rollout_route")?,
        dataset: pair(advert, "dataset_route", "dataset_rows_route")?,
        taskset: pair(advert, "taskset_route", "taskset_tasks_route")?,
    };
    let dialect = match (&routes.dataset, &routes.taskset) {
        (Some(_), Some(_)) => Dialect::Both,
        (Some(_), None) => Dialect::Dataset,
        (None, Some(_)) => Dialect::Taskset,
        (None, None) => {
            return Err(broken(
                "the container's GEPA contract names no routes of rows",
                "It must name taskset_route and taskset_tasks_route, or dataset_route and dataset_rows_route.",
            ));
        }
    };
    let modes = metadata.pointer("/capabilities/rollout_modes").and_then(Value::as_array);
    let rollout_modes = modes.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect();
    Ok(Contract { version, dialect, routes, rollout_modes })
}

/// Both routes of a dialect. One alone does not make it, and says nothing against the other dialect.
fn pair(advert: &Map<String, Value>, info: &str, rows: &str) -> Result<Option<(String, String)>, OptimizerError> {
    Ok(optional(advert, info)?.zip(optional(advert, rows)?))
}

fn required(advert: &Map<String, Value>, name: &str) -> Result<String, OptimizerError> {
    optional(advert, name)?.ok_or_else(|| {
        broken(&format!("the container's GEPA contract has no {name}"), "Advertise a route that begins with `/`.")
    })
}

fn optional(advert: &Map<String, Value>, name: &str) -> Result<Option<String>, OptimizerError> {
    match advert.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(route)) if is_route(route) => Ok(Some(route.clone())),
        Some(other) => Err(broken(
            &format!("{name} of the container's GEPA contract is {}", shown_value(other)),
            "A route is a path that begins with `/`.",
        )),
    }
}

fn is_route(route: &str) -> bool {
    route.starts_with('/') && !route.chars().any(|c| c.is_whitespace() || c.is_control())
}

fn broken(message: &str, hint: &str) -> OptimizerError {
    OptimizerError::new(ErrorCode::Container, message).with_hint(hint)
}

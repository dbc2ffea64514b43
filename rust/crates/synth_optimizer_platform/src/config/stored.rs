//! A configuration as the workspace of its run keeps it.

use std::collections::BTreeMap;

use serde::Deserialize as _;
use serde_json::Value;

use super::load::Loaded;
use super::report::Report;
use super::secrets::HIDDEN;
use super::sections::Config;
use super::values::{Origin, effective_values};
use crate::model::error::{ErrorCode, OptimizerError};

/// Reads what `shown` has written. Secrets were left out, so that a configuration that had some cannot be used again.
pub fn from_stored(stored: &Value, place: &str) -> Result<Loaded, OptimizerError> {
    let hidden = hidden_fields(stored);
    if !hidden.is_empty() {
        let message = format!("the configuration in {place} was stored without its secrets: {}", hidden.join(", "));
        return Err(OptimizerError::new(ErrorCode::Config, message).with_hint(
            "Use the configuration file that the run was begun with: `gepa run --config` goes on with it.",
        ));
    }
    let config = Config::deserialize(stored).map_err(|error| {
        OptimizerError::new(ErrorCode::Config, format!("the configuration in {place} cannot be read: {error}"))
            .with_hint("Use the release that the run was begun with, or its configuration file.")
    })?;
    let mut values = effective_values(&config, &BTreeMap::new(), &Report::new(place, "", String::new()));
    for value in &mut values {
        value.origin = Origin::Run;
    }
    Ok(Loaded { config, values, warnings: Vec::new() })
}

/// The fields of a stored configuration whose values were left out because they are, or may be, secrets.
pub fn hidden_fields(stored: &Value) -> Vec<String> {
    let mut hidden = Vec::new();
    find_hidden("", stored, &mut hidden);
    hidden
}

fn find_hidden(path: &str, value: &Value, found: &mut Vec<String>) {
    let inner = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    match value {
        Value::String(text) if text.contains(HIDDEN) => found.push(path.to_owned()),
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                find_hidden(&format!("{path}[{index}]"), item, found);
            }
        }
        Value::Object(fields) => {
            for (name, field) in fields {
                find_hidden(&inner(name), field, found);
            }
        }
        Value::String(_) | Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[cfg(test)]
#[path = "stored_tests.rs"]
mod tests;

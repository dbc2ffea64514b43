//! Effective values with their origin, and the stored form of a configuration. Also formats keys and values as TOML.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize as _, Serialize};
use serde_json::Value;

use super::gepa::SearchMode;
use super::load::ResolvedConfig;
use super::report::Report;
use super::sections::Config;
use super::shape::{Shape, root};
use super::tree::{SourceLocation, join};
use crate::model::error::{ErrorCode, OptimizerError};
use crate::secrets::{HIDDEN, redact};

/// Where an effective value came from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "from")]
pub enum Origin {
    Default,
    /// The file, or the mapping, which has no line numbers.
    File {
        line: Option<usize>,
        column: Option<usize>,
    },
    Environment {
        variable: &'static str,
    },
    Set,
    /// The stored configuration of a resumed run.
    Run,
}

impl fmt::Display for Origin {
    /// Writes the origin as one word, followed by its location after a colon.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => out.write_str("default"),
            Self::File { line: Some(line), column: Some(column) } => write!(out, "file:{line}:{column}"),
            Self::File { line: Some(line), column: None } => write!(out, "file:{line}"),
            Self::File { line: None, column: _ } => out.write_str("mapping"),
            Self::Environment { variable } => write!(out, "environment:{variable}"),
            Self::Set => out.write_str("set"),
            Self::Run => out.write_str("run"),
        }
    }
}

/// The effective value of a field, and its origin. Secrets are hidden; an unset optional field is null.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EffectiveValue {
    pub path: String,
    pub value: Value,
    pub origin: Origin,
}

/// Returns all fields in the order of the sections. Each entry of a free-form table is a separate field.
pub(super) fn effective_values(
    config: &Config,
    locations: &BTreeMap<String, SourceLocation>,
    report: &Report<'_>,
) -> Vec<EffectiveValue> {
    list_values(config, |path| match locations.get(path) {
        None => Origin::Default,
        Some(SourceLocation::File { value, .. }) => {
            let (line, column) = report.position(value.start);
            Origin::File { line: Some(line), column: Some(column) }
        }
        Some(SourceLocation::Inline) => Origin::File { line: None, column: None },
        Some(SourceLocation::Environment(variable)) => Origin::Environment { variable },
        Some(SourceLocation::Set) => Origin::Set,
    })
}

fn list_values(config: &Config, origin: impl Fn(&str) -> Origin) -> Vec<EffectiveValue> {
    let whole = serde_json::to_value(config).unwrap_or_default();
    let mut values = Vec::new();
    let mut add = |path: String, name: &str, value: &Value| {
        values.push(EffectiveValue { value: redact(name, value), origin: origin(&path), path });
    };
    for (path, field) in root().leaves() {
        let value = path.split('.').try_fold(&whole, |value, name| value.get(name)).unwrap_or(&Value::Null);
        match (&field.shape, value) {
            (Shape::Map(_), Value::Object(entries)) if !entries.is_empty() => {
                entries.iter().for_each(|(name, value)| add(join(&path, name), name, value));
            }
            // An empty list may be omitted from JSON.
            (Shape::List(_), Value::Null) if !is_absent(&whole, &path) => {
                add(path, &field.name, &Value::Array(Vec::new()));
            }
            _ => add(path, &field.name, value),
        }
    }
    values
}

/// Returns whether the section of a field is absent.
fn is_absent(whole: &Value, path: &str) -> bool {
    let section = path.rsplit_once('.').map_or("", |(section, _)| section);
    section.split('.').try_fold(whole, |value, name| value.get(name)).is_none()
}

/// Returns the configuration without its secrets, for display and storage.
pub fn redacted_config(config: &Config) -> Value {
    serde_json::to_value(config).map_or(Value::Null, |value| redacted(&value))
}

/// Returns a document without its secrets, for display and storage.
pub fn redacted(document: &Value) -> Value {
    redact("", document)
}

/// Reads a configuration that `redacted_config` wrote. Fails if it contained secrets, because they were not stored.
pub fn from_stored(stored: &Value, location: &str) -> Result<ResolvedConfig, OptimizerError> {
    let hidden = hidden_fields(stored);
    if !hidden.is_empty() {
        let message = format!("the configuration in {location} was stored without its secrets: {}", hidden.join(", "));
        return Err(OptimizerError::new(ErrorCode::Config, message)
            .with_hint("Resume the run with its configuration file: `gepa run --config FILE`."));
    }
    let config = read_stored(stored).map_err(|error| {
        OptimizerError::from_cause(ErrorCode::Config, format!("the configuration in {location} cannot be read"), error)
            .with_hint("Use the release that started the run, or its configuration file.")
    })?;
    let values = list_values(&config, |_| Origin::Run);
    Ok(ResolvedConfig { config, values, warnings: Vec::new() })
}

/// Fields of `[gepa]` that earlier versions stored and that have no meaning any more.
const RETIRED_FIELDS: [&str; 2] = ["max_perfect_skips", "min_full_coverage"];

/// Reads a stored configuration as it is. One without `gepa.search` was written when there was only the reference search, and
/// one without `gepa.rebase` when it did not carry changes over.
pub fn read_stored(stored: &Value) -> Result<Config, serde_json::Error> {
    let mut known = stored.clone();
    if let Some(gepa) = known.get_mut("gepa").and_then(Value::as_object_mut) {
        gepa.retain(|field, _| !RETIRED_FIELDS.contains(&field.as_str()));
    }
    let mut config = Config::deserialize(&known)?;
    if stored.pointer("/gepa/search").is_none() {
        config.gepa.search = SearchMode::Reference;
    }
    if stored.pointer("/gepa/rebase").is_none() {
        config.gepa.rebase = false;
    }
    Ok(config)
}

/// Returns the fields of a stored configuration whose values were hidden because they are, or may be, secrets.
pub fn hidden_fields(stored: &Value) -> Vec<String> {
    fn collect(path: String, value: &Value, hidden: &mut Vec<String>) {
        match value {
            Value::Array(items) => {
                items.iter().enumerate().for_each(|(at, item)| collect(format!("{path}[{at}]"), item, hidden));
            }
            Value::Object(fields) => fields.iter().for_each(|(name, field)| collect(join(&path, name), field, hidden)),
            value if value.as_str().is_some_and(|text| text.contains(HIDDEN)) => hidden.push(path),
            _ => {}
        }
    }
    let mut hidden = Vec::new();
    collect(String::new(), stored, &mut hidden);
    hidden
}

/// Formats a TOML key, as a bare key if possible.
pub(super) fn key(name: &str) -> String {
    let bare = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
    if bare { name.to_owned() } else { string(name) }
}

/// Formats a TOML value on one line.
pub(super) fn inline(value: &Value) -> String {
    match value {
        Value::Null => "\"\"".to_owned(),
        Value::Bool(flag) => flag.to_string(),
        Value::Number(number) => match number.as_f64() {
            Some(float) if number.is_f64() => format!("{float:?}"),
            _ => number.to_string(),
        },
        Value::String(text) => string(text),
        Value::Array(items) => format!("[{}]", items.iter().map(inline).collect::<Vec<_>>().join(", ")),
        Value::Object(entries) if entries.is_empty() => "{}".to_owned(),
        Value::Object(entries) => {
            let entries = entries.iter().map(|(name, value)| format!("{} = {}", key(name), inline(value)));
            format!("{{ {} }}", entries.collect::<Vec<_>>().join(", "))
        }
    }
}

/// Formats a TOML basic string. It has the escapes of JSON, and also escapes DEL.
fn string(text: &str) -> String {
    Value::from(text).to_string().replace('\u{7f}', "\\u007F")
}

#[cfg(test)]
#[path = "values_tests.rs"]
mod tests;

//! Every effective value with its origin.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use serde_json::Value;

use super::report::Report;
use super::secrets::redact;
use super::sections::Config;
use super::shape::{Shape, root};
use super::tree::{Place, join};

/// Where an effective value came from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "from")]
pub enum Origin {
    Default,
    /// The file, or the inline mapping, which has no lines.
    File {
        line: Option<usize>,
        column: Option<usize>,
    },
    Environment {
        variable: &'static str,
    },
    Set,
    /// The run that goes on.
    Run,
}

impl fmt::Display for Origin {
    /// The origin in one word, with its place after a colon.
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

/// A field, what it is, and who said so. Secrets are hidden; an unset optional field is null.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EffectiveValue {
    pub path: String,
    pub value: Value,
    pub origin: Origin,
}

/// All fields in the order of the sections. The entries of a free table are fields of their own.
pub(super) fn effective_values(
    config: &Config,
    places: &BTreeMap<String, Place>,
    report: &Report<'_>,
) -> Vec<EffectiveValue> {
    let whole = serde_json::to_value(config).unwrap_or_default();
    let mut values = Vec::new();
    for (path, field) in root().leaves() {
        let value = path.split('.').try_fold(&whole, |value, name| value.get(name)).unwrap_or(&Value::Null);
        match (&field.shape, value) {
            (Shape::Map(_), Value::Object(entries)) if !entries.is_empty() => {
                for (name, value) in entries {
                    let path = join(&path, name);
                    values.push(effective(path, name, value, places, report));
                }
            }
            _ => values.push(effective(path, &field.name, value, places, report)),
        }
    }
    values
}

fn effective(
    path: String,
    name: &str,
    value: &Value,
    places: &BTreeMap<String, Place>,
    report: &Report<'_>,
) -> EffectiveValue {
    let origin = match places.get(&path) {
        None => Origin::Default,
        Some(Place::File { value, .. }) => {
            let (line, column) = report.position(value.start);
            Origin::File { line: Some(line), column: Some(column) }
        }
        Some(Place::Inline) => Origin::File { line: None, column: None },
        Some(Place::Environment(variable)) => Origin::Environment { variable },
        Some(Place::Set) => Origin::Set,
    };
    EffectiveValue { value: redact(name, value), path, origin }
}

//! The expected shape of a configuration, derived from the JSON Schema of the section types.

use std::sync::OnceLock;

use serde_json::{Map, Value};

use super::row_selection::RowName;
use super::sections::Config;
use super::tree::join;

/// Returns the JSON Schema of a configuration, for editors and for the service.
///
/// It accepts every spelling that the loader accepts, except for differences of case.
pub fn json_schema() -> Value {
    let mut schema = generated();
    if let Some(definitions) = schema.get_mut("$defs").and_then(Value::as_object_mut) {
        definitions.values_mut().for_each(widen);
    }
    schema
}

/// The expected shape of a value.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Shape {
    Table(Vec<Field>),
    Map(Box<Shape>),
    List(Box<Shape>),
    Text,
    Flag,
    Integer {
        least: i128,
        most: i128,
    },
    Number {
        least: f64,
        most: f64,
    },
    Word {
        words: Vec<String>,
        aliases: Vec<String>,
    },
    /// Rows by number or by id: `"all"`, a range or a list.
    Rows {
        by_number: bool,
    },
    Anything,
}

/// A named entry of a table.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Field {
    pub(super) name: String,
    /// A second accepted name.
    pub(super) alias: Option<String>,
    pub(super) shape: Shape,
    /// Whether JSON may contain `null`, which means the same as omitting the field.
    pub(super) is_optional: bool,
}

/// Returns the shape of the whole file.
pub(super) fn root() -> &'static Shape {
    static ROOT: OnceLock<Shape> = OnceLock::new();
    ROOT.get_or_init(|| {
        let schema = generated();
        shape(&schema, schema.get("$defs").and_then(Value::as_object).unwrap_or(&Map::new()))
    })
}

impl Shape {
    pub(super) fn fields(&self) -> &[Field] {
        match self {
            Self::Table(fields) => fields,
            _ => &[],
        }
    }

    pub(super) fn field(&self, name: &str) -> Option<&Field> {
        self.fields().iter().find(|field| field.name == name || field.alias.as_deref() == Some(name))
    }

    /// Returns the shape at a path of names, if there is one.
    pub(super) fn below(&self, names: &[String]) -> Option<&Self> {
        let Some((name, rest)) = names.split_first() else { return Some(self) };
        match self {
            Self::Table(_) => self.field(name)?.shape.below(rest),
            Self::Map(inner) => inner.below(rest),
            Self::Anything => Some(self),
            _ => None,
        }
    }

    /// Returns every field at any depth, with the path of its table.
    pub(super) fn fields_below(&self) -> Vec<(String, &Field)> {
        fn collect<'s>(shape: &'s Shape, path: &str, found: &mut Vec<(String, &'s Field)>) {
            for field in shape.fields() {
                found.push((path.to_owned(), field));
                collect(&field.shape, &join(path, &field.name), found);
            }
        }
        let mut found = Vec::new();
        collect(self, "", &mut found);
        found
    }

    /// Returns every field that is not a table, with its dotted path. A map counts as one field.
    pub(super) fn leaves(&self) -> Vec<(String, &Field)> {
        let leaves = self.fields_below().into_iter().filter(|(_, field)| field.shape.fields().is_empty());
        leaves.map(|(path, field)| (join(&path, &field.name), field)).collect()
    }
}

fn generated() -> Value {
    schemars::schema_for!(Config).to_value()
}

/// Adds the aliases of enum values, and the aliases of fields as deprecated properties.
fn widen(definition: &mut Value) {
    let aliases = aliases(definition);
    if let Some(words) = definition.get_mut("enum").and_then(Value::as_array_mut) {
        words.extend(aliases.into_iter().map(Value::from));
        let spelt = words.iter().filter_map(Value::as_str).filter(|word| word.contains('_'));
        let hyphened: Vec<Value> = spelt.map(|word| word.replace('_', "-").into()).collect();
        words.extend(hyphened);
    }
    if let Some(properties) = definition.get_mut("properties").and_then(Value::as_object_mut) {
        let others = properties.values().filter_map(|property| {
            let mut other = property.as_object()?.clone();
            let name = property.get("x-also-written")?.as_str()?.to_owned();
            other.insert("deprecated".to_owned(), Value::Bool(true));
            Some((name, Value::Object(other)))
        });
        let others: Vec<_> = others.collect();
        properties.extend(others);
    }
}

/// Returns the aliases of a string enum.
fn aliases(schema: &Value) -> Vec<String> {
    schema.get("x-aliases").and_then(Value::as_object).map_or(Vec::new(), |aliases| aliases.keys().cloned().collect())
}

fn shape(schema: &Value, definitions: &Map<String, Value>) -> Shape {
    let schema = resolve(schema, definitions);
    if let Some(words) = schema.get("enum").and_then(Value::as_array) {
        let words = words.iter().filter_map(Value::as_str).map(str::to_owned).collect();
        return Shape::Word { words, aliases: aliases(schema) };
    }
    if let Some(kind) = schema.get("x-rows").and_then(Value::as_str) {
        return Shape::Rows { by_number: kind == <i64 as RowName>::KIND };
    }
    match type_name(schema) {
        Some("object") => {
            match (schema.get("properties").and_then(Value::as_object), schema.get("additionalProperties")) {
                (Some(properties), _) => {
                    Shape::Table(properties.iter().map(|(name, schema)| field(name, schema, definitions)).collect())
                }
                (None, Some(inner)) => Shape::Map(Box::new(shape(inner, definitions))),
                (None, None) => Shape::Anything,
            }
        }
        Some("array") => {
            Shape::List(Box::new(schema.get("items").map_or(Shape::Anything, |items| shape(items, definitions))))
        }
        Some("string") => Shape::Text,
        Some("boolean") => Shape::Flag,
        Some("integer") => {
            let (least, most) = match schema.get("format").and_then(Value::as_str) {
                Some("uint16") => (0, i128::from(u16::MAX)),
                Some("uint32") => (0, i128::from(u32::MAX)),
                Some("uint64") => (0, i128::from(u64::MAX)),
                _ => (i128::from(i64::MIN), i128::from(i64::MAX)),
            };
            let whole = |name: &str| schema.get(name).and_then(Value::as_i64).map(i128::from);
            Shape::Integer { least: whole("minimum").unwrap_or(least), most: whole("maximum").unwrap_or(most) }
        }
        Some("number") => {
            let bound = |name: &str| schema.get(name).and_then(Value::as_f64);
            Shape::Number {
                least: bound("minimum").unwrap_or(f64::NEG_INFINITY),
                most: bound("maximum").unwrap_or(f64::INFINITY),
            }
        }
        _ => Shape::Anything,
    }
}

fn field(name: &str, schema: &Value, definitions: &Map<String, Value>) -> Field {
    // An optional type is a list of names; an optional reference is a list of two branches.
    let options = schema.get("type").or_else(|| schema.get("anyOf")).and_then(Value::as_array);
    let is_null = |option: &Value| option == "null" || type_name(option) == Some("null");
    Field {
        name: name.to_owned(),
        alias: schema.get("x-also-written").and_then(Value::as_str).map(str::to_owned),
        shape: shape(schema, definitions),
        is_optional: options.is_some_and(|options| options.iter().any(is_null)),
    }
}

/// Follows a reference, and the non-null branch of an optional value.
fn resolve<'s>(schema: &'s Value, definitions: &'s Map<String, Value>) -> &'s Value {
    let target = schema.get("$ref").and_then(Value::as_str).and_then(|path| definitions.get(path.rsplit('/').next()?));
    let branch = schema
        .get("anyOf")
        .and_then(Value::as_array)
        .and_then(|branches| branches.iter().find(|branch| type_name(branch) != Some("null")));
    match (target, branch) {
        (Some(target), _) => target,
        (None, Some(branch)) => resolve(branch, definitions),
        (None, None) => schema,
    }
}

fn type_name(schema: &Value) -> Option<&str> {
    match schema.get("type")? {
        Value::String(name) => Some(name),
        Value::Array(names) => names.iter().filter_map(Value::as_str).find(|name| *name != "null"),
        _ => None,
    }
}

#[cfg(test)]
#[path = "shape_tests.rs"]
mod tests;

//! One layer of configuration as a tree of values, each with its location in its source.

use std::collections::BTreeMap;
use std::ops::Range;

use serde_json::Value;
use toml::de::{DeTable, DeValue};

/// The source and position of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SourceLocation {
    File { key: Range<usize>, value: Range<usize> },
    Inline,
    Environment(&'static str),
    Set,
}

/// A value and its location.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Node {
    pub(super) location: SourceLocation,
    pub(super) tree: Tree,
}

/// A TOML or JSON value. Integers are wide enough for both.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Tree {
    Null,
    Flag(bool),
    Integer(i128),
    Float(f64),
    Text(String),
    Array(Vec<Node>),
    Table(Vec<(String, Node)>),
}

impl Node {
    pub(super) fn empty(location: SourceLocation) -> Self {
        Self { location, tree: Tree::Table(Vec::new()) }
    }

    /// Parses TOML. Returns the document, and the span and message of each syntax error.
    pub(super) fn from_toml(text: &str) -> (Self, Vec<(Range<usize>, String)>) {
        let (table, errors) = DeTable::parse_recoverable(text);
        let errors = errors.into_iter().map(|error| (error.span().unwrap_or(0..0), error.message().to_owned()));
        let root =
            Self { location: SourceLocation::File { key: 0..0, value: 0..0 }, tree: from_table(table.into_inner()) };
        (root, errors.collect())
    }

    /// Converts a JSON value. All of its parts get the same location.
    pub(super) fn from_json(value: Value, location: &SourceLocation) -> Self {
        let tree = match value {
            Value::Null => Tree::Null,
            Value::Bool(flag) => Tree::Flag(flag),
            Value::Number(number) => match number.as_i128() {
                Some(integer) => Tree::Integer(integer),
                None => Tree::Float(number.as_f64().unwrap_or(f64::NAN)),
            },
            Value::String(text) => Tree::Text(text),
            Value::Array(items) => Tree::Array(items.into_iter().map(|item| Self::from_json(item, location)).collect()),
            Value::Object(entries) => {
                Tree::Table(entries.into_iter().map(|(name, value)| (name, Self::from_json(value, location))).collect())
            }
        };
        Self { location: location.clone(), tree }
    }

    /// Sets the location of the value and all of its parts.
    pub(super) fn relocate(&mut self, location: &SourceLocation) {
        self.location = location.clone();
        match &mut self.tree {
            Tree::Array(items) => items.iter_mut().for_each(|item| item.relocate(location)),
            Tree::Table(entries) => entries.iter_mut().for_each(|(_, node)| node.relocate(location)),
            _ => {}
        }
    }

    /// Merges another layer over this one. Tables are merged; other values are replaced.
    pub(super) fn overlay(&mut self, upper: Self) {
        match (&mut self.tree, upper.tree) {
            (Tree::Table(lower), Tree::Table(entries)) => {
                for (name, node) in entries {
                    match lower.iter_mut().find(|(known, _)| *known == name) {
                        Some((_, below)) => below.overlay(node),
                        None => lower.push((name, node)),
                    }
                }
            }
            (_, tree) => *self = Self { location: upper.location, tree },
        }
    }

    /// Returns the location of every value, by path.
    pub(super) fn locations(&self) -> BTreeMap<String, SourceLocation> {
        fn collect(node: &Node, path: String, found: &mut BTreeMap<String, SourceLocation>) {
            match &node.tree {
                Tree::Table(entries) => entries.iter().for_each(|(name, node)| collect(node, join(&path, name), found)),
                Tree::Array(items) => {
                    items.iter().enumerate().for_each(|(at, node)| collect(node, format!("{path}[{at}]"), found));
                }
                _ => {}
            }
            found.insert(path, node.location.clone());
        }
        let mut found = BTreeMap::new();
        collect(self, String::new(), &mut found);
        found.remove("");
        found
    }
}

impl Tree {
    /// Converts the value to JSON. The check has already rejected floats that JSON cannot represent.
    pub(super) fn to_json(&self) -> Value {
        match self {
            Self::Null => Value::Null,
            Self::Flag(flag) => Value::Bool(*flag),
            Self::Integer(integer) => match (i64::try_from(*integer), u64::try_from(*integer)) {
                (Ok(small), _) => Value::from(small),
                (_, Ok(large)) => Value::from(large),
                _ => Value::Null,
            },
            Self::Float(float) => Value::from(*float),
            Self::Text(text) => Value::String(text.clone()),
            Self::Array(items) => Value::Array(items.iter().map(|item| item.tree.to_json()).collect()),
            Self::Table(entries) => {
                Value::Object(entries.iter().map(|(name, node)| (name.clone(), node.tree.to_json())).collect())
            }
        }
    }
}

/// Returns the path of a child. Quotes a name that TOML cannot write as a bare key.
pub(super) fn join(path: &str, name: &str) -> String {
    let name = super::values::key(name);
    if path.is_empty() { name } else { format!("{path}.{name}") }
}

fn from_table(table: DeTable<'_>) -> Tree {
    let entries = table.into_iter().map(|(name, value)| {
        let location = SourceLocation::File { key: name.span(), value: value.span() };
        (name.into_inner().into_owned(), Node { location, tree: from_value(value.into_inner()) })
    });
    Tree::Table(entries.collect())
}

fn from_value(value: DeValue<'_>) -> Tree {
    match value {
        DeValue::String(text) => Tree::Text(text.into_owned()),
        // An integer beyond 128 bits becomes a float, which integer fields reject.
        DeValue::Integer(integer) => i128::from_str_radix(integer.as_str(), integer.radix())
            .map_or_else(|_| Tree::Float(f64::NAN), Tree::Integer),
        DeValue::Float(float) => Tree::Float(float.as_str().parse().unwrap_or(f64::NAN)),
        DeValue::Boolean(flag) => Tree::Flag(flag),
        // JSON represents a date as text.
        DeValue::Datetime(date) => Tree::Text(date.to_string()),
        DeValue::Array(items) => {
            let items = items.into_iter().map(|item| {
                let location = SourceLocation::File { key: item.span(), value: item.span() };
                Node { location, tree: from_value(item.into_inner()) }
            });
            Tree::Array(items.collect())
        }
        DeValue::Table(table) => from_table(table),
    }
}

//! The rows of a split as a configuration names them: `"all"`, a range such as `"0..359"`, or a list of rows and ranges.

use std::fmt::Debug;
use std::ops::Deref;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use crate::secrets::redact;

/// Maximum number of rows that one field names.
pub(super) const MAX_ROWS: usize = 1_000_000;

/// The word that selects every row of a split.
const ALL: &str = "all";

/// The rows of a split.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum RowSelection<T> {
    /// Every row that the container names. They are known only after the container was asked.
    #[default]
    All,
    Listed(RowList<T>),
}

/// Rows by name, with the text that names them.
#[derive(Debug, Clone, PartialEq)]
pub struct RowList<T> {
    rows: Vec<T>,
    /// For each row, the index of the entry that names it.
    entries: Vec<u32>,
    /// The value of the configuration, which is stored and shown as it was written.
    written: Value,
}

impl<T> RowList<T> {
    /// Returns the index of the entry that names a row.
    pub(super) fn entry(&self, row: usize) -> usize {
        self.entries.get(row).map_or(row, |entry| *entry as usize)
    }

    /// Returns whether the field is a list, so that an entry has a path of its own.
    pub(super) fn is_list(&self) -> bool {
        self.written.is_array()
    }
}

impl<T> Deref for RowList<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.rows
    }
}

impl<T> RowSelection<T> {
    /// Returns the rows, or `None` if only the container knows them.
    pub fn listed(&self) -> Option<&[T]> {
        match self {
            Self::All => None,
            Self::Listed(list) => Some(list),
        }
    }

    /// Returns the rows; none if only the container knows them.
    pub fn known(&self) -> &[T] {
        self.listed().unwrap_or_default()
    }
}

impl<T: RowName> From<Vec<T>> for RowSelection<T> {
    fn from(rows: Vec<T>) -> Self {
        let written = rows.iter().map(|row| row.clone().into()).collect();
        Self::Listed(RowList { entries: (0..).take(rows.len()).collect(), written, rows })
    }
}

impl<T: RowName> FromIterator<T> for RowSelection<T> {
    fn from_iter<I: IntoIterator<Item = T>>(rows: I) -> Self {
        rows.into_iter().collect::<Vec<T>>().into()
    }
}

/// A row number or a task id.
pub trait RowName: Debug + Clone + Ord + Into<Value> {
    /// What the JSON Schema calls the rows, and an example of a range.
    const KIND: &'static str;
    const EXAMPLE: &'static str;

    /// Returns the row that an entry names, if it names a single one.
    fn from_entry(entry: &Value) -> Option<Self>;

    /// Returns the row with a number: `prefix`, then the number with at least `width` digits. `None` if there is no such row.
    fn from_number(prefix: &str, number: i64, width: usize) -> Option<Self>;
}

impl RowName for i64 {
    const KIND: &'static str = "numbers";
    const EXAMPLE: &'static str = "0..359";

    fn from_entry(entry: &Value) -> Option<Self> {
        entry.as_i64()
    }

    fn from_number(prefix: &str, number: i64, _width: usize) -> Option<Self> {
        prefix.is_empty().then_some(number)
    }
}

impl RowName for String {
    const KIND: &'static str = "ids";
    const EXAMPLE: &'static str = "train:0..359";

    fn from_entry(entry: &Value) -> Option<Self> {
        entry.as_str().map(str::to_owned)
    }

    fn from_number(prefix: &str, number: i64, width: usize) -> Option<Self> {
        Some(format!("{prefix}{number:0width$}"))
    }
}

/// A range as it is written: `first..last`, both included, with the text before the first number.
#[derive(Debug, PartialEq, Eq)]
struct RowRange<'t> {
    prefix: &'t str,
    first: i64,
    last: i64,
    /// Number of digits of a first number with leading zeros; otherwise 0.
    width: usize,
}

impl<'t> RowRange<'t> {
    /// Parses a range. Returns `None` if the text is not one, and `Err` if a number is too large.
    fn parse(text: &'t str) -> Option<Result<Self, ()>> {
        let (head, last) = text.trim().split_once("..")?;
        let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        let start = head
            .rfind(|letter: char| !letter.is_ascii_digit())
            .map_or(0, |at| at + head[at..].chars().next().map_or(1, char::len_utf8));
        let (prefix, first) = head.split_at(start);
        if !is_number(first) || !is_number(last) {
            return None;
        }
        let width = if first.len() > 1 && first.starts_with('0') { first.len() } else { 0 };
        let numbers = first.parse().ok().zip(last.parse().ok());
        Some(numbers.map(|(first, last)| Self { prefix, first, last, width }).ok_or(()))
    }
}

/// Why a value names no rows: the index of the entry in a list, the problem and the hint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RowsProblem {
    pub(super) entry: Option<usize>,
    pub(super) message: String,
    pub(super) hint: String,
}

/// Reads the rows that a value names.
pub(super) fn read<T: RowName>(value: &Value) -> Result<RowSelection<T>, RowsProblem> {
    let problem =
        |entry: Option<usize>, message: String, hint: &str| RowsProblem { entry, message, hint: hint.to_owned() };
    let usage =
        format!("Write \"{ALL}\", a range such as {:?}, or a list of {} and ranges.", T::EXAMPLE, plural::<T>());
    let (entries, is_list) = match value {
        Value::String(text) if text.trim() == ALL => return Ok(RowSelection::All),
        Value::Array(entries) => (entries.as_slice(), true),
        Value::String(_) => (std::slice::from_ref(value), false),
        _ => return Err(problem(None, "names no rows".to_owned(), &usage)),
    };
    let mut list = RowList { rows: Vec::new(), entries: Vec::new(), written: value.clone() };
    for (index, entry) in entries.iter().enumerate() {
        let (place, shown) = (is_list.then_some(index), redact("", entry));
        let range = entry.as_str().and_then(RowRange::parse);
        let rows: Vec<T> = match range {
            Some(Err(())) => {
                let message = format!("{shown} has a number that is too large");
                return Err(problem(place, message, "Use row numbers below 2^63."));
            }
            Some(Ok(range)) => {
                let RowRange { prefix, first, last, width } = range;
                if first > last {
                    let hint = format!("Write \"{prefix}{last}..{first}\": the first and the last row, both included.");
                    return Err(problem(place, format!("{shown} runs backwards"), &hint));
                }
                if last.abs_diff(first) >= MAX_ROWS as u64 {
                    let message = format!("{shown} has more than {MAX_ROWS} rows");
                    return Err(problem(place, message, "Name fewer rows."));
                }
                let Some(rows) = (first..=last).map(|number| T::from_number(prefix, number, width)).collect() else {
                    let hint = "Write row numbers here, or ids under [taskset].";
                    return Err(problem(place, format!("{shown} is a range of ids, not of row numbers"), hint));
                };
                rows
            }
            // A single row is always an entry of a list: a lone text is probably a misspelt range.
            None => match T::from_entry(entry).filter(|_| is_list) {
                Some(row) => vec![row],
                None => return Err(problem(place, format!("{shown} names no rows"), &usage)),
            },
        };
        list.entries.extend(std::iter::repeat_n(index as u32, rows.len()));
        list.rows.extend(rows);
        if list.rows.len() > MAX_ROWS {
            return Err(problem(place, format!("names more than {MAX_ROWS} rows"), "Name fewer rows."));
        }
    }
    Ok(RowSelection::Listed(list))
}

fn plural<T: RowName>() -> &'static str {
    if T::KIND == i64::KIND { "row numbers" } else { "task ids" }
}

impl<T: RowName> Serialize for RowSelection<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::All => serializer.serialize_str(ALL),
            Self::Listed(list) => list.written.serialize(serializer),
        }
    }
}

impl<'de, T: RowName> Deserialize<'de> for RowSelection<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        read(&value).map_err(|problem| D::Error::custom(problem.message))
    }
}

impl<T: RowName> JsonSchema for RowSelection<T> {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        if T::KIND == i64::KIND { "RowNumbers".into() } else { "TaskIds".into() }
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let entry = if T::KIND == i64::KIND {
            json_schema!({ "type": ["integer", "string"], "format": "int64" })
        } else {
            json_schema!({ "type": "string" })
        };
        json_schema!({
            "description": format!("`\"all\"`, a range such as `\"{}\"` (both ends included), or a list of {} and ranges.", T::EXAMPLE, plural::<T>()),
            "x-rows": T::KIND,
            "type": ["string", "array"],
            "items": entry,
        })
    }
}

#[cfg(test)]
#[path = "row_selection_tests.rs"]
mod tests;

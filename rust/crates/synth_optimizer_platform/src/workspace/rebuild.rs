//! Computes the projections from the log again, says where the stored ones differ, and can replace them.

use std::path::Path;

use rusqlite::types::ValueRef;
use rusqlite::{Connection, TransactionBehavior};
use serde::Serialize;
use serde_json::{Value, json};

use super::error::sqlite;
use super::open;
use super::projector::Projector;
use super::reader::for_each_event;
use synth_optimizer_core::config::sections::Durability;
use synth_optimizer_core::model::canonical::hex;
use synth_optimizer_core::model::error::OptimizerError;

/// What to do about differences.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RebuildMode {
    /// Only say where they are.
    Compare,
    /// Replace the projections, in one transaction. No process may be running the run.
    Replace,
}

/// A row that is not what the log gives.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Difference {
    pub table: String,
    /// The columns of the primary key.
    pub key: Value,
    /// The stored row; none where it is missing.
    pub stored: Option<Value>,
    /// The row that the log gives; none where there should be no such row.
    pub expected: Option<Value>,
}

/// What a rebuild found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RebuildReport {
    pub events: u64,
    /// Rows compared, over all projections.
    pub rows: u64,
    /// Rows that differ.
    pub differing: u64,
    /// The first of them.
    pub differences: Vec<Difference>,
    pub replaced: bool,
}

/// Differences that are shown; the others are counted.
const SHOWN: usize = 20;

/// The projections, in an order in which they can be filled, with their keys.
const PROJECTIONS: &[(&str, &[&str])] = &[
    ("candidates", &["candidate_id"]),
    ("rollouts", &["request"]),
    ("proposer_calls", &["request"]),
    ("run_state", &["one"]),
];

/// Replays the log into an empty copy of the schema and compares every projection with it, row by row.
pub fn rebuild(path: &Path, mode: RebuildMode) -> Result<RebuildReport, OptimizerError> {
    let mut stored = match mode {
        RebuildMode::Compare => open::open_to_read(path)?,
        RebuildMode::Replace => open::open(path, Durability::Power)?,
    };
    let behavior = match mode {
        RebuildMode::Compare => TransactionBehavior::Deferred,
        RebuildMode::Replace => TransactionBehavior::Immediate,
    };
    let transaction = stored.transaction_with_behavior(behavior).map_err(sqlite("read the workspace"))?;
    let mut fresh = open::in_memory()?;
    let mut report = RebuildReport {
        events: replay(&transaction, &mut fresh)?,
        rows: 0,
        differing: 0,
        differences: Vec::new(),
        replaced: false,
    };
    for (table, key) in PROJECTIONS {
        compare(&transaction, &fresh, table, key, &mut report)?;
    }
    if mode == RebuildMode::Replace && report.differing > 0 {
        transaction.execute_batch("PRAGMA defer_foreign_keys = ON").map_err(sqlite("replace the projections"))?;
        for (table, _) in PROJECTIONS.iter().rev() {
            transaction.execute(&format!("DELETE FROM {table}"), []).map_err(sqlite("replace the projections"))?;
        }
        for (table, _) in PROJECTIONS {
            copy(&fresh, &transaction, table)?;
        }
        transaction.commit().map_err(sqlite("replace the projections"))?;
        report.replaced = true;
    }
    Ok(report)
}

fn replay(stored: &Connection, fresh: &mut Connection) -> Result<u64, OptimizerError> {
    let transaction = fresh.transaction().map_err(sqlite("replay the log"))?;
    let mut projector = Projector::load(&transaction)?;
    let mut events = 0;
    for_each_event(stored, 0, |event| {
        events += 1;
        projector.apply(&transaction, &[event])
    })?;
    projector.finish(&transaction)?;
    transaction.commit().map_err(sqlite("replay the log"))?;
    Ok(events)
}

/// Walks both tables in the order of their keys, side by side.
fn compare(
    stored: &Connection,
    fresh: &Connection,
    table: &str,
    key: &[&str],
    report: &mut RebuildReport,
) -> Result<(), OptimizerError> {
    let doing = || sqlite(format!("compare {table}"));
    let sql = format!("SELECT * FROM {table} ORDER BY {}", key.join(", "));
    let mut left = stored.prepare(&sql).map_err(doing())?;
    let mut right = fresh.prepare(&sql).map_err(doing())?;
    let names: Vec<String> = left.column_names().into_iter().map(str::to_owned).collect();
    let places: Vec<usize> = key.iter().filter_map(|key| names.iter().position(|name| name == key)).collect();
    let (mut left, mut right) = (left.query([]).map_err(doing())?, right.query([]).map_err(doing())?);
    let next = |rows: &mut rusqlite::Rows<'_>| -> Result<Option<Vec<Cell>>, OptimizerError> {
        let Some(row) = rows.next().map_err(doing())? else { return Ok(None) };
        (0..names.len())
            .map(|index| row.get_ref(index).map(Cell::of))
            .collect::<rusqlite::Result<_>>()
            .map(Some)
            .map_err(doing())
    };
    let (mut have, mut want) = (next(&mut left)?, next(&mut right)?);
    let key_of = |row: &[Cell]| -> Vec<Cell> { places.iter().filter_map(|place| row.get(*place).cloned()).collect() };
    while have.is_some() || want.is_some() {
        report.rows += 1;
        let order = match (&have, &want) {
            (Some(have), Some(want)) => key_of(have).partial_cmp(&key_of(want)).unwrap_or(std::cmp::Ordering::Equal),
            (Some(_), None) => std::cmp::Ordering::Less,
            (None, _) => std::cmp::Ordering::Greater,
        };
        let shown_left = if order.is_le() { have.take() } else { None };
        let shown_right = if order.is_ge() { want.take() } else { None };
        if shown_left != shown_right {
            report.differing += 1;
            if report.differences.len() < SHOWN {
                let keyed = shown_left.as_ref().or(shown_right.as_ref());
                let parts = places.iter().filter_map(|place| Some((names.get(*place)?, keyed?.get(*place)?)));
                report.differences.push(Difference {
                    table: table.to_owned(),
                    key: parts.map(|(name, cell)| (name.clone(), cell.json())).collect(),
                    stored: shown_left.as_deref().map(|row| shown(&names, row)),
                    expected: shown_right.as_deref().map(|row| shown(&names, row)),
                });
            }
        }
        if order.is_le() {
            have = next(&mut left)?;
        }
        if order.is_ge() {
            want = next(&mut right)?;
        }
    }
    Ok(())
}

fn copy(from: &Connection, to: &Connection, table: &str) -> Result<(), OptimizerError> {
    let doing = || sqlite(format!("replace {table}"));
    // Without the generated columns, which cannot be written.
    let mut columns = from.prepare("SELECT name FROM pragma_table_info(?1)").map_err(doing())?;
    let names: Vec<String> =
        columns.query_map([table], |row| row.get(0)).and_then(Iterator::collect).map_err(doing())?;
    let list = names.join(", ");
    let marks = vec!["?"; names.len()].join(", ");
    let mut insert = to.prepare(&format!("INSERT INTO {table} ({list}) VALUES ({marks})")).map_err(doing())?;
    let mut select = from.prepare(&format!("SELECT {list} FROM {table}")).map_err(doing())?;
    let mut rows = select.query([]).map_err(doing())?;
    while let Some(row) = rows.next().map_err(doing())? {
        let values: rusqlite::Result<Vec<rusqlite::types::Value>> =
            (0..names.len()).map(|index| row.get(index)).collect();
        insert.execute(rusqlite::params_from_iter(values.map_err(doing())?)).map_err(doing())?;
    }
    Ok(())
}

fn shown(names: &[String], row: &[Cell]) -> Value {
    names.iter().zip(row).map(|(name, cell)| (name.clone(), cell.json())).collect()
}

/// A value that is ordered as SQLite orders it.
#[derive(Debug, Clone, PartialEq, PartialOrd)]
enum Cell {
    Null,
    Integer(i64),
    Real(f64),
    Text(String),
    Blob(Vec<u8>),
}

impl Cell {
    fn of(value: ValueRef<'_>) -> Self {
        match value {
            ValueRef::Null => Self::Null,
            ValueRef::Integer(number) => Self::Integer(number),
            ValueRef::Real(number) => Self::Real(number),
            ValueRef::Text(text) => Self::Text(String::from_utf8_lossy(text).into_owned()),
            ValueRef::Blob(bytes) => Self::Blob(bytes.to_vec()),
        }
    }

    fn json(&self) -> Value {
        match self {
            Self::Null => Value::Null,
            Self::Integer(number) => json!(number),
            Self::Real(number) => json!(number),
            Self::Text(text) => json!(text),
            Self::Blob(bytes) => json!(hex(bytes)),
        }
    }
}

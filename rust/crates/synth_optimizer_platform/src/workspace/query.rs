//! Helpers for queries: rows as tuples or values, and stored JSON documents as their types.

use std::fmt::Display;

use rusqlite::{Connection, OptionalExtension, Params, Row};
use serde::de::DeserializeOwned;

use super::error::{json, sqlite};
use synth_optimizer_core::model::error::OptimizerError;

/// The events that the partial index on the type covers. A query must use exactly this condition for SQLite to use the
/// index.
pub(super) const MILESTONES: &str =
    "events INDEXED BY events_by_type WHERE type NOT IN ('rollout.finished', 'rollout.requested')";

/// Returns all rows of a query. The statement stays prepared.
pub(super) fn list<T>(
    db: &Connection,
    doing: impl Display,
    sql: &str,
    values: impl Params,
    each: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
) -> Result<Vec<T>, OptimizerError> {
    db.prepare_cached(sql).and_then(|mut statement| statement.query_map(values, each)?.collect()).map_err(sqlite(doing))
}

/// Returns the first row of a query, if there is one.
pub(super) fn first<T>(
    db: &Connection,
    doing: impl Display,
    sql: &str,
    values: impl Params,
    each: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
) -> Result<Option<T>, OptimizerError> {
    db.prepare_cached(sql).and_then(|mut statement| statement.query_row(values, each).optional()).map_err(sqlite(doing))
}

/// Returns the JSON documents that a query selects.
pub(super) fn documents<T: DeserializeOwned>(
    db: &Connection,
    doing: &str,
    sql: &str,
    values: impl Params,
) -> Result<Vec<T>, OptimizerError> {
    let found: Vec<String> = list(db, doing, sql, values, |row| row.get(0))?;
    found.iter().map(|text| serde_json::from_str(text).map_err(json(doing))).collect()
}

/// Returns the JSON document of the first row, if there is one.
pub(super) fn document<T: DeserializeOwned>(
    db: &Connection,
    doing: &str,
    sql: &str,
    values: impl Params,
) -> Result<Option<T>, OptimizerError> {
    let found: Option<String> = first(db, doing, sql, values, |row| row.get(0))?;
    found.map(|text| serde_json::from_str(&text).map_err(json(doing))).transpose()
}

/// Executes a statement and returns how many rows it changed. The statement stays prepared.
pub(super) fn run(db: &Connection, doing: &str, sql: &str, values: impl Params) -> Result<usize, OptimizerError> {
    db.prepare_cached(sql).and_then(|mut statement| statement.execute(values)).map_err(sqlite(doing))
}

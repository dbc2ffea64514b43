//! Queries at one moment of the workspace.

use rusqlite::{Connection, OptionalExtension, Row};
use serde::de::DeserializeOwned;

use super::super::error::{json, sqlite};
use super::super::reader::Reader;
use super::super::store::int;
use super::refusal::ReadError;
use synth_optimizer_core::model::envelope::rfc3339;
use synth_optimizer_core::model::error::OptimizerError;
use synth_optimizer_core::model::event_fields::ObjectiveSetDeclared;

/// The events that the index on the type has. A query says so in these words, or the index is not used.
pub(super) const MILESTONES: &str =
    "events INDEXED BY events_by_type WHERE type NOT IN ('rollout.finished', 'rollout.requested')";

/// Reads several things as they are at one moment. Nobody else uses the connection meanwhile.
pub(super) fn at_one_moment<T>(
    reader: &Reader,
    read: impl FnOnce(&Connection) -> Result<T, ReadError>,
) -> Result<T, ReadError> {
    reader.with(|db| {
        if !db.is_autocommit() {
            return Ok(read(db));
        }
        let moment = db.unchecked_transaction().map_err(sqlite("read the workspace"))?;
        let found = read(&moment);
        moment.finish().map_err(sqlite("read the workspace"))?;
        Ok(found)
    })?
}

pub(super) fn list<T>(
    db: &Connection,
    doing: &str,
    sql: &str,
    values: impl rusqlite::Params,
    each: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
) -> Result<Vec<T>, OptimizerError> {
    db.prepare_cached(sql).and_then(|mut statement| statement.query_map(values, each)?.collect()).map_err(sqlite(doing))
}

pub(super) fn first<T>(
    db: &Connection,
    doing: &str,
    sql: &str,
    values: impl rusqlite::Params,
    each: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
) -> Result<Option<T>, OptimizerError> {
    db.prepare_cached(sql).and_then(|mut statement| statement.query_row(values, each).optional()).map_err(sqlite(doing))
}

/// A whole number that is never negative.
pub(super) fn whole(row: &Row<'_>, index: usize) -> rusqlite::Result<u64> {
    row.get::<_, i64>(index).map(i64::unsigned_abs)
}

/// A stored document.
pub(super) fn parsed<T: DeserializeOwned>(doing: &str, text: &str) -> Result<T, OptimizerError> {
    serde_json::from_str(text).map_err(json(doing))
}

pub(super) fn maybe_parsed<T: DeserializeOwned>(doing: &str, text: Option<&str>) -> Result<Option<T>, OptimizerError> {
    text.map(|text| parsed(doing, text)).transpose()
}

/// What is measured; none before the task is loaded.
pub(super) fn objectives(db: &Connection) -> Result<Option<ObjectiveSetDeclared>, OptimizerError> {
    let doing = "read the objectives";
    let sql =
        format!("SELECT fields FROM {MILESTONES} AND type = 'objective_set.declared' ORDER BY sequence DESC LIMIT 1");
    let found: Option<String> = first(db, doing, &sql, [], |row| row.get(0))?;
    maybe_parsed(doing, found.as_deref())
}

/// When an event was stored.
pub(super) fn stored_at(db: &Connection, sequence: u64) -> Result<Option<String>, OptimizerError> {
    let sql = "SELECT unix_millis FROM events WHERE sequence = ?1";
    first(db, "read the log", sql, [int(sequence)], |row| whole(row, 0)).map(|found| found.map(rfc3339))
}

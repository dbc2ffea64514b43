//! Maintenance of a workspace whose run is not executing: rebuilds its projections from the log, and vacuums the file.

use std::path::Path;

use rusqlite::types::ValueRef;
use rusqlite::{Connection, Row, TransactionBehavior};
use serde::Serialize;
use serde_json::{Value, json};

use super::error::{io, sqlite};
use super::open;
use super::projector::Projector;
use super::query::list;
use super::reader::for_each_event;
use synth_optimizer_core::config::sections::Durability;
use synth_optimizer_core::model::canonical::hex;
use synth_optimizer_core::model::error::OptimizerError;

/// What a rebuild does with differences.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RebuildMode {
    /// Only reports them.
    Compare,
    /// Replaces the projections in one transaction. No process may execute the run meanwhile.
    Replace,
}

/// A row that differs from what the log gives.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Difference {
    pub table: String,
    /// The columns of the primary key.
    pub key: Value,
    /// The stored row. `None` if it is missing.
    pub stored: Option<Value>,
    /// The row that the log gives. `None` if there should be no such row.
    pub expected: Option<Value>,
}

/// The result of a rebuild.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RebuildReport {
    pub events: u64,
    /// Number of rows compared, over all projections.
    pub rows: u64,
    /// Number of rows that differ.
    pub differing: u64,
    /// The first differences.
    pub differences: Vec<Difference>,
    pub replaced: bool,
}

/// The most differences that a report contains. The others are only counted.
const MAX_SHOWN_DIFFERENCES: usize = 20;

/// The projections with their primary keys, in an order that respects foreign keys.
const PROJECTIONS: &[(&str, &str)] =
    &[("candidates", "candidate_id"), ("rollouts", "call_id"), ("proposer_calls", "call_id"), ("run_state", "one")];

/// Replays the log into empty copies of the projections and compares each with its copy, row by row.
pub fn rebuild(path: &Path, mode: RebuildMode) -> Result<RebuildReport, OptimizerError> {
    let (mut stored, behavior) = match mode {
        RebuildMode::Compare => (open::open_to_read(path)?, TransactionBehavior::Deferred),
        RebuildMode::Replace => (open::open(path, Durability::Power)?, TransactionBehavior::Immediate),
    };
    // The copies are temporary tables in memory. `query_only` would reject writes to them.
    stored
        .execute_batch("PRAGMA temp_store = MEMORY; PRAGMA query_only = OFF")
        .map_err(sqlite("read the workspace"))?;
    let transaction = stored.transaction_with_behavior(behavior).map_err(sqlite("read the workspace"))?;
    let mut report = RebuildReport {
        events: replay(&transaction)?,
        rows: 0,
        differing: 0,
        differences: Vec::new(),
        replaced: false,
    };
    for (table, key) in PROJECTIONS {
        compare(&transaction, table, key, &mut report)?;
    }
    if mode == RebuildMode::Replace && report.differing > 0 {
        replace(&transaction)?;
        transaction.commit().map_err(sqlite("replace the projections"))?;
        report.replaced = true;
    }
    Ok(report)
}

/// Computes the projections in temporary tables and returns the number of events. The temporary tables shadow the stored
/// ones in every statement that names no schema.
fn replay(db: &Connection) -> Result<u64, OptimizerError> {
    let definition = "SELECT sql FROM main.sqlite_schema WHERE type = 'table' AND name = ?1";
    for (table, _) in PROJECTIONS {
        let found: Vec<String> = list(db, "replay the log", definition, [table], |row| row.get(0))?;
        for sql in found {
            let copy = sql.replacen("CREATE TABLE", "CREATE TEMP TABLE", 1);
            db.execute_batch(&copy).map_err(sqlite("replay the log"))?;
        }
    }
    let mut projector = Projector::load(db)?;
    let mut events = 0;
    for_each_event(db, 0, |event| {
        events += 1;
        projector.apply(db, &[event])
    })?;
    projector.finish(db)?;
    Ok(events)
}

fn compare(db: &Connection, table: &str, key: &str, report: &mut RebuildReport) -> Result<(), OptimizerError> {
    let doing = format!("compare {table}");
    // `table_xinfo` includes the generated columns.
    let sql = "SELECT name FROM pragma_table_xinfo(?1)";
    let names: Vec<String> = list(db, &doing, sql, [table], |row| row.get(0))?;
    let of = |side: &str| names.iter().map(|name| format!("{side}.{name}")).collect::<Vec<_>>().join(", ");
    let (stored, expected) = (of("stored"), of("expected"));
    let rows = format!("main.{table} AS stored FULL JOIN temp.{table} AS expected ON stored.{key} = expected.{key}");
    let differ = format!("({stored}) IS NOT ({expected})");
    let sql = format!("SELECT count(*), count(*) FILTER (WHERE {differ}) FROM {rows}");
    let (all, differing): (u64, u64) =
        db.query_row(&sql, [], |row| row.try_into()).map_err(sqlite(format_args!("compare {table}")))?;
    report.rows += all;
    report.differing += differing;
    let sql = format!(
        "SELECT {stored}, {expected} FROM {rows} WHERE {differ} ORDER BY coalesce(stored.{key}, expected.{key}) LIMIT ?1"
    );
    let difference = |row: &Row<'_>| {
        let stored = shown(row, &names, key, 0)?;
        let expected = shown(row, &names, key, names.len())?;
        let value = stored.as_ref().or(expected.as_ref()).map(|row| row[key].clone());
        Ok(Difference { table: table.to_owned(), key: json!({ key: value }), stored, expected })
    };
    let found = list(db, &doing, &sql, [MAX_SHOWN_DIFFERENCES - report.differences.len()], difference)?;
    report.differences.extend(found);
    Ok(())
}

/// Returns one side of a joined row as JSON, or `None` if that side is missing.
fn shown(row: &Row<'_>, names: &[String], key: &str, from: usize) -> rusqlite::Result<Option<Value>> {
    let mut shown = serde_json::Map::new();
    for (place, name) in names.iter().enumerate() {
        let value = match row.get_ref(from + place)? {
            ValueRef::Null => Value::Null,
            ValueRef::Integer(number) => json!(number),
            ValueRef::Real(number) => json!(number),
            ValueRef::Text(text) => json!(String::from_utf8_lossy(text)),
            ValueRef::Blob(bytes) => json!(hex(bytes)),
        };
        shown.insert(name.clone(), value);
    }
    Ok((!shown[key].is_null()).then_some(Value::Object(shown)))
}

fn replace(db: &Connection) -> Result<(), OptimizerError> {
    let run = |sql: &str| db.execute_batch(sql).map_err(sqlite("replace the projections"));
    run("PRAGMA defer_foreign_keys = ON")?;
    for (table, _) in PROJECTIONS.iter().rev() {
        run(&format!("DELETE FROM main.{table}"))?;
    }
    for (table, _) in PROJECTIONS {
        // `table_info` leaves out the generated columns, which cannot be written.
        let sql = "SELECT group_concat(name, ', ') FROM pragma_table_info(?1)";
        let columns: String =
            db.query_row(sql, [table], |row| row.get(0)).map_err(sqlite("replace the projections"))?;
        run(&format!("INSERT INTO main.{table} ({columns}) SELECT {columns} FROM temp.{table}"))?;
    }
    Ok(())
}

/// The size of the file before and after a vacuum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct VacuumReport {
    pub bytes_before: u64,
    pub bytes_after: u64,
}

/// Rewrites the file without empty pages. No process may execute the run meanwhile.
pub fn vacuum(path: &Path) -> Result<VacuumReport, OptimizerError> {
    let connection = open::open(path, Durability::Power)?;
    // The WAL is checkpointed first, because its content counts to the size before.
    let size = || std::fs::metadata(path).map(|found| found.len()).map_err(io("measure", path));
    let fold = || connection.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").map_err(sqlite("fold the WAL"));
    fold()?;
    let bytes_before = size()?;
    connection.execute_batch("VACUUM").map_err(sqlite(format_args!("vacuum {}", path.display())))?;
    fold()?;
    let bytes_after = size()?;
    connection.close().map_err(|(_, error)| sqlite(format_args!("close {}", path.display()))(error))?;
    Ok(VacuumReport { bytes_before, bytes_after })
}

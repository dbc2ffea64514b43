//! Opens and creates `workspace.sqlite`: permissions, schema version, journal and durability.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::Connection;
use rusqlite_migration::{M, Migrations};

use super::error::{DAMAGED, io, sqlite};
use super::records::RunRow;
use super::schema::{BUSY_TIMEOUT, Schema};
use crate::file_error::if_exists;
use synth_optimizer_core::config::sections::Durability;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};

const STEPS: &[M<'_>] = &[M::up(concat!(
    include_str!("../../migrations/0001_tables.sql"),
    include_str!("../../migrations/0001_views.sql")
))];
static MIGRATIONS: Migrations<'_> = Migrations::from_slice(STEPS);

/// The newest schema version that this release supports.
pub const SCHEMA_VERSION: usize = STEPS.len();

static SCHEMA: Schema = Schema {
    application_id: 1_398_361_719,
    migrations: &MIGRATIONS,
    version: SCHEMA_VERSION,
    noun: "workspace",
    whole_noun: "the workspace of a run",
    hint: "Name the workspace.sqlite of a run directory.",
};

/// Creates a new workspace file. It appears under its name complete, or not at all.
pub(super) fn create(path: &Path, run: &RunRow) -> Result<(), OptimizerError> {
    if path.exists() {
        return Err(OptimizerError::new(ErrorCode::Io, format!("{} exists already", path.display()))
            .with_hint("Resume the run, or give the new run another run_id."));
    }
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(".tmp");
    let unfinished = PathBuf::from(unfinished);
    if_exists(std::fs::remove_file(&unfinished)).map_err(io("remove", &unfinished))?;
    SCHEMA.build(&unfinished, |connection| super::store::insert_run(connection, run))?;
    std::fs::rename(&unfinished, path).map_err(io("create", path))
}

/// Opens an existing workspace to record the findings of a status. Waits for the writer no longer than `busy`.
pub(super) fn open_to_record(path: &Path, busy: Duration) -> Result<Connection, OptimizerError> {
    let connection = SCHEMA.connect(path, busy)?;
    connection.execute_batch("PRAGMA synchronous = NORMAL").map_err(sqlite("open the workspace"))?;
    Ok(connection)
}

/// Opens an existing workspace for its one writer.
pub(super) fn open(path: &Path, durability: Durability) -> Result<Connection, OptimizerError> {
    let mut connection = SCHEMA.connect(path, BUSY_TIMEOUT)?;
    SCHEMA.check(&connection, path)?;
    quick_check(&connection, path)?;
    SCHEMA.migrate(&mut connection, path)?;
    prepare_to_write(connection, path, durability)
}

/// Opens a workspace that was just created, without checking it.
pub(super) fn open_new(path: &Path, durability: Durability) -> Result<Connection, OptimizerError> {
    prepare_to_write(SCHEMA.connect(path, BUSY_TIMEOUT)?, path, durability)
}

fn prepare_to_write(connection: Connection, path: &Path, durability: Durability) -> Result<Connection, OptimizerError> {
    let synchronous = match durability {
        Durability::Process => "NORMAL",
        // On macOS, only `fullfsync` empties the cache of the drive. Elsewhere it changes nothing.
        Durability::Power => "FULL; PRAGMA fullfsync = ON",
    };
    // The cache is small: a commit touches only the ends of a few tables, and allocating fresh memory is expensive. A
    // checkpoint is due after 16 MB.
    connection
        .execute_batch(&format!(
            "PRAGMA journal_mode = WAL;
             PRAGMA synchronous = {synchronous};
             PRAGMA foreign_keys = ON;
             PRAGMA temp_store = MEMORY;
             PRAGMA cache_size = -2000;
             PRAGMA wal_autocheckpoint = 8000;
             PRAGMA journal_size_limit = 33554432;"
        ))
        .map_err(sqlite(format_args!("open {}", path.display())))?;
    Ok(connection)
}

/// Opens an existing workspace for reading, while another process may be writing.
pub(super) fn open_to_read(path: &Path) -> Result<Connection, OptimizerError> {
    SCHEMA.connect_to_read(path, BUSY_TIMEOUT)
}

fn quick_check(connection: &Connection, path: &Path) -> Result<(), OptimizerError> {
    let found: String = connection
        .query_row("PRAGMA quick_check(1)", [], |row| row.get(0))
        .map_err(sqlite(format_args!("check {}", path.display())))?;
    if found != "ok" {
        let message = format!("{} is damaged: {found}", path.display());
        return Err(OptimizerError::new(ErrorCode::Sqlite, message).with_hint(DAMAGED));
    }
    Ok(())
}

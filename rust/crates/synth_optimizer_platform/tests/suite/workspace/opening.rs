//! Creating and opening a workspace: permissions, other files, damage, and schemas of newer releases.

use std::os::unix::fs::PermissionsExt;

use rusqlite::Connection;
use synth_optimizer_core::config::sections::{CacheMode, Durability};
use synth_optimizer_core::model::error::ErrorCode;
use synth_optimizer_core::model::event_fields::{Operation, Stage};
use synth_optimizer_core::model::lifecycle::{CandidateStatus, RunState};
use synth_optimizer_platform::workspace::{Reader, SCHEMA_VERSION, Workspace, workspace_status};
use tempfile::TempDir;

use super::script::{create, run_row, whole_run};

#[test]
fn a_new_workspace_is_private_and_created_once() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("workspace.sqlite");
    // The temporary file of a process that was killed during the creation is replaced.
    std::fs::write(dir.path().join("workspace.sqlite.tmp"), b"half").unwrap();
    let workspace = create(&path);
    workspace.commit_blocking(whole_run().remove(0)).unwrap();
    for name in ["workspace.sqlite", "workspace.sqlite-wal", "workspace.sqlite-shm"] {
        let mode = std::fs::metadata(dir.path().join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    let error = Workspace::create(&path, &run_row(), Durability::Process).unwrap_err();
    assert!(error.message.contains("exists already"), "{error}");
}

/// Earlier SQLite releases can lose committed pages when two connections reset the WAL at the same time.
#[test]
fn the_bundled_sqlite_is_new_enough() {
    assert!(rusqlite::version_number() >= 3_051_003, "{}", rusqlite::version());
}

#[test]
fn a_newer_schema_is_refused_and_not_changed() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("workspace.sqlite");
    create(&path).close().unwrap();
    let newer = SCHEMA_VERSION + 1;
    Connection::open(&path).unwrap().pragma_update(None, "user_version", newer as i64).unwrap();
    let before = std::fs::read(&path).unwrap();
    for error in [
        Workspace::open(&path, Durability::Process).unwrap_err(),
        Reader::open(&path).unwrap_err(),
        workspace_status(&path).unwrap_err(),
    ] {
        assert_eq!(error.code, ErrorCode::Sqlite);
        assert!(error.message.contains(&format!("has schema {newer}, newer than {SCHEMA_VERSION}")), "{error}");
        assert!(error.hint.contains("release"), "{}", error.hint);
    }
    assert_eq!(std::fs::read(&path).unwrap(), before);
}

#[test]
fn an_unreleased_format_is_refused_and_not_changed() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("workspace.sqlite");
    create(&path).close().unwrap();
    Connection::open(&path).unwrap().pragma_update(None, "application_id", 1_398_361_943).unwrap();
    let before = std::fs::read(&path).unwrap();
    for error in [Workspace::open(&path, Durability::Process).unwrap_err(), workspace_status(&path).unwrap_err()] {
        assert_eq!(error.code, ErrorCode::Sqlite);
        assert!(error.message.contains("has a format that was never released"), "{error}");
    }
    assert_eq!(std::fs::read(&path).unwrap(), before);
}

#[test]
fn a_file_that_is_not_a_workspace_is_refused() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("workspace.sqlite");
    let error = Workspace::open(&path, Durability::Process).unwrap_err();
    assert_eq!(error.code, ErrorCode::Io);
    std::fs::write(&path, "this is no database, however long it may be. ".repeat(100)).unwrap();
    let error = Workspace::open(&path, Durability::Process).unwrap_err();
    assert_eq!(error.code, ErrorCode::Sqlite);
    assert!(error.hint.contains(".recover"), "{}", error.hint);
    std::fs::remove_file(&path).unwrap();
    Connection::open(&path).unwrap().execute_batch("CREATE TABLE theirs (x)").unwrap();
    let error = workspace_status(&path).unwrap_err();
    assert!(error.message.contains("is not the workspace of a run"), "{error}");
}

#[test]
fn a_damaged_workspace_is_refused_with_a_hint() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("workspace.sqlite");
    let workspace = create(&path);
    for batch in whole_run() {
        workspace.commit_blocking(batch).unwrap();
    }
    workspace.close().unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    let pages = bytes.len() / 4096;
    for page in pages / 2..pages {
        bytes[page * 4096..page * 4096 + 64].fill(0xAA);
    }
    std::fs::write(&path, bytes).unwrap();
    let error = Workspace::open(&path, Durability::Process).unwrap_err();
    assert_eq!(error.code, ErrorCode::Sqlite);
    assert!(error.hint.contains(".recover"), "{error} {}", error.hint);
}

#[test]
fn reading_an_ended_run_leaves_no_files() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("workspace.sqlite");
    create(&path).close().unwrap();
    let files =
        || -> Vec<_> { std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect() };
    assert_eq!(files(), ["workspace.sqlite"]);
    Reader::open(&path).unwrap().totals().unwrap();
    assert_eq!(files(), ["workspace.sqlite"]);
    workspace_status(&path).unwrap();
    assert_eq!(files(), ["workspace.sqlite"]);
}

#[test]
fn a_workspace_on_a_read_only_disk_can_be_read() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("workspace.sqlite");
    let workspace = create(&path);
    for batch in whole_run() {
        workspace.commit_blocking(batch).unwrap();
    }
    workspace.close().unwrap();
    let writable = std::fs::metadata(dir.path()).unwrap().permissions();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o400)).unwrap();
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o500)).unwrap();
    let status = workspace_status(&path);
    let totals = Reader::open(&path).and_then(|reader| reader.totals());
    std::fs::set_permissions(dir.path(), writable).unwrap();
    assert_eq!(status.unwrap()["runs"][0]["run_id"], "run-1");
    assert_eq!(totals.unwrap().counts.rollouts_finished, 8);
}

#[test]
fn the_schema_accepts_every_name_of_the_model() {
    let schema = include_str!("../../../migrations/0001_tables.sql");
    for words in [RunState::NAMES, CandidateStatus::NAMES, Stage::NAMES, Operation::NAMES, CacheMode::NAMES] {
        for word in words {
            assert!(schema.contains(&format!("'{word}'")), "{word} is in no CHECK");
        }
    }
}

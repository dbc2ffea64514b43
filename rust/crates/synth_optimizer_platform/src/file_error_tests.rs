//! Faults of the machine are named as what they are.
#![allow(clippy::unwrap_used)]

use std::fs::OpenOptions;
use std::io::{Error, Write};

use camino::Utf8Path;
use rusqlite::Connection;

use super::io;
use crate::workspace::error::sqlite;
use synth_optimizer_core::model::error::ErrorCode;

#[test]
fn a_full_disk_has_its_own_code() {
    let mut full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    let found = io(Utf8Path::new("/dev/full"), "writing")(full.write_all(b"x").unwrap_err());
    assert_eq!(found.code, ErrorCode::StorageFull);
    assert!(found.message.starts_with("the disk is full: writing /dev/full failed"), "{}", found.message);
}

#[test]
fn a_full_database_has_the_same_code() {
    let db = Connection::open_in_memory().unwrap();
    db.execute_batch("PRAGMA max_page_count = 4; CREATE TABLE entries (text TEXT)").unwrap();
    let error = db.execute("INSERT INTO entries VALUES (hex(zeroblob(100000)))", []).unwrap_err();
    let found = sqlite("store events")(error);
    assert_eq!(found.code, ErrorCode::StorageFull);
    assert!(found.message.starts_with("the disk is full: cannot store events"), "{}", found.message);
}

#[test]
fn too_many_open_files_have_a_hint() {
    for code in [24, 23] {
        let found = io(Utf8Path::new("feed"), "opening")(Error::from_raw_os_error(code));
        assert_eq!(found.code, ErrorCode::Io);
        assert!(found.message.contains("open files") && found.hint.contains("ulimit -n"), "{found:?}");
    }
}

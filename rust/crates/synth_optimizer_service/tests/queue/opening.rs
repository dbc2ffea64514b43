//! Creating and opening the file: atomic, private, one service at a time, and never a file of another kind.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use rusqlite::Connection;
use synth_optimizer_service::ServiceErrorCode;
use synth_optimizer_service::queue::{Queue, ServiceLock};
use tempfile::TempDir;

use crate::fixture::{QueueFixture, config, submission};

#[test]
fn concurrent_processes_can_create_the_file() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("new").join("service.sqlite");
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..16).map(|_| scope.spawn(|| Queue::open(&path).map(drop))).collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap().unwrap());
    });
    let names: Vec<String> = std::fs::read_dir(path.parent().unwrap())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert!(names.iter().all(|name| name.starts_with("service.sqlite") && !name.ends_with(".tmp")), "{names:?}");
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
}

#[test]
fn a_file_of_another_kind_or_a_newer_release_is_rejected_unchanged() {
    let dir = TempDir::new().unwrap();
    let other = dir.path().join("other.sqlite");
    Connection::open(&other).unwrap().execute_batch("CREATE TABLE mine (a)").unwrap();
    let text = dir.path().join("notes.txt");
    std::fs::write(&text, "not a database, but long enough to be read as one".repeat(20)).unwrap();
    let newer = dir.path().join("newer.sqlite");
    drop(Queue::open(&newer).unwrap());
    Connection::open(&newer).unwrap().pragma_update(None, "user_version", 99).unwrap();
    for path in [&other, &text, &newer] {
        let before = std::fs::read(path).unwrap();
        let refused = Queue::open(path).unwrap_err();
        assert!(!refused.error.hint.is_empty(), "{refused:?}");
        assert_eq!(std::fs::read(path).unwrap(), before, "{}", path.display());
    }
}

#[test]
fn a_second_service_is_rejected_with_the_holder_of_the_lock() {
    let fixture = QueueFixture::new();
    let mut first = ServiceLock::take(&fixture.path(), "127.0.0.1:0").unwrap();
    first.note_bind("127.0.0.1:8879").unwrap();
    let link = fixture.dir.path().join("link.sqlite");
    std::os::unix::fs::symlink(fixture.path(), &link).unwrap();
    for path in [fixture.path(), link] {
        let refused = ServiceLock::take(&path, "127.0.0.1:1").unwrap_err();
        assert_eq!(refused.code, Some(ServiceErrorCode::DatabaseInUse));
        let who = format!("pid {} bind 127.0.0.1:8879 since ", std::process::id());
        assert!(refused.error.message.contains(&who), "{refused}");
    }
    drop(first);
    ServiceLock::take(&fixture.path(), "127.0.0.1:1").unwrap();
}

#[test]
fn a_long_write_by_another_process_is_reported_as_busy() {
    let fixture = QueueFixture::new();
    let queue = Queue::open_with(&fixture.path(), fixture.clock.clone(), Duration::from_millis(50)).unwrap();
    let other = Connection::open(fixture.path()).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let config = config("late", "http://one.test", None);
    // Also callers that wait for the writer connection time out.
    std::thread::scope(|scope| {
        let waits: Vec<_> = (0..4).map(|_| scope.spawn(|| queue.submit(&submission(&config)).unwrap_err())).collect();
        for refused in waits.into_iter().map(|thread| thread.join().unwrap()) {
            assert_eq!(refused.code, Some(ServiceErrorCode::DatabaseBusy), "{refused:?}");
            assert!(refused.is_transient);
        }
    });
    assert!(queue.list(&[], 1, None).unwrap().items.is_empty(), "reads do not wait for writers");
    other.execute_batch("COMMIT").unwrap();
    queue.submit(&submission(&config)).unwrap();
}

#[test]
fn a_removed_or_replaced_file_is_an_error() {
    let fixture = QueueFixture::new();
    fixture.submit("kept");
    let aside = fixture.dir.path().join("aside.sqlite");
    std::fs::rename(fixture.path(), &aside).unwrap();
    let config = config("lost", "http://one.test", None);
    let refused = fixture.queue.submit(&submission(&config)).unwrap_err();
    assert!(refused.error.message.contains("removed or replaced"), "{refused}");
    std::fs::copy(&aside, fixture.path()).unwrap();
    assert!(fixture.queue.get("kept").unwrap_err().error.message.contains("removed or replaced"));
    std::fs::rename(&aside, fixture.path()).unwrap();
    assert_eq!(fixture.queue.get("kept").unwrap().run_id, "kept");
}

//! Making and opening the file: whole, private, for one service, and never a file of another kind.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use rusqlite::Connection;
use synth_optimizer_service::ServiceErrorCode;
use synth_optimizer_service::queue::{Queue, ServiceLock};
use tempfile::TempDir;

use crate::fixture::{QueueFixture, config, submission};

#[test]
fn many_processes_may_make_the_file_at_once() {
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
fn a_file_of_another_kind_or_of_a_newer_release_is_left_as_it_is() {
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
fn one_service_has_the_file_and_the_next_one_is_told_which() {
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
fn a_file_that_somebody_else_writes_to_for_long_is_busy_and_not_broken() {
    let fixture = QueueFixture::new();
    let queue = Queue::open_with(&fixture.path(), fixture.clock.clone(), Duration::from_millis(50)).unwrap();
    let other = Connection::open(fixture.path()).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let config = config("late", "http://one.test", None);
    // Also whoever waits behind somebody who waits.
    std::thread::scope(|scope| {
        let waits: Vec<_> = (0..4).map(|_| scope.spawn(|| queue.submit(&submission(&config)).unwrap_err())).collect();
        for refused in waits.into_iter().map(|thread| thread.join().unwrap()) {
            assert_eq!(refused.code, Some(ServiceErrorCode::StoreBusy), "{refused:?}");
            assert!(refused.is_transient);
        }
    });
    assert!(queue.list(&[], 1, None).unwrap().items.is_empty(), "reading waits for nobody");
    other.execute_batch("COMMIT").unwrap();
    queue.submit(&submission(&config)).unwrap();
}

#[test]
fn a_file_that_was_removed_or_replaced_takes_nothing() {
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

//! Commits and reads: round trips, crashes, group commit, and a writer that fails.

use std::collections::BTreeSet;
use std::sync::Arc;

use rusqlite::Connection;
use synth_optimizer_core::config::sections::Durability;
use synth_optimizer_core::model::error::ErrorCode;
use synth_optimizer_core::model::event::EVENT_TYPES;
use synth_optimizer_core::model::event_fields::Stage;
use synth_optimizer_core::model::ids::{CallId, RowId};
use synth_optimizer_core::model::lifecycle::RunState;
use synth_optimizer_core::model::usage::Cost;
use synth_optimizer_platform::workspace::{Batch, Reader, StoredEvent, Workspace};
use tempfile::TempDir;

use super::script::{Script, create, finished, id, run_row, unusual_events, whole_run};

fn read_log(reader: &Reader) -> Vec<StoredEvent> {
    let mut log = Vec::new();
    reader
        .log(0, |stored| {
            log.push(stored);
            Ok(())
        })
        .unwrap();
    log
}

#[test]
fn a_stored_run_is_read_back_unchanged() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("workspace.sqlite");
    let workspace = create(&path);
    let mut batches = whole_run();
    let next = batches.iter().map(|batch| batch.events.len() as u64).sum();
    batches.push(unusual_events(next));
    for batch in &batches {
        workspace.commit_blocking(batch.clone()).unwrap();
    }
    let written: Vec<StoredEvent> = batches.iter().flat_map(|batch| batch.events.clone()).collect();
    let seen: BTreeSet<&str> = written.iter().map(|stored| stored.event.type_name()).collect();
    let all: BTreeSet<&str> = EVENT_TYPES.iter().map(|kind| kind.name).collect();
    assert_eq!(seen, all, "the script covers every event type");
    assert_eq!(read_log(&workspace), written);
    assert_eq!(workspace.events(3, 2).unwrap(), written[3..5]);
    assert_eq!(workspace.last_sequence().unwrap(), Some(written.len() as u64 - 1));
    assert_eq!(workspace.run_row().unwrap(), run_row());
    assert_eq!(workspace.inbox().unwrap(), []);
    assert_eq!(workspace.unanswered().unwrap(), []);
    let totals = workspace.totals().unwrap();
    let (counts, spend) = (totals.counts, totals.counts.spend());
    assert_eq!(totals.state, RunState::Completed);
    assert_eq!(totals.best_candidate_id().map(|best| best.as_str()), Some("c2"));
    assert_eq!((counts.rollouts_requested, counts.rollouts_finished, counts.rollouts_failed), (9, 8, 1));
    assert_eq!((spend.sent_calls, spend.unpriced_calls, spend.unknown_outcomes), (12, 2, 2));
    assert_eq!(spend.cost(), Cost::Unknown);
    assert_eq!(spend.total_tokens, 1500);
    workspace.close().unwrap();
    assert!(!dir.path().join("workspace.sqlite-wal").exists(), "closing leaves one file");
    assert_eq!(read_log(&Reader::open(&path).unwrap()), written);
}

#[test]
fn replies_are_found_by_call_and_by_evidence() {
    let dir = TempDir::new().unwrap();
    let workspace = create(&dir.path().join("workspace.sqlite"));
    for batch in whole_run() {
        workspace.commit_blocking(batch).unwrap();
    }
    let evidence =
        |name: &str, row: &str, before: u64| workspace.evidence(&id(name), &RowId::new(row), CallId(before)).unwrap();
    let seed = evidence("c1", "train:1", 99).unwrap();
    assert_eq!(workspace.reply(seed).unwrap().unwrap(), br#"{"reward":0.5,"row":"train:1","request":0}"#);
    assert_eq!(evidence("c1", "train:1", 0), None, "a call has no evidence before it was requested");
    assert_eq!(evidence("c2", "test:1", 99), None, "held-out rows are not evidence");
    let (screened, full) = (evidence("c2", "train:1", 6).unwrap(), evidence("c2", "train:1", 99).unwrap());
    assert_ne!(screened, full, "the latest counts");
    let stored = (0..99).filter_map(|request| workspace.reply(CallId(request)).unwrap());
    assert!(stored.into_iter().any(|reply| reply == b"the transcript of the turn"));
    assert_eq!(workspace.reply(CallId(9999)).unwrap(), None);

    Connection::open(workspace.path())
        .unwrap()
        .execute("UPDATE replies SET data = CAST(substr(data, 1, 9) || x'0000' || substr(data, 12) AS BLOB)", [])
        .unwrap();
    let error = workspace.reply(seed).unwrap_err();
    assert_eq!(error.code, ErrorCode::Sqlite);
    assert!(error.message.contains(&format!("call {}", seed.0)), "{error}");
}

#[test]
fn acknowledged_writes_survive_a_killed_process() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("workspace.sqlite");
    let workspace = create(&path);
    let mut script = Script::default();
    script.register("c1", &[], None);
    let rows: Vec<String> = (0..3).map(|row| format!("train:{row}")).collect();
    let first = script.request_rollouts("c1", Stage::SeedFullTrain, &rows, 1);
    for batch in std::mem::take(&mut script.batches) {
        workspace.commit_blocking(batch).unwrap();
    }
    // The answer to the second call arrives first and waits in the inbox.
    let (mut waiting, event) = finished(first + 1, "c1", "train:1", Stage::SeedFullTrain, 1.0, 5);
    waiting.retired = false;
    workspace.commit_blocking(Batch { answered: vec![waiting.clone()], ..Batch::default() }).unwrap();
    std::mem::forget(workspace);

    let workspace = Workspace::open(&path, Durability::Power).unwrap();
    assert_eq!(workspace.inbox().unwrap(), [(CallId(first + 1), waiting.answer)]);
    let unanswered: Vec<CallId> = workspace.unanswered().unwrap().iter().map(|call| call.call_id).collect();
    assert_eq!(unanswered, [CallId(first), CallId(first + 2)]);
    let last = workspace.last_sequence().unwrap().unwrap();
    let (answered, retired) = finished(first, "c1", "train:0", Stage::SeedFullTrain, 0.5, 6);
    let stored = |sequence, event| StoredEvent::new(sequence, 7, event);
    let batch = Batch {
        events: vec![stored(last + 1, retired), stored(last + 2, event)],
        answered: vec![answered],
        retired: vec![CallId(first + 1)],
        ..Batch::default()
    };
    workspace.commit_blocking(batch).unwrap();
    assert_eq!(workspace.last_sequence().unwrap(), Some(last + 2));
    assert_eq!(workspace.inbox().unwrap(), []);
    assert_eq!(workspace.totals().unwrap().counts.rollouts_finished, 2);
}

#[test]
fn queued_commits_share_a_transaction() {
    let dir = TempDir::new().unwrap();
    let workspace = Arc::new(create(&dir.path().join("workspace.sqlite")));
    let mut script = Script::default();
    script.register("c1", &[], None);
    let rows: Vec<String> = (0..200).map(|row| format!("train:{row}")).collect();
    script.request_rollouts("c1", Stage::SeedFullTrain, &rows, 1);
    for batch in script.batches {
        workspace.commit_blocking(batch).unwrap();
    }
    // The writer is blocked, so that all commits are queued.
    let other = Connection::open(workspace.path()).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let before = workspace.transactions();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let commits: Vec<_> = rows
            .iter()
            .enumerate()
            .map(|(request, row)| {
                let (mut answered, _) = finished(request as u64, "c1", row, Stage::SeedFullTrain, 1.0, 5);
                answered.retired = false;
                let workspace = Arc::clone(&workspace);
                async move { workspace.commit(Batch { answered: vec![answered], ..Batch::default() }).await }
            })
            .collect();
        let mut waiting = tokio::task::JoinSet::new();
        for commit in commits {
            waiting.spawn(commit);
        }
        tokio::task::yield_now().await;
        other.execute_batch("COMMIT").unwrap();
        while let Some(done) = waiting.join_next().await {
            done.unwrap().unwrap();
        }
    });
    assert_eq!(workspace.inbox().unwrap().len(), 200);
    let transactions = workspace.transactions() - before;
    assert!(transactions <= 4, "{transactions} transactions for 200 commits");
}

#[test]
fn only_a_batch_that_does_not_continue_the_log_is_refused() {
    let dir = TempDir::new().unwrap();
    let workspace = create(&dir.path().join("workspace.sqlite"));
    let batches = whole_run();
    workspace.commit_blocking(batches[0].clone()).unwrap();
    let error = workspace.commit_blocking(batches[2].clone()).unwrap_err();
    assert_eq!(error.code, ErrorCode::Invariant);
    let error = workspace.commit_blocking(batches[0].clone()).unwrap_err();
    assert!(error.message.contains("event 0 cannot follow event 1"), "{error}");
    workspace.commit_blocking(batches[1].clone()).unwrap();
}

#[test]
fn every_write_after_a_failed_transaction_fails() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("workspace.sqlite");
    let workspace = create(&path);
    let batches = whole_run();
    workspace.commit_blocking(batches[0].clone()).unwrap();
    let other = Connection::open(&path).unwrap();
    other
        .execute_batch("CREATE TRIGGER full BEFORE INSERT ON calls BEGIN SELECT RAISE(ABORT, 'the disk is full'); END")
        .unwrap();
    let error = workspace.commit_blocking(batches[1].clone()).unwrap_err();
    assert!(error.message.contains("the disk is full"), "{error}");
    other.execute_batch("DROP TRIGGER full").unwrap();
    assert_eq!(workspace.commit_blocking(batches[1].clone()).unwrap_err(), error);
    assert_eq!(workspace.last_sequence().unwrap(), Some(1), "nothing is half stored");
    drop(workspace);
    let workspace = Workspace::open(&path, Durability::Process).unwrap();
    for batch in &batches[1..] {
        workspace.commit_blocking(batch.clone()).unwrap();
    }
}

#[test]
fn events_that_violate_the_lifecycle_are_refused() {
    let dir = TempDir::new().unwrap();
    let workspace = create(&dir.path().join("workspace.sqlite"));
    let (_, event) = finished(7, "c1", "train:0", Stage::SeedFullTrain, 0.5, 6);
    let stored = StoredEvent::new(0, 7, event);
    let error = workspace.commit_blocking(Batch { events: vec![stored], ..Batch::default() }).unwrap_err();
    assert_eq!(error.code, ErrorCode::Invariant);
    assert!(error.message.contains("call 7, which is not outstanding"), "{error}");
}

//! The size of a rollout in the workspace, which does not depend on the length of the run.

use synth_optimizer_core::model::event_effects::CallKind;
use synth_optimizer_core::model::event_fields::Stage;
use synth_optimizer_platform::workspace::{AnsweredCall, CacheAction, CacheUse};
use tempfile::TempDir;

use super::script::{Script, create, finished, sha256};

const BATCH: usize = 32;
const MOST_BYTES: u64 = 1024;

/// Returns rollouts as a driver stores them: requested and sent in one batch, answered in another.
pub(crate) fn script(rollouts: usize) -> Script {
    let mut script = Script::default();
    for (number, first) in (0..rollouts).step_by(BATCH).enumerate() {
        let name = format!("gepa_{}", &sha256(&(number / 4).to_be_bytes())[..12]);
        if number % 4 == 0 {
            script.register(&name, &[], None);
        }
        let rows: Vec<String> = (first..first + BATCH).map(|row| format!("train:{}", row % 1000)).collect();
        let request = script.request_rollouts(&name, Stage::CandidateFullTrain, &rows, 1);
        for (offset, row) in rows.iter().enumerate() {
            let id = request + offset as u64;
            script.finish(id, &name, row, Stage::CandidateFullTrain, 0.123_456_789 * offset as f64);
        }
        script.end_batch();
    }
    for batch in &mut script.batches {
        for answered in &mut batch.answered {
            answered.reply = None;
        }
        for stored in &mut batch.events {
            if let synth_optimizer_core::model::event::Event::RolloutFinished(fields) = &mut stored.event {
                fields.objectives.clear();
            }
        }
    }
    script
}

/// Returns the number of bytes per rollout.
fn measure(rollouts: usize) -> u64 {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("workspace.sqlite");
    let workspace = create(&path);
    let empty = std::fs::metadata(&path).unwrap().len();
    let script = script(rollouts);
    for batch in script.batches {
        workspace.commit_blocking(batch).unwrap();
    }
    let wal = std::fs::metadata(path.with_extension("sqlite-wal")).unwrap().len();
    assert!(wal < 40_000_000, "the WAL has grown to {wal} bytes");
    workspace.close().unwrap();
    (std::fs::metadata(&path).unwrap().len() - empty) / rollouts as u64
}

#[test]
fn a_rollout_takes_at_most_a_kilobyte() {
    let (few, many) = (measure(2_000), measure(20_000));
    assert!(few <= MOST_BYTES && many <= MOST_BYTES, "{few} and {many} bytes per rollout");
}

#[test]
fn a_retired_answer_leaves_nothing_in_the_inbox() {
    let dir = TempDir::new().unwrap();
    let workspace = create(&dir.path().join("workspace.sqlite"));
    let mut script = Script::default();
    script.register("c1", &[], None);
    let first = script.request_rollouts("c1", Stage::SeedFullTrain, &["train:1".to_owned()], 1);
    for batch in script.batches {
        workspace.commit_blocking(batch).unwrap();
    }
    let (answered, _) = finished(first, "c1", "train:1", Stage::SeedFullTrain, 1.0, 1);
    // A call that the cache answers is stored as a call too, although it was not sent.
    let cache = Some(CacheUse { key: sha256(b"key"), action: CacheAction::Hit });
    let answered = AnsweredCall { retired: false, cache, kind: CallKind::Rollout, ..answered };
    let batch = synth_optimizer_platform::workspace::Batch { answered: vec![answered], ..Default::default() };
    workspace.commit_blocking(batch).unwrap();
    assert_eq!(workspace.inbox().unwrap().len(), 1);
    assert_eq!(workspace.unanswered().unwrap(), []);
}

//! Typed reads: candidates with their scores, decisions, the frontier, the state history.

use synth_optimizer_platform::model::event_fields::Operation;
use synth_optimizer_platform::model::lifecycle::{CandidateStatus, Lifecycle, RunState};
use synth_optimizer_platform::workspace::RowScore;
use tempfile::TempDir;

use crate::script::{create, id, whole_run};

#[test]
fn candidates_come_with_what_was_measured_of_them() {
    let dir = TempDir::new().unwrap();
    let workspace = create(&dir.path().join("workspace.sqlite"));
    for batch in whole_run() {
        workspace.commit_blocking(batch).unwrap();
    }
    let candidates = workspace.candidates().unwrap();
    assert_eq!(candidates.len(), 4);
    let best = &candidates[1];
    assert_eq!(best.candidate_id, id("c2"));
    assert_eq!((best.operation, best.status), (Operation::Mutate, CandidateStatus::Accepted));
    assert_eq!(best.parent_ids, [id("c1")]);
    let means = [best.minibatch, best.train, best.heldout].map(|score| score.map(|score| (score.mean, score.n)));
    assert_eq!(means, [Some((1.0, 1)), Some((0.625, 2)), Some((0.75, 1))]);
    let shown = |rows: &[RowScore]| -> Vec<(String, f64)> {
        rows.iter().map(|row| (row.row_id.to_string(), row.reward)).collect()
    };
    assert_eq!(shown(&best.minibatch_rows), [("train:1".into(), 1.0)]);
    assert_eq!(shown(&best.train_rows), [("train:1".into(), 1.0), ("train:2".into(), 0.25)]);
    assert_eq!(shown(&best.heldout_rows), [("test:1".into(), 0.75)]);
    let digest = best.heldout_rows[0].trace_digest.clone().unwrap();
    assert!(workspace.reply(&digest).unwrap().is_some());
    assert_eq!(candidates[0].train_rows.len(), 3, "references count for the parent");

    let decisions: Vec<_> =
        workspace.decisions().unwrap().iter().map(|one| (one.candidate_id.to_string(), one.decision)).collect();
    let expected = [("c1", "accepted"), ("c2", "promoted"), ("c3", "rejected"), ("c2", "accepted"), ("c4", "deferred")];
    assert_eq!(decisions, expected.map(|(name, decision)| (name.to_owned(), decision)));
    assert_eq!(workspace.frontier().unwrap().len(), 3);
    let history = workspace.state_history().unwrap();
    assert_eq!(history[0].from, RunState::Created);
    assert_eq!(history[history.len() - 1].to, RunState::Completed);
    assert!(history.windows(2).all(|pair| pair[0].to == pair[1].from));
    assert!(history.iter().all(|change| change.from.next(change.trigger) == Ok(change.to)));
}

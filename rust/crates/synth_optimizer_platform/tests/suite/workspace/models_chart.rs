//! The data of the score chart: each score stands where the fold of the log says that the run was.

use std::collections::HashMap;

use synth_optimizer_core::model::candidate_view::affected_candidates;
use synth_optimizer_core::model::event::Event;
use synth_optimizer_core::model::run_totals::RunTotals;
use synth_optimizer_platform::workspace::Reader;
use synth_optimizer_platform::workspace::models::{ChartCandidate, SpentEffort};

use super::models::finished_run;
use super::script::{create, whole_run};

#[test]
fn scores_stand_where_the_fold_of_the_log_has_them() {
    let (_directory, reader) = finished_run();
    let (mut totals, mut scored_at) = (RunTotals::default(), HashMap::<String, (bool, SpentEffort)>::new());
    let mut checks = Vec::new();
    let mut seen = [false; 3];
    reader
        .log(0, |stored| {
            totals.apply(stored.sequence, stored.unix_millis, &stored.event);
            let at = SpentEffort::from(totals.counts.effort());
            let is_screening = matches!(stored.event, Event::MinibatchEvaluated(_));
            let is_score = is_screening
                || matches!(
                    stored.event,
                    Event::SeedEvaluated(_) | Event::FullTrainEvaluated(_) | Event::CheckDecided(_)
                );
            for id in affected_candidates(&stored.event).into_iter().filter(|_| is_score) {
                let known = scored_at.entry(id.to_string()).or_insert((false, at));
                if !(is_screening && known.0) {
                    *known = (!is_screening, at);
                }
            }
            match &stored.event {
                Event::CheckDecided(check) => checks.push((check.verdict, at)),
                Event::OutcomeUnknown(_) => seen[0] = true,
                Event::RolloutFailed(_) => seen[1] = true,
                Event::ProposerCompleted(_) => seen[2] = true,
                _ => {}
            }
            Ok(())
        })
        .unwrap();
    let chart = reader.score_chart().unwrap();
    let found = |known: &ChartCandidate| (known.candidate_id.clone(), known.at);
    let mut expected: Vec<_> = scored_at.into_iter().map(|(id, (_, at))| (id, at)).collect();
    let mut shown: Vec<_> = chart.candidates.iter().filter(|known| known.score.is_some()).map(found).collect();
    expected.sort_by(|left, right| left.0.cmp(&right.0));
    shown.sort_by(|left, right| left.0.cmp(&right.0));
    assert_eq!(shown, expected);
    assert_eq!(chart.checks.iter().map(|check| (check.verdict, check.at)).collect::<Vec<_>>(), checks);
    assert_eq!(chart.spent, totals.counts.effort().into());
    assert!(seen[1] && seen[2], "the run has failures and turns: {seen:?}");
}

#[test]
fn a_reader_that_saw_every_batch_has_the_chart_of_a_new_one() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("workspace.sqlite");
    let workspace = create(&path);
    let kept = Reader::open(&path).unwrap();
    for batch in whole_run() {
        workspace.commit_blocking(batch).unwrap();
        let new = Reader::open(&path).unwrap();
        assert_eq!(kept.score_chart().unwrap(), new.score_chart().unwrap());
    }
    workspace.close().unwrap();
}

#[test]
fn the_chart_reads_settled_rollouts_once() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("workspace.sqlite");
    let workspace = create(&path);
    let kept = Reader::open(&path).unwrap();
    let mut batches = whole_run();
    let last = batches.split_off(batches.len() - 1);
    batches.into_iter().for_each(|batch| workspace.commit_blocking(batch).unwrap());
    let before = kept.score_chart().unwrap();
    // A chart that read all rollouts again would lose their effort.
    let db = rusqlite::Connection::open(&path).unwrap();
    db.execute_batch("PRAGMA ignore_check_constraints = ON; UPDATE rollouts SET billing = 'unsent'").unwrap();
    last.into_iter().for_each(|batch| workspace.commit_blocking(batch).unwrap());
    let after = kept.score_chart().unwrap();
    assert!(before.candidates.iter().any(|candidate| candidate.at.rollouts > 0));
    assert_eq!(after.candidates[0].at, before.candidates[0].at);
    workspace.close().unwrap();
}

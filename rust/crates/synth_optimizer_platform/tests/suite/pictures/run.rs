//! The data of the pictures, from the log of a run.

use super::svg_check::check;
use crate::sample;
use crate::workspace::script::create;
use synth_optimizer_platform::artifacts::pictures::{ChartAxis, LineageStatus, PictureLayout, lineage, score_chart};
use synth_optimizer_platform::artifacts::{chart_data, lineage_data};
use synth_optimizer_platform::workspace::models::RunChart;
use synth_optimizer_platform::workspace::{Batch, Reader, StoredEvent};
use tempfile::TempDir;

fn reader(log: &[StoredEvent]) -> (TempDir, Reader) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("workspace.sqlite");
    let workspace = create(&path);
    workspace.commit_blocking(Batch { events: log.to_vec(), ..Batch::default() }).unwrap();
    workspace.close().unwrap();
    (directory, Reader::open(&path).unwrap())
}

fn chart(log: &[StoredEvent]) -> RunChart {
    reader(log).1.score_chart().unwrap()
}

#[test]
fn candidates_stand_where_their_scores_were_known() {
    let data = chart_data(&chart(&sample::finished()), "run-1", ChartAxis::Rollouts);
    let places: Vec<(&str, u64, bool, bool)> = data
        .candidates
        .iter()
        .map(|point| (point.id.as_str(), point.at.rollouts, point.accepted, point.is_screening))
        .collect();
    insta::assert_debug_snapshot!(places);
    assert!(data.candidates.windows(2).all(|pair| pair[0].at.rollouts < pair[1].at.rollouts));
    assert!(data.candidates.iter().all(|point| point.at.rollouts <= data.spent.rollouts));
    assert_eq!(data.heldout.iter().map(|mark| mark.is_initial).collect::<Vec<_>>(), [true, false]);
    assert!(!data.is_live);
    check(&score_chart(&data, PictureLayout::FILE));
}

#[test]
fn a_run_without_an_end_is_live() {
    let log = sample::finished();
    assert!(chart_data(&chart(&log[..log.len() / 2]), "run-1", ChartAxis::Cost).is_live);
    let empty = chart_data(&chart(&[]), "run-1", ChartAxis::Rollouts);
    assert!(check(&score_chart(&empty, PictureLayout::FILE)).has_text("no scores yet"));
}

#[test]
fn the_lineage_marks_undominated_candidates_only() {
    let data = lineage_data(&reader(&sample::finished()).1.lineage().unwrap(), "run-1");
    let nodes: Vec<(&str, LineageStatus, bool)> =
        data.nodes.iter().map(|node| (node.id.as_str(), node.status, node.is_undominated)).collect();
    let expected = [
        (sample::SEED, LineageStatus::Initial, false),
        (sample::CHILD, LineageStatus::Accepted, true),
        (sample::WORSE, LineageStatus::Rejected, false),
    ];
    assert_eq!(nodes, expected);
    assert_eq!(data.best.as_deref(), Some(sample::CHILD));
    let reason = &data.nodes[1].reason;
    assert!(reason.starts_with("accepted after its full evaluation: better"), "{reason}");
    check(&lineage(&data, PictureLayout::FILE));
}

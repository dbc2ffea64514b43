//! The data of the pictures, from the log of a run.

use super::svg_check::check;
use crate::sample;
use synth_optimizer_core::model::run_view::RunView;
use synth_optimizer_platform::artifacts::pictures::{ChartAxis, LineageStatus, PictureLayout, lineage, score_chart};
use synth_optimizer_platform::artifacts::{chart_data, lineage_data};
use synth_optimizer_platform::workspace::StoredEvent;

fn fold(log: &[StoredEvent]) -> RunView {
    let mut view = RunView::default();
    log.iter().for_each(|stored| view.apply(stored.sequence, stored.unix_millis, &stored.event));
    view
}

#[test]
fn candidates_stand_where_their_scores_were_known() {
    let data = chart_data(&fold(&sample::finished()), "run-1", ChartAxis::Rollouts);
    let places: Vec<(&str, u64, bool, bool)> = data
        .candidates
        .iter()
        .map(|point| (point.label.as_str(), point.at.rollouts, point.accepted, point.is_screening))
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
    let view = fold(&log[..log.len() / 2]);
    assert!(chart_data(&view, "run-1", ChartAxis::Cost).is_live);
    let empty = chart_data(&RunView::default(), "run-1", ChartAxis::Rollouts);
    assert!(check(&score_chart(&empty, PictureLayout::FILE)).has_text("no scores yet"));
}

#[test]
fn the_lineage_marks_undominated_candidates_only() {
    let data = lineage_data(&fold(&sample::finished()), "run-1");
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

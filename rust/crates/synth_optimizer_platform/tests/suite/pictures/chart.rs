//! The score chart.

use super::svg_check::{Picture, check};
use super::{LAYOUTS, hostile_text};
use proptest::prelude::{any, prop, prop_assert_eq, proptest};
use proptest::test_runner::Config;
use synth_optimizer_core::model::event_fields::{CheckVerdict, Direction};
use synth_optimizer_core::model::score::Score;
use synth_optimizer_platform::artifacts::pictures::{
    ChartAxis, ChartCheck, ChartData, ChartEffort, ChartPoint, HeldoutMark, PictureLayout, score_chart,
};

fn effort(rollouts: u64) -> ChartEffort {
    ChartEffort { rollouts, cost_usd: Some(rollouts as f64 * 0.002) }
}

fn point(number: u64, values: &[f64], accepted: bool) -> ChartPoint {
    ChartPoint {
        id: format!("gepa_{number}"),
        score: Score::of(values.iter().copied()),
        is_screening: values.len() < 4,
        accepted,
        at: effort(6 * (number + 1)),
    }
}

/// Returns a run in sprints with five candidates, one of them without a score.
fn typical() -> ChartData {
    let check = |rollouts, verdict| ChartCheck { verdict, reason: "6 rows".into(), at: effort(rollouts) };
    let heldout = |id: &str, is_initial, values: [f64; 4]| HeldoutMark {
        id: id.into(),
        is_initial,
        score: Score::of(values).unwrap(),
    };
    ChartData {
        title: "run <1> & \"more\"".into(),
        objective: "reward".into(),
        direction: Direction::Maximize,
        axis: ChartAxis::Rollouts,
        candidates: vec![
            point(0, &[0.0, 1.0, 0.0, 0.0, 1.0, 0.0], true),
            point(1, &[0.0, 1.0], false),
            point(2, &[], false),
            point(3, &[1.0, 1.0, 0.0, 0.0, 1.0, 0.0], true),
            point(4, &[1.0, 1.0, 1.0, 0.0, 1.0, 1.0], true),
        ],
        checks: vec![
            check(14, CheckVerdict::RolledBack),
            check(20, CheckVerdict::Undecided),
            check(30, CheckVerdict::Adopted),
        ],
        heldout: vec![heldout("gepa_0", true, [0.0, 1.0, 0.0, 0.0]), heldout("gepa_4", false, [1.0, 1.0, 0.0, 1.0])],
        spent: effort(36),
        is_live: false,
    }
}

fn empty() -> ChartData {
    ChartData { candidates: Vec::new(), checks: Vec::new(), heldout: Vec::new(), spent: effort(0), ..typical() }
}

fn many(count: u64) -> ChartData {
    let values = |number: u64| [number as f64 / 100.0 - 30.0, 12.5, 3.0, 4.0];
    let candidates = (0..count).map(|number| point(number, &values(number), number % 1000 == 17));
    ChartData { candidates: candidates.collect(), spent: effort(6 * count), ..empty() }
}

/// Draws a chart in every layout and checks it; returns the wide file.
fn checked(data: &ChartData) -> Picture {
    let mut pictures = LAYOUTS.map(|layout| {
        let svg = score_chart(data, layout);
        assert_eq!(svg, score_chart(data, layout));
        check(&svg)
    });
    std::mem::take(&mut pictures[0])
}

fn has_class(class: &str) -> impl Fn(&str, &std::collections::BTreeMap<String, String>) -> bool + '_ {
    move |_, attributes| attributes.get("class").is_some_and(|known| known == class)
}

#[test]
fn charts_of_three_runs() {
    let of_cost = ChartData { axis: ChartAxis::Cost, direction: Direction::Minimize, checks: Vec::new(), ..typical() };
    let live = ChartData { is_live: true, ..empty() };
    insta::assert_snapshot!("chart_typical", score_chart(&typical(), PictureLayout::FILE));
    insta::assert_snapshot!("chart_cost_narrow", score_chart(&of_cost, LAYOUTS[3]));
    insta::assert_snapshot!("chart_empty", score_chart(&live, LAYOUTS[2]));
}

#[test]
fn a_chart_shows_every_kind_of_candidate() {
    let picture = checked(&typical());
    // One of each in the legend, and those of the run.
    assert_eq!(picture.count(has_class("f-best")), 1 + 2, "accepted");
    assert_eq!(picture.count(has_class("f-initial")), 1 + 2, "the initial one, also held out");
    assert_eq!(picture.count(has_class("f-heldout")), 1 + 1);
    assert_eq!(picture.count(has_class("f-good")) + picture.count(has_class("f-bad")), 4, "decided checks");
    let inline = check(&score_chart(&typical(), LAYOUTS[2]));
    let leads_to = |id: &str| inline.count(|_, known| known.get("data-candidate").is_some_and(|known| known == id));
    assert_eq!(["gepa_0", "gepa_1", "gepa_2", "gepa_4"].map(leads_to), [2, 1, 0, 2], "train and held-out marks");
    assert!(picture.has_text("best 0.833") && picture.has_text("initial 0.333") && picture.has_text("rollouts"));
    assert!(
        picture.titles.iter().any(|title| title == "gepa_4: 0.833 [0.436, 0.970] on 6 rows"),
        "{:?}",
        picture.titles
    );
}

#[test]
fn a_chart_without_scores_says_so() {
    assert!(checked(&empty()).has_text("no scores"));
    assert!(checked(&ChartData { is_live: true, ..empty() }).has_text("no scores yet"));
    let unmeasured = ChartData { candidates: vec![point(0, &[], false)], ..empty() };
    assert!(checked(&unmeasured).has_text("no scores"));
    let unpriced = |mut known: ChartPoint| {
        known.at.cost_usd = None;
        known
    };
    let candidates = typical().candidates.into_iter().map(unpriced).collect();
    let picture = checked(&ChartData { candidates, axis: ChartAxis::Cost, ..typical() });
    assert!(picture.has_text("4 at an unknown cost are not shown"));
}

#[test]
fn large_charts_are_thinned_and_keep_accepted_candidates() {
    let data = many(10_000);
    let picture = checked(&data);
    assert!(score_chart(&data, PictureLayout::FILE).len() < 100_000);
    for number in 0..10 {
        let label = format!("gepa_{}:", 1000 * number + 17);
        assert!(picture.titles.iter().any(|title| title.starts_with(&label)), "{label}");
    }
    assert!(
        picture
            .texts
            .iter()
            .any(|(text, _)| text.ends_with("of 10,000 candidates with a score; bars are 95 % intervals"))
    );
}

#[test]
fn ticks_are_even_for_any_scores() {
    let scores: [&[f64]; 8] = [
        &[0.5],
        &[0.81, 0.82, 0.8205, 0.83],
        &[-3.0, 1e9],
        &[1e-7, 2e-7, 3e-7],
        &[f64::MAX, -f64::MAX, 1.0],
        &[1e100, 1.0, 2.0],
        &[-1234.5, -1233.0, -1230.0],
        &[0.0, 0.0, 0.0, 0.0],
    ];
    for values in scores {
        for direction in [Direction::Maximize, Direction::Minimize] {
            let candidates = vec![point(0, values, true), point(1, &values[..1], false)];
            let picture = checked(&ChartData { candidates, direction, ..typical() });
            let heights: Vec<f64> = picture
                .texts
                .iter()
                .filter(|(_, at)| at["text-anchor"] == "end" && at["class"] == "label")
                .map(|(_, at)| at["y"].parse().unwrap())
                .collect();
            let gaps: Vec<f64> = heights.windows(2).map(|pair| pair[0] - pair[1]).collect();
            assert!(gaps.len() >= 2 && gaps.iter().all(|gap| (gap - gaps[0]).abs() < 0.3), "{values:?}: {heights:?}");
        }
    }
}

proptest! {
    #![proptest_config(Config { cases: 30, ..Config::default() })]
    #[test]
    fn hostile_texts_and_numbers_are_safe(
        title in hostile_text(),
        objective in hostile_text(),
        id in hostile_text(),
        values in prop::collection::vec(any::<f64>(), 1..6),
        rollouts in any::<u64>(),
        accepted in any::<bool>(),
    ) {
        let candidate = ChartPoint {
            id: id.clone(),
            score: Score::of(values.iter().copied()),
            is_screening: false,
            accepted,
            at: ChartEffort { rollouts, cost_usd: values.first().copied() },
        };
        let data = ChartData { title, objective, candidates: vec![candidate.clone(), candidate], ..typical() };
        for axis in [ChartAxis::Rollouts, ChartAxis::Cost] {
            let picture = checked(&ChartData { axis, ..data.clone() });
            prop_assert_eq!(picture.count(|name, _| name == "script"), 0);
        }
    }
}

#[test]
fn long_texts_are_cut() {
    let long = "x".repeat(1 << 20);
    let mut data = ChartData { title: long.clone(), objective: long.clone(), ..typical() };
    data.candidates[0].id = long;
    assert!(score_chart(&data, PictureLayout::FILE).len() < 30_000);
    checked(&data);
}

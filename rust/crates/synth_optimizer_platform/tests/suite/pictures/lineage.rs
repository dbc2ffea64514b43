//! The lineage.

use super::svg_check::{Picture, check};
use super::{LAYOUTS, hostile_text};
use proptest::prelude::{any, prop, prop_assert_eq, proptest};
use proptest::test_runner::Config;
use synth_optimizer_core::model::event_fields::Direction;
use synth_optimizer_platform::artifacts::pictures::{
    LineageData, LineageNode, LineageStatus, PictureForm, PictureLayout, lineage,
};

fn node(id: &str, parents: &[&str], score: Option<f64>, status: LineageStatus) -> LineageNode {
    LineageNode {
        id: id.into(),
        parents: parents.iter().map(|parent| (*parent).to_owned()).collect(),
        score,
        status,
        reason: "primary not improved".into(),
        is_undominated: false,
    }
}

/// Returns a run with every status, a merge and a rebase.
fn typical() -> LineageData {
    use LineageStatus::{Accepted, Initial, Rejected, Running, Superseded, Undecided};
    let mut nodes = vec![
        node("gepa_0", &[], Some(0.3), Initial),
        node("gepa_1", &["gepa_0"], Some(0.5), Accepted),
        node("gepa_2", &["gepa_0"], None, Rejected),
        node("gepa_3", &["gepa_0"], Some(0.45), Accepted),
        node("gepa_4", &["gepa_1", "gepa_3"], Some(0.8), Accepted),
        node("gepa_5", &["gepa_4", "gepa_3", "gepa_1"], None, Superseded),
        node("gepa_6", &["gepa_4"], None, Undecided),
        node("gepa_7", &["gepa_4"], None, Running),
    ];
    nodes[4].is_undominated = true;
    LineageData {
        title: "run <1> & \"more\"".into(),
        objective: "reward".into(),
        direction: Direction::Maximize,
        nodes,
        best: Some("gepa_4".into()),
    }
}

/// Returns a run with many candidates; each fifth is accepted and is the parent of the next ones.
fn many(count: usize) -> LineageData {
    let name = |number: usize| format!("gepa_{number:04}");
    let nodes = (0..count).map(|number| {
        let parent = name(number.saturating_sub(1) / 5 * 5);
        let parents: &[&str] = if number == 0 { &[] } else { &[parent.as_str()] };
        let status = match number {
            0 => LineageStatus::Initial,
            _ if number % 5 == 0 => LineageStatus::Accepted,
            _ => LineageStatus::Rejected,
        };
        node(&name(number), parents, Some(number as f64 / count as f64), status)
    });
    let best = Some(name((count - 1) / 5 * 5));
    LineageData { nodes: nodes.collect(), best, ..typical() }
}

/// Draws a lineage in every layout and checks it; returns the wide file.
fn checked(data: &LineageData) -> Picture {
    let mut pictures = LAYOUTS.map(|layout| {
        let svg = lineage(data, layout);
        assert_eq!(svg, lineage(data, layout));
        check(&svg)
    });
    std::mem::take(&mut pictures[0])
}

fn drawn(picture: &Picture) -> usize {
    picture.count(|_, attributes| attributes.contains_key("data-candidate"))
}

#[test]
fn lineages_of_three_runs() {
    let none = LineageData { nodes: Vec::new(), best: None, ..typical() };
    insta::assert_snapshot!("lineage_typical", lineage(&typical(), PictureLayout::FILE));
    insta::assert_snapshot!("lineage_many_narrow", lineage(&many(300), LAYOUTS[3]));
    insta::assert_snapshot!("lineage_empty", lineage(&none, LAYOUTS[2]));
}

#[test]
fn a_lineage_shows_every_candidate_and_all_parents() {
    let data = typical();
    let picture = checked(&data);
    assert_eq!(drawn(&picture), 8);
    let edges = picture.titles.iter().filter(|title| title.contains(" from gepa_")).count();
    assert_eq!(edges, 3 + 2 + 3 + 2, "all parents of the merge and the rebase");
    let paths = |name: &str, attributes: &std::collections::BTreeMap<String, String>| {
        name == "path" && attributes["class"] == "path"
    };
    assert_eq!(picture.count(paths), 2, "the way to the best one");
    assert!(picture.has_text("best 0.800"));
    assert!(
        picture.titles.contains(&"gepa_4: accepted, best, on the frontier, reward 0.800. primary not improved".into())
    );
    assert!(picture.titles.contains(&"gepa_2: rejected, no score on train rows. primary not improved".into()));
    let inline = check(&lineage(&data, LAYOUTS[2]));
    assert_eq!(LAYOUTS[2].form, PictureForm::Inline);
    assert_eq!(inline.count(|name, attributes| name == "g" && attributes.contains_key("aria-label")), 8);
    assert_eq!(
        inline.count(|_, attributes| attributes.contains_key("tabindex")),
        0,
        "a report has no script that follows"
    );
    assert_eq!(inline.count(|name, _| name == "style"), 0, "the page has the stylesheet");
}

#[test]
fn large_lineages_count_what_they_do_not_draw() {
    for count in [41, 100, 2000] {
        let data = many(count);
        let picture = checked(&data);
        assert!(drawn(&picture) <= 110, "{}", drawn(&picture));
        let hidden: usize = picture
            .titles
            .iter()
            .filter_map(|title| title.split_once(" more candidates that are not drawn"))
            .map(|(number, _)| number.replace(',', "").parse::<usize>().unwrap())
            .sum();
        assert_eq!(drawn(&picture) + hidden, count);
        let best = data.best.clone().unwrap();
        for id in ["gepa_0000", &best] {
            let is_drawn = |_: &str, known: &std::collections::BTreeMap<String, String>| {
                known.get("data-candidate").is_some_and(|known| known == id)
            };
            assert_eq!(picture.count(is_drawn), 1, "{id}");
        }
        assert!(lineage(&data, PictureLayout::FILE).len() < 120_000);
    }
}

#[test]
fn unknown_and_circular_parents_are_ignored() {
    let mut data = typical();
    data.nodes[0].parents = vec!["gepa_7".into(), "gepa_0".into(), "nobody".into()];
    data.nodes[3].id = "gepa_1".into();
    data.best = Some("nobody".into());
    assert_eq!(drawn(&checked(&data)), 8);
}

proptest! {
    #![proptest_config(Config { cases: 30, ..Config::default() })]
    #[test]
    fn hostile_texts_and_any_tree_are_safe(
        title in hostile_text(),
        reason in hostile_text(),
        id in hostile_text(),
        links in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<Option<f64>>()), 1..90),
        best in any::<prop::sample::Index>(),
    ) {
        let name = |place: usize| format!("{place}{id}");
        let nodes: Vec<LineageNode> = links
            .iter()
            .enumerate()
            .map(|(place, (one, other, score))| LineageNode {
                id: name(place),
                parents: vec![name(one.index(links.len())), name(other.index(links.len()))],
                score: *score,
                status: [LineageStatus::Accepted, LineageStatus::Rejected, LineageStatus::Superseded][place % 3],
                reason: reason.clone(),
                is_undominated: place % 7 == 0,
            })
            .collect();
        let best = Some(name(best.index(nodes.len())));
        let picture = checked(&LineageData { title: title.clone(), objective: title, nodes, best, ..typical() });
        prop_assert_eq!(picture.count(|name, _| name == "script"), 0);
    }
}

#[test]
fn long_texts_are_cut() {
    let long = "x".repeat(1 << 20);
    let mut data = LineageData { title: long.clone(), objective: long.clone(), ..typical() };
    data.nodes[0].id.clone_from(&long);
    data.nodes[1].reason = long;
    assert!(lineage(&data, PictureLayout::FILE).len() < 30_000);
    checked(&data);
}

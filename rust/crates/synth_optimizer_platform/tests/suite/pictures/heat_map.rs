//! The heat map.

use super::svg_check::{Picture, check};
use super::{LAYOUTS, hostile_text};
use proptest::prelude::{any, prop, prop_assert_eq, proptest};
use proptest::test_runner::Config;
use synth_optimizer_platform::artifacts::pictures::{
    HeatCell, HeatColumn, HeatMapData, HeatRow, PictureForm, PictureLayout, heat_map,
};

const PARTLY: HeatCell = HeatCell::Partly { share: 0.5, score: 0.5 };

fn row(id: &str, cells: &[HeatCell]) -> HeatRow {
    HeatRow { id: id.into(), cells: cells.to_vec(), addresses: Vec::new() }
}

fn column(id: &str) -> HeatColumn {
    HeatColumn { id: id.into(), name: None }
}

/// Returns four rows and three candidates with every kind of cell. The last row has too few cells.
fn typical() -> HeatMapData {
    use HeatCell::{Failed, Lost, NotMeasured, Won};
    HeatMapData {
        title: "run <1> & \"more\"".into(),
        candidates: vec![
            HeatColumn { name: Some("initial"), ..column("gepa_0abc") },
            column("gepa_1abc"),
            HeatColumn { name: Some("best"), ..column("gepa_2abc") },
        ],
        rows: vec![
            row("solved", &[Won, Won, Won]),
            row("untouched", &[NotMeasured, NotMeasured, NotMeasured]),
            row("unsolved", &[Lost, PARTLY, Failed]),
            row("short", &[Won]),
        ],
        of: None,
        unsolved: 1,
    }
}

fn many(rows: usize, columns: usize) -> HeatMapData {
    let cells = [HeatCell::Won, HeatCell::Lost, PARTLY, HeatCell::Failed, HeatCell::NotMeasured];
    let cells = |number: usize| (0..columns).map(|place| cells[(number * 3 + place) % 5]).collect::<Vec<HeatCell>>();
    HeatMapData {
        candidates: (0..columns).map(|number| column(&format!("gepa_{number:08x}"))).collect(),
        rows: (0..rows).map(|number| row(&format!("row-{number}"), &cells(number))).collect(),
        of: Some((5000, 2000)),
        unsolved: 0,
        ..typical()
    }
}

/// Draws a heat map in every layout and checks it; returns the wide file.
fn checked(data: &HeatMapData) -> Picture {
    let mut pictures = LAYOUTS.map(|layout| {
        let svg = heat_map(data, layout);
        assert_eq!(svg, heat_map(data, layout));
        check(&svg)
    });
    std::mem::take(&mut pictures[0])
}

#[test]
fn heat_maps_of_three_runs() {
    let none = HeatMapData { rows: Vec::new(), unsolved: 0, ..typical() };
    insta::assert_snapshot!("heat_map_typical", heat_map(&typical(), PictureLayout::FILE));
    insta::assert_snapshot!("heat_map_narrow", heat_map(&many(6, 9), LAYOUTS[3]));
    insta::assert_snapshot!("heat_map_empty", heat_map(&none, LAYOUTS[2]));
}

#[test]
fn rows_keep_their_order_and_every_cell_is_told_apart() {
    let picture = checked(&typical());
    let rows: Vec<&str> =
        picture.texts.iter().filter(|(_, at)| at["text-anchor"] == "end").map(|(text, _)| text.as_str()).collect();
    assert_eq!(rows, ["solved", "untouched", "unsolved", "short"]);
    assert_eq!(picture.count(|_, attributes| attributes.contains_key("data-row")), 12);
    for title in [
        "row unsolved, initial gepa_0abc: lost",
        "row unsolved, gepa_1abc: partly, 0.500",
        "row unsolved, best gepa_2abc: failed",
        "row solved, best gepa_2abc: won",
        "row short, best gepa_2abc: not measured",
    ] {
        assert!(picture.titles.iter().any(|known| known == title), "{title}");
    }
    assert!(picture.has_text("1 unsolved"));
}

#[test]
fn the_initial_and_the_best_candidate_are_named_in_any_width() {
    let mut data = many(3, 100);
    data.candidates[1].name = Some("initial");
    data.candidates[98].name = Some("best");
    for layout in LAYOUTS {
        let picture = check(&heat_map(&data, layout));
        assert!(picture.has_text("initial") && picture.has_text("best"));
    }
}

#[test]
fn scores_become_cells() {
    assert_eq!(HeatCell::of_score(0.0, 0.0, 1.0), HeatCell::Lost);
    assert_eq!(HeatCell::of_score(1.0, 0.0, 1.0), HeatCell::Won);
    assert_eq!(HeatCell::of_score(3.0, 4.0, 2.0), HeatCell::Partly { share: 0.5, score: 3.0 });
    assert_eq!(HeatCell::of_score(f64::NAN, 0.0, 1.0), HeatCell::Failed);
}

#[test]
fn a_cell_of_the_page_has_the_whole_address_of_its_rollout() {
    let mut data = typical();
    let address = format!("/ui/runs/r/rows/{}?split=train&candidate=c", "%E2%80%AE".repeat(100));
    data.rows[0].addresses = vec![address.clone()];
    let cells = |layout| {
        let picture = check(&heat_map(&data, layout));
        picture.count(|_, attributes| attributes.get("data-href") == Some(&address))
    };
    assert_eq!(LAYOUTS.map(cells), LAYOUTS.map(|layout| usize::from(layout.form == PictureForm::Inline)));
}

#[test]
fn wide_and_tall_maps_fit() {
    for (rows, columns) in [(1, 1), (60, 100), (100, 3), (0, 5), (5, 0)] {
        let picture = checked(&many(rows, columns));
        assert_eq!(picture.count(|_, attributes| attributes.contains_key("data-row")), rows * columns);
    }
    assert!(checked(&many(60, 100)).has_text("60 of 5,000 rows, 100 of 2,000 candidates"));
    assert!(checked(&many(5, 0)).has_text("no scores"));
}

proptest! {
    #![proptest_config(Config { cases: 30, ..Config::default() })]
    #[test]
    fn hostile_texts_are_safe(
        title in hostile_text(),
        ids in prop::collection::vec(hostile_text(), 1..8),
        score in any::<f64>(),
    ) {
        let rows = ids.iter().map(|id| row(id, &[HeatCell::of_score(score, 0.0, 1.0), HeatCell::Won]));
        let data = HeatMapData { title, rows: rows.collect(), candidates: ids.iter().map(|id| column(id)).collect(), of: None, unsolved: 0 };
        prop_assert_eq!(checked(&data).count(|name, _| name == "script"), 0);
    }
}

#[test]
fn long_texts_are_cut() {
    let long = "x".repeat(1 << 20);
    let rows = vec![row(&long, &[])];
    let data = HeatMapData { title: long.clone(), candidates: vec![column(&long)], rows, of: None, unsolved: 0 };
    assert!(heat_map(&data, PictureLayout::FILE).len() < 30_000);
    checked(&data);
}

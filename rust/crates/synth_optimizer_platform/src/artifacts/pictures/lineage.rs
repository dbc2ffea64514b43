//! `lineage.svg`: the tree of candidates from the initial one to the best one, coloured by score and shaped by status.

use super::label::{Anchor, fit};
use super::lineage_data::{LineageData, Selection};
use super::lineage_layout::{Grid, arrange};
use super::lineage_nodes::{draw_labels, draw_legend, draw_node};
use super::scale::grouped;
use super::svg::{Svg, number};
use super::theme::SMALL_SIZE;
use super::{PictureLayout, PictureWidth};

const MARGIN: f64 = 24.0;
/// The radius of a node, if the columns leave room for it.
const RADIUS: f64 = 8.0;

/// Returns the lineage. Beyond the limits it draws the most important candidates and counts the others where they belong.
pub fn lineage(data: &LineageData, layout: PictureLayout) -> String {
    let width = layout.units();
    let selection = data.select(limits(layout.width));
    let grid = arrange(&selection);
    let range = score_range(data);
    let mut svg = Svg::new(layout);
    let top = svg.heading(&data.title, 16.0, width);
    let top = draw_legend(&mut svg, data, &selection, range, (width, top));
    let place = Placement::new(&grid, width, top + 30.0, layout.width);
    if selection.shown.is_empty() {
        svg.text("title muted", (width / 2.0, top + 60.0), Anchor::Middle, "no candidates");
    }
    draw_edges(&mut svg, data, &selection, &place);
    for index in 0..selection.shown.len() {
        draw_node(&mut svg, data, &selection, index, &place, range, layout.form);
    }
    draw_labels(&mut svg, data, &selection, &place, width);
    let height = place.bottom().max(top + 62.0) + 34.0;
    let note = note(data, &selection);
    svg.text("small muted", (16.0, height - 12.0), Anchor::Start, &fit(&note, SMALL_SIZE, width - 32.0));
    let best = data.best.as_deref().unwrap_or("none");
    let description = format!("{} Best candidate: {best}.", note);
    svg.finish((width, height), &format!("{}: lineage of the candidates", data.title), &description)
}

/// Returns up to how many candidates are all drawn, and at most how many are drawn otherwise.
fn limits(width: PictureWidth) -> (usize, usize) {
    match width {
        PictureWidth::Wide => (40, 110),
        PictureWidth::Narrow => (24, 40),
    }
}

/// Where columns and rows are in the drawing.
pub(super) struct Placement<'a> {
    grid: &'a Grid,
    left: f64,
    top: f64,
    /// The distance of two columns.
    pub(super) across: f64,
    down: f64,
    /// The radius of an accepted candidate.
    pub(super) radius: f64,
}

impl<'a> Placement<'a> {
    fn new(grid: &'a Grid, width: f64, top: f64, form: PictureWidth) -> Self {
        let gaps = grid.columns.saturating_sub(1).max(1) as f64;
        let most = match form {
            PictureWidth::Wide => 96.0,
            PictureWidth::Narrow => 72.0,
        };
        let across = ((width - 2.0 * MARGIN - 16.0) / gaps).min(most);
        // Room for a label below each node if there are few.
        let down = if grid.rows <= 14 { 44.0 } else { 30.0 };
        let radius = (0.42 * across).clamp(3.0, RADIUS);
        Self { grid, left: MARGIN + 8.0, top, across, down, radius }
    }

    pub(super) fn at(&self, index: usize) -> (f64, f64) {
        let (column, row) = self.grid.cells[index];
        (self.left + self.across * column as f64, self.top + self.down * row as f64)
    }

    pub(super) fn bottom(&self) -> f64 {
        self.top + self.down * self.grid.rows.saturating_sub(1) as f64 + 24.0
    }
}

/// Returns the lowest and the highest score.
fn score_range(data: &LineageData) -> Option<(f64, f64)> {
    let scores = data.nodes.iter().filter_map(|node| node.score).filter(|score| score.is_finite());
    let (low, high) =
        scores.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), score| (low.min(score), high.max(score)));
    (low <= high).then_some((low, high))
}

fn draw_edges(svg: &mut Svg, data: &LineageData, selection: &Selection, place: &Placement<'_>) {
    for emphasised in [false, true] {
        for (index, parents) in selection.parents.iter().enumerate() {
            for (which, (parent, is_gap)) in parents.iter().enumerate() {
                let on_path = which == 0 && selection.on_path[index] && selection.on_path[*parent];
                if on_path != emphasised {
                    continue;
                }
                let path = edge_path(place.at(*parent), place.at(index), place.across, which == 0);
                let class = match (on_path, is_gap, which) {
                    (true, false, _) => "path",
                    (true, true, _) => "path dashed",
                    (false, true, _) => "edge dashed",
                    (false, false, 0) => "edge",
                    (false, false, _) => "edge dotted",
                };
                let title = match is_gap {
                    true => "candidates between these two are not drawn".to_owned(),
                    false => format!("{} from {}", id_of(data, selection, index), id_of(data, selection, *parent)),
                };
                svg.add_with_title("path", &[("class", &class), ("d", &path)], &title);
            }
        }
    }
}

/// Returns the path of an edge. One from a first parent changes its row at once and runs along the row of the child, which
/// is free up to there; any other one is a curve.
fn edge_path(from: (f64, f64), to: (f64, f64), across: f64, is_first: bool) -> String {
    let bend = if is_first { (from.0 + across).min(to.0) } else { to.0 };
    let middle = number((from.0 + bend) / 2.0);
    let (x1, y1, x2, y2) = (number(from.0), number(from.1), number(to.0), number(to.1));
    if y1 == y2 && is_first {
        return format!("M{x1} {y1}H{x2}");
    }
    let curve = format!("M{x1} {y1}C{middle} {y1} {middle} {y2} {} {y2}", number(bend));
    if bend < to.0 { format!("{curve}H{x2}") } else { curve }
}

/// Returns the id of a drawn candidate.
pub(super) fn id_of<'a>(data: &'a LineageData, selection: &Selection, index: usize) -> &'a str {
    selection.shown.get(index).and_then(|place| data.nodes.get(*place)).map_or("", |node| node.id.as_str())
}

fn note(data: &LineageData, selection: &Selection) -> String {
    let count = |count: usize| grouped(&count.to_string());
    let (all, shown) = (data.nodes.len(), selection.shown.len());
    if shown == all {
        return format!("{} {}.", count(all), if all == 1 { "candidate" } else { "candidates" });
    }
    format!("{} of {} candidates are drawn; +n counts the others.", count(shown), count(all))
}

//! The parts of a score chart: grid, marks, the line of the best score, checks and held-out scores.

use std::fmt::Display;

use super::chart_data::{ChartCheck, ChartData, ShownPoint};
use super::label::{Anchor, MAX_ID_CHARS, cut, text_width};
use super::scale::{Scale, score_label};
use super::svg::{Svg, number};
use super::theme::{SMALL_SIZE, TEXT_SIZE};
use synth_optimizer_core::model::event_fields::CheckVerdict;
use synth_optimizer_core::model::score::Score;

/// The area of a panel with its vertical axis.
#[derive(Debug, Clone)]
pub(super) struct Frame {
    pub(super) left: f64,
    pub(super) right: f64,
    pub(super) top: f64,
    pub(super) bottom: f64,
    /// The height of the horizontal axis; below `bottom` if checks are shown between them.
    pub(super) axis: f64,
    pub(super) y: Scale,
    /// Whether the ticks have labels; a second panel beside the first one shares them.
    pub(super) has_labels: bool,
}

impl Frame {
    /// Draws the vertical axis, its grid and the horizontal axis.
    pub(super) fn draw_grid(&self, svg: &mut Svg) {
        for (value, label) in self.y.ticks() {
            let y = self.y.at(value);
            svg.line("grid", (self.left, y), (self.right, y));
            if self.has_labels {
                svg.text("label", (self.left - 8.0, y + 4.5), Anchor::End, &label);
            }
        }
        svg.line("axis", (self.left, self.axis), (self.right, self.axis));
    }
}

/// Draws a shape of the legend or the chart around a point.
pub(super) fn draw_shape(svg: &mut Svg, shape: &str, at: (f64, f64)) {
    let (name, attributes) = shape_of(shape, at);
    svg.add(name, &[("class", &attributes.0), (attributes.1, &attributes.2)]);
}

/// Returns the element of a shape: its name, class, and the attribute that places it.
fn shape_of(shape: &str, (x, y): (f64, f64)) -> (&'static str, (&'static str, &'static str, String)) {
    let polygon = |corners: &[(f64, f64)]| {
        let place = |(dx, dy): &(f64, f64)| format!("{},{}", number(x + dx), number(y + dy));
        corners.iter().map(place).collect::<Vec<_>>().join(" ")
    };
    let circle = |radius: f64| {
        let (left, across) = (number(x - radius), number(2.0 * radius));
        let r = number(radius);
        format!("M{left} {}a{r} {r} 0 1 0 {across} 0a{r} {r} 0 1 0 -{across} 0z", number(y))
    };
    match shape {
        "initial" => ("polygon", ("f-initial", "points", polygon(&[(0.0, -6.5), (6.5, 0.0), (0.0, 6.5), (-6.5, 0.0)]))),
        "best" => ("path", ("f-best", "d", circle(5.0))),
        "hollow" => ("path", ("f-hollow", "d", circle(2.6))),
        "good" => ("polygon", ("f-good", "points", polygon(&[(0.0, -5.0), (5.5, 4.5), (-5.5, 4.5)]))),
        "bad" => ("polygon", ("f-bad", "points", polygon(&[(0.0, 5.0), (5.5, -4.5), (-5.5, -4.5)]))),
        "open" => ("polygon", ("f-hollow", "points", polygon(&[(-4.0, -4.0), (4.0, -4.0), (4.0, 4.0), (-4.0, 4.0)]))),
        "heldout" => {
            ("polygon", ("f-heldout", "points", polygon(&[(-5.0, -5.0), (5.0, -5.0), (5.0, 5.0), (-5.0, 5.0)])))
        }
        _ => ("path", ("f-other", "d", circle(4.0))),
    }
}

fn draw_titled(svg: &mut Svg, shape: &str, at: (f64, f64), title: &str) {
    let (name, attributes) = shape_of(shape, at);
    svg.add_with_title(name, &[("class", &attributes.0), (attributes.1, &attributes.2)], title);
}

/// Draws the mark of a candidate. On a page it leads to the candidate.
fn draw_candidate(svg: &mut Svg, shape: &str, at: (f64, f64), id: &str, title: &str) {
    if !svg.is_inline() {
        draw_titled(svg, shape, at, title);
        return;
    }
    let (name, attributes) = shape_of(shape, at);
    let id = cut(id, MAX_ID_CHARS);
    let attributes: [(&str, &dyn Display); 3] =
        [("class", &attributes.0), (attributes.1, &attributes.2), ("data-candidate", &id)];
    svg.add_with_title(name, &attributes, title);
}

/// Draws the marks of candidates that were not accepted, and the intervals of all: every one if there are few, otherwise
/// those of accepted candidates.
pub(super) fn draw_points(svg: &mut Svg, frame: &Frame, x: &Scale, shown: &[ShownPoint<'_>], max_intervals: usize) {
    let all = shown.len() <= max_intervals;
    for each in shown.iter().filter(|each| !each.point.is_screening && (all || each.point.accepted || each.is_initial))
    {
        let class = if each.point.accepted { "bar s-best" } else { "bar s-other" };
        interval(svg, class, frame, x.at(each.x), &each.score);
    }
    for each in shown.iter().filter(|each| !each.point.accepted && !each.is_initial) {
        mark(svg, frame, x, each);
    }
}

/// Draws the mark of a candidate. Its tooltip has the id and the numbers.
pub(super) fn mark(svg: &mut Svg, frame: &Frame, x: &Scale, shown: &ShownPoint<'_>) {
    let shape = match (shown.is_initial, shown.point.accepted, shown.point.is_screening) {
        (true, _, _) => "initial",
        (false, true, _) => "best",
        (false, false, true) => "hollow",
        (false, false, false) => "other",
    };
    let at = (x.at(shown.x), frame.y.at(shown.score.mean));
    let id = &shown.point.id;
    draw_candidate(svg, shape, at, id, &format!("{id}: {}", score_text(&shown.score, "")));
}

fn interval(svg: &mut Svg, class: &str, frame: &Frame, x: f64, score: &Score) {
    let (Some(low), Some(high)) = (score.low, score.high) else { return };
    let (low, high) = (number(frame.y.at(low)), number(frame.y.at(high)));
    let (left, right) = (number(x - 3.0), number(x + 3.0));
    let path = format!("M{left} {low}H{right}M{left} {high}H{right}M{} {low}V{high}", number(x));
    svg.add("path", &[("class", &class), ("d", &path)]);
}

/// Draws the score of the best accepted candidate so far, as steps.
pub(super) fn draw_step(svg: &mut Svg, frame: &Frame, x: &Scale, corners: &[(f64, f64)], end: f64) {
    let mut path = String::new();
    for (from, mean) in corners {
        let (x, y) = (number(x.at(*from)), number(frame.y.at(*mean)));
        path.push_str(&if path.is_empty() { format!("M{x} {y}") } else { format!("H{x}V{y}") });
    }
    if !path.is_empty() {
        path.push_str(&format!("H{}", number(x.at(end))));
        svg.add("path", &[("class", &"step"), ("d", &path)]);
    }
}

/// Draws the checks below the plot. Of checks that would cover each other, the later one is drawn.
pub(super) fn draw_checks(svg: &mut Svg, data: &ChartData, frame: &Frame, x: &Scale) {
    const APART: f64 = 9.0;
    let y = (frame.bottom + frame.axis) / 2.0 + 1.0;
    let mut last = f64::INFINITY;
    let placed = data.checks.iter().rev().filter_map(|check| Some((x.at(data.position(check.at)?), check)));
    let mut drawn: Vec<(f64, &ChartCheck)> = Vec::new();
    for (at, check) in placed {
        if (last - at).abs() >= APART {
            drawn.push((at, check));
            last = at;
        }
    }
    for (at, check) in drawn.into_iter().rev() {
        let shape = match check.verdict {
            CheckVerdict::Adopted => "good",
            CheckVerdict::RolledBack => "bad",
            CheckVerdict::Undecided => "open",
        };
        let verdict = check.verdict.as_str().replace('_', " ");
        draw_titled(svg, shape, (at, y), &format!("check {verdict}: {}", check.reason));
    }
}

/// Draws the held-out scores, each with its interval and its number of rows.
pub(super) fn draw_heldout(svg: &mut Svg, data: &ChartData, frame: &Frame) {
    svg.text("label", (frame.left, frame.top - 18.0), Anchor::Start, "held-out rows");
    frame.draw_grid(svg);
    let step = (frame.right - frame.left) / data.heldout.len().max(1) as f64;
    for (place, mark) in data.heldout.iter().enumerate() {
        let x = frame.left + step * (place as f64 + 0.36);
        let y = frame.y.at(mark.score.mean);
        interval(svg, "bar s-heldout", frame, x, &mark.score);
        let shape = if mark.is_initial { "initial" } else { "heldout" };
        let title = format!("{}: {}", mark.id, score_text(&mark.score, "held-out "));
        draw_candidate(svg, shape, (x, y), &mark.id, &title);
        let value = score_label(mark.score.mean);
        if x + 10.0 + text_width(&value, TEXT_SIZE) <= frame.left + step * (place as f64 + 1.0) + 8.0 {
            svg.text("label halo", (x + 10.0, y + 4.5), Anchor::Start, &value);
        }
        let name = if mark.is_initial { "initial" } else { "best" };
        svg.text("label", (x, frame.axis + 19.0), Anchor::Middle, name);
        let rows = format!("n = {}", mark.score.n);
        if text_width(&rows, SMALL_SIZE) < step {
            svg.text("small muted", (x, frame.axis + 35.0), Anchor::Middle, &rows);
        }
    }
}

/// Returns a score with its interval and number of rows, and of which kind they are.
fn score_text(score: &Score, kind: &str) -> String {
    let rows = format!("{} {kind}{}", score.n, if score.n == 1 { "row" } else { "rows" });
    let mean = score_label(score.mean);
    match (score.low, score.high) {
        (Some(low), Some(high)) => format!("{mean} [{}, {}] on {rows}", score_label(low), score_label(high)),
        _ => format!("{mean} on {rows}"),
    }
}

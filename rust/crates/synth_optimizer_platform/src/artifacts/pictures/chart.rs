//! `score_chart.svg`: scores against rollouts or cost, the best so far, and held-out scores with their intervals.

use super::chart_data::{ChartAxis, ChartData, ShownPoint, best_so_far, thin};
use super::chart_panels::{Frame, draw_checks, draw_heldout, draw_points, draw_step, mark};
use super::label::{Anchor, Area, LabelPlacer, fit, text_width};
use super::scale::{Scale, grouped, score_label};
use super::svg::Svg;
use super::theme::{SMALL_SIZE, TEXT_SIZE};
use super::{PictureLayout, PictureWidth};
use synth_optimizer_core::model::event_fields::CheckVerdict;
use synth_optimizer_core::model::score::Score;

/// The most candidates in a chart, and the most whose intervals are all drawn.
const MAX_POINTS: usize = 300;
const MAX_INTERVALS: usize = 80;
const MARGIN: f64 = 16.0;
const PLOT_HEIGHT: f64 = 270.0;
const CHECK_LANE: f64 = 22.0;

/// Returns the score chart. Candidates stand where their score was known; without scores the chart says so.
pub fn score_chart(data: &ChartData, layout: PictureLayout) -> String {
    let width = layout.units();
    let measured = data.measured();
    let shown = thin(data, &measured, MAX_POINTS);
    let mut svg = Svg::new(layout);
    let mut top = svg.heading(&data.title, MARGIN, width);
    if !measured.is_empty() || !data.heldout.is_empty() {
        top = draw_legend(&mut svg, &legend_entries(data, &shown), width, top);
    }
    // The name of the axis and the names of the panels stand above the plot.
    top += 38.0;
    let frames = frames(data, layout, width, top, &shown);
    let (main, heldout) = (frames.main, frames.heldout);
    let name = fit(&format!("{} (train rows)", data.objective), TEXT_SIZE, main.right - MARGIN);
    svg.text("label", (MARGIN, main.top - 18.0), Anchor::Start, &name);
    draw_axes(&mut svg, data, &main, &frames.x);
    if shown.is_empty() {
        let text = if data.is_live { "no scores yet" } else { "no scores" };
        let middle = ((main.left + main.right) / 2.0, (main.top + main.bottom) / 2.0);
        svg.text("title muted", middle, Anchor::Middle, text);
    }
    let corners = best_so_far(data, &measured);
    let end = data.position(data.spent).unwrap_or_default().max(measured.last().map_or(0.0, |last| last.x));
    draw_points(&mut svg, &main, &frames.x, &shown, MAX_INTERVALS);
    draw_step(&mut svg, &main, &frames.x, &corners, end);
    if !data.checks.is_empty() {
        draw_checks(&mut svg, data, &main, &frames.x);
    }
    draw_marks_of_accepted(&mut svg, &main, &frames.x, &shown);
    label_ends(&mut svg, &main, &frames.x, &shown, &corners, end);
    if let Some(frame) = &heldout {
        draw_heldout(&mut svg, data, frame);
    }
    let note = note(data, measured.len(), shown.len());
    svg.text(
        "small muted",
        (MARGIN, frames.height - 12.0),
        Anchor::Start,
        &fit(&note, SMALL_SIZE, width - 2.0 * MARGIN),
    );
    let title = format!("{}: {} against {}", data.title, data.objective, axis_name(data.axis));
    svg.finish((width, frames.height), &title, &describe(data, &measured, &corners))
}

/// Where the panels are, and the horizontal axis of the first one.
struct Frames {
    main: Frame,
    heldout: Option<Frame>,
    x: Scale,
    height: f64,
}

fn frames(data: &ChartData, layout: PictureLayout, width: f64, top: f64, shown: &[ShownPoint<'_>]) -> Frames {
    let all_intervals = shown.len() <= MAX_INTERVALS;
    let ends = |score: &Score, interval: bool| {
        let bounds = if interval { [score.low, score.high] } else { [None, None] };
        [Some(score.mean), bounds[0], bounds[1]].into_iter().flatten()
    };
    let trains = shown
        .iter()
        .flat_map(|shown| ends(&shown.score, !shown.point.is_screening && (all_intervals || shown.point.accepted)));
    let helds = data.heldout.iter().flat_map(|mark| ends(&mark.score, true));
    let bottom = top + PLOT_HEIGHT;
    let y = Scale::of_scores(trains.chain(helds), bottom, top);
    let widest = y.ticks().iter().map(|(_, label)| text_width(label, TEXT_SIZE)).fold(0.0, f64::max);
    let left = MARGIN + widest.max(12.0) + 8.0;
    let lane = if data.checks.is_empty() { 0.0 } else { CHECK_LANE };
    let (beside, axis_bottom) = (data.heldout.len() as f64 * 92.0 + 8.0, bottom + lane);
    let right = match layout.width {
        PictureWidth::Wide if !data.heldout.is_empty() => width - MARGIN - beside - 24.0,
        PictureWidth::Wide | PictureWidth::Narrow => width - MARGIN,
    };
    let main = Frame { left, right, top, bottom, axis: axis_bottom, y: y.clone(), has_labels: true };
    let most_x = shown.iter().map(|shown| shown.x).chain(data.position(data.spent)).fold(0.0, f64::max);
    // A tick label needs about 80 units.
    let (ticks, from, to) = (((right - left) / 80.0).clamp(2.0, 8.0), left + 10.0, right - 10.0);
    let x = match data.axis {
        ChartAxis::Rollouts => Scale::of_counts(most_x as u64, ticks, from, to),
        ChartAxis::Cost => Scale::from_zero(most_x, ticks, from, to),
    };
    let below = axis_bottom + 44.0;
    let (heldout, height) = match layout.width {
        PictureWidth::Wide => (
            Frame { left: width - MARGIN - beside, right: width - MARGIN, has_labels: false, ..main.clone() },
            below + 30.0,
        ),
        PictureWidth::Narrow => {
            let top = below + 34.0;
            let bottom = top + PLOT_HEIGHT * 0.7;
            let y = y.between(bottom, top);
            (Frame { left, right: width - MARGIN, top, bottom, axis: bottom, y, has_labels: true }, bottom + 74.0)
        }
    };
    let has_heldout = !data.heldout.is_empty();
    let height = if has_heldout { height } else { below + 30.0 };
    Frames { main, heldout: has_heldout.then_some(heldout), x, height }
}

fn draw_axes(svg: &mut Svg, data: &ChartData, frame: &Frame, x: &Scale) {
    frame.draw_grid(svg);
    for (value, label) in x.ticks() {
        let at = x.at(value);
        svg.line("axis", (at, frame.axis), (at, frame.axis + 5.0));
        let half = text_width(&label, TEXT_SIZE) / 2.0;
        // The last label stays inside of the picture.
        let centre = at.min(frame.right + MARGIN - 2.0 - half);
        svg.text("label", (centre, frame.axis + 19.0), Anchor::Middle, &label);
    }
    let name = axis_name(data.axis);
    svg.text("label muted", ((frame.left + frame.right) / 2.0, frame.axis + 38.0), Anchor::Middle, name);
}

fn draw_marks_of_accepted(svg: &mut Svg, frame: &Frame, x: &Scale, shown: &[ShownPoint<'_>]) {
    for shown in shown.iter().filter(|shown| shown.point.accepted || shown.is_initial) {
        mark(svg, frame, x, shown);
    }
}

/// Labels the initial candidate and the end of the line where there is room.
fn label_ends(svg: &mut Svg, frame: &Frame, x: &Scale, shown: &[ShownPoint<'_>], corners: &[(f64, f64)], end: f64) {
    let inside = Area { left: frame.left + 2.0, top: frame.top - 4.0, right: frame.right, bottom: frame.bottom - 2.0 };
    let mut placer = LabelPlacer::new(inside);
    for shown in shown {
        let at = x.at(shown.x);
        placer.block(Area::around((at, frame.y.at(shown.score.mean)), 4.0));
    }
    for pair in corners.windows(2) {
        if let [(from, mean), (to, next)] = pair {
            let (left, right) = (x.at(*from), x.at(*to));
            let (y, y_next) = (frame.y.at(*mean), frame.y.at(*next));
            placer.block(Area { left, top: y - 1.5, right, bottom: y + 1.5 });
            placer.block(Area { left: right - 1.5, top: y.min(y_next), right: right + 1.5, bottom: y.max(y_next) });
        }
    }
    if let Some((from, best)) = corners.last() {
        let (left, right, y) = (x.at(*from), x.at(end), frame.y.at(*best));
        placer.block(Area { left, top: y - 1.5, right, bottom: y + 1.5 });
        let text = format!("best {}", score_label(*best));
        let positions = [
            ((right, y - 8.0), Anchor::End),
            ((right, y + 18.0), Anchor::End),
            ((left, y - 10.0), Anchor::Start),
            ((right, y - 24.0), Anchor::End),
            ((right, y + 34.0), Anchor::End),
            ((left - 8.0, y - 6.0), Anchor::End),
            ((left + 8.0, y + 18.0), Anchor::Start),
            ((left - 8.0, y + 18.0), Anchor::End),
            ((left + 8.0, y + 34.0), Anchor::Start),
            ((right, y + 60.0), Anchor::End),
            ((right, y - 60.0), Anchor::End),
            ((right, y + 90.0), Anchor::End),
        ];
        if let Some((at, anchor)) = placer.place(&positions, TEXT_SIZE * 1.05, &text) {
            svg.text("label best-text halo", at, anchor, &text);
        }
    }
    if let Some(initial) = shown.iter().find(|shown| shown.is_initial) {
        let (at, y) = (x.at(initial.x), frame.y.at(initial.score.mean));
        let text = format!("initial {}", score_label(initial.score.mean));
        let positions = [
            ((at + 10.0, y + 18.0), Anchor::Start),
            ((at + 10.0, y - 10.0), Anchor::Start),
            ((at - 10.0, y + 4.0), Anchor::End),
            ((at - 4.0, y + 24.0), Anchor::Start),
            ((at - 4.0, y - 16.0), Anchor::Start),
        ];
        if let Some((at, anchor)) = placer.place(&positions, TEXT_SIZE, &text) {
            svg.text("label halo", at, anchor, &text);
        }
    }
}

/// A kind of mark in the legend: its shape and its meaning.
type LegendEntry = (&'static str, &'static str);

fn legend_entries(data: &ChartData, shown: &[ShownPoint<'_>]) -> Vec<LegendEntry> {
    let any = |keep: &dyn Fn(&ShownPoint<'_>) -> bool| shown.iter().any(keep);
    let verdict = |verdict: CheckVerdict| data.checks.iter().any(|check| check.verdict == verdict);
    let entries = [
        ("initial", "initial", any(&|shown| shown.is_initial)),
        ("best", "accepted, best so far", any(&|shown| shown.point.accepted && !shown.is_initial)),
        (
            "other",
            "not accepted",
            any(&|shown| !shown.point.accepted && !shown.point.is_screening && !shown.is_initial),
        ),
        ("hollow", "screened on few rows", any(&|shown| !shown.point.accepted && shown.point.is_screening)),
        ("good", "check: adopted", verdict(CheckVerdict::Adopted)),
        ("bad", "check: rolled back", verdict(CheckVerdict::RolledBack)),
        ("open", "check: undecided", verdict(CheckVerdict::Undecided)),
        ("heldout", "held-out", !data.heldout.is_empty()),
    ];
    entries.into_iter().filter(|(_, _, is_shown)| *is_shown).map(|(shape, text, _)| (shape, text)).collect()
}

/// Draws the legend in as many lines as it needs and returns the height below it.
fn draw_legend(svg: &mut Svg, entries: &[LegendEntry], width: f64, top: f64) -> f64 {
    let (mut x, mut y) = (MARGIN, top + 12.0);
    for (shape, text) in entries {
        let needed = 16.0 + text_width(text, TEXT_SIZE);
        if x > MARGIN && x + needed > width - MARGIN {
            (x, y) = (MARGIN, y + 20.0);
        }
        super::chart_panels::draw_shape(svg, shape, (x + 6.0, y - 4.0));
        svg.text("label", (x + 16.0, y), Anchor::Start, text);
        x += needed + 14.0;
    }
    y + 4.0
}

fn axis_name(axis: ChartAxis) -> &'static str {
    match axis {
        ChartAxis::Rollouts => "rollouts",
        ChartAxis::Cost => "cost in US dollars",
    }
}

/// Says how many candidates are shown, and what the bars are.
fn note(data: &ChartData, measured: usize, shown: usize) -> String {
    let count = |count: usize| grouped(&count.to_string());
    let scored = data.candidates.iter().filter(|point| point.score.is_some()).count();
    let mut parts = match shown {
        0 => vec![format!("{} candidates, none with a score", count(data.candidates.len()))],
        _ if shown < measured => vec![format!("{} of {} candidates with a score", count(shown), count(measured))],
        _ => vec![format!("{} of {} candidates have a score", count(measured), count(data.candidates.len()))],
    };
    if measured < scored {
        parts.push(format!("{} at an unknown cost are not shown", count(scored - measured)));
    }
    if shown > 0 || !data.heldout.is_empty() {
        parts.push("bars are 95 % intervals".to_owned());
    }
    parts.join("; ")
}

/// Describes the chart in words.
fn describe(data: &ChartData, measured: &[ShownPoint<'_>], corners: &[(f64, f64)]) -> String {
    let Some((_, best)) = corners.last() else { return "No candidate has a score.".to_owned() };
    let mut text = format!("{} candidates with a score. Best so far {}.", measured.len(), score_label(*best));
    for mark in &data.heldout {
        let who = if mark.is_initial { "initial" } else { "best" };
        text.push_str(&format!(" Held-out, {who}: {} on {} rows.", score_label(mark.score.mean), mark.score.n));
    }
    text
}

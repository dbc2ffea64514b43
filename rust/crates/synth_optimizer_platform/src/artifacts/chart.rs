//! `score_chart.svg`: train scores of all candidates in order, the best so far, and held-out scores with their intervals.

use std::fmt::Arguments;

use synth_optimizer_core::config::gepa::Direction;
use synth_optimizer_core::model::score::Score;

/// The data of a score chart.
#[derive(Debug, Clone, PartialEq)]
pub struct ChartData {
    pub title: String,
    /// The name of the objective.
    pub objective: String,
    pub direction: Direction,
    /// In order of registration.
    pub candidates: Vec<ChartPoint>,
    /// The initial and the best candidate on held-out rows.
    pub heldout: Vec<HeldoutBar>,
}

/// A candidate with its score on train rows, if it has one.
#[derive(Debug, Clone, PartialEq)]
pub struct ChartPoint {
    pub label: String,
    pub train: Option<Score>,
    /// Whether it was accepted. Only accepted candidates raise the line of the best score.
    pub accepted: bool,
}

/// A score on held-out rows.
#[derive(Debug, Clone, PartialEq)]
pub struct HeldoutBar {
    /// `seed` or `best`.
    pub role: String,
    pub label: String,
    pub score: Score,
}

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 420.0;
const TOP: f64 = 56.0;
const BOTTOM: f64 = 352.0;
const LEFT: f64 = 72.0;
/// The right end of the candidates' axis, with held-out scores beside it and without.
const RIGHT_OF_TWO: f64 = 690.0;
const RIGHT: f64 = 930.0;
const HELDOUT_LEFT: f64 = 760.0;
/// The most candidates in a chart, and the most that are drawn with their intervals.
const MAX_POINTS: usize = 400;
const MAX_POINTS_WITH_INTERVALS: usize = 60;
const GREY: &str = "#8a94a6";
const BLUE: &str = "#1f5fbf";
const GREEN: &str = "#1d8a4e";
const INK: &str = "#1c2430";

/// Returns the chart as SVG, without scripts and external resources. The same data gives the same text.
pub fn score_chart(data: &ChartData) -> String {
    let shown = thin(data);
    let right = if data.heldout.is_empty() { RIGHT } else { RIGHT_OF_TWO };
    let with_intervals = shown.len() <= MAX_POINTS_WITH_INTERVALS;
    let bare = |score: Score| if with_intervals { score } else { Score { low: None, high: None, ..score } };
    let trains = shown.iter().filter_map(|(_, point)| point.train).map(bare);
    let scale = Scale::over(trains.chain(data.heldout.iter().map(|bar| bar.score)), TOP, BOTTOM);
    let mut svg = Svg::default();
    svg.open(&format!("{}: {} by candidate", data.title, data.objective));
    svg.text(LEFT, 28.0, "start", 16, INK, &data.title);
    legend(&mut svg, right);
    axes(&mut svg, &scale, LEFT, right);
    let caption = format!("{} of {} candidates, in order (train rows)", shown.len(), data.candidates.len());
    svg.text((LEFT + right) / 2.0, HEIGHT - 22.0, "middle", 12, INK, &caption);
    svg.upright(22.0, (TOP + BOTTOM) / 2.0, &data.objective);

    let last = data.candidates.len().saturating_sub(1).max(1) as f64;
    let inset = 14.0;
    let x_of = |index: usize| LEFT + inset + (right - LEFT - 2.0 * inset) * index as f64 / last;
    // Accepted candidates are drawn last, on top.
    for (accepted, color) in [(false, GREY), (true, BLUE)] {
        for (index, point) in shown.iter().filter(|(_, point)| point.accepted == accepted) {
            if let Some(score) = point.train.map(bare) {
                svg.point(x_of(*index), &scale, &score, color, &point.label);
            }
        }
    }
    best_line(&mut svg, data, &scale, &x_of, right - inset);
    index_labels(&mut svg, data.candidates.len(), &x_of);
    heldout(&mut svg, data, &scale);
    svg.close()
}

/// Reduces the candidates to at most `MAX_POINTS`: keeps one of each stretch, an accepted one if there is one, else the
/// best.
fn thin(data: &ChartData) -> Vec<(usize, &ChartPoint)> {
    let all: Vec<(usize, &ChartPoint)> = data.candidates.iter().enumerate().collect();
    let measured: Vec<_> = all.into_iter().filter(|(_, point)| point.train.is_some()).collect();
    if measured.len() <= MAX_POINTS {
        return measured;
    }
    let stretch = measured.len().div_ceil(MAX_POINTS);
    let rank = |point: &ChartPoint| {
        let mean = point.train.map_or(f64::NEG_INFINITY, |score| match data.direction {
            Direction::Maximize => score.mean,
            Direction::Minimize => -score.mean,
        });
        (point.accepted, mean)
    };
    let better = |a: &(usize, &ChartPoint), b: &(usize, &ChartPoint)| {
        let ((a_accepted, a_mean), (b_accepted, b_mean)) = (rank(a.1), rank(b.1));
        a_accepted.cmp(&b_accepted).then(a_mean.total_cmp(&b_mean)).then(b.0.cmp(&a.0))
    };
    measured.chunks(stretch).filter_map(|part| part.iter().copied().max_by(better)).collect()
}

/// Draws the legend of the colors, above the title and the label of a best score at the top.
fn legend(svg: &mut Svg, right: f64) {
    for (from_right, color, text) in [(236.0, BLUE, "accepted, best so far"), (88.0, GREY, "not accepted")] {
        let x = right - from_right;
        svg.add(format_args!(r#"<circle cx="{x:.1}" cy="9.0" r="3.5" fill="{color}"/>"#));
        svg.text(x + 8.0, 13.0, "start", 11, INK, text);
    }
}

fn axes(svg: &mut Svg, scale: &Scale, left: f64, right: f64) {
    for (value, label) in scale.ticks() {
        let y = scale.y(value);
        svg.line(left, y, right, y, "#e3e7ee", 1.0);
        svg.text(left - 8.0, y + 4.0, "end", 11, INK, &label);
    }
    svg.line(left, BOTTOM, right, BOTTOM, INK, 1.0);
    svg.line(left, TOP, left, BOTTOM, INK, 1.0);
}

/// Draws the score of the best accepted candidate so far, as steps.
fn best_line(svg: &mut Svg, data: &ChartData, scale: &Scale, x_of: &impl Fn(usize) -> f64, end: f64) {
    let mut best: Option<f64> = None;
    let mut path = String::new();
    for (index, point) in data.candidates.iter().enumerate().filter(|(_, point)| point.accepted) {
        let Some(mean) = point.train.map(|score| score.mean) else { continue };
        let improves = best.is_none_or(|best| match data.direction {
            Direction::Maximize => mean > best,
            Direction::Minimize => mean < best,
        });
        if improves {
            let (x, y) = (x_of(index), scale.y(mean));
            path.push_str(&match best {
                None => format!("M{x:.1} {y:.1}"),
                Some(_) => format!("H{x:.1}V{y:.1}"),
            });
            best = Some(mean);
        }
    }
    if let Some(best) = best {
        svg.add(format_args!(r#"<path d="{path}H{end:.1}" fill="none" stroke="{BLUE}" stroke-width="2"/>"#));
        svg.text(end, scale.y(best) - 7.0, "end", 12, BLUE, &format!("best {best:.3}"));
    }
}

fn index_labels(svg: &mut Svg, count: usize, x_of: &impl Fn(usize) -> f64) {
    let last = count.saturating_sub(1);
    let mut labels = vec![0, last / 4, last / 2, last * 3 / 4, last];
    labels.dedup();
    for index in labels {
        svg.text(x_of(index), BOTTOM + 18.0, "middle", 11, INK, &index.to_string());
    }
}

fn heldout(svg: &mut Svg, data: &ChartData, scale: &Scale) {
    if data.heldout.is_empty() {
        return;
    }
    axes(svg, scale, HELDOUT_LEFT, RIGHT);
    svg.text((HELDOUT_LEFT + RIGHT) / 2.0, HEIGHT - 22.0, "middle", 12, INK, "held-out rows");
    let step = (RIGHT - HELDOUT_LEFT) / data.heldout.len() as f64;
    for (place, bar) in data.heldout.iter().enumerate() {
        let x = HELDOUT_LEFT + step * (place as f64 + 0.5);
        let (y, width) = (scale.y(bar.score.mean), (step * 0.5).min(40.0));
        let color = if bar.role == "seed" { GREY } else { GREEN };
        svg.add(format_args!(
            r#"<rect x="{:.1}" y="{y:.1}" width="{width:.1}" height="{:.1}" fill="{color}" fill-opacity="0.25"/>"#,
            x - width / 2.0,
            (BOTTOM - y).max(0.0)
        ));
        svg.point(x, scale, &bar.score, color, &bar.label);
        let top = bar.score.high.map_or(y, |high| scale.y(high)) - 8.0;
        svg.text(x, top, "middle", 11, INK, &format!("{:.3}", bar.score.mean));
        svg.text(x, BOTTOM + 18.0, "middle", 11, INK, &format!("{} (n={})", bar.role, bar.score.n));
    }
}

/// An SVG document, one element per line.
#[derive(Debug, Default)]
struct Svg(String);

impl Svg {
    fn add(&mut self, element: Arguments<'_>) {
        self.0.push_str(&format!("{element}\n"));
    }

    fn open(&mut self, title: &str) {
        self.add(format_args!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" \
             role=\"img\" font-family=\"system-ui, sans-serif\">\n<title>{}</title>\n\
             <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#ffffff\"/>",
            escape(title)
        ));
    }

    fn line(&mut self, x1: f64, y1: f64, x2: f64, y2: f64, color: &str, width: f64) {
        self.add(format_args!(
            r#"<line x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}" stroke="{color}" stroke-width="{width}"/>"#
        ));
    }

    fn text(&mut self, x: f64, y: f64, anchor: &str, size: u32, color: &str, text: &str) {
        self.add(format_args!(
            r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}" font-size="{size}" fill="{color}">{}</text>"#,
            escape(text)
        ));
    }

    fn upright(&mut self, x: f64, y: f64, text: &str) {
        self.add(format_args!(
            r#"<text transform="translate({x:.1} {y:.1}) rotate(-90)" text-anchor="middle" font-size="12" fill="{INK}">{}</text>"#,
            escape(text)
        ));
    }

    /// Draws a dot with its interval. Its tooltip has the label and the numbers.
    fn point(&mut self, x: f64, scale: &Scale, score: &Score, color: &str, label: &str) {
        if let (Some(low), Some(high)) = (score.low, score.high) {
            self.line(x, scale.y(low), x, scale.y(high), color, 1.0);
        }
        self.add(format_args!(
            r#"<circle cx="{x:.1}" cy="{:.1}" r="3.5" fill="{color}"><title>{}: {:.4} on {} rows</title></circle>"#,
            scale.y(score.mean),
            escape(label),
            score.mean,
            score.n
        ));
    }

    fn close(mut self) -> String {
        self.0.push_str("</svg>\n");
        self.0
    }
}

/// Escapes text for XML and drops characters that XML does not allow.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for ch in text.chars() {
        match ch {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\t' | '\n' | '\r' => out.push(' '),
            control if control.is_control() || matches!(control, '\u{fffe}' | '\u{ffff}') => {}
            other => out.push(other),
        }
    }
    out
}

/// The vertical axis, which maps scores to heights. Its ends are round numbers.
#[derive(Debug, Clone, PartialEq)]
struct Scale {
    low: f64,
    high: f64,
    step: f64,
    /// Heights of the two ends. Heights grow downwards.
    top: f64,
    bottom: f64,
}

impl Scale {
    /// Creates an axis that covers all scores with their intervals. It is 0 to 1 if all scores lie in between.
    fn over(scores: impl Iterator<Item = Score>, top: f64, bottom: f64) -> Self {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for score in scores {
            for value in [Some(score.mean), score.low, score.high].into_iter().flatten().filter(|v| v.is_finite()) {
                low = low.min(value);
                high = high.max(value);
            }
        }
        if low > high || (low >= 0.0 && high <= 1.0) {
            (low, high) = (0.0, 1.0);
        }
        let span = (high - low).max(high.abs() * 1e-9).max(1e-9);
        let step = round_step(span / 5.0);
        Self { low: (low / step).floor() * step, high: (high / step).ceil() * step, step, top, bottom }
    }

    fn y(&self, value: f64) -> f64 {
        let share = (value - self.low) / (self.high - self.low);
        let share = if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 };
        self.bottom - share * (self.bottom - self.top)
    }

    /// Returns the tick values with their labels, from the lowest on.
    fn ticks(&self) -> Vec<(f64, String)> {
        let count = ((self.high - self.low) / self.step).round() as usize;
        let digits = (-self.step.log10().floor()).clamp(0.0, 9.0) as usize;
        (0..=count.min(20))
            .map(|index| {
                let value = self.low + self.step * index as f64;
                // No negative zero.
                let value = if value.abs() < self.step / 2.0 { 0.0 } else { value };
                (value, format!("{value:.digits$}"))
            })
            .collect()
    }
}

/// Rounds a step up to 1, 2 or 5 times a power of ten.
fn round_step(step: f64) -> f64 {
    let power = 10_f64.powf(step.log10().floor());
    let factor = [1.0, 2.0, 5.0, 10.0].into_iter().find(|factor| factor * power >= step * 0.999).unwrap_or(10.0);
    factor * power
}

//! The heat map: rows against candidates, with what each candidate made of each row.

use std::fmt::Display;

use super::label::{Anchor, MAX_ID_CHARS, cut, fit, short_id, text_width};
use super::scale::{grouped, score_label};
use super::svg::{Svg, number};
use super::theme::{SMALL_SIZE, TEXT_SIZE};
use super::{PictureForm, PictureLayout};

/// A part of the rows and candidates of a run. The caller chooses which part: every cell is drawn.
#[derive(Debug, Clone, PartialEq)]
pub struct HeatMapData {
    pub title: String,
    /// The candidates, one for each column.
    pub candidates: Vec<HeatColumn>,
    /// The rows, in the order in which they are drawn.
    pub rows: Vec<HeatRow>,
    /// How many rows and candidates the run has, if this is a part of them.
    pub of: Option<(usize, usize)>,
    /// How many rows of the run no candidate has solved, although one was measured.
    pub unsolved: u64,
}

/// A candidate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeatColumn {
    pub id: String,
    /// What it is called instead of its id, such as `best`.
    pub name: Option<&'static str>,
}

/// A row with one cell for each candidate. Missing cells are not measured.
#[derive(Debug, Clone, PartialEq)]
pub struct HeatRow {
    pub id: String,
    pub cells: Vec<HeatCell>,
    /// Where each cell leads. Missing addresses are no links.
    pub addresses: Vec<String>,
}

/// What a candidate made of a row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum HeatCell {
    Lost,
    Won,
    /// A part of the best possible score: its share, and the score.
    Partly {
        share: f64,
        score: f64,
    },
    /// The rollout failed, so there is no score.
    Failed,
    NotMeasured,
}

impl HeatCell {
    /// Returns the cell of a score between the worst and the best possible one.
    pub fn of_score(score: f64, worst: f64, best: f64) -> Self {
        let share = (score - worst) / (best - worst);
        match share {
            share if !share.is_finite() => Self::Failed,
            share if share <= 0.0 => Self::Lost,
            share if share >= 1.0 => Self::Won,
            share => Self::Partly { share, score },
        }
    }

    fn text(self) -> String {
        match self {
            Self::Lost => "lost".to_owned(),
            Self::Won => "won".to_owned(),
            Self::Partly { score, .. } => format!("partly, {}", score_label(score)),
            Self::Failed => "failed".to_owned(),
            Self::NotMeasured => "not measured".to_owned(),
        }
    }
}

const MARGIN: f64 = 16.0;
const CELL_HEIGHT: f64 = 18.0;
/// The height of the candidates' ids, which read upwards.
const HEADER: f64 = 56.0;

/// Returns the heat map, with the rows in the order of the data.
pub fn heat_map(data: &HeatMapData, layout: PictureLayout) -> String {
    let width = layout.units();
    let mut svg = Svg::new(layout);
    let top = svg.heading(&data.title, MARGIN, width);
    let top = draw_legend(&mut svg, (width, top)) + HEADER + 14.0;
    let rows = &data.rows;
    let widest = rows.iter().map(|row| text_width(&row.id, TEXT_SIZE)).fold(24.0, f64::max);
    let labels = widest.min(width * 0.28);
    let left = MARGIN + labels + 8.0;
    let across = ((width - MARGIN - left) / data.candidates.len().max(1) as f64).min(40.0);
    draw_header(&mut svg, data, left, across, top);
    for (place, row) in rows.iter().enumerate() {
        let y = top + CELL_HEIGHT * place as f64;
        let row_id = cut(&row.id, MAX_ID_CHARS);
        let name = fit(&row.id, TEXT_SIZE, labels);
        svg.text("label", (left - 8.0, y + 13.5), Anchor::End, &name);
        for (column, candidate) in data.candidates.iter().enumerate() {
            let id = cut(&candidate.id, MAX_ID_CHARS);
            let cell = row.cells.get(column).copied().unwrap_or(HeatCell::NotMeasured);
            let name = candidate.name.map(|name| format!("{name} ")).unwrap_or_default();
            let title = format!("row {row_id}, {name}{id}: {}", cell.text());
            let mut attributes: Vec<(&str, &dyn Display)> = vec![("data-row", &row_id), ("data-candidate", &id)];
            if layout.form == PictureForm::Inline {
                attributes.push(("tabindex", &-1));
                attributes.extend(row.addresses.get(column).map(|href| ("data-href", href as &dyn Display)));
            }
            svg.open("g", &attributes);
            svg.title(&title);
            draw_cell(
                &mut svg,
                cell,
                (left + across * column as f64 + 1.0, y + 1.0),
                (across - 2.0, CELL_HEIGHT - 2.0),
            );
            svg.close("g");
        }
    }
    if rows.is_empty() || data.candidates.is_empty() {
        svg.text("title muted", (width / 2.0, top + 18.0), Anchor::Middle, "no scores");
    }
    // Without cells there is room for the text.
    let height = top + CELL_HEIGHT * rows.len().max(1) as f64 + 40.0;
    let note = note(data);
    svg.text("small muted", (MARGIN, height - 12.0), Anchor::Start, &fit(&note, SMALL_SIZE, width - 2.0 * MARGIN));
    svg.finish((width, height), &format!("{}: rows and candidates", data.title), &note)
}

/// Writes the names or short ids of the candidates, as many as there is room for, those with a name first.
fn draw_header(svg: &mut Svg, data: &HeatMapData, left: f64, across: f64, top: f64) {
    let apart = (1.4 * SMALL_SIZE / across.max(0.1)).ceil().max(1.0) as usize;
    let columns = || data.candidates.iter().enumerate();
    let mut written: Vec<usize> = Vec::new();
    for (column, candidate) in columns().filter(|(_, each)| each.name.is_some()).chain(columns()) {
        if written.iter().any(|other| other.abs_diff(column) < apart) {
            continue;
        }
        written.push(column);
        let x = left + across * (column as f64 + 0.5) + 4.0;
        let (class, text) = match candidate.name {
            Some(name) => ("small best-text", name.to_owned()),
            None => ("small", short_id(&candidate.id)),
        };
        svg.upright(class, (x, top - 6.0), Anchor::Start, &fit(&text, SMALL_SIZE, HEADER));
    }
}

/// Draws a cell. Its meaning is told by its shape as well as its colour: full, with a bar, filled in part, crossed, empty.
fn draw_cell(svg: &mut Svg, cell: HeatCell, (x, y): (f64, f64), (width, height): (f64, f64)) {
    let (right, bottom, middle) = (x + width, y + height, y + height / 2.0);
    match cell {
        HeatCell::Won => svg.rect("f-best", (x, y), (width, height)),
        HeatCell::Lost => {
            svg.rect("f-bad", (x, y), (width, height));
            svg.line("sign", (x + width * 0.25, middle), (right - width * 0.25, middle));
        }
        HeatCell::Partly { share, .. } => {
            let filled = height * share.clamp(0.15, 0.85);
            svg.rect("cell", (x, y), (width, height));
            svg.rect("f-part", (x, bottom - filled), (width, filled));
        }
        HeatCell::Failed => {
            svg.rect("cell", (x, y), (width, height));
            let (x, y, right, bottom) = (number(x + 2.0), number(y + 3.0), number(right - 2.0), number(bottom - 3.0));
            let path = format!("M{x} {y}L{right} {bottom}M{x} {bottom}L{right} {y}");
            svg.add("path", &[("class", &"cross"), ("d", &path)]);
        }
        HeatCell::NotMeasured => svg.rect("cell dotted", (x, y), (width, height)),
    }
}

/// Draws the legend in as many lines as it needs; returns the height below it.
fn draw_legend(svg: &mut Svg, (width, top): (f64, f64)) -> f64 {
    let (mut x, mut y) = (MARGIN, top + 14.0);
    let entries = [
        (HeatCell::Won, "won"),
        (HeatCell::Partly { share: 0.5, score: 0.5 }, "partly"),
        (HeatCell::Lost, "lost"),
        (HeatCell::Failed, "failed"),
        (HeatCell::NotMeasured, "not measured"),
    ];
    for (cell, text) in entries {
        let needed = 22.0 + text_width(text, TEXT_SIZE);
        if x > MARGIN && x + needed > width - MARGIN {
            (x, y) = (MARGIN, y + 22.0);
        }
        draw_cell(svg, cell, (x, y - 12.0), (16.0, 15.0));
        svg.text("label", (x + 22.0, y), Anchor::Start, text);
        x += needed + 16.0;
    }
    y + 4.0
}

fn note(data: &HeatMapData) -> String {
    let rows = &data.rows;
    let count = |count: usize| grouped(&count.to_string());
    let mut text = format!("{} rows, {} candidates", count(rows.len()), count(data.candidates.len()));
    if let Some((all_rows, all_candidates)) = data.of.filter(|of| *of != (rows.len(), data.candidates.len())) {
        text = format!(
            "{} of {} rows, {} of {} candidates",
            count(rows.len()),
            count(all_rows),
            count(data.candidates.len()),
            count(all_candidates)
        );
    }
    text.push_str(&format!("; {} unsolved", grouped(&data.unsolved.to_string())));
    text
}

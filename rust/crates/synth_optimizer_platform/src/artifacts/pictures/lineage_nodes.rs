//! The nodes, labels and legend of a lineage.

use super::PictureForm;
use super::label::{Anchor, Area, LabelPlacer, MAX_ID_CHARS, cut, fit, text_width};
use super::lineage::{Placement, id_of};
use super::lineage_data::{LineageData, LineageNode, LineageStatus, Selection};
use super::scale::{grouped, score_label};
use super::svg::{Svg, number};
use super::theme::{SCORE_COLOURS, SMALL_SIZE, TEXT_SIZE, score_class};
use synth_optimizer_core::model::event_fields::Direction;

/// Draws a candidate with its tooltip.
pub(super) fn draw_node(
    svg: &mut Svg,
    data: &LineageData,
    selection: &Selection,
    index: usize,
    place: &Placement<'_>,
    range: Option<(f64, f64)>,
    form: PictureForm,
) {
    let ((x, y), radius) = (place.at(index), place.radius);
    let node = &data.nodes[selection.shown[index]];
    let is_best = data.best.as_deref() == Some(node.id.as_str());
    let title = title_of(data, node, is_best);
    let id = cut(&node.id, MAX_ID_CHARS);
    match form {
        PictureForm::File => svg.open("g", &[("data-candidate", &id)]),
        PictureForm::Inline => svg.open("g", &[("data-candidate", &id), ("role", &"img"), ("aria-label", &title)]),
    }
    svg.title(&title);
    let hidden = &selection.hidden[index];
    if !hidden.is_empty() {
        draw_hidden(svg, data, hidden, (x, y), radius);
    }
    if is_best {
        circle(svg, "ring", (x, y), radius + 5.0);
    }
    if node.is_undominated {
        circle(svg, "front dotted", (x, y), radius + 2.5);
    }
    let fill = match (node.score, range) {
        (Some(score), Some(range)) if score.is_finite() => score_class(share(score, range)),
        _ => "empty",
    };
    draw_shape(svg, node.status, fill, (x, y), radius);
    svg.close("g");
}

fn share(score: f64, (low, high): (f64, f64)) -> f64 {
    if high > low { (score - low) / (high - low) } else { 1.0 }
}

/// Marks that candidates are counted here; their number is a label.
fn draw_hidden(svg: &mut Svg, data: &LineageData, hidden: &[usize], (x, y): (f64, f64), radius: f64) {
    let best = hidden.iter().filter_map(|place| data.nodes[*place].score);
    let best = best.reduce(|a, b| match data.direction {
        Direction::Maximize => a.max(b),
        Direction::Minimize => a.min(b),
    });
    let best = best.map_or(String::new(), |score| format!(", the best of them {}", score_label(score)));
    svg.open("g", &[]);
    svg.title(&format!("{} more candidates that are not drawn{best}", grouped(&hidden.len().to_string())));
    svg.line("edge", (x, y), (x, y + radius + 5.0));
    svg.close("g");
}

fn circle(svg: &mut Svg, class: &str, (x, y): (f64, f64), radius: f64) {
    svg.add("circle", &[("class", &class), ("cx", &number(x)), ("cy", &number(y)), ("r", &number(radius))]);
}

/// Draws the shape of a status.
fn draw_shape(svg: &mut Svg, status: LineageStatus, fill: &str, (x, y): (f64, f64), radius: f64) {
    let r = match status {
        LineageStatus::Initial | LineageStatus::Accepted => radius,
        LineageStatus::Rejected | LineageStatus::Superseded | LineageStatus::Undecided | LineageStatus::Running => {
            radius * 0.75
        }
    };
    let polygon = |corners: &[(f64, f64)]| {
        let place = |(dx, dy): &(f64, f64)| format!("{},{}", number(x + dx * r), number(y + dy * r));
        corners.iter().map(place).collect::<Vec<_>>().join(" ")
    };
    let class = match status {
        LineageStatus::Running => format!("node dashed {fill}"),
        LineageStatus::Initial
        | LineageStatus::Accepted
        | LineageStatus::Rejected
        | LineageStatus::Superseded
        | LineageStatus::Undecided => format!("node {fill}"),
    };
    let corners: &[(f64, f64)] = match status {
        LineageStatus::Accepted | LineageStatus::Running => return circle(svg, &class, (x, y), r),
        LineageStatus::Initial => &[(0.0, -1.2), (1.2, 0.0), (0.0, 1.2), (-1.2, 0.0)],
        LineageStatus::Rejected => &[(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)],
        LineageStatus::Superseded => &[(-0.9, -1.0), (1.1, 0.0), (-0.9, 1.0)],
        LineageStatus::Undecided => &[(0.0, -1.1), (1.0, 0.8), (-1.0, 0.8)],
    };
    svg.add("polygon", &[("class", &class), ("points", &polygon(corners))]);
}

/// Labels nodes with their scores where there is room: the best and the initial one first, then those on the way.
pub(super) fn draw_labels(svg: &mut Svg, data: &LineageData, selection: &Selection, place: &Placement<'_>, width: f64) {
    let mut placer = LabelPlacer::new(Area { left: 4.0, top: 0.0, right: width - 4.0, bottom: place.bottom() + 8.0 });
    for index in 0..selection.shown.len() {
        let (x, y) = place.at(index);
        placer.block(Area::around((x, y), place.radius + 2.0));
        // Labels stay away from edges, which run along the rows.
        if let Some((parent, _)) = selection.parents[index].first() {
            let (from, _) = place.at(*parent);
            placer.block(Area { left: from + place.across, top: y - 1.5, right: x, bottom: y + 1.5 });
        }
    }
    for (index, hidden) in selection.hidden.iter().enumerate().filter(|(_, hidden)| !hidden.is_empty()) {
        let (x, y) = place.at(index);
        let text = count_label(hidden.len(), place.across);
        let below = y + place.radius + 15.0;
        let positions =
            [((x, below), Anchor::Middle), ((x - 2.0, below), Anchor::Start), ((x + 2.0, below), Anchor::End)];
        if let Some((at, anchor)) = placer.place(&positions, SMALL_SIZE, &text) {
            svg.text("small muted halo", at, anchor, &text);
        }
    }
    let mut order: Vec<usize> = (0..selection.shown.len()).collect();
    let is_best = |index: &usize| data.best.as_deref() == Some(id_of(data, selection, *index));
    order.sort_by_key(|index| (!is_best(index), *index != 0, !selection.on_path[*index], *index));
    for index in order {
        let node = &data.nodes[selection.shown[index]];
        let (x, y) = place.at(index);
        let Some(score) = node.score.filter(|score| score.is_finite()) else { continue };
        let best = is_best(&index);
        let (class, size) = if best { ("label best-text halo", TEXT_SIZE * 1.05) } else { ("small halo", SMALL_SIZE) };
        let text = if best { format!("best {}", score_label(score)) } else { score_label(score) };
        let gap = place.radius + if best { 9.0 } else { 5.0 };
        let positions = [
            ((x, y - gap), Anchor::Middle),
            ((x, y + gap + 0.8 * size), Anchor::Middle),
            ((x + gap, y + 4.0), Anchor::Start),
            ((x, y - gap), Anchor::End),
        ];
        if let Some((at, anchor)) = placer.place(&positions, size, &text) {
            svg.text(class, at, anchor, &text);
        }
    }
}

/// Returns the number of candidates that are counted at a node, shortened if columns are narrow.
fn count_label(count: usize, across: f64) -> String {
    let text = format!("+{}", grouped(&count.to_string()));
    if count < 1000 || text_width(&text, SMALL_SIZE) < across { text } else { format!("+{}k", count / 1000) }
}

/// Draws the scale of colours and the shapes that occur; returns the height below them.
pub(super) fn draw_legend(
    svg: &mut Svg,
    data: &LineageData,
    selection: &Selection,
    range: Option<(f64, f64)>,
    (width, top): (f64, f64),
) -> f64 {
    let (mut x, mut y) = (16.0, top + 14.0);
    if let Some((low, high)) = range {
        let (low, high) = (score_label(low), score_label(high));
        let name = fit(&data.objective, TEXT_SIZE, 120.0);
        svg.text("label", (x, y), Anchor::Start, &name);
        x += text_width(&name, TEXT_SIZE) + 10.0;
        svg.text("label", (x, y), Anchor::Start, &low);
        x += text_width(&low, TEXT_SIZE) + 6.0;
        for index in 0..SCORE_COLOURS.len() {
            let class = score_class(index as f64 / (SCORE_COLOURS.len() - 1) as f64);
            svg.rect(class, (x + 12.0 * index as f64, y - 10.0), (12.0, 11.0));
        }
        x += 12.0 * SCORE_COLOURS.len() as f64 + 6.0;
        svg.text("label", (x, y), Anchor::Start, &high);
        x += text_width(&high, TEXT_SIZE) + 18.0;
    }
    let mut statuses: Vec<LineageStatus> = selection.shown.iter().map(|place| data.nodes[*place].status).collect();
    statuses.sort_unstable();
    statuses.dedup();
    let has_frontier = selection.shown.iter().any(|place| data.nodes[*place].is_undominated);
    let mut entries: Vec<(Option<LineageStatus>, &str)> =
        statuses.into_iter().map(|status| (Some(status), status.as_str())).collect();
    if has_frontier {
        entries.push((None, "on the frontier"));
    }
    if selection.shown.iter().any(|place| data.nodes[*place].score.is_none()) {
        entries.push((None, "empty: no score"));
    }
    for (status, text) in entries {
        let needed = 18.0 + text_width(text, TEXT_SIZE);
        if x > 16.0 && x + needed > width - 16.0 {
            (x, y) = (16.0, y + 21.0);
        }
        match status {
            Some(status) => draw_shape(svg, status, "empty", (x + 7.0, y - 4.5), 6.5),
            None if text == "on the frontier" => circle(svg, "front dotted", (x + 7.0, y - 4.5), 7.0),
            None => circle(svg, "node empty", (x + 7.0, y - 4.5), 5.0),
        }
        svg.text("label", (x + 18.0, y), Anchor::Start, text);
        x += needed + 14.0;
    }
    y + 8.0
}

fn title_of(data: &LineageData, node: &LineageNode, is_best: bool) -> String {
    let mut title = format!("{}: {}", cut(&node.id, MAX_ID_CHARS), node.status.as_str());
    if is_best {
        title.push_str(", best");
    }
    if node.is_undominated {
        title.push_str(", on the frontier");
    }
    match node.score {
        Some(score) => title.push_str(&format!(", {} {}", data.objective, score_label(score))),
        None => title.push_str(", no score on train rows"),
    }
    if !node.reason.is_empty() {
        title.push_str(&format!(". {}", node.reason));
    }
    title
}

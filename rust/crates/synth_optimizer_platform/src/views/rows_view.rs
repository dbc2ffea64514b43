//! Rows against candidates: the heat map, which rows are unsolved, and where the best candidate gained and lost.

use maud::{Markup, html};

use super::candidate_view::rollout_table;
use super::layout::{RunLinks, View, candidate_link, encoded, pager, row_link, row_path, run_frame, run_href};
use super::router::Query;
use super::source::ShownRun;
use super::words::{count, number, plain, signed, visible};
use crate::artifacts::heat_map_data;
use crate::artifacts::pictures::heat_map;
use crate::workspace::Reader;
use crate::workspace::models::{
    ReadError, RolloutEntry, RolloutQuery, RowColumn, RowGains, RowQuery, RowTable, TableRow,
};

/// Rows and candidates of one window.
const ROWS: u64 = 50;
const COLUMNS: u64 = 40;
/// The choice of the initial, the best and the accepted candidates.
const ACCEPTED: &str = "accepted";
/// Rollouts of a row that are listed at once.
const ROLLOUTS: usize = 100;
/// Pages of the model that one view of a row reads. A view is rendered again at each change of a live run.
const MAX_PAGES: usize = 4;
/// Winners of a row that are listed.
const WINNERS: usize = 3;

/// Returns the view of all rows.
pub(super) fn rows_view(run: &ShownRun, query: &Query) -> Result<View, ReadError> {
    let split = query.get("split").unwrap_or("train");
    let order = query.get("order").unwrap_or("unsolved");
    let which = query.get("candidates").unwrap_or(ACCEPTED);
    let columns = query.number("columns");
    let selected = RowQuery {
        split: Some(split.to_owned()),
        order: Some(order.to_owned()),
        candidates: (which != ACCEPTED).then(|| which.to_owned()),
        limit: Some(ROWS as i64),
        offset: Some(query.offset() as i64),
        candidate_limit: Some(COLUMNS as i64),
        candidate_offset: Some(columns as i64),
        ..RowQuery::default()
    };
    let table = match &run.reader {
        Some(reader) => reader.row_table(&selected)?,
        None => RowTable::default(),
    };
    let run_id = run.run_id();
    let base = run_href(run_id, "rows");
    let choices = [("split", split), ("order", order), ("candidates", which)];
    let choices: Vec<String> = choices.iter().map(|(name, word)| format!("{name}={}", encoded(word))).collect();
    let with = |columns: u64| format!("{base}?{}&columns={columns}", choices.join("&"));
    let body = html! {
        section id="rows" data-heat-map {
            h2 { "Rows" }
            form.filters action=(base) {
                (choice("rows", "split", split, &[("train", "train"), ("heldout", "held-out")]))
                (choice("order", "order", order, &[("unsolved", "unsolved first"), ("gain", "lost most first"), ("id", "by id")]))
                (choice("candidates", "candidates", which, &[(ACCEPTED, "initial, best and accepted"), ("all", "all")]))
                button { "show" }
            }
            div.scroll.picture tabindex="0" { (picture(run_id, split, &table, query)) }
            @if table.candidate_count > COLUMNS {
                nav.pager aria-label="columns" {
                    @if columns > 0 { a rel="prev" href=(with(columns.saturating_sub(COLUMNS))) { "earlier candidates" } }
                    span.muted { "candidates " (count(columns + 1)) " to " (count(columns + table.candidates.len() as u64)) " of " (count(table.candidate_count)) }
                    @if columns + COLUMNS < table.candidate_count { a rel="next" href=(with(columns + COLUMNS)) { "later candidates" } }
                }
            }
            (pager(&with(columns), query.offset(), table.rows.len() as u64, table.row_count, ROWS))
            p.muted { "Select a cell for its rollout. Arrow keys move between cells." }
        }
        section id="row-table" {
            h2 { "Who wins where" }
            @if let Some(why) = run.missing() { p.muted { (why) } } @else { (row_table(run_id, split, &table.rows)) }
        }
    };
    Ok(run_frame(run, "rows", "Rows", &body))
}

/// Draws the heat map. A cell leads to its rollout, or to all rollouts of its candidate on its row if there are several.
fn picture(run_id: &str, split: &str, table: &RowTable, query: &Query) -> Markup {
    let address = |row: &TableRow, column: usize| match (row.only_rollouts.get(column), table.candidates.get(column)) {
        (Some(Some(call_id)), _) => run_href(run_id, &format!("rollouts/{call_id}")),
        (_, Some(RowColumn { candidate_id, .. })) => {
            run_href(run_id, &row_path(split, &row.example_id)) + "&candidate=" + &encoded(candidate_id)
        }
        (_, None) => run_href(run_id, &row_path(split, &row.example_id)),
    };
    let data = heat_map_data(table, run_id, address);
    query.widths().draw(|layout| heat_map(&data, layout))
}

fn choice(label: &str, name: &str, chosen: &str, options: &[(&str, &str)]) -> Markup {
    html! {
        label { (label) " "
            select name=(name) {
                @for (value, text) in options { option value=(value) selected[*value == chosen] { (text) } }
                @if options.iter().all(|(value, _)| *value != chosen) { option value=(chosen) selected { (visible(chosen)) } }
            }
        }
    }
}

/// Lists rows with their winners and gains.
pub(super) fn row_table<'a>(links: impl Into<RunLinks<'a>>, split: &str, rows: &[TableRow]) -> Markup {
    let links = links.into();
    html! {
        @if rows.is_empty() { p.muted { "No row has a score yet." } } @else {
            div.scroll tabindex="0" { table {
                thead { tr {
                    th scope="col" { "row" } th scope="col" { "best value" } th scope="col" { "gain of the best candidate" }
                    th scope="col" { "measured" } th scope="col" { "failed" } th scope="col" { "winners" }
                } }
                tbody {
                    @for row in rows {
                        tr {
                            th scope="row" { (row_link(links, split, &row.example_id)) }
                            td { @match row.best_value { Some(value) => span.number { (number(value)) }, None => span.muted { "no score" } } }
                            td { @match row.gain {
                                Some(gain) if gain > 0.0 => span.number.good { (signed(gain)) },
                                Some(gain) if gain < 0.0 => span.number.bad { (signed(gain)) },
                                Some(_) => span.muted { "equal" },
                                None => span.muted { "-" },
                            } }
                            td { (row.measured) }
                            td { @if row.failed > 0 { span.bad { (row.failed) } } @else { "0" } }
                            td.words {
                                @for (place, winner) in row.winners.iter().take(WINNERS).enumerate() {
                                    @if place > 0 { ", " }
                                    (candidate_link(links, winner))
                                }
                                @if row.winner_count as usize > WINNERS { " and " (row.winner_count as usize - WINNERS) " more" }
                            }
                        }
                    }
                }
            } }
        }
    }
}

/// Returns the view of one row: every rollout on it, of one candidate or of all.
pub(super) fn row_view(run: &ShownRun, row: &str, query: &Query) -> Result<View, ReadError> {
    let reader = run.opened()?;
    let split = query.get("split").unwrap_or("train");
    let candidate = query.get("candidate");
    let selected = RolloutQuery {
        limit: Some(ROLLOUTS as i64),
        cursor: query.get("cursor").map(str::to_owned),
        candidate_id: candidate.map(str::to_owned),
        example_id: Some(row.to_owned()),
        split: Some(split.to_owned()),
        ..RolloutQuery::default()
    };
    let (found, next_cursor) = rollouts_of_row(reader, selected)?;
    let run_id = run.run_id();
    let base = run_href(run_id, &row_path(split, row));
    let same = candidate.map_or_else(|| base.clone(), |candidate| format!("{base}&candidate={}", encoded(candidate)));
    let body = html! {
        section id="row" {
            h2 { "Row " span.id { (visible(row)) } " " span.muted { (plain(split)) } }
            @if let Some(candidate) = candidate {
                p { "Rollouts of candidate " (candidate_link(run_id, candidate)) ". " a href=(base) { "All candidates" } }
            }
            (rollout_table(run_id, &found))
            @if let Some(cursor) = &next_cursor {
                nav.pager aria-label="pages" { a rel="next" href={(same) "&cursor=" (encoded(cursor))} { "rollouts of later calls" } }
            }
        }
    };
    Ok(run_frame(run, "rows", &format!("Row {row}"), &body))
}

/// Returns rollouts, and the cursor of those after them. A page of the model ends after a number of calls, of which few are on
/// one row, so a few pages are read.
fn rollouts_of_row(reader: &Reader, mut query: RolloutQuery) -> Result<(Vec<RolloutEntry>, Option<String>), ReadError> {
    let mut found = Vec::new();
    for _ in 0..MAX_PAGES {
        let page = reader.rollout_page(&query)?;
        found.extend(page.items);
        query.cursor = page.next_cursor;
        if query.cursor.is_none() || found.len() >= ROLLOUTS {
            break;
        }
    }
    Ok((found, query.cursor))
}

/// Says on how many rows the best candidate gained and lost, and lists those on which it did most.
pub(super) fn gains(links: RunLinks<'_>, split: &str, found: &RowGains) -> Markup {
    html! {
        p { (count(found.better)) " rows better, " (count(found.worse)) " worse, " (count(found.equal)) " equal." }
        @if !found.gained.is_empty() { h3 { "Gained most" } (row_table(links, split, &found.gained)) }
        @if !found.lost.is_empty() { h3 { "Lost most" } (row_table(links, split, &found.lost)) }
    }
}

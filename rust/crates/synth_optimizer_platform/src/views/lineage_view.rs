//! The tree of candidates: the picture, each candidate with the decision about it, and the checks of sprints.

use maud::{Markup, html};

use super::layout::{RunLinks, View, candidate_link, encoded, pager, run_frame, run_href, state_badge};
use super::picture_widths::PictureWidths;
use super::router::Query;
use super::source::ShownRun;
use super::words::{count, counted, number, plain, score, signed, visible};
use crate::artifacts::lineage_data;
use crate::artifacts::pictures::lineage as draw_lineage;
use crate::workspace::models::{LineageCandidate, ReadError, RunLineage, SprintCheck};

/// Candidates per page of the table.
const PAGE: u64 = 100;

/// Returns the view of all candidates of a run.
pub(super) fn lineage_view(run: &ShownRun, query: &Query) -> Result<View, ReadError> {
    let lineage = match &run.reader {
        Some(reader) => reader.lineage()?,
        None => RunLineage::default(),
    };
    let run_id = run.run_id();
    let body = html! {
        section id="tree" {
            h2 { "Lineage" }
            (picture(run_id, &lineage, query.widths()))
            @if let Some(why) = run.missing() { p.muted { (why) } }
            p.muted { "Select a candidate for its texts. Arrow keys move between candidates." }
        }
        @if !lineage.checks.is_empty() { (checks(run_id, &lineage.checks)) }
        (candidates(run_id, &lineage, query))
    };
    Ok(run_frame(run, "lineage", "Lineage", &body))
}

/// Draws the tree.
pub(super) fn picture(run_id: &str, lineage: &RunLineage, widths: PictureWidths) -> Markup {
    let data = lineage_data(lineage, run_id);
    widths.draw(|layout| draw_lineage(&data, layout))
}

/// Lists the checks of a search in sprints.
pub(super) fn checks<'a>(links: impl Into<RunLinks<'a>>, checks: &[SprintCheck]) -> Markup {
    let links = links.into();
    html! {
        section id="checks" {
            h2 { "Checks of sprints" }
            div.scroll tabindex="0" {
                table {
                    thead { tr {
                        th scope="col" { "check" } th scope="col" { "sprint" } th scope="col" { "head" } th scope="col" { "against" }
                        th scope="col" { "verdict" } th scope="col" { "rows" } th scope="col" { "difference" }
                        th scope="col" { "probability" } th scope="col" { "rollouts" } th scope="col" { "reason" }
                    } }
                    tbody {
                        @for check in checks {
                            tr {
                                th scope="row" { (check.check) }
                                td { (check.sprint) }
                                td { (candidate_link(links, &check.head_id)) }
                                td { (candidate_link(links, &check.anchor_id)) }
                                td { (state_badge(check.verdict.map_or("in progress", |verdict| verdict.as_str()))) }
                                td { (check.n) }
                                td { (check.mean.map(signed).unwrap_or_default()) }
                                td { (check.probability.map(|probability| format!("{probability:.3}")).unwrap_or_default()) }
                                td { (count(check.rollouts)) }
                                td.words { (visible(check.reason.as_deref().unwrap_or_default())) }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Whether a candidate belongs to a part of the list.
fn is_in(part: &str, candidate: &LineageCandidate) -> bool {
    let status = candidate.status.as_str();
    match part {
        "accepted" => status == "accepted",
        "rejected" => status.starts_with("rejected"),
        "frontier" => candidate.on_frontier,
        "merged" => candidate.parent_ids.len() > 1,
        _ => true,
    }
}

/// Lists the candidates, the newest first.
fn candidates(run_id: &str, lineage: &RunLineage, query: &Query) -> Markup {
    let part = query.get("part").unwrap_or("all");
    let found: Vec<&LineageCandidate> =
        lineage.candidates.iter().rev().filter(|candidate| is_in(part, candidate)).collect();
    let offset = query.offset().min(found.len() as u64);
    let shown: Vec<&&LineageCandidate> = found.iter().skip(offset as usize).take(PAGE as usize).collect();
    let base = run_href(run_id, "lineage");
    html! {
        section id="candidates" {
            h2 { "Candidates" }
            nav.parts aria-label="parts of the list" {
                @for name in ["all", "accepted", "rejected", "frontier", "merged"] {
                    a href={(base) "?part=" (name)} aria-current=[(part == name).then_some("true")] { (name) }
                }
            }
            div.scroll tabindex="0" {
                table {
                    thead { tr {
                        th scope="col" { "candidate" } th scope="col" { "made by" } th scope="col" { "status" }
                        th scope="col" { "screening" } th scope="col" { "train" } th scope="col" { "held-out" } th scope="col" { "decision" }
                    } }
                    tbody { @for candidate in &shown { (row(run_id, candidate)) } }
                }
            }
            (pager(&format!("{base}?part={}", encoded(part)), offset, shown.len() as u64, found.len() as u64, PAGE))
        }
    }
}

fn row(run_id: &str, candidate: &LineageCandidate) -> Markup {
    html! {
        tr {
            th scope="row" {
                (candidate_link(run_id, &candidate.candidate_id))
                @if candidate.is_best { " " span.badge.badge-good { "best" } }
                @if candidate.on_frontier { " " span.badge.badge-other { "frontier" } }
            }
            td {
                (plain(candidate.operation.as_str()))
                @if !candidate.parent_ids.is_empty() {
                    " of "
                    @for (place, parent) in candidate.parent_ids.iter().enumerate() {
                        @if place > 0 { ", " }
                        (candidate_link(run_id, parent))
                    }
                }
                @if let Some(generation) = candidate.generation { div.note { "generation " (generation) } }
                @if let Some(sprint) = candidate.sprint { div.note { "sprint " (sprint) } }
            }
            td {
                (state_badge(candidate.status.as_str()))
                @if let Some(by) = &candidate.superseded_by { div.note { "by " (candidate_link(run_id, by)) } }
            }
            td { @if let Some(known) = &candidate.minibatch_score { (number(known.mean)) div.note { "on " (counted(u64::from(known.n), "row")) } } }
            td { @if candidate.train_score.is_some() { (score(candidate.train_score.as_ref())) } }
            td { @if candidate.heldout_score.is_some() { (score(candidate.heldout_score.as_ref())) } }
            td.words { (visible(candidate.reason.as_deref().unwrap_or("not decided yet"))) }
        }
    }
}

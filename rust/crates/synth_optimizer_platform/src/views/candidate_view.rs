//! One candidate: its texts, what changed against another candidate, its scores, the decisions about it, and its relatives.

use maud::{Markup, html};

use super::diff::diff_block;
use super::layout::{
    View, candidate_link, encoded, facts, or_problem, rollout_link, row_link, run_frame, run_href, state_badge,
};
use super::router::Query;
use super::source::ShownRun;
use super::words::{counted, duration, gain, number, plain, score, signed, text_block, time, usd, visible};
use crate::workspace::Reader;
use crate::workspace::models::{CandidateDetail, ReadError, RolloutEntry, RolloutPage, RolloutQuery};
use synth_optimizer_core::model::candidate_view::{Candidate, CandidateDecision};
use synth_optimizer_core::model::ids::CandidateId;

/// Rollouts that are listed per page.
const ROLLOUTS: i64 = 50;
/// Relatives that are listed.
const RELATIVES: usize = 40;

/// Returns the view of a candidate. `against` is `parent`, `initial`, `best` or the id of another candidate.
pub(super) fn candidate_view(run: &ShownRun, candidate_id: &str, query: &Query) -> Result<View, ReadError> {
    let reader = run.opened()?;
    let detail = reader.candidate(candidate_id)?;
    let candidate = &detail.candidate.candidate;
    let run_id = run.run_id();
    let against = query.get("against").unwrap_or("parent");
    let body = html! {
        section id="candidate" {
            h2 { "Candidate " span.id { (candidate_id) } " " (state_badge(candidate.status.as_str()))
                @if detail.candidate.is_best { " " span.badge.badge-good { "best" } }
                @if candidate.on_frontier { " " span.badge.badge-other { "holds frontier cells" } }
            }
            (facts(&[
                ("made by", html! { (plain(candidate.source.as_str())) @if let Some(generation) = candidate.generation { ", generation " (generation) } ", " (time(Some(&candidate.registered_at))) }),
                ("parents", relatives(run_id, &candidate.parent_ids.iter().map(ToString::to_string).collect::<Vec<_>>())),
                ("children", relatives(run_id, &detail.children)),
                ("screening", score(candidate.minibatch_score.as_ref())),
                ("train score", score(candidate.train_score.as_ref())),
                ("held-out score", score(candidate.heldout_score.as_ref())),
                ("train gain over the parent", gain(detail.train_gain.as_ref())),
                ("held-out gain over the parent", gain(detail.heldout_gain.as_ref())),
            ]))
            @if !candidate.rationale.is_empty() {
                h3 { "Rationale of the proposer" }
                (text_block(&candidate.rationale))
            }
        }
        (texts(run_id, reader, &detail, against))
        (decisions(&candidate.acceptance_metadata))
        (or_problem(reader.rollout_page(&rollout_query(candidate_id, query)), |page| rollouts(run_id, candidate_id, query, &page)))
    };
    Ok(run_frame(run, "lineage", &format!("Candidate {candidate_id}"), &body))
}

fn relatives(run_id: &str, ids: &[String]) -> Markup {
    html! {
        @if ids.is_empty() { span.muted { "none" } }
        @for (place, id) in ids.iter().take(RELATIVES).enumerate() {
            @if place > 0 { ", " }
            (candidate_link(run_id, id))
        }
        @if ids.len() > RELATIVES { " and " (ids.len() - RELATIVES) " more" }
    }
}

/// Returns the candidate that a view compares another one with.
fn compared(reader: &Reader, candidate: &Candidate, against: &str) -> Result<Option<Candidate>, ReadError> {
    let is_other = |other: &CandidateId| *other != candidate.candidate_id;
    let other = match against {
        "parent" => candidate.parent_id.clone(),
        "initial" => reader.totals()?.seed_candidate_id.filter(is_other),
        "best" => reader.totals()?.best_candidate_id().cloned().filter(is_other),
        named => Some(CandidateId::new(named)),
    };
    other.map(|other| Ok(reader.candidate(other.as_str())?.candidate.candidate)).transpose()
}

/// What a candidate is compared with: the word in the address, and what a reader reads.
const AGAINST: [(&str, &str); 3] =
    [("parent", "its parent"), ("initial", "the initial candidate"), ("best", "the best candidate")];

/// Offers candidates to compare with, and shows each text of the candidate.
fn texts(run_id: &str, reader: &Reader, detail: &CandidateDetail, against: &str) -> Markup {
    let candidate = &detail.candidate.candidate;
    let base = run_href(run_id, &format!("candidates/{}", encoded(candidate.candidate_id.as_str())));
    html! {
        section id="texts" {
            h2 { "Texts" }
            form.filters action=(base) {
                label { "compare with "
                    select name="against" {
                        @for (word, name) in AGAINST { option value=(word) selected[against == word] { (name) } }
                        @if AGAINST.iter().all(|(word, _)| against != *word) {
                            option value=(against) selected { (against) }
                        }
                    }
                }
                label { "or a candidate " input type="text" name="other" placeholder="id" autocomplete="off"; }
                button { "compare" }
            }
            (or_problem(compared(reader, candidate, against), |other| changes(run_id, candidate, other.as_ref())))
        }
    }
}

/// Shows each text of a candidate with its changes against another one.
fn changes(run_id: &str, candidate: &Candidate, other: Option<&Candidate>) -> Markup {
    html! {
        @match other {
            None => p.muted { "There is no such candidate, or it is this one." },
            Some(other) => p { "Compared with " (candidate_link(run_id, other.candidate_id.as_str())) ": " del { "removed" } " " ins { "added" } },
        }
        @for (field, text) in &candidate.payload {
            @let before = other.and_then(|other| other.payload.get(field));
            h3 { (visible(field)) @if before == Some(text) { " " span.muted { "(unchanged)" } } }
            @match before {
                Some(before) if before != text => {
                    (diff_block(before, text))
                    details { summary { "the whole text" } (text_block(text)) }
                },
                Some(_) | None => (text_block(text)),
            }
        }
    }
}

/// Lists the decisions about a candidate.
fn decisions(decisions: &[CandidateDecision]) -> Markup {
    html! {
        @if !decisions.is_empty() {
            section id="decisions" {
                h2 { "Decisions" }
                div.scroll tabindex="0" { table {
                    thead { tr { th scope="col" { "when" } th scope="col" { "decision" } th scope="col" { "evaluation" } th scope="col" { "reason" } th scope="col" { "scores" } } }
                    tbody {
                        @for made in decisions {
                            tr {
                                td { (time(Some(&made.at))) }
                                th scope="row" { (state_badge(&made.decision)) }
                                td { (plain(made.evaluation_stage.as_str())) }
                                td.words { (plain(&made.reason)) }
                                td {
                                    @if let Some(compared) = &made.comparison {
                                        (number(compared.candidate_score)) " against " (number(compared.incumbent_score))
                                        " (" (signed(compared.primary_delta)) ") on " (counted(u64::from(compared.rows), "row"))
                                    }
                                }
                            }
                        }
                    }
                } }
            }
        }
    }
}

fn rollout_query(candidate_id: &str, query: &Query) -> RolloutQuery {
    RolloutQuery {
        limit: Some(ROLLOUTS),
        cursor: query.get("cursor").map(str::to_owned),
        candidate_id: Some(candidate_id.to_owned()),
        ..RolloutQuery::default()
    }
}

fn rollouts(run_id: &str, candidate_id: &str, query: &Query, page: &RolloutPage) -> Markup {
    let base = run_href(run_id, &format!("candidates/{}", encoded(candidate_id)));
    let against = query.get("against").map(|against| format!("against={}&", encoded(against))).unwrap_or_default();
    html! {
        section id="rollouts" {
            h2 { "Rollouts" }
            (rollout_table(run_id, &page.items))
            @if let Some(cursor) = &page.next_cursor {
                nav.pager aria-label="pages" { a rel="next" href={(base) "?" (against) "cursor=" (encoded(cursor)) "#rollouts"} { "more rollouts" } }
            }
        }
    }
}

/// Lists rollouts.
pub(super) fn rollout_table(run_id: &str, rollouts: &[RolloutEntry]) -> Markup {
    html! {
        @if rollouts.is_empty() { p.muted { "none" } } @else {
            div.scroll tabindex="0" { table {
                thead { tr {
                    th scope="col" { "rollout" } th scope="col" { "candidate" } th scope="col" { "row" } th scope="col" { "stage" }
                    th scope="col" { "status" } th scope="col" { "score" } th scope="col" { "time" } th scope="col" { "cost" }
                } }
                tbody {
                    @for rollout in rollouts {
                        tr {
                            th scope="row" { (rollout_link(run_id, rollout.call_id, &format!("#{}", rollout.call_id)))
                                @if rollout.attempt > 1 { div.note { "attempt " (rollout.attempt) } } }
                            td { (candidate_link(run_id, &rollout.candidate_id)) }
                            td { (row_link(run_id, rollout.split.as_str(), &rollout.example_id)) }
                            td { (plain(rollout.evaluation_stage.as_str())) }
                            td { (state_badge(rollout.status.as_str()))
                                @if let Some(failure) = &rollout.failure { div.note.bad { (plain(failure.class.as_str())) } } }
                            td { @if let Some(reward) = rollout.reward { span.number { (number(reward)) } } }
                            td { @if let Some(millis) = rollout.latency_ms { (duration(millis)) } @if rollout.cached == Some(true) { span.muted { "cached" } } }
                            td { (usd(rollout.cost_usd)) }
                        }
                    }
                }
            } }
        }
    }
}

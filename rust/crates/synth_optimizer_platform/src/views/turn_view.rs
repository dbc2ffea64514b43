//! Proposer turns: what the proposer was shown, what it answered, what became of each proposal, tokens and cost.

use maud::{Markup, html};
use serde_json::Value;

use super::layout::{View, candidate_link, encoded, facts, row_link, run_frame, run_href, state_badge};
use super::rollout_view::usage;
use super::router::Query;
use super::source::ShownRun;
use super::words::{counted, duration, json_block, plain, record_block, time, usd, visible};
use crate::turn_transcript::{TranscriptText, TurnTranscript};
use crate::workspace::models::{ProposalRecord, ReadError, TurnEntry, TurnPage, TurnQuery};

/// Rows that are listed of a minibatch or of the evidence.
const ROWS: usize = 30;

/// Returns the list of proposer turns.
pub(super) fn turns_view(run: &ShownRun, query: &Query) -> Result<View, ReadError> {
    let selected = TurnQuery { limit: Some(100), cursor: query.get("cursor").map(str::to_owned) };
    let page = match &run.reader {
        Some(reader) => reader.turn_page(&selected)?,
        None => TurnPage::default(),
    };
    let run_id = run.run_id();
    let body = html! {
        section id="turns" {
            h2 { "Proposer turns" }
            @if page.items.is_empty() { p.muted { (run.missing().unwrap_or("The proposer was not asked yet.")) } } @else { (turn_table(run_id, &page.items)) }
            @if let Some(cursor) = &page.next_cursor {
                nav.pager aria-label="pages" { a rel="next" href={(run_href(run_id, "turns")) "?cursor=" (encoded(cursor))} { "later turns" } }
            }
        }
    };
    Ok(run_frame(run, "turns", "Proposer turns", &body))
}

fn turn_table(run_id: &str, turns: &[TurnEntry]) -> Markup {
    html! {
        div.scroll tabindex="0" { table {
            thead { tr {
                th scope="col" { "turn" } th scope="col" { "generation" } th scope="col" { "status" } th scope="col" { "parents" }
                th scope="col" { "proposals" } th scope="col" { "tokens" } th scope="col" { "time" } th scope="col" { "cost" }
            } }
            tbody {
                @for turn in turns {
                    tr {
                        th scope="row" { a href=(run_href(run_id, &format!("turns/{}", turn.turn))) { (turn.turn) }
                            @if turn.is_repair { div.note { "repair" } } }
                        td { (turn.call.generation) }
                        td { (state_badge(turn.call.status.as_str()))
                            @if let Some(failure) = &turn.call.failure { div.note.bad { (plain(failure.class.as_str())) } } }
                        td { @for (place, parent) in turn.parent_ids.iter().enumerate() { @if place > 0 { ", " } (candidate_link(run_id, parent)) } }
                        td { @for proposal in &turn.proposals { div { (outcome(run_id, proposal)) } } }
                        td { (usage(turn.call.usage.as_ref())) }
                        td { @if let Some(millis) = turn.call.duration_ms { (duration(millis)) } @if turn.call.cached == Some(true) { span.muted { "cached" } } }
                        td { (usd(turn.call.cost_usd)) }
                    }
                }
            }
        } }
    }
}

fn outcome(run_id: &str, proposal: &ProposalRecord) -> Markup {
    html! {
        (plain(proposal.outcome.as_str()))
        @if let Some(candidate) = &proposal.candidate_id { " " (candidate_link(run_id, candidate)) }
        @if let Some(status) = proposal.candidate_status { " " (state_badge(status.as_str())) }
        @for problem in &proposal.problems { div.note.bad { (visible(&problem.message)) } }
    }
}

/// Returns the view of one proposer turn.
pub(super) fn turn_view(run: &ShownRun, name: &str) -> Result<View, ReadError> {
    let detail = run.opened()?.turn(name)?;
    let (turn, call) = (&detail.turn, &detail.turn.call);
    let run_id = run.run_id();
    let rows = |rows: &[String]| {
        html! {
            @if rows.is_empty() { span.muted { "none" } }
            @for (place, row) in rows.iter().take(ROWS).enumerate() { @if place > 0 { ", " } (row_link(run_id, "train", row)) }
            @if rows.len() > ROWS { " and " (rows.len() - ROWS) " more" }
        }
    };
    let model = match (&call.requested_model, &call.effective_model) {
        (Some(asked), Some(answered)) if asked != answered => format!("{answered}, requested {asked}"),
        (asked, answered) => answered.as_ref().or(asked.as_ref()).cloned().unwrap_or_else(|| "unknown".to_owned()),
    };
    let body = html! {
        section id="turn" {
            h2 { "Proposer turn " (turn.turn) " " (state_badge(call.status.as_str())) @if turn.is_repair { " " span.badge.badge-other { "repair" } } }
            (facts(&[
                ("generation", html! { (call.generation) ", attempt " (call.attempt) }),
                ("parents", html! { @for (place, parent) in turn.parent_ids.iter().enumerate() { @if place > 0 { ", " } (candidate_link(run_id, parent)) } }),
                ("fields to change", html! { (visible(&turn.components.join(", "))) }),
                ("rows of the evidence", rows(&turn.evidence)),
                ("rows of the screening", rows(&turn.minibatch)),
                ("model", html! { (visible(&model)) }),
                ("sent", html! { (time(call.sent_at.as_deref())) @if let Some(millis) = call.duration_ms { ", answered after " (duration(millis)) } @if call.cached == Some(true) { ", from the cache" } }),
                ("usage", usage(call.usage.as_ref())),
                ("cost", html! { (usd(call.cost_usd)) }),
            ]))
            @if let Some(failure) = &call.failure {
                div.problem role="alert" { p { b { (plain(failure.class.as_str())) } ": " (visible(&failure.message)) } }
            }
        }
        @if !turn.carried_failures.is_empty() {
            section id="carried" {
                h2 { "Rejected candidates that it was told about" }
                ul { @for failure in &turn.carried_failures { li { (candidate_link(run_id, failure.candidate_id.as_str())) ": " (visible(&failure.reason)) } } }
            }
        }
        @if !turn.repaired_problems.is_empty() {
            section id="repaired" {
                h2 { "Problems that it was asked to repair" }
                ul { @for problem in &turn.repaired_problems { li { (visible(&problem.message)) } } }
            }
        }
        section id="proposals" {
            h2 { "What became of its proposals" }
            @if turn.proposals.is_empty() { p.muted { "none" } }
            ul { @for proposal in &turn.proposals { li { (outcome(run_id, proposal)) } } }
        }
        section id="answer" {
            h2 { "Answer" }
            @match (&detail.answer, &detail.answer_problem) {
                (Some(answer), _) => (proposals(answer)),
                (None, problem) => p.muted { (visible(problem.as_deref().unwrap_or("no answer is stored"))) },
            }
        }
        (transcript(&detail.transcript))
    };
    Ok(run_frame(run, "turns", &format!("Proposer turn {}", turn.turn), &body))
}

/// Shows the proposals of an answer: their rationales, and their texts or edits.
fn proposals(answer: &Value) -> Markup {
    html! {
        @for (place, proposal) in answer["proposals"].as_array().into_iter().flatten().enumerate() {
            h3 { "Proposal " (place + 1) }
            @if let Some(rationale) = proposal["rationale"].as_str().filter(|rationale| !rationale.is_empty()) { p { (visible(rationale)) } }
            @for (field, value) in proposal["fields"].as_object().into_iter().flatten() {
                details open { summary { (visible(field)) } (json_block(value)) }
            }
        }
        details { summary { "the whole answer" } (json_block(answer)) }
    }
}

fn transcript(transcript: &TurnTranscript) -> Markup {
    let texts = |texts: &[TranscriptText]| {
        html! {
            @if texts.is_empty() { p.muted { "nothing" } }
            @for said in texts { h3 { (visible(&said.role)) } (record_block(&said.text)) }
        }
    };
    html! {
        section id="transcript" {
            h2 { "Transcript" }
            @if let Some(problem) = &transcript.problem { p.muted { (visible(problem)) } }
            @if !transcript.messages.is_empty() {
                details open { summary { "what it was shown" } (texts(&transcript.shown)) }
                details open { summary { "what it answered" } (texts(&transcript.answered)) }
                details { summary { "every message (" (counted(transcript.messages.len() as u64, "message")) ")" }
                    @for message in &transcript.messages { h3 { (visible(&message.from)) } (json_block(&message.message)) }
                    @if transcript.left_out > 0 { p.muted { (counted(transcript.left_out, "message")) " are left out; the artifact has them." } }
                }
            }
        }
    }
}

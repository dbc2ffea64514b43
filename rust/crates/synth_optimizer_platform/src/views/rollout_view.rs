//! One rollout: its row, what the container answered, feedback, scores, usage, other attempts and the raw reply.

use maud::{Markup, html};
use serde_json::Value;

use super::candidate_view::rollout_table;
use super::layout::{View, candidate_link, facts, or_problem, row_link, row_path, run_frame, run_href, state_badge};
use super::source::ShownRun;
use super::words::{bytes, duration, json_block, number, plain, record_block, time, usd, visible};
use crate::rollout_trace::RolloutTrace;
use crate::workspace::models::{ReadError, RolloutEntry};
use synth_optimizer_core::model::usage::Usage;

/// Returns the view of a rollout.
pub(super) fn rollout_view(run: &ShownRun, name: &str) -> Result<View, ReadError> {
    let reader = run.opened()?;
    let detail = reader.rollout(name, true)?;
    let rollout = &detail.rollout;
    let input = reader.row_document(rollout.split, &rollout.example_id);
    let attempts = reader.rollout_attempts(rollout.call_id)?;
    let run_id = run.run_id();
    let body = html! {
        section id="rollout" {
            h2 { "Rollout #" (rollout.call_id) " " (state_badge(rollout.status.as_str())) }
            (facts(&[
                ("candidate", candidate_link(run_id, &rollout.candidate_id)),
                ("row", html! { (row_link(run_id, rollout.split.as_str(), &rollout.example_id)) " " span.muted { (plain(rollout.split.as_str())) } }),
                ("stage", html! { (plain(rollout.evaluation_stage.as_str())) @if let Some(generation) = rollout.generation { ", generation " (generation) } }),
                ("score", html! { @match rollout.reward { Some(reward) => span.number { (number(reward)) }, None => span.muted { "none" } } }),
                ("objectives", objectives(rollout)),
                ("attempt", html! { (rollout.attempt) @if rollout.replicate > 0 { ", repetition " (rollout.replicate) } }),
                ("sent", time(rollout.sent_at.as_deref())),
                ("answered", html! { (time(rollout.answered_at.as_deref())) @if let Some(millis) = rollout.latency_ms { ", after " (duration(millis)) } @if rollout.cached == Some(true) { ", from the cache" } }),
                ("usage", usage(rollout.usage.as_ref())),
                ("cost", html! { (usd(rollout.cost_usd)) }),
                ("id in the container", html! { span.id { (rollout.rollout_id.as_deref().unwrap_or("not sent")) } }),
            ]))
            @if let Some(failure) = &rollout.failure {
                div.problem role="alert" { p { b { (plain(failure.class.as_str())) } ": " (visible(&failure.message)) } }
            }
            p { a href=(run_href(run_id, &row_path(rollout.split.as_str(), &rollout.example_id))) { "All rollouts on this row" } }
        }
        @if attempts.len() > 1 {
            section id="attempts" { h2 { "Attempts" } (rollout_table(run_id, &attempts)) }
        }
        section id="input" {
            h2 { "Input" }
            (or_problem(input, |input| match &input {
                Some(input) => json_block(input),
                None => html! { p.muted { "The container did not describe this row." } },
            }))
        }
        @match &detail.trace {
            Some(trace) => (reply(trace)),
            None => section id="reply" { h2 { "Reply" } p.muted { "No reply is stored." } },
        }
    };
    Ok(run_frame(run, "rows", &format!("Rollout #{}", rollout.call_id), &body))
}

fn objectives(rollout: &RolloutEntry) -> Markup {
    html! {
        @if rollout.objectives.is_empty() { span.muted { "none" } }
        @for (place, (name, value)) in rollout.objectives.iter().enumerate() {
            @if place > 0 { ", " }
            (visible(name)) " " span.number { (number(*value)) }
        }
    }
}

/// Writes the tokens of a call.
pub(super) fn usage(usage: Option<&Usage>) -> Markup {
    let known = |count: Option<u64>, name: &str| count.map(|count| format!("{} {name}", super::words::count(count)));
    let parts: Vec<String> = usage
        .into_iter()
        .flat_map(|usage| [known(usage.prompt_tokens, "prompt"), known(usage.completion_tokens, "completion")])
        .flatten()
        .collect();
    html! { @if parts.is_empty() { span.muted { "not reported" } } @else { (parts.join(", ")) " tokens" } }
}

/// Returns what the program answered. The protocol has no field for it; containers write it to one of these.
fn output(reply: &Value) -> Option<&Value> {
    const NAMES: [&str; 6] = ["output", "outputs", "response", "completion", "prediction", "answer"];
    let places = ["", "/summary", "/reward_info/details", "/metadata"];
    let found = places.iter().filter_map(|place| reply.pointer(place));
    found.flat_map(|place| NAMES.iter().filter_map(|name| place.get(name))).find(|value| !value.is_null())
}

fn reply(trace: &RolloutTrace) -> Markup {
    let feedback: Vec<_> = trace.evidence.iter().flat_map(|evidence| &evidence.feedback).collect();
    html! {
        @if let Some(output) = trace.reply.as_ref().and_then(output) {
            section id="output" { h2 { "Output" } (json_block(output)) }
        }
        @if !feedback.is_empty() {
            section id="feedback" {
                h2 { "Feedback" }
                @for piece in feedback { h3 { (visible(&piece.name)) } (record_block(&piece.text)) }
            }
        }
        @if let Some(evidence) = &trace.evidence {
            section id="evidence" {
                h2 { "What a proposer sees of it" }
                details open { summary { "the record of the rollout" } (record_block(&evidence.record)) }
            }
        }
        section id="reply" {
            h2 { "Reply" }
            @match &trace.reply {
                Some(reply) => details { summary { "the whole reply, " (bytes(trace.bytes)) } (json_block(reply)) },
                None => p.muted { "The reply has " (bytes(trace.bytes)) ", which is too large to be shown." },
            }
        }
    }
}

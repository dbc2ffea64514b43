//! The list of runs: state, progress against the limits, best score, cost and age.

use maud::{Markup, html};

use super::layout::{View, encoded, page_frame, run_href, state_badge};
use super::run_controls::{control_answer, control_buttons};
use super::source::{ListedRun, RunControls, RunListQuery, RunSource};
use super::words::{cost, count, counted, number, time, visible};
use crate::artifacts::RunOverview;
use crate::workspace::models::{ReadError, StopRule};
use synth_optimizer_core::model::event_fields::StopKind;

/// The states that the list can be filtered by.
const STATES: [&str; 7] = ["queued", "running", "paused", "interrupted", "completed", "failed", "cancelled"];

/// Returns the list of runs.
pub(super) fn runs_view(source: &dyn RunSource, query: &RunListQuery) -> Result<View, ReadError> {
    let list = source.runs(query)?;
    let has_controls = list.controls == RunControls::Service;
    let body = html! {
        @if has_controls { section id="controls" { (control_answer()) } }
        section id="runs" {
            p.muted { "Runs of " (source.place()) "." }
            form.filters action="/ui/" {
                label { "state "
                    select name="state" {
                        option value="" { "all" }
                        @for state in STATES {
                            option value=(state) selected[query.state.as_deref() == Some(state)] { (state) }
                        }
                    }
                }
                label { "name " input type="search" name="name" value=(query.name.as_deref().unwrap_or_default()); }
                button { "filter" }
                @if has_controls { a.button href="/ui/submit" { "submit a run" } }
            }
            @if list.runs.is_empty() { p { (nothing(query, list.next_cursor.is_some())) } } @else {
                div.scroll tabindex="0" {
                    table.runs data-sortable {
                        thead {
                            tr {
                                th scope="col" { "run" } th scope="col" { "state" } th scope="col" { "progress" }
                                th scope="col" { "best train score" } th scope="col" { "held-out" }
                                th scope="col" data-unsorted { "best so far" }
                                th scope="col" { "cost" } th scope="col" { "age" }
                                @if has_controls { th scope="col" data-unsorted { "control" } }
                            }
                        }
                        tbody { @for run in &list.runs { (row(run, has_controls)) } }
                    }
                }
            }
            @if let Some(cursor) = &list.next_cursor {
                nav.pager aria-label="pages" {
                    a rel="next" href=(next_href(query, cursor)) { "older runs" }
                    span.muted { "Columns sort the runs that are shown." }
                }
            }
        }
    };
    Ok(page_frame("Runs", &body))
}

/// Says why a page of the list is empty. A search ends after a number of runs, before it has seen all.
fn nothing(query: &RunListQuery, has_more: bool) -> &'static str {
    match query.state.is_some() || query.name.is_some() {
        _ if has_more => "None of the newest runs matches the filter; older ones were not searched.",
        true => "There are no runs that match the filter.",
        false => "There are no runs.",
    }
}

fn next_href(query: &RunListQuery, cursor: &str) -> String {
    let parts = [("state", &query.state), ("name", &query.name)];
    let filters = parts.into_iter().filter_map(|(name, value)| Some(format!("{name}={}&", encoded(value.as_deref()?))));
    format!("/ui/?{}cursor={}", filters.collect::<String>(), encoded(cursor))
}

fn row(run: &ListedRun, has_controls: bool) -> Markup {
    let overview = run.overview.as_ref();
    let begun = run.submitted_at.as_deref().or_else(|| overview.and_then(|run| run.started_at.as_deref()));
    let spent = overview.map(|overview| overview.cost_usd);
    let best = overview.and_then(|overview| overview.best_train_score);
    let heldout = overview.and_then(|overview| overview.best_heldout_score);
    html! {
        tr {
            th scope="row" { a href=(run_href(&run.run_id, "")) { (run.run_id) } }
            td data-sort=(run.state) {
                (state_badge(&run.state))
                @if let Some(waiting) = &run.waiting { div.note { (visible(&waiting.message)) } }
                @if let Some(problem) = &run.problem { div.note.bad { (visible(problem)) } }
                @for outage in overview.iter().flat_map(|overview| &overview.waiting) {
                    div.note { "waits for the " (outage.waiting_for.as_str()) }
                }
            }
            td data-sort=(overview.map_or(0, |overview| overview.rollouts_finished)) {
                @if let Some(overview) = overview { (progress(overview, &run.limits)) }
            }
            td data-sort=[best.map(|score| score.mean)] { (short_score(best.as_ref())) }
            td data-sort=[heldout.map(|score| score.mean)] { (short_score(heldout.as_ref())) }
            td { (sparkline(&run.steps)) }
            td data-sort=[spent.and_then(|spent| spent.known()).map(|amount| amount.usd())] {
                @if let Some(spent) = spent { (cost(spent)) }
            }
            td data-sort=(begun.unwrap_or_default()) { (time(begun)) }
            @if has_controls { td { (control_buttons(&run.run_id, &run.state)) } }
        }
    }
}

fn short_score(score: Option<&synth_optimizer_core::model::score::Score>) -> Markup {
    let Some(score) = score else { return html! { span.muted { "-" } } };
    html! {
        span.number { (number(score.mean)) }
        @if let (Some(low), Some(high)) = (score.low, score.high) {
            " " span.interval { "[" (number(low)) ", " (number(high)) "]" }
        }
    }
}

/// Shows how far a run is on the way to each of its limits.
fn progress(overview: &RunOverview, limits: &[StopRule]) -> Markup {
    let has_rollouts = limits.iter().any(|rule| rule.kind == StopKind::MaxRollouts);
    html! {
        @if !has_rollouts { div { (counted(overview.rollouts_finished + overview.rollouts_failed, "rollout")) } }
        @for rule in limits {
            @if let (Some(value), Some(limit)) = (rule.value, rule.limit) {
                (bar(unit(&rule.name), value, limit, rule.share.unwrap_or(1.0)))
            }
        }
    }
}

/// Returns what a limit counts.
fn unit(setting: &str) -> &str {
    match setting {
        "gepa.max_total_rollouts" => "rollouts",
        "gepa.max_train_rollouts" => "train rollouts",
        "gepa.max_heldout_rollouts" => "held-out rollouts",
        "gepa.max_cost_usd" => "dollars",
        "gepa.max_prompt_tokens" => "prompt tokens",
        "gepa.max_completion_tokens" => "completion tokens",
        "gepa.max_total_tokens" => "tokens",
        "gepa.max_time_seconds" => "seconds",
        "gepa.max_generations" => "generations",
        other => other,
    }
}

/// Shows a value against its limit.
fn bar(name: &str, value: f64, limit: f64, share: f64) -> Markup {
    let shown = |value: f64| if value.fract() == 0.0 { count(value as u64) } else { number(value) };
    html! {
        div.bar {
            progress max="1" value=(format!("{share:.3}")) aria-label=(format!("{name}: {} of {}", shown(value), shown(limit))) {}
            span { (shown(value)) " / " (shown(limit)) " " (name) }
        }
    }
}

/// Draws the best score so far as a small line.
fn sparkline(steps: &[f64]) -> Markup {
    let (low, high) =
        steps.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), step| (low.min(*step), high.max(*step)));
    let span = if high > low { high - low } else { 1.0 };
    let last = steps.len().saturating_sub(1).max(1) as f64;
    let point = |(place, step): (usize, &f64)| {
        format!("{:.1},{:.1}", 2.0 + 76.0 * place as f64 / last, 18.0 - 14.0 * (step - low) / span)
    };
    let points: Vec<String> = steps.iter().enumerate().map(point).collect();
    let (Some(first), Some(end)) = (steps.first(), steps.last()) else { return html! { span.muted { "-" } } };
    html! {
        svg.spark viewBox="0 0 80 22" width="80" height="22" role="img"
            aria-label=(format!("best train score from {} to {}", number(*first), number(*end))) {
            @if points.len() > 1 {
                polyline points=(points.join(" ")) {}
            } @else {
                circle cx="40" cy="11" r="2.5" {}
            }
        }
    }
}

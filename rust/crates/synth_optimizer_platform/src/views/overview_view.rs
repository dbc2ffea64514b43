//! One run at a glance: what it found, the score chart, what it does now, how far its limits are, and what it spent.

use maud::{Markup, html};

use super::diff::diff_block;
use super::layout::{RunLinks, View, candidate_link, facts, or_problem, run_frame, run_href};
use super::picture_widths::PictureWidths;
use super::router::Query;
use super::run_controls::{control_answer, control_buttons};
use super::source::{RunControls, ShownRun};
use super::verdict::verdict;
use super::words::{cost, count, counted, duration, number, plain, score, sentence, text_block, time, usd, visible};
use crate::artifacts::pictures::{ChartAxis, score_chart};
use crate::artifacts::{RunOverview, chart_data, read_manifest};
use crate::workspace::Reader;
use crate::workspace::models::{ReadError, RunActivity, StopRule};
use synth_optimizer_core::model::envelope::{rfc3339, unix_millis_of};
use synth_optimizer_core::model::event_effects::CallKind;
use synth_optimizer_core::model::usage::UsagePart;

/// Returns the overview of a run.
pub(super) fn overview_view(run: &ShownRun, query: &Query) -> Result<View, ReadError> {
    let overview = run.overview()?;
    let run_id = run.run_id();
    let reader = run.reader.as_deref();
    let manifest = read_manifest(&run.paths).ok().flatten().unwrap_or_default();
    let body = html! {
        (controls(run))
        section id="verdict" {
            (verdict(&overview, &manifest))
            (figures(run_id, &overview))
        }
        @if let Some(reader) = reader {
            section id="chart" {
                h2 { "Scores" }
                (axis_choice(run_id, query))
                (chart(run_id, reader, axis(query), query.widths()))
                p.muted { "Select a mark for its candidate. Arrow keys move between marks." }
            }
        }
        @if !run.is_terminal {
            section id="now" {
                h2 { "Now" }
                (waiting(&overview))
                @if let Some(reader) = reader { (or_problem(reader.activity(), |activity| now(run_id, &activity))) }
            }
        }
        @if let Some(reader) = reader {
            section id="limits" { h2 { "Limits" } (or_problem(reader.stop_rules(), |rules| stop_rules(&rules))) }
        }
        section id="spend" { h2 { "Spend" } (spend(&overview)) }
        @if let Some(reader) = reader {
            section id="best" { h2 { "Best texts" } (or_problem(best_texts(run_id, reader), |shown| shown)) }
        }
        section id="events" data-events=(run_id) {
            h2 { "Events" }
            form.filters {
                label { "show "
                    select name="kind" {
                        option value="decisions" { "decisions" }
                        option value="all" { "everything" }
                        option value="calls" { "calls" }
                        option value="problems" { "problems" }
                    }
                }
                label { "containing " input type="search" name="text" autocomplete="off"; }
            }
            ol.feed tabindex="0" aria-label="the newest events first" {}
            p.muted.feed-note { "Reading the events." }
        }
    };
    Ok(run_frame(run, "", "Run", &body))
}

/// Offers what can be done with a run, or names the command that does it.
fn controls(run: &ShownRun) -> Markup {
    let run_id = run.run_id();
    html! {
        section id="controls" {
            @match run.controls {
                RunControls::Service => { (control_buttons(run_id, &run.state)) (control_answer()) },
                RunControls::ReadOnly if !run.is_terminal => {
                    p.muted { "Control it with " code { "synth-optimizers runs cancel " (run_id) } "." }
                },
                RunControls::ReadOnly => {},
            }
        }
    }
}

/// Shows the numbers of a run.
pub(super) fn figures<'a>(links: impl Into<RunLinks<'a>>, overview: &RunOverview) -> Markup {
    let links = links.into();
    facts(&[
        (
            "best candidate",
            html! { @match &overview.best_candidate_id { Some(id) => (candidate_link(links, id)), None => span.muted { "none" } } },
        ),
        ("train score of the best", score(overview.best_train_score.as_ref())),
        ("train score of the initial", score(overview.seed_train_score.as_ref())),
        ("held-out score of the best", score(overview.best_heldout_score.as_ref())),
        (
            "search",
            html! { @match &overview.search {
                Some(search) => { (search.as_str()) @if let Some(reason) = &overview.search_reason { " " span.muted { (sentence(reason)) } } },
                None => span.muted { "not chosen yet" },
            } },
        ),
        ("candidates", html! { (count(overview.candidates)) " in " (counted(overview.generations, "generation")) }),
        (
            "rollouts",
            html! { (count(overview.rollouts_finished)) " with a score, " (count(overview.rollouts_failed)) " failed" },
        ),
        (
            "calls",
            html! { (count(overview.sent_calls)) " sent, " (count(overview.cached_calls)) " cached"
            @if overview.unknown_outcomes > 0 { ", " (count(overview.unknown_outcomes)) " of unknown outcome" } },
        ),
        ("cost", html! { (cost(overview.cost_usd)) }),
        ("started", time(overview.started_at.as_deref())),
        (
            "ended",
            html! { (time(overview.finished_at.as_deref())) @if let Some(took) = took(overview) { ", after " (took) } },
        ),
        (
            "stopped by",
            html! { @match &overview.stopped_by {
                Some(stop) => (plain(stop["kind"].as_str().unwrap_or_default())),
                None => span.muted { "-" },
            } },
        ),
    ])
}

/// Returns how long an ended run took, with its interruptions.
fn took(overview: &RunOverview) -> Option<String> {
    let moment = |at: &Option<String>| unix_millis_of(at.as_deref()?);
    Some(duration(moment(&overview.finished_at)?.saturating_sub(moment(&overview.started_at)?)))
}

fn axis(query: &Query) -> ChartAxis {
    if query.get("axis") == Some("cost") { ChartAxis::Cost } else { ChartAxis::Rollouts }
}

fn axis_choice(run_id: &str, query: &Query) -> Markup {
    let base = run_href(run_id, "");
    let chosen = query.get("axis").unwrap_or("rollouts");
    html! {
        nav.parts aria-label="axis of the chart" {
            @for name in ["rollouts", "cost"] {
                a href={(base) "?axis=" (name)} aria-current=[(chosen == name).then_some("true")] { "against " (name) }
            }
        }
    }
}

/// Draws the score chart.
pub(super) fn chart(run_id: &str, reader: &Reader, axis: ChartAxis, widths: PictureWidths) -> Markup {
    or_problem(reader.score_chart(), |chart| {
        let data = chart_data(&chart, run_id, axis);
        widths.draw(|layout| score_chart(&data, layout))
    })
}

/// Says what a run waits for, and which limit of concurrency it uses.
fn waiting(overview: &RunOverview) -> Markup {
    html! {
        @for outage in &overview.waiting {
            p.waiting { "Waits for the " (outage.waiting_for.as_str()) ": " (visible(&outage.cause))
                " (since " (time(Some(&rfc3339(outage.since)))) ", " (counted(u64::from(outage.tries), "try"))
                ", next " (time(Some(&rfc3339(outage.next_try_at)))) ", gives up " (time(Some(&rfc3339(outage.deadline_at)))) ")" }
        }
        @if let Some(adjusted) = &overview.concurrency {
            p.waiting { "Runs " (adjusted.new_limit) " rollouts at once instead of " (adjusted.workers)
                @if let Some(status) = adjusted.status { ", because the container answered with status " (status) } "." }
        }
        @for shortfall in &overview.shortfalls {
            p.waiting { "Calls used more than their estimates: " (plain(shortfall.kind.as_str())) " is " (number(shortfall.spent)) " of " (number(shortfall.limit)) "." }
        }
    }
}

/// Shows the work in progress.
fn now(run_id: &str, activity: &RunActivity) -> Markup {
    html! {
        (in_flight(activity, CallKind::Rollout, activity.rollout_limit, "rollout"))
        (in_flight(activity, CallKind::Proposer, activity.turn_limit, "proposer turn"))
        @if activity.waiting_answers > 0 { p { (counted(activity.waiting_answers, "answer")) " wait for their turn." } }
        @for evaluation in &activity.evaluations {
            div.bar {
                progress max=(evaluation.total.max(1)) value=(evaluation.done) aria-label={(plain(evaluation.stage.as_str())) " of " (evaluation.candidate_id)} {}
                span { (plain(evaluation.stage.as_str())) " of " (candidate_link(run_id, &evaluation.candidate_id)) ": "
                    (evaluation.done) " of " (evaluation.total) " rollouts, " (evaluation.running) " in flight"
                    @if evaluation.failed > 0 { ", " span.bad { (evaluation.failed) " failed" } } }
            }
        }
        @for turn in &activity.turns {
            p { a href=(run_href(run_id, &format!("turns/{}", turn.turn))) { "Proposer turn " (turn.turn) } " of generation " (turn.generation)
                @if turn.is_repair { ", a repair" } ", since " (time(turn.since.as_deref())) "." }
        }
        @if activity.evaluations.is_empty() && activity.turns.is_empty() { p.muted { "Nothing is in progress." } }
    }
}

/// Says how many calls of a kind are in flight, and how many may be at once.
fn in_flight(activity: &RunActivity, kind: CallKind, limit: u32, noun: &str) -> Markup {
    let calls = activity.unanswered.iter().find(|calls| calls.kind == kind);
    html! {
        p {
            (count(calls.map_or(0, |calls| calls.count))) " of " (counted(u64::from(limit), noun)) " in flight"
            @if let Some(calls) = calls { ", the oldest since " (time(Some(&calls.oldest_sent_at))) } "."
        }
    }
}

/// Shows how far each rule is from ending the run.
pub(super) fn stop_rules(rules: &[StopRule]) -> Markup {
    let shown = |value: Option<f64>| match value {
        None => "unknown".to_owned(),
        Some(value) if value.fract() == 0.0 && (0.0..1e15).contains(&value) => count(value as u64),
        Some(value) => number(value),
    };
    html! {
        @if rules.is_empty() { p.muted { "No limit is set." } }
        @for rule in rules {
            div.bar {
                @if let Some(share) = rule.share {
                    progress max="1" value=(format!("{:.3}", share.clamp(0.0, 1.0))) aria-label=(rule.name) {}
                } @else { span.no-bar {} }
                span { code { (rule.name) } " " (shown(rule.value)) @if rule.limit.is_some() { " of " (shown(rule.limit)) } }
                @if rule.has_stopped { span.badge.badge-other { "ended the search" } }
            }
        }
    }
}

/// Shows what was spent on the program and on the proposer.
pub(super) fn spend(overview: &RunOverview) -> Markup {
    let usage = &overview.usage;
    let row = |name: &str, part: &UsagePart| {
        html! {
            tr {
                th scope="row" { (name) }
                td { (count(part.sent_calls)) } td { (count(part.cached_calls)) }
                td { (count(part.prompt_tokens)) } td { (count(part.completion_tokens)) }
                td { (cost(part.cost_usd))
                    @if part.unpriced_calls > 0 { div.note { (counted(part.unpriced_calls, "call")) " of unknown cost; known: " (usd(Some(part.known_cost_usd))) } }
                    @if part.unknown_outcomes > 0 { div.note { (counted(part.unknown_outcomes, "call")) " of unknown outcome" } } }
            }
        }
    };
    html! {
        div.scroll tabindex="0" { table {
            thead { tr { td {} th scope="col" { "sent calls" } th scope="col" { "cached" } th scope="col" { "prompt tokens" } th scope="col" { "completion tokens" } th scope="col" { "cost" } } }
            tbody { (row("rollouts (policy)", &usage.rollouts)) (row("proposer", &usage.proposer)) (row("together", &usage.total)) }
        } }
    }
}

/// Shows the best texts with their changes against the initial candidate.
pub(super) fn best_texts<'a>(links: impl Into<RunLinks<'a>>, reader: &Reader) -> Result<Markup, ReadError> {
    let links = links.into();
    let totals = reader.totals()?;
    let record = |id: Option<String>| id.map(|id| reader.candidate_record(&id)).transpose().map(Option::flatten);
    let initial = record(totals.seed_candidate_id.as_ref().map(ToString::to_string))?;
    let best = record(totals.best_candidate_id().map(ToString::to_string))?;
    Ok(html! {
        @match &best {
            None => p.muted { "There is no candidate yet." },
            Some(best) => {
                @let is_initial = initial.as_ref().is_some_and(|initial| initial.candidate_id == best.candidate_id);
                @if is_initial { p { "The initial candidate is the best one." } }
                @else { p { "Candidate " (candidate_link(links, best.candidate_id.as_str())) " against the initial one: " del { "removed" } " " ins { "added" } } }
                @for (field, text) in &best.payload {
                    @let before = initial.as_ref().and_then(|initial| initial.payload.get(field));
                    h3 { (visible(field)) @if before == Some(text) && !is_initial { " " span.muted { "(unchanged)" } } }
                    @match before {
                        Some(before) if before != text => (diff_block(before, text)),
                        Some(_) | None => (text_block(text)),
                    }
                }
            },
        }
    })
}

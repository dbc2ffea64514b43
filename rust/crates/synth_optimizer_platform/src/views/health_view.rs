//! The health of a run and of a service: projections, invariants, leases, workers and storage.

use maud::{Markup, html};
use serde_json::Value;

use super::layout::{View, facts, or_problem, page_frame, run_frame, run_href, state_badge};
use super::source::{RunSource, ServiceHealth, ShownRun};
use super::words::{bytes, count, time, visible};
use crate::workspace::models::ReadError;
use crate::workspace::workspace_report;

/// Returns the health of one run.
pub(super) fn run_health_view(run: &ShownRun) -> View {
    let path = run.paths.workspace_db();
    let status =
        if path.is_file() { workspace_report(path.as_std_path()).map(Some).map_err(ReadError::from) } else { Ok(None) };
    let body = or_problem(status, |status| match status {
        None => html! { section id="health" { h2 { "Health" } p.muted { (run.missing().unwrap_or_default()) } } },
        Some(status) => run_health(run, &status["runs"][0]),
    });
    run_frame(run, "health", "Health", &body)
}

fn run_health(run: &ShownRun, status: &Value) -> Markup {
    let sizes =
        ["workspace.sqlite", "workspace.sqlite-wal", "events.jsonl", "events.normalized.jsonl", "request_cache.sqlite"]
            .map(|name| (name, std::fs::metadata(run.paths.dir().join(name)).map(|about| about.len()).unwrap_or(0)));
    html! {
        section id="invariants" {
            h2 { "Invariants " (state_badge(status["invariant_report"]["status"].as_str().unwrap_or("unknown"))) }
            @let violations = status["invariant_report"]["violations"].as_array().map_or(&[][..], Vec::as_slice);
            @if violations.is_empty() { p { "Every invariant holds." } }
            @for violation in violations {
                div.problem role="alert" {
                    p { b { (visible(text(violation, "invariant_id"))) } ": " (visible(text(violation, "message"))) }
                    p.muted { (visible(text(violation, "repair_hint"))) }
                }
            }
        }
        section id="projections" {
            h2 { "Projections" }
            div.scroll tabindex="0" { table {
                thead { tr { th scope="col" { "projection" } th scope="col" { "state" } th scope="col" { "rows" } th scope="col" { "behind" } } }
                tbody { @for projection in status["projection_freshness"].as_array().into_iter().flatten() {
                    tr {
                        th scope="row" { (text(projection, "projection_name")) }
                        td { (state_badge(text(projection, "status"))) }
                        td { (count(projection["projected_count"].as_u64().unwrap_or(0))) }
                        td { (count(projection["lag_count"].as_u64().unwrap_or(0))) }
                    }
                } }
            } }
        }
        section id="storage" {
            h2 { "Storage" }
            (facts(&sizes.iter().filter(|(_, size)| *size > 0).map(|(name, size)| (*name, html! { (bytes(*size)) })).collect::<Vec<_>>()))
            details { summary { "rows by table" }
                div.scroll tabindex="0" { table { tbody {
                    @for (name, rows) in status["counts"].as_object().into_iter().flatten() {
                        tr { th scope="row" { (name) } td { (count(rows.as_u64().unwrap_or(0))) } }
                    }
                } } }
            }
        }
    }
}

fn text<'a>(of: &'a Value, name: &str) -> &'a str {
    of[name].as_str().unwrap_or_default()
}

/// Returns the health of what executes the runs.
pub(super) fn health_view(source: &dyn RunSource) -> Result<View, ReadError> {
    let health = source.health()?;
    let body = match health {
        None => html! {
            section id="health" {
                p { "This page reads " (source.place()) ". No service executes these runs; each run has its own page about its health." }
            }
        },
        Some(health) => service_health(&health),
    };
    Ok(page_frame("Health", &body))
}

fn service_health(health: &ServiceHealth) -> Markup {
    html! {
        section id="service" {
            h2 { "Service" }
            (facts(&[
                ("version", html! { (health.version) }),
                ("started", time(Some(&health.started_at))),
                ("workers", html! { (health.workers.len()) " of " (health.worker_limit) " busy" }),
                ("database", html! { (bytes(health.database_bytes)) }),
                ("runs", html! { @for (place, (state, number)) in health.counts.iter().enumerate() { @if place > 0 { ", " } (count(*number)) " " (state) } }),
            ]))
        }
        section id="invariants" {
            h2 { "Invariants of the queue " (state_badge(health.invariants["status"].as_str().unwrap_or("unknown"))) }
            @for violation in health.invariants["violations"].as_array().into_iter().flatten() {
                div.problem role="alert" { p { (visible(&violation.to_string())) } }
            }
        }
        section id="workers" {
            h2 { "Workers" }
            @if health.workers.is_empty() { p.muted { "No run is being executed." } }
            ul { @for (run_id, seconds) in &health.workers { li { a href=(run_href(run_id, "")) { (run_id) } ", last event " (format!("{seconds:.1}")) " s ago" } } }
        }
        section id="leases" {
            h2 { "Leases" }
            @if health.leases.is_empty() { p.muted { "none" } } @else {
                div.scroll tabindex="0" { table {
                    thead { tr { th scope="col" { "run" } th scope="col" { "worker" } th scope="col" { "since" } th scope="col" { "until" } } }
                    tbody { @for [run_id, worker, since, until] in &health.leases {
                        tr { th scope="row" { a href=(run_href(run_id, "")) { (run_id) } } td { (visible(worker)) } td { (time(Some(since))) } td { (time(Some(until))) } }
                    } }
                } }
            }
        }
    }
}

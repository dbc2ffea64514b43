//! The frame of a view: its title, the navigation within a run, links, badges and messages.

use maud::{Markup, html};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::source::ShownRun;
use super::words::{sentence, time, visible};
use crate::workspace::models::ReadError;

/// A view that is ready to be shown.
#[derive(Debug, Clone)]
pub struct View {
    /// The title of the window.
    pub title: String,
    /// The run that is shown, if it can still change.
    pub live_run: Option<String>,
    /// The HTML of the view.
    pub html: String,
}

/// The tabs of a run: path, name.
const TABS: [(&str, &str); 7] = [
    ("", "Run"),
    ("lineage", "Lineage"),
    ("rows", "Rows"),
    ("turns", "Proposer turns"),
    ("compare", "Compare"),
    ("settings", "Settings"),
    ("health", "Health"),
];

/// Frames the view of a run. `tab` is the path of its tab.
pub(super) fn run_frame(run: &ShownRun, tab: &str, title: &str, body: &Markup) -> View {
    let run_id = run.run_id();
    let base = run_href(run_id, "");
    let html = html! {
        header.run-head id="run-head" {
            p.crumbs { a href="/ui/" { "Runs" } " / " a href=(base) { (run_id) } }
            h1 { (run_id) " " (state_badge(&run.state)) }
            @if let Some(waiting) = &run.waiting {
                p.waiting {
                    (sentence(&waiting.message))
                    @if waiting.since.is_some() { ", since " (time(waiting.since.as_deref())) }
                    @if waiting.until.is_some() { ", until " (time(waiting.until.as_deref())) }
                }
            }
        }
        nav.tabs aria-label="views of the run" {
            @for (path, name) in TABS {
                a href=(run_href(run_id, path)) aria-current=[(path == tab).then_some("page")] { (name) }
            }
        }
        @if let Some(error) = &run.problem { section id="unreadable" { (problem(&error.clone().into())) } }
        (body)
    };
    View {
        title: format!("{title} - {run_id}"),
        live_run: (!run.is_terminal).then(|| run_id.to_owned()),
        html: html.into_string(),
    }
}

/// Frames a view that is not about one run.
pub(super) fn page_frame(title: &str, body: &Markup) -> View {
    View { title: title.to_owned(), live_run: None, html: html! { h1 { (title) } (body) }.into_string() }
}

/// Returns the address of a view of a run. `path` is below the run.
pub(super) fn run_href(run_id: &str, path: &str) -> String {
    let run_id = encoded(run_id);
    if path.is_empty() { format!("/ui/runs/{run_id}") } else { format!("/ui/runs/{run_id}/{path}") }
}

/// Encodes a text as one segment of a path or as a value of a query.
pub(super) fn encoded(text: &str) -> String {
    const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');
    utf8_percent_encode(text, PLAIN).to_string()
}

/// How a view refers to other views of its run.
#[derive(Debug, Clone, Copy)]
pub(super) enum RunLinks<'a> {
    /// By links, on the page.
    Page(&'a str),
    /// By names, in a file that has no other views.
    Names,
}

impl<'a> From<&'a str> for RunLinks<'a> {
    fn from(run_id: &'a str) -> Self {
        Self::Page(run_id)
    }
}

impl RunLinks<'_> {
    fn link(self, path: &str, name: &str) -> Markup {
        match self {
            Self::Page(run_id) => html! { a.id href=(run_href(run_id, path)) { (visible(name)) } },
            Self::Names => html! { span.id { (visible(name)) } },
        }
    }
}

/// Refers to a candidate.
pub(super) fn candidate_link<'a>(links: impl Into<RunLinks<'a>>, candidate_id: &str) -> Markup {
    links.into().link(&format!("candidates/{}", encoded(candidate_id)), candidate_id)
}

/// Refers to the rollouts of a row.
pub(super) fn row_link<'a>(links: impl Into<RunLinks<'a>>, split: &str, row: &str) -> Markup {
    links.into().link(&row_path(split, row), row)
}

/// Returns the path of the view of a row, with its query.
pub(super) fn row_path(split: &str, row: &str) -> String {
    format!("rows/{}?split={}", encoded(row), encoded(split))
}

/// Links to a rollout by its call number.
pub(super) fn rollout_link(run_id: &str, call_id: u64, name: &str) -> Markup {
    html! { a href=(run_href(run_id, &format!("rollouts/{call_id}"))) { (name) } }
}

/// Shows the state of a run, by colour and word.
pub(super) fn state_badge(state: &str) -> Markup {
    let kind = match state {
        "completed" | "accepted" | "better" | "finished" | "pass" | "fresh" | "adopted" => "good",
        "failed" | "cancelled" | "rolled_back" | "fail" | "stale" | "unreadable" => "bad",
        "interrupted" | "paused" | "queued" => "wait",
        state if state.starts_with("rejected") || state.starts_with("deferred") => "other",
        "superseded" | "no_evidence" | "unchanged" | "undecided" => "other",
        _ => "live",
    };
    html! { span class={"badge badge-" (kind)} { (super::words::plain(state)) } }
}

/// Shows why a part of a view is missing.
pub(super) fn problem(error: &ReadError) -> Markup {
    let (message, hint) = match error {
        ReadError::Invalid(refusal) | ReadError::NotFound(refusal) => (&refusal.message, &refusal.hint),
        ReadError::Failed(error) => (&error.message, &error.hint),
    };
    html! { div.problem role="alert" { p { (sentence(message)) } @if !hint.is_empty() { p.muted { (sentence(hint)) } } } }
}

/// Shows a part of a view, or why it is missing. The rest of the view is not affected.
pub(super) fn or_problem<T>(read: Result<T, ReadError>, show: impl FnOnce(T) -> Markup) -> Markup {
    match read {
        Ok(found) => show(found),
        Err(error) => problem(&error),
    }
}

/// Shows names and values.
pub(super) fn facts(entries: &[(&str, Markup)]) -> Markup {
    html! {
        dl.facts {
            @for (name, value) in entries {
                div { dt { (name) } dd { (value) } }
            }
        }
    }
}

/// Links to the pages before and after a window of items.
pub(super) fn pager(base: &str, offset: u64, shown: u64, total: u64, page: u64) -> Markup {
    let href = |offset: u64| {
        let sign = if base.contains('?') { '&' } else { '?' };
        format!("{base}{sign}offset={offset}")
    };
    html! {
        @if total > shown {
            nav.pager aria-label="pages" {
                @if offset > 0 { a rel="prev" href=(href(offset.saturating_sub(page))) { "previous" } }
                span.muted {
                    (super::words::count(offset + 1)) " to " (super::words::count(offset + shown)) " of " (super::words::count(total))
                }
                @if offset + shown < total { a rel="next" href=(href(offset + page)) { "next" } }
            }
        }
    }
}

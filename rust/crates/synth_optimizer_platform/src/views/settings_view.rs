//! The settings of a run, and the files that it left.

use maud::{Markup, html};
use serde_json::Value;

use super::layout::{View, encoded, or_problem, run_frame};
use super::source::ShownRun;
use super::words::{bytes, visible};
use crate::artifacts::{Artifacts, artifacts};
use crate::workspace::models::ReadError;

/// Returns the view of settings and files.
pub(super) fn settings_view(run: &ShownRun) -> Result<View, ReadError> {
    let config = match &run.reader {
        Some(reader) => Some(reader.run_row()?.config),
        None => None,
    };
    let body = html! {
        section id="settings" {
            h2 { "Settings" }
            @match &config {
                Some(config) => (settings_table(config)),
                None => p.muted { (run.missing().unwrap_or_default()) },
            }
        }
        section id="artifacts" {
            h2 { "Files" }
            (or_problem(artifacts(run.paths.dir(), run.reader.as_deref()), |found| files(run.run_id(), &found)))
        }
    };
    Ok(run_frame(run, "settings", "Settings", &body))
}

/// Lists every setting by its section.
pub(super) fn settings_table(config: &Value) -> Markup {
    html! {
        @for (section, fields) in config.as_object().into_iter().flatten() {
            @if let Some(fields) = fields.as_object().filter(|fields| !fields.is_empty()) {
                details open[matches!(section.as_str(), "gepa" | "run")] {
                    summary { code { "[" (section) "]" } }
                    div.scroll tabindex="0" { table.settings { tbody {
                        @for (name, value) in fields {
                            @if !value.is_null() { tr { th scope="row" { code { (visible(name)) } } td { code { (visible(&shown(value))) } } } }
                        }
                    } } }
                }
            }
        }
    }
}

fn shown(value: &Value) -> String {
    const LONGEST: usize = 2000;
    let text = value.to_string();
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}... ({} in all)", text.get(..end).unwrap_or_default(), bytes(text.len() as u64)),
        None => text,
    }
}

fn files(run_id: &str, found: &Artifacts) -> Markup {
    html! {
        @if found.items.is_empty() { p.muted { "none" } } @else {
            div.scroll tabindex="0" { table {
                thead { tr { th scope="col" { "file" } th scope="col" { "kind" } th scope="col" { "size" } } }
                tbody { @for file in &found.items {
                    tr {
                        th scope="row" { a data-download href={"/runs/" (encoded(run_id)) "/artifacts/" (file.name)} { (file.name) } }
                        td { (file.kind) } td { (bytes(file.bytes)) }
                    }
                } }
            } }
        }
    }
}

//! Finds the view of an address.

use std::collections::BTreeMap;

use maud::Markup;
use percent_encoding::percent_decode_str;
use url::form_urlencoded;

use super::candidate_view::candidate_view;
use super::compare_view::compare_view;
use super::health_view::{health_view, run_health_view};
use super::layout::{View, run_frame};
use super::lineage_view::lineage_view;
use super::overview_view::overview_view;
use super::picture_widths::PictureWidths;
use super::rollout_view::rollout_view;
use super::rows_view::{row_view, rows_view};
use super::runs_view::runs_view;
use super::settings_view::settings_view;
use super::source::{RunListQuery, RunSource};
use super::turn_view::{turn_view, turns_view};
use crate::artifacts::pictures::PictureWidth;
use crate::workspace::models::{ReadError, Refusal};

/// The parameters of a view.
#[derive(Debug, Clone, Default)]
pub(super) struct Query(BTreeMap<String, String>);

impl Query {
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// Returns a number that is not negative; 0 if it is missing or no number.
    pub(super) fn number(&self, name: &str) -> u64 {
        self.get(name).and_then(|value| value.parse::<u32>().ok()).map_or(0, u64::from)
    }

    pub(super) fn offset(&self) -> u64 {
        self.number("offset")
    }

    /// Returns the width of pictures that fits the window of the reader.
    pub(super) fn widths(&self) -> PictureWidths {
        let width = if self.get("width") == Some("narrow") { PictureWidth::Narrow } else { PictureWidth::Wide };
        PictureWidths::Window(width)
    }
}

/// Returns the view of an address. `path` is the encoded path below the page, and `query` the encoded query.
pub fn render(source: &dyn RunSource, path: &str, query: &str) -> Result<View, ReadError> {
    let segments: Vec<String> = path.split('/').filter(|part| !part.is_empty()).map(decoded).collect();
    let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
    // Of a repeated name, the last value counts.
    let query = Query(form_urlencoded::parse(query.as_bytes()).into_owned().collect());
    match segments.as_slice() {
        [] | ["runs"] => {
            let text = |name| query.get(name).map(str::to_owned);
            runs_view(source, &RunListQuery { state: text("state"), name: text("name"), cursor: text("cursor") })
        }
        ["health"] => health_view(source),
        ["runs", run_id, rest @ ..] => {
            let run = source.run(run_id)?;
            let shown = match rest {
                [] => overview_view(&run, &query),
                ["lineage"] => lineage_view(&run, &query),
                ["candidates", candidate] => {
                    // A form may name another candidate than the choices.
                    let query = match query.get("other") {
                        Some(other) => Query([("against".to_owned(), other.to_owned())].into()),
                        None => query,
                    };
                    candidate_view(&run, candidate, &query)
                }
                ["rows"] => rows_view(&run, &query),
                ["rows", row] => row_view(&run, row, &query),
                ["rollouts", rollout] => rollout_view(&run, rollout),
                ["turns"] => turns_view(&run, &query),
                ["turns", turn] => turn_view(&run, turn),
                ["compare"] => compare_view(source, &run, &query),
                ["settings"] => settings_view(&run),
                ["health"] => Ok(run_health_view(&run)),
                _ => Err(no_view(path)),
            };
            match shown {
                // The frame says why, and leads to the views that can be read.
                Err(ReadError::Failed(_)) if run.problem.is_some() => {
                    Ok(run_frame(&run, "", "Run", &Markup::default()))
                }
                shown => shown,
            }
        }
        _ => Err(no_view(path)),
    }
}

fn no_view(path: &str) -> ReadError {
    ReadError::NotFound(Refusal {
        code: "view_not_found",
        field: "path",
        message: format!("the page has no view {path}"),
        hint: "Start from the list of runs.".to_owned(),
    })
}

/// Decodes a segment of a path. What is not UTF-8 is replaced.
fn decoded(segment: &str) -> String {
    percent_decode_str(segment).decode_utf8_lossy().into_owned()
}

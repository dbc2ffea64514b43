//! `report.html`: the result of a run in one file that opens anywhere, without scripts and without network.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use serde_json::Value;

use super::layout::{RunLinks, or_problem, state_badge};
use super::lineage_view::{checks, picture};
use super::overview_view::{best_texts, chart, figures, spend, stop_rules};
use super::picture_widths::PictureWidths;
use super::rows_view::gains;
use super::settings_view::settings_table;
use super::style::page_style;
use super::verdict::verdict;
use super::words::time;
use crate::artifacts::pictures::ChartAxis;
use crate::artifacts::{RunPaths, read_manifest, run_overview, write_atomic};
use crate::digest::sha256;
use crate::workspace::Reader;
use crate::workspace::models::{ReadError, RowGains, RowSplit};
use synth_optimizer_core::model::error::OptimizerError;

/// Rows that the report lists as gained and as lost.
const ROWS: usize = 12;

/// Writes `report.html` of a run that ends with this manifest.
pub(crate) fn write_report(paths: &RunPaths, reader: Option<&Reader>, manifest: &Value) -> Result<(), OptimizerError> {
    write_atomic(&paths.report(), report(paths, reader, manifest)?.as_bytes())
}

/// Returns the report of a run in any state.
pub fn run_report(paths: &RunPaths) -> Result<String, OptimizerError> {
    let path = paths.workspace_db();
    let reader = path.is_file().then(|| Reader::open(path.as_std_path())).transpose()?;
    let manifest = read_manifest(paths)?.unwrap_or_default();
    report(paths, reader.as_ref(), &manifest)
}

/// Returns the result of a run for a cell of a notebook. It brings its own style, whose rules apply to nothing else.
pub fn run_notebook_view(paths: &RunPaths) -> Result<String, OptimizerError> {
    let path = paths.workspace_db();
    let reader = path.is_file().then(|| Reader::open(path.as_std_path())).transpose()?;
    let manifest = read_manifest(paths)?.unwrap_or_default();
    let overview = run_overview(paths, reader.as_ref())?;
    let run_id = paths.run_id();
    let state = manifest["status"].as_str().unwrap_or(&overview.state);
    let view = html! {
        style { (PreEscaped(page_style())) }
        div.synth-page.cell {
            h2 { (run_id) " " (state_badge(state)) }
            (verdict(&overview, &manifest)) (figures(RunLinks::Names, &overview))
            @if let Some(reader) = &reader {
                (chart(run_id, reader, ChartAxis::Rollouts, PictureWidths::Both))
                (or_problem(best_texts(RunLinks::Names, reader), |shown| shown))
                details { summary { "lineage of the candidates" } (or_problem(reader.lineage(), |lineage| picture(run_id, &lineage, PictureWidths::Both))) }
            }
            p.muted { "All files are in " code { (paths.dir()) } "." }
        }
    };
    Ok(view.into_string())
}

fn report(paths: &RunPaths, reader: Option<&Reader>, manifest: &Value) -> Result<String, OptimizerError> {
    let overview = run_overview(paths, reader)?;
    let run_id = paths.run_id();
    let state = manifest["status"].as_str().unwrap_or(&overview.state).to_owned();
    let parts = reader.map(|reader| {
        html! {
            section { h2 { "Scores" } (chart(run_id, reader, ChartAxis::Rollouts, PictureWidths::Both)) }
            section { h2 { "Best texts" } (or_problem(best_texts(RunLinks::Names, reader), |shown| shown)) }
            section { h2 { "Lineage" } (or_problem(reader.lineage(), |lineage| html! {
                (picture(run_id, &lineage, PictureWidths::Both))
                @if !lineage.checks.is_empty() { (checks(RunLinks::Names, &lineage.checks)) }
            })) }
            (rows(reader))
            section { h2 { "Limits" } (or_problem(reader.stop_rules(), |rules| stop_rules(&rules))) }
        }
    });
    let body = html! {
        header { p.crumbs { "synth-optimizers" } h1 { (run_id) " " (state_badge(&state)) } }
        section { (verdict(&overview, manifest)) (figures(RunLinks::Names, &overview)) }
        @if let Some(parts) = parts { (parts) } @else { p.muted { "The run ended before it had a log." } }
        section { h2 { "Spend" } (spend(&overview)) }
        (commands(run_id, overview.best_candidate_id.is_some()))
        @if let Some(reader) = reader {
            section { h2 { "Settings" } (or_problem(reader.run_row().map_err(ReadError::from), |run| settings_table(&run.config))) }
        }
        footer { p.muted { "Written by synth-optimizers " (env!("CARGO_PKG_VERSION")) " from the log of the run, last event " (time(overview.updated_at.as_deref())) "." } }
    };
    Ok(document(run_id, &body))
}

/// Lists rows that gained and lost, held-out rows first.
fn rows(reader: &Reader) -> Markup {
    let shown = |split: RowSplit, found: Option<RowGains>| match found {
        None => html! { p.muted { "not measured" } },
        Some(found) => gains(RunLinks::Names, split.as_str(), &found),
    };
    let splits = [(RowSplit::Heldout, "Held-out rows"), (RowSplit::Train, "Train rows, by which the search chose")];
    html! {
        @for (split, name) in splits {
            section { h2 { (name) } (or_problem(reader.row_gains(split, ROWS), |found| shown(split, found))) }
        }
    }
}

/// Says how to use and how to check the result.
fn commands(run_id: &str, has_best: bool) -> Markup {
    html! {
        section { h2 { "Use it and check it" }
            p.muted {
                "The first commands find the run in the directory " code { "runs" } "; if it is elsewhere, name its directory instead. "
                "The last two belong to the directory of the run."
            }
            dl.facts {
                @if has_best {
                    div { dt { "write the best texts back" } dd { code { "synth-optimizers runs apply " (run_id) } } }
                    div { dt { "read the best texts" } dd { code { "synth-optimizers runs best " (run_id) } } }
                }
                div { dt { "look at every row and rollout" } dd { code { "synth-optimizers ui " (run_id) } } }
                div { dt { "compare every table with the log" } dd { code { "synth-optimizers workspace rebuild --db workspace.sqlite --check" } } }
                div { dt { "compare the log with that of a repeated run" } dd { code { "synth-optimizers events compare --left events.normalized.jsonl --right OTHER_RUN/events.normalized.jsonl" } } }
            }
        }
    }
}

/// Returns the whole file. Its policy allows its own stylesheet and nothing else.
fn document(title: &str, body: &Markup) -> String {
    let style = page_style();
    let digest = STANDARD.encode(sha256(style.as_bytes()));
    let policy = format!("default-src 'none'; style-src 'sha256-{digest}'");
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(policy);
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (title) " - report" }
                style { (PreEscaped(style)) }
            }
            body.synth-page.report { main { (body) } }
        }
    };
    page.into_string()
}

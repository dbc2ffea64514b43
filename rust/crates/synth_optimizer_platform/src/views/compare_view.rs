//! Two runs, or two candidates of one run, side by side: settings that differ, scores on shared rows, texts and costs.

use maud::{Markup, html};

use super::diff::diff_block;
use super::layout::{View, candidate_link, run_frame, run_href, state_badge};
use super::router::Query;
use super::source::{RunSource, ShownRun};
use super::words::{cost, count, gain, json_block, plain, score, text_block, visible};
use crate::workspace::models::{CompareQuery, ComparedRun, ReadError, RunComparison, compare_runs};

/// Returns the comparison of a run with another one, or with itself.
pub(super) fn compare_view(source: &dyn RunSource, run: &ShownRun, query: &Query) -> Result<View, ReadError> {
    let run_id = run.run_id();
    let other_id = query.get("other").unwrap_or(run_id);
    let other = source.run(other_id)?;
    let named = |name: &str| query.get(name).filter(|id| !id.is_empty()).map(str::to_owned);
    let selected = CompareQuery { candidate_id: named("candidate"), other_candidate_id: named("other_candidate") };
    let known = source.run_ids()?;
    let compared = compare_runs(run.opened()?.as_ref(), other.opened()?.as_ref(), &selected);
    let body = html! {
        section id="compare" {
            h2 { "Compare" }
            form.filters action=(run_href(run_id, "compare")) {
                label { "candidate " input type="text" name="candidate" placeholder="best, initial or an id" value=(selected.candidate_id.as_deref().unwrap_or_default()) autocomplete="off"; }
                label { "with run "
                    select name="other" {
                        @if !known.iter().any(|known| known == other_id) { option value=(other_id) selected { (other_id) } }
                        @for known in &known { option value=(known) selected[known == other_id] { (known) } }
                    }
                }
                label { "candidate " input type="text" name="other_candidate" placeholder="best, initial or an id" value=(selected.other_candidate_id.as_deref().unwrap_or_default()) autocomplete="off"; }
                button { "compare" }
            }
        }
        (super::layout::or_problem(compared, |compared| comparison(&compared)))
    };
    Ok(run_frame(run, "compare", "Compare", &body))
}

fn comparison(compared: &RunComparison) -> Markup {
    let (left, right) = (&compared.left, &compared.right);
    let row = |name: &str, show: &dyn Fn(&ComparedRun) -> Markup| {
        html! {
            tr { th scope="row" { (name) } td { (show(left)) } td { (show(right)) } }
        }
    };
    html! {
        section id="sides" {
            @for note in &compared.notes { p.waiting { (visible(note)) } }
            div.scroll tabindex="0" { table {
                thead { tr { td {} th scope="col" { a href=(run_href(&left.run_id, "")) { (left.run_id) } } th scope="col" { a href=(run_href(&right.run_id, "")) { (right.run_id) } } } }
                tbody {
                    (row("candidate", &|side| html! { @if let Some(id) = &side.candidate_id { (candidate_link(side.run_id.as_str(), id)) } @else { span.muted { "none" } } }))
                    (row("state", &|side| state_badge(side.state.as_str())))
                    (row("train score", &|side| score(side.train_score.as_ref())))
                    (row("held-out score", &|side| score(side.heldout_score.as_ref())))
                    (row("candidates", &|side| html! { (count(side.candidates)) }))
                    (row("generations", &|side| html! { (count(side.generations)) }))
                    (row("rollouts with a score", &|side| html! { (count(side.rollouts_finished)) }))
                    (row("tokens", &|side| html! { (count(side.usage.total.total_tokens)) }))
                    (row("cost", &|side| html! { (cost(side.usage.total.cost_usd)) }))
                    (row("stopped by", &|side| html! { @match &side.stopped_by { Some(stop) => (plain(stop.kind.as_str())), None => span.muted { "-" } } }))
                }
            } }
            h3 { "Gain of the second over the first" }
            dl.facts {
                div { dt { "train rows" } dd { (gain(compared.train_gain.as_ref())) } }
                div { dt { "held-out rows" } dd { (gain(compared.heldout_gain.as_ref())) } }
            }
        }
        @if left.run_id != right.run_id {
            section id="settings" {
                h2 { "Settings that differ" }
                @if compared.settings.is_empty() { p.muted { "none" } } @else {
                    div.scroll tabindex="0" { table {
                        thead { tr { th scope="col" { "setting" } th scope="col" { (left.run_id) } th scope="col" { (right.run_id) } } }
                        tbody { @for setting in &compared.settings {
                            tr { th scope="row" { code { (visible(&setting.field)) } } td { code { (visible(&setting.left.to_string())) } } td { code { (visible(&setting.right.to_string())) } } }
                        } }
                    } }
                }
            }
        }
        section id="texts" {
            h2 { "Texts" }
            @for text in &compared.texts {
                h3 { (visible(&text.field)) @if text.is_equal { " " span.muted { "(equal)" } } }
                @match (&text.left, &text.right) {
                    (Some(left), Some(right)) if left != right => (diff_block(left, right)),
                    (Some(text), _) | (None, Some(text)) => (text_block(text)),
                    (None, None) => (json_block(&serde_json::Value::Null)),
                }
            }
        }
    }
}

//! The result of a run in one sentence: what its held-out rows show, why it has no result, or where it stands.

use maud::{Markup, html};
use serde_json::Value;

use super::words::{number, sentence, signed, text_block, visible};
use crate::artifacts::RunOverview;

/// Returns the result of a run in one sentence.
pub(super) fn verdict(overview: &RunOverview, manifest: &Value) -> Markup {
    let claim = &manifest["claim"];
    if let Some(words) = claim["sentence"].as_str() {
        let is_better = claim["verdict"] == "better";
        let kind = if is_better { "verdict good" } else { "verdict" };
        let more = match claim["p_value"].as_f64().filter(|_| is_better) {
            Some(p_value) => html! { "An exact test of the differences by row: " (p_value_text(p_value)) "." },
            None => html! { (visible(&capital(words))) "." },
        };
        return match claim_sentence(manifest) {
            Some(numbers) => html! { p class=(kind) { (numbers) } p.muted { (more) } },
            None => html! { p class=(kind) { (visible(&capital(words))) "." } },
        };
    }
    let failure = manifest.get("failure").or(overview.failure.as_ref());
    html! {
        @if let Some(failure) = failure {
            p.verdict.bad { "No result: " (visible(failure["message"].as_str().unwrap_or(&overview.state))) }
            @if let Some(hint) = failure["hint"].as_str().filter(|hint| !hint.is_empty()) { p.muted { (sentence(hint)) } }
            @if let Some(code) = failure["error_code"].as_str() { p.muted { "Error code: " code { (visible(code)) } } }
            @if let Some(detail) = failure["detail"].as_str() { (text_block(detail)) }
        } @else {
            @match (&overview.best_train_score, &overview.seed_train_score) {
                (Some(best), Some(seed)) if best.mean != seed.mean => p.verdict {
                    "So far " (number(best.mean)) " on train rows, from " (number(seed.mean)) ". The search chose by these rows; only held-out rows show the gain."
                },
                (Some(best), _) => p.verdict { "So far the initial candidate is the best one, with " (number(best.mean)) " on train rows." },
                (None, _) => p.verdict { (without_score(&overview.state)) },
            }
        }
    }
}

/// Says that a run in this state has no score.
fn without_score(state: &str) -> &'static str {
    match state {
        "cancelled" => "The run was cancelled before it had a score.",
        "failed" => "The run failed before it had a score.",
        _ => "No score yet.",
    }
}

/// Returns the claim of a completed run with its numbers.
fn claim_sentence(manifest: &Value) -> Option<String> {
    let (claim, gain) = (&manifest["claim"], &manifest["heldout_gain"]);
    let estimate = claim["gain"]["estimate"].as_f64()?;
    let (low, high) = (claim["gain"]["low"].as_f64()?, claim["gain"]["high"].as_f64()?);
    let rows = match (gain["wins"].as_u64(), gain["losses"].as_u64()) {
        (Some(wins), Some(losses)) => format!(", {wins} better, {losses} worse"),
        _ => String::new(),
    };
    let ending = match claim["verdict"].as_str()? {
        "better" => "an improvement that is hard to explain by luck",
        _ => "no evidence of improvement",
    };
    Some(format!("Held-out {} [{}, {}]{rows}: {ending}.", signed(estimate), number(low), number(high)))
}

fn p_value_text(p_value: f64) -> String {
    if p_value < 1e-4 { "p < 0.0001".to_owned() } else { format!("p = {p_value:.4}") }
}

fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map(|first| first.to_uppercase().chain(chars).collect()).unwrap_or_default()
}

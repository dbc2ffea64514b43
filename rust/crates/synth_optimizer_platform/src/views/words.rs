//! Numbers, scores, costs, times and texts as the views write them.

use maud::{Markup, html};
use serde_json::Value;

use crate::artifacts::pictures::{grouped, score_label};
use synth_optimizer_core::model::score::{Gain, Score};
use synth_optimizer_core::model::usage::Cost;

/// The longest text that a view shows as a whole, in bytes. The artifacts of the run have the rest.
const MAX_TEXT_BYTES: usize = 256 << 10;

/// Writes a count with its thousands grouped.
pub(super) fn count(value: u64) -> String {
    grouped(&value.to_string())
}

/// Writes a count with its noun.
pub(super) fn counted(value: u64, noun: &str) -> String {
    format!("{} {noun}{}", count(value), if value == 1 { "" } else { "s" })
}

/// Writes a value of an objective.
pub(super) fn number(value: f64) -> String {
    score_label(value)
}

/// Writes a difference with its sign.
pub(super) fn signed(value: f64) -> String {
    if value < 0.0 { number(value) } else { format!("+{}", number(value)) }
}

/// Writes a score with its interval and its rows.
pub(super) fn score(score: Option<&Score>) -> Markup {
    let Some(score) = score else { return html! { span.muted { "not measured" } } };
    html! {
        span.number { (number(score.mean)) }
        @if let (Some(low), Some(high)) = (score.low, score.high) {
            " " span.interval { "[" (number(low)) ", " (number(high)) "]" }
        }
        " " span.muted { "on " (counted(u64::from(score.n), "row")) }
    }
}

/// Writes a gain with its interval and the rows that it rests on.
pub(super) fn gain(gain: Option<&Gain>) -> Markup {
    let Some(gain) = gain else { return html! { span.muted { "not measured" } } };
    html! {
        span.number { (signed(gain.difference)) }
        @if let (Some(low), Some(high)) = (gain.low, gain.high) {
            " " span.interval { "[" (number(low)) ", " (number(high)) "]" }
        }
        " " span.muted { (gain.wins) " better, " (gain.losses) " worse, " (gain.ties) " equal" }
    }
}

/// Writes a cost. An unknown cost is different from free.
pub(super) fn cost(cost: Cost) -> String {
    usd(cost.known().map(|amount| amount.usd()))
}

/// Writes an amount in dollars, with as many digits as small amounts need.
pub(super) fn usd(amount: Option<f64>) -> String {
    match amount {
        None => "unknown".to_owned(),
        Some(amount) if amount == 0.0 || amount >= 0.01 => format!("${amount:.2}"),
        Some(amount) => format!("${amount:.6}"),
    }
}

/// Writes a time. The page adds how long ago it was.
pub(super) fn time(at: Option<&str>) -> Markup {
    match at {
        None => html! { span.muted { "-" } },
        Some(at) => {
            let shown = at.get(..19).unwrap_or(at).replace('T', " ");
            html! { time datetime=(at) { (shown) " UTC" } }
        }
    }
}

/// Writes a duration in milliseconds.
pub(super) fn duration(millis: u64) -> String {
    match millis {
        0..1_000 => format!("{millis} ms"),
        1_000..60_000 => format!("{:.1} s", millis as f64 / 1_000.0),
        60_000..3_600_000 => format!("{} min {} s", millis / 60_000, millis % 60_000 / 1_000),
        _ => format!("{} h {} min", millis / 3_600_000, millis % 3_600_000 / 60_000),
    }
}

/// Writes a number of bytes.
pub(super) fn bytes(count: u64) -> String {
    match count {
        0..1_024 => format!("{count} B"),
        1_024..1_048_576 => format!("{:.1} KB", count as f64 / 1_024.0),
        _ => format!("{:.1} MB", count as f64 / 1_048_576.0),
    }
}

/// Writes a word of the log without underscores.
pub(super) fn plain(word: &str) -> String {
    word.replace('_', " ")
}

/// Shows a sentence in which backticks mark code.
pub(super) fn sentence(text: &str) -> Markup {
    let parts: Vec<&str> = text.split('`').collect();
    if parts.len().is_multiple_of(2) {
        return html! { (visible(text)) };
    }
    html! {
        @for (place, part) in parts.iter().enumerate() {
            @if place % 2 == 1 { code { (visible(part)) } } @else { (visible(part)) }
        }
    }
}

/// Shows a text of a user, a model or a container as it is. A very long text is cut.
pub(super) fn text_block(text: &str) -> Markup {
    let (shown, left) = cut(text);
    html! {
        pre.text dir="auto" tabindex="0" { (visible(shown)) }
        @if left > 0 {
            p.muted { (bytes(left as u64)) " more are not shown; the artifacts of the run have the whole text." }
        }
    }
}

/// Shows a text that may be a JSON document.
pub(super) fn record_block(text: &str) -> Markup {
    let document = text.starts_with(['{', '[']).then(|| serde_json::from_str::<Value>(text).ok()).flatten();
    document.map_or_else(|| text_block(text), |document| json_block(&document))
}

/// Shows a JSON document.
pub(super) fn json_block(document: &Value) -> Markup {
    match document {
        Value::String(text) => text_block(text),
        other => text_block(&serde_json::to_string_pretty(other).unwrap_or_default()),
    }
}

/// Returns the part of a text that is shown, and how many bytes are left.
pub(super) fn cut(text: &str) -> (&str, usize) {
    if text.len() <= MAX_TEXT_BYTES {
        return (text, 0);
    }
    let end = text.floor_char_boundary(MAX_TEXT_BYTES);
    (text.get(..end).unwrap_or_default(), text.len() - end)
}

/// Returns a text in which control characters, those that change the direction of text and those without a width are visible
/// signs. They are the characters that `visible_text` of the Python package hides.
pub(super) fn visible(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for ch in text.chars() {
        match ch {
            '\n' | '\t' => out.push(ch),
            '\r' => {}
            '\u{0}'..='\u{1f}' => out.push(char::from_u32(0x2400 + ch as u32).unwrap_or('\u{fffd}')),
            '\u{7f}' => out.push('\u{2421}'),
            '\u{80}'..='\u{9f}'
            | '\u{ad}'
            | '\u{34f}'
            | '\u{61c}'
            | '\u{180e}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e0fff}' => {
                out.push_str(&format!("\u{27e8}U+{:04X}\u{27e9}", ch as u32));
            }
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::{cut, sentence, usd, visible};

    #[test]
    fn hostile_characters_are_visible_signs() {
        assert_eq!(visible("a\u{1b}[31mred\u{202e}evil\r\n\tb"), "a\u{241b}[31mred\u{27e8}U+202E\u{27e9}evil\n\tb");
    }

    #[test]
    fn characters_that_nobody_sees_are_visible_signs() {
        let hidden =
            ['\u{ad}', '\u{34f}', '\u{61c}', '\u{180e}', '\u{200b}', '\u{200d}', '\u{2028}', '\u{2029}', '\u{2060}'];
        for ch in hidden.into_iter().chain(['\u{2066}', '\u{feff}', '\u{fff9}', '\u{e0001}', '\u{e0041}']) {
            assert_eq!(visible(&ch.to_string()), format!("\u{27e8}U+{:04X}\u{27e9}", ch as u32));
        }
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        let text = "\u{e4}".repeat(200 << 10);
        let (shown, left) = cut(&text);
        assert_eq!(shown.len() + left, text.len());
        assert!(left > 0 && shown.chars().all(|ch| ch == '\u{e4}'));
    }

    #[test]
    fn backticks_mark_code() {
        assert_eq!(sentence("use `a<b`, or `c`").0, "use <code>a&lt;b</code>, or <code>c</code>");
        assert_eq!(sentence("one ` alone <").0, "one ` alone &lt;");
    }

    #[test]
    fn an_unknown_cost_is_not_zero() {
        assert_eq!(
            [usd(None), usd(Some(0.0)), usd(Some(0.000_042)), usd(Some(1.5))],
            ["unknown", "$0.00", "$0.000042", "$1.50"]
        );
    }
}

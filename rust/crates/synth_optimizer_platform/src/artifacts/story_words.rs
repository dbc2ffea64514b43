//! Words for the values of a story: scores, gains, money and reasons.

use crate::model::event::Event;
use crate::model::event_fields::{Bill, RolloutCount};
use crate::model::ids::CandidateId;
use crate::model::message::message;
use crate::model::score::{Gain, Score};

/// `0.4167 [0.2447, 0.6121] on 24 rows`
pub(super) fn score(score: &Score) -> String {
    format!("{:.4}{} on {} rows", score.mean, interval(score.low, score.high), score.n)
}

/// `+0.2500 [0.0500, 0.4500] on 24 rows, 8 better, 2 worse, 14 equal`
pub(super) fn gain(gain: &Gain) -> String {
    format!(
        "{:+.4}{} on {} rows, {} better, {} worse, {} equal",
        gain.difference,
        interval(gain.low, gain.high),
        gain.n,
        gain.wins,
        gain.losses,
        gain.ties
    )
}

/// What a run that did not end well leaves.
pub(super) fn ending(first: String, best: Option<&CandidateId>, rollouts: &RolloutCount, paid: &Bill) -> Vec<String> {
    let mut lines = vec![first];
    lines.push(best.map_or("  no candidate was measured".to_owned(), |best| format!("  best so far {best}")));
    lines.extend(bill(rollouts, paid));
    lines
}

/// What was run and what it cost.
pub(super) fn bill(rollouts: &RolloutCount, bill: &Bill) -> Vec<String> {
    let unknown = match rollouts.unknown_outcomes {
        0 => String::new(),
        count => format!(", {count} with unknown outcome"),
    };
    vec![
        format!("  rollouts: {} train, {} held-out{unknown}", rollouts.train, rollouts.heldout),
        format!(
            "  calls: {} paid, {} from the cache; {} tokens; cost {}",
            bill.paid_calls, bill.cached_calls, bill.total_tokens, bill.cost_usd
        ),
    ]
}

/// `1 rollout`, `2 rollouts`
pub(super) fn counted(count: u32, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

/// An event with its reason.
pub(super) fn happened(event: &Event, reason: &str) -> String {
    if reason.is_empty() { message(event) } else { format!("{}: {}", message(event), quoted(reason)) }
}

/// The beginning of a text on one line.
pub(super) fn quoted(text: &str) -> String {
    const LONGEST: usize = 120;
    let mut words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if let Some((at, _)) = words.char_indices().nth(LONGEST) {
        words.truncate(at);
        words.push('…');
    }
    words
}

fn interval(low: Option<f64>, high: Option<f64>) -> String {
    match (low, high) {
        (Some(low), Some(high)) => format!(" [{low:.4}, {high:.4}]"),
        _ => String::new(),
    }
}

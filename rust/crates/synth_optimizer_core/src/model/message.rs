//! Sentences that several events share.

pub use super::event::message;
use super::event_fields::{CandidateDecided, EvaluationCompleted};

pub(super) fn evaluated(what: &str, done: &EvaluationCompleted) -> String {
    let failed = if done.failed > 0 { format!(", {} failed", done.failed) } else { String::new() };
    match &done.score {
        Some(score) => format!("{} {what}: {} on {} rows{failed}", done.candidate_id, number(score.mean), score.n),
        None => format!("{} {what}: no score on {} rows{failed}", done.candidate_id, done.rows),
    }
}

pub(super) fn decided(what: &str, decision: &CandidateDecided) -> String {
    let delta = decision
        .comparison
        .as_ref()
        .map_or(String::new(), |found| format!(" ({:+.4} on {} rows)", found.primary_delta, found.rows));
    format!("{} {what}: {}{delta}", decision.candidate_id, decision.reason)
}

pub(super) fn number(value: f64) -> String {
    format!("{value:.4}")
}

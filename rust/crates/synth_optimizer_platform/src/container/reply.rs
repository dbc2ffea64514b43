//! Reads the record of a rollout: status before reward, no score that is not a number, and whose row it was.

use super::echo;
use super::leaf::Leaf;
use super::record::{Record, RewardInfo};
use super::scores;
use super::status::{Status, classify, failure, object};
use super::task::TaskRow;
use crate::model::answer::{CallFailure, FailureClass, RolloutAnswer};
use crate::model::ids::{Payload, RowId};
use crate::model::usage::Usage;

/// What the rollout was asked to run.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    /// Unset for an answer out of the cache, which may have been another run's.
    pub rollout_id: Option<&'a str>,
    pub row: &'a TaskRow,
    pub row_id: &'a RowId,
    pub payload: &'a Payload,
    /// The deciding objective.
    pub deciding: &'a str,
}

/// What the reply says about which row and candidate it belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Echo {
    /// It names the row that was asked for.
    Confirmed,
    /// It does not name a row.
    Absent,
    /// It names another rollout, row or candidate; the sentence says which.
    Contradicted(String),
}

/// A rollout that ran, and whose it was.
#[derive(Debug, Clone, PartialEq)]
pub struct Reply {
    pub answer: RolloutAnswer,
    pub echo: Echo,
}

/// Reads a record. `null` is the same as absent everywhere.
///
/// The answer is not marked as cached and has no trace digest: both are the caller's to know.
pub fn read_reply(body: &[u8], asked: &Asked<'_>) -> Result<Reply, CallFailure> {
    let mut record: Record<'_> = object(body)?;
    let usage = scores::usage(&std::mem::take(&mut record.usage).or_empty());
    read_record(record, asked, usage).map_err(|failure| CallFailure { usage, ..failure })
}

fn read_record(mut record: Record<'_>, asked: &Asked<'_>, usage: Usage) -> Result<Reply, CallFailure> {
    check_status(&record)?;
    let info = std::mem::take(&mut record.reward_info).0;
    let has_info = info.is_some();
    let RewardInfo { outcome_reward, score, details } = info.unwrap_or_default();
    let details = details.or_empty();
    let summary = std::mem::take(&mut record.summary).or_empty();
    let metadata = std::mem::take(&mut record.metadata).or_empty();
    let trace = std::mem::take(&mut record.trace).or_empty().metadata.or_empty();
    let reward = scores::reward(&scores::RewardPlaces {
        has_info,
        info_outcome: &outcome_reward,
        info_score: &score,
        summary_outcome: &summary.outcome_reward,
        top: &record.reward,
    })?;
    let places = [
        ("objective_scores", &record.objective_scores),
        ("metadata.objective_scores", &metadata.objective_scores),
        ("reward_info.details.objective_scores", &details.objective_scores),
    ];
    let objectives = scores::objectives(places, reward, asked.deciding)?;
    let candidate = metadata.candidate.0.as_ref();
    let places = echo::Places { record: &record, summary: &summary, details: &details, trace: &trace, candidate };
    let echo = echo::compare(asked, &places);
    Ok(Reply { answer: RolloutAnswer { reward, objectives, usage, cached: false, trace_digest: None }, echo })
}

/// Only a rollout that came to a good end has a score, whatever reward stands beside another status.
fn check_status(record: &Record<'_>) -> Result<(), CallFailure> {
    let words = [&record.status, &record.state, &record.phase, &record.success_status];
    let word = || words.iter().find(|word| !word.is_null()).map(|word| word.shown()).unwrap_or_default();
    match classify(words)? {
        Status::Succeeded | Status::Absent => Ok(()),
        Status::Active => {
            let message = format!("the rollout is not at its end: its status is {}", word());
            Err(failure(FailureClass::Contract, message))
        }
        Status::Failed => {
            let reasons = [&record.status_detail, &record.detail, &record.error];
            let reason =
                reasons.into_iter().map(Leaf::shown).find(|reason| !matches!(reason.as_str(), "null" | "(empty)"));
            let message = reason.map_or_else(word, |reason| format!("{}: {reason}", word()));
            Err(failure(FailureClass::Failed, message))
        }
    }
}

//! Reads reward, objectives and usage out of a record; what is missing or no number is never taken for zero.

use std::collections::BTreeMap;

use super::leaf::{Fields, Leaf};
use super::status::failure;
use crate::config::gepa::OUTCOME_REWARD;
use crate::model::answer::{CallFailure, FailureClass};
use crate::model::usage::{Cost, Usage};

/// Where a reward may stand, in the order of reading.
#[derive(Debug)]
pub(super) struct RewardPlaces<'a> {
    /// Whether the record has a `reward_info` at all.
    pub(super) has_info: bool,
    pub(super) info_outcome: &'a Leaf<'a>,
    pub(super) info_score: &'a Leaf<'a>,
    pub(super) summary_outcome: &'a Leaf<'a>,
    pub(super) top: &'a Leaf<'a>,
}

/// The first number in reading order. A NaN in Python becomes a null in `reward_info`; the number that some containers
/// keep in the summary must then not stand in for it.
pub(super) fn reward(places: &RewardPlaces<'_>) -> Result<f64, CallFailure> {
    let named = [
        ("reward_info.outcome_reward", places.info_outcome),
        ("reward_info.score", places.info_score),
        ("summary.outcome_reward", places.summary_outcome),
        ("reward", places.top),
    ];
    let Some((place, value)) = named.into_iter().find(|(_, value)| value.is_number()) else {
        let met = named.into_iter().find(|(_, value)| !value.is_null());
        let message = match met {
            Some((place, value)) => format!("{place} is {}, not a number", value.shown()),
            None => "the reply has no reward".to_owned(),
        };
        return Err(failure(FailureClass::InvalidScore, message));
    };
    let out_of_info = matches!(place, "summary.outcome_reward" | "reward");
    if places.has_info && out_of_info {
        let message = format!(
            "reward_info.outcome_reward is {}, while {place} is {}: the score is not certain",
            places.info_outcome.shown(),
            value.shown()
        );
        return Err(failure(FailureClass::InvalidScore, message));
    }
    finite(|| place.to_owned(), value)
}

/// The scores by objective, from the first place that has any. The deciding objective is always among them, unless it is
/// the reward itself.
pub(super) fn objectives(
    places: [(&str, &Leaf<'_>); 3],
    reward: f64,
    deciding: &str,
) -> Result<BTreeMap<String, f64>, CallFailure> {
    let mut scores = BTreeMap::new();
    if let Some((place, value)) = places.into_iter().find(|(_, value)| !value.is_null()) {
        let Leaf::List(entries) = value else {
            return Err(malformed(format!("{place} is {}, not a list", value.shown())));
        };
        for (index, entry) in entries.iter().enumerate() {
            let name = entry.get("objective").and_then(Leaf::as_str).map(str::trim).filter(|name| !name.is_empty());
            let Some(name) = name else {
                return Err(malformed(format!("{place}[{index}] names no objective")));
            };
            let value = entry.get("value").unwrap_or(&Leaf::Null);
            let value = finite(|| format!("{place}[{index}].value ({name})"), value)?;
            if scores.insert(name.to_owned(), value).is_some() {
                return Err(malformed(format!("{place}[{index}] names {name:?} a second time")));
            }
        }
    }
    if deciding != OUTCOME_REWARD {
        scores.entry(deciding.to_owned()).or_insert(reward);
    }
    Ok(scores)
}

/// Tokens and cost. Containers write a cost of 0.0 beside tokens when nobody has priced them.
pub(super) fn usage(reported: &Fields<'_>) -> Usage {
    let tokens = |names: &[&str]| names.iter().find_map(|name| reported.get(name)?.as_u64());
    let usage = Usage {
        prompt_tokens: tokens(&["prompt_tokens", "input_tokens", "promptTokens", "inputTokens"]),
        completion_tokens: tokens(&["completion_tokens", "output_tokens", "completionTokens", "outputTokens"]),
        total_tokens: tokens(&["total_tokens", "totalTokens"]),
        cost: Cost::Unknown,
    };
    let cost = reported.get("cost_usd").and_then(Leaf::as_f64);
    let is_free_of_tokens = usage.total() == Some(0);
    let cost = cost.filter(|cost| *cost > 0.0 || is_free_of_tokens);
    Usage { cost: Cost::from_usd(cost), ..usage }
}

fn finite(place: impl FnOnce() -> String, value: &Leaf<'_>) -> Result<f64, CallFailure> {
    value.as_f64().filter(|number| number.is_finite()).ok_or_else(|| {
        failure(FailureClass::InvalidScore, format!("{} is {}, not a finite number", place(), value.shown()))
    })
}

fn malformed(message: String) -> CallFailure {
    failure(FailureClass::Contract, message)
}

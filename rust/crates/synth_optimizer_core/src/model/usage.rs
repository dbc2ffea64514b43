//! Tokens and cost of calls. An unknown value is represented as unknown, never as zero.

use std::fmt;
use std::ops::Add;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use crate::string_enum;

/// An amount of money in billionths of a dollar, so that sums are exact.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NanoUsd(pub u64);

impl NanoUsd {
    /// Converts dollars and rounds up, so that rounding never exceeds a limit. Returns `None` for negative and non-finite
    /// values.
    pub fn from_usd(usd: f64) -> Option<Self> {
        const ROUNDING_TOLERANCE: f64 = 1e-6;
        if !usd.is_finite() || !(0.0..=9e9).contains(&usd) {
            return None;
        }
        let nano = usd * 1e9;
        // A value that was converted from nano-dollars must convert back to the same number.
        let rounded = nano.round();
        let exact = (nano - rounded).abs() <= ROUNDING_TOLERANCE.max(nano * f64::EPSILON * 2.0);
        let whole = if exact { rounded } else { nano.ceil() } as u64;
        // A positive amount is at least one nano-dollar.
        Some(Self(if usd > 0.0 { whole.max(1) } else { 0 }))
    }

    pub fn usd(self) -> f64 {
        self.0 as f64 / 1e9
    }

    pub fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

/// The cost of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Cost {
    Known(NanoUsd),
    /// The cost was not reported. This is different from free.
    #[default]
    Unknown,
}

impl Cost {
    /// Converts a reported cost. A value that is not a finite, non-negative number is unknown.
    pub fn from_usd(usd: Option<f64>) -> Self {
        usd.and_then(NanoUsd::from_usd).map_or(Self::Unknown, Self::Known)
    }

    pub fn known(self) -> Option<NanoUsd> {
        match self {
            Self::Known(amount) => Some(amount),
            Self::Unknown => None,
        }
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Known(amount) => write!(out, "${:.4}", amount.usd()),
            Self::Unknown => out.write_str("unknown"),
        }
    }
}

impl Serialize for Cost {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Known(amount) => serializer.serialize_f64(amount.usd()),
            Self::Unknown => serializer.serialize_none(),
        }
    }
}

impl<'de> Deserialize<'de> for Cost {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self::from_usd(Option::<f64>::deserialize(deserializer)?))
    }
}

/// Tokens and cost of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Usage {
    /// Prompt tokens; null is unknown.
    #[serde(default)]
    pub prompt_tokens: Option<u64>,
    /// Completion tokens; null is unknown.
    #[serde(default)]
    pub completion_tokens: Option<u64>,
    /// Total tokens as reported; null is unknown.
    #[serde(default)]
    pub total_tokens: Option<u64>,
    /// Cost in dollars; null is unknown.
    #[serde(default, rename = "cost_usd")]
    #[schemars(with = "Option<f64>")]
    pub cost: Cost,
}

impl Usage {
    /// Returns the reported total, or the sum of prompt and completion tokens if both are known.
    pub const fn total(&self) -> Option<u64> {
        match (self.total_tokens, self.prompt_tokens, self.completion_tokens) {
            (Some(total), _, _) => Some(total),
            (None, Some(prompt), Some(completion)) => Some(prompt.saturating_add(completion)),
            (None, _, _) => None,
        }
    }
}

/// The largest number of tokens of one call that is believed. Every JSON reader represents it exactly.
const MAX_TOKENS: u64 = 1 << 53;

/// Reads the usage that a container or an endpoint reports. Refuses values that cannot be true: they count as unknown.
#[derive(Debug, Default)]
pub struct UsageReader {
    /// The refused values with their names.
    pub refused: Vec<String>,
}

impl UsageReader {
    /// Returns a number of tokens: a whole number up to 2^53. A null is unknown and not refused.
    pub fn tokens(&mut self, name: &str, value: &Value) -> Option<u64> {
        let whole =
            || value.as_f64().filter(|number| number.fract() == 0.0 && *number >= 0.0).map(|number| number as u64);
        let tokens = value.as_u64().or_else(whole).filter(|tokens| *tokens <= MAX_TOKENS);
        self.refuse_unless(tokens.is_some(), name, value);
        tokens
    }

    /// Returns a cost in dollars. A null is unknown and not refused.
    pub fn cost(&mut self, name: &str, value: &Value) -> Option<f64> {
        let cost = value.as_f64().filter(|usd| NanoUsd::from_usd(*usd).is_some());
        self.refuse_unless(cost.is_some(), name, value);
        cost
    }

    fn refuse_unless(&mut self, is_valid: bool, name: &str, value: &Value) {
        const MAX_SHOWN_CHARS: usize = 40;
        if !is_valid && !value.is_null() {
            let shown: String = value.to_string().chars().take(MAX_SHOWN_CHARS).collect();
            self.refused.push(format!("{name} = {shown}"));
        }
    }
}

string_enum! {
    /// How a settled call is billed. [`FailureClass::billing`](super::answer::FailureClass::billing) decides it for
    /// failed calls.
    Billing {
        /// The call did not leave this process: it is not counted and costs nothing.
        Unsent = "unsent",
        /// The cache answered the call: an earlier run sent it.
        Cached = "cached",
        /// The call was sent, and its reported usage counts.
        Sent = "sent",
        /// The call was sent and may have run: it counts as a call of unknown cost.
        Unknown = "unknown",
    }
}

impl Billing {
    /// Returns how an answered call is billed.
    pub const fn answered(cached: bool) -> Self {
        if cached { Self::Cached } else { Self::Sent }
    }
}

/// The sum of usage over calls. Tokens and cost are those of sent calls, as far as they are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Spend {
    pub prompt_tokens: u64,
    pub completion_tokens: u64,
    pub total_tokens: u64,
    /// Sent calls.
    pub sent_calls: u64,
    /// Calls that the cache answered.
    pub cached_calls: u64,
    /// Sent calls of unknown cost.
    pub unpriced_calls: u64,
    /// Sent calls that may or may not have run.
    pub unknown_outcomes: u64,
    #[serde(rename = "known_cost_nano_usd")]
    pub known_cost: NanoUsd,
}

impl Spend {
    /// Adds one settled call.
    pub fn count(&mut self, billing: Billing, usage: &Usage) {
        let cost = match billing {
            Billing::Unsent => return,
            Billing::Cached => {
                self.cached_calls += 1;
                return;
            }
            Billing::Sent => usage.cost,
            Billing::Unknown => {
                self.unknown_outcomes += 1;
                Cost::Unknown
            }
        };
        self.sent_calls += 1;
        self.prompt_tokens = self.prompt_tokens.saturating_add(usage.prompt_tokens.unwrap_or(0));
        self.completion_tokens = self.completion_tokens.saturating_add(usage.completion_tokens.unwrap_or(0));
        self.total_tokens = self.total_tokens.saturating_add(usage.total().unwrap_or(0));
        match cost {
            Cost::Known(amount) => self.known_cost = self.known_cost.plus(amount),
            Cost::Unknown => self.unpriced_calls += 1,
        }
    }

    /// Returns the number of sent and cached calls.
    pub fn calls(&self) -> u64 {
        self.sent_calls + self.cached_calls
    }

    /// Returns the cost of all sent calls; unknown if the cost of one sent call is unknown.
    pub fn cost(&self) -> Cost {
        if self.unpriced_calls == 0 { Cost::Known(self.known_cost) } else { Cost::Unknown }
    }
}

impl Add for Spend {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            prompt_tokens: self.prompt_tokens.saturating_add(other.prompt_tokens),
            completion_tokens: self.completion_tokens.saturating_add(other.completion_tokens),
            total_tokens: self.total_tokens.saturating_add(other.total_tokens),
            sent_calls: self.sent_calls + other.sent_calls,
            cached_calls: self.cached_calls + other.cached_calls,
            unpriced_calls: self.unpriced_calls + other.unpriced_calls,
            unknown_outcomes: self.unknown_outcomes + other.unknown_outcomes,
            known_cost: self.known_cost.plus(other.known_cost),
        }
    }
}

/// Usage of a run, or of one kind of its calls, as all documents show it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct UsagePart {
    /// Prompt tokens of sent calls, as far as known.
    pub prompt_tokens: u64,
    /// Completion tokens of sent calls, as far as known.
    pub completion_tokens: u64,
    /// Total tokens of sent calls, as far as known.
    pub total_tokens: u64,
    /// Calls that were sent.
    pub sent_calls: u64,
    /// Calls that the cache answered.
    pub cached_calls: u64,
    /// Sent calls of unknown cost.
    pub unpriced_calls: u64,
    /// Sent calls that may or may not have run.
    pub unknown_outcomes: u64,
    /// Cost in dollars; null if the cost of one sent call is unknown.
    #[schemars(with = "Option<f64>")]
    pub cost_usd: Cost,
    /// Sum of the known costs, in dollars.
    pub known_cost_usd: f64,
}

impl From<Spend> for UsagePart {
    fn from(spend: Spend) -> Self {
        Self {
            prompt_tokens: spend.prompt_tokens,
            completion_tokens: spend.completion_tokens,
            total_tokens: spend.total_tokens,
            sent_calls: spend.sent_calls,
            cached_calls: spend.cached_calls,
            unpriced_calls: spend.unpriced_calls,
            unknown_outcomes: spend.unknown_outcomes,
            cost_usd: spend.cost(),
            known_cost_usd: spend.known_cost.usd(),
        }
    }
}

/// Usage of a run: in total, of rollouts and of the proposer.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunUsage {
    #[serde(flatten)]
    pub total: UsagePart,
    /// Rollouts that were sent or answered from the cache.
    pub rollout_calls: u64,
    /// Proposer turns that were sent or answered from the cache.
    pub proposer_calls: u64,
    /// Usage of rollouts.
    pub rollouts: UsagePart,
    /// Usage of the proposer.
    pub proposer: UsagePart,
}

impl RunUsage {
    pub fn new(rollouts: Spend, proposer: Spend) -> Self {
        Self {
            total: (rollouts + proposer).into(),
            rollout_calls: rollouts.calls(),
            proposer_calls: proposer.calls(),
            rollouts: rollouts.into(),
            proposer: proposer.into(),
        }
    }
}

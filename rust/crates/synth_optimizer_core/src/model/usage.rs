//! Tokens and money of one call; what is not known is a value of its own, never zero.

use std::fmt;
use std::ops::Add;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::string_enum;

/// Money in billionths of a dollar, so that sums are exact.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NanoUsd(pub u64);

impl NanoUsd {
    /// Rounds up: a limit must never be passed by rounding. Negative and non-finite amounts are not money.
    pub fn from_usd(usd: f64) -> Option<Self> {
        const ROUNDING_TOLERANCE: f64 = 1e-6;
        if !usd.is_finite() || !(0.0..=9e9).contains(&usd) {
            return None;
        }
        let nano = usd * 1e9;
        // A value that was nano-dollars before must come back as the same number.
        let rounded = nano.round();
        let exact = (nano - rounded).abs() <= ROUNDING_TOLERANCE.max(nano * f64::EPSILON * 2.0);
        let whole = if exact { rounded } else { nano.ceil() } as u64;
        // Whatever is not free costs something.
        Some(Self(if usd > 0.0 { whole.max(1) } else { 0 }))
    }

    pub fn usd(self) -> f64 {
        self.0 as f64 / 1e9
    }

    pub fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

/// What a call cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Cost {
    Known(NanoUsd),
    /// Nobody said. Not the same as free.
    #[default]
    Unknown,
}

impl Cost {
    /// Reads a reported amount; anything that is not a finite, non-negative number is unknown.
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

/// What one call used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Usage {
    /// Prompt tokens; null is unknown.
    #[serde(default)]
    pub prompt_tokens: Option<u64>,
    /// Completion tokens; null is unknown.
    #[serde(default)]
    pub completion_tokens: Option<u64>,
    /// All tokens, as they were reported; null is unknown.
    #[serde(default)]
    pub total_tokens: Option<u64>,
    /// In dollars; null is unknown.
    #[serde(default, rename = "cost_usd")]
    #[schemars(with = "Option<f64>")]
    pub cost: Cost,
}

impl Usage {
    /// The stated total, or the sum of both parts when both are known.
    pub const fn total(&self) -> Option<u64> {
        match (self.total_tokens, self.prompt_tokens, self.completion_tokens) {
            (Some(total), _, _) => Some(total),
            (None, Some(prompt), Some(completion)) => Some(prompt.saturating_add(completion)),
            (None, _, _) => None,
        }
    }
}

string_enum! {
    /// How a settled call counts on the bill. [`FailureClass::billing`](super::answer::FailureClass::billing) decides
    /// it for failures.
    Billing {
        /// It never left this process: it is no call, and costs nothing.
        Unsent = "unsent",
        /// The cache answered it: it was paid for before.
        Cached = "cached",
        /// It was sent: what it reports was used.
        Sent = "sent",
        /// It was sent and may have run: it counts as a call of unknown cost.
        Unknown = "unknown",
    }
}

impl Billing {
    /// How a call that was answered is billed.
    pub const fn answered(cached: bool) -> Self {
        if cached { Self::Cached } else { Self::Sent }
    }
}

/// What calls have used: THE sum of usage. Tokens and money are those of sent calls, as far as they are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Spend {
    pub prompt_tokens: u64,
    pub completion_tokens: u64,
    pub total_tokens: u64,
    /// Calls that were sent.
    pub paid_calls: u64,
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
        self.paid_calls += 1;
        self.prompt_tokens = self.prompt_tokens.saturating_add(usage.prompt_tokens.unwrap_or(0));
        self.completion_tokens = self.completion_tokens.saturating_add(usage.completion_tokens.unwrap_or(0));
        self.total_tokens = self.total_tokens.saturating_add(usage.total().unwrap_or(0));
        match cost {
            Cost::Known(amount) => self.known_cost = self.known_cost.plus(amount),
            Cost::Unknown => self.unpriced_calls += 1,
        }
    }

    /// Calls that were sent or answered from the cache.
    pub fn calls(&self) -> u64 {
        self.paid_calls + self.cached_calls
    }

    /// What was paid; unknown as soon as the cost of one sent call is.
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
            paid_calls: self.paid_calls + other.paid_calls,
            cached_calls: self.cached_calls + other.cached_calls,
            unpriced_calls: self.unpriced_calls + other.unpriced_calls,
            unknown_outcomes: self.unknown_outcomes + other.unknown_outcomes,
            known_cost: self.known_cost.plus(other.known_cost),
        }
    }
}

/// What a run, or one kind of its calls, has used, as every document shows it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct UsagePart {
    /// Prompt tokens of paid calls, as far as known.
    pub prompt_tokens: u64,
    /// Completion tokens of paid calls, as far as known.
    pub completion_tokens: u64,
    /// Tokens of paid calls, as far as known.
    pub total_tokens: u64,
    /// Calls that were sent.
    pub paid_calls: u64,
    /// Calls that the cache answered.
    pub cached_calls: u64,
    /// Paid calls of unknown cost.
    pub unpriced_calls: u64,
    /// Calls that were sent and may or may not have run.
    pub unknown_outcomes: u64,
    /// What was paid; null as soon as the cost of one paid call is unknown.
    #[schemars(with = "Option<f64>")]
    pub cost_usd: Cost,
    /// The known part of what was paid.
    pub known_cost_usd: f64,
}

impl From<Spend> for UsagePart {
    fn from(spend: Spend) -> Self {
        Self {
            prompt_tokens: spend.prompt_tokens,
            completion_tokens: spend.completion_tokens,
            total_tokens: spend.total_tokens,
            paid_calls: spend.paid_calls,
            cached_calls: spend.cached_calls,
            unpriced_calls: spend.unpriced_calls,
            unknown_outcomes: spend.unknown_outcomes,
            cost_usd: spend.cost(),
            known_cost_usd: spend.known_cost.usd(),
        }
    }
}

/// What a run has used: in all, and by rollouts and the proposer.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunUsage {
    #[serde(flatten)]
    pub total: UsagePart,
    /// Rollouts that were sent or answered from the cache.
    pub rollout_calls: u64,
    /// Proposer turns that were sent or answered from the cache.
    pub proposer_calls: u64,
    /// The part of the rollouts.
    pub rollouts: UsagePart,
    /// The part of the proposer.
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

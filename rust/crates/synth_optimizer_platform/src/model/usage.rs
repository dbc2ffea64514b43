//! Tokens and money of one call; what is not known is a value of its own, never zero.

use std::fmt;
use std::ops::{Add, AddAssign};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Money in billionths of a dollar, so that sums are exact.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct NanoUsd(pub u64);

impl NanoUsd {
    /// Rounds up: a limit must never be passed by rounding. Negative and non-finite amounts are not money.
    pub fn from_usd(usd: f64) -> Option<Self> {
        const DUST: f64 = 1e-6;
        if !usd.is_finite() || !(0.0..=9e9).contains(&usd) {
            return None;
        }
        let nano = usd * 1e9;
        // A value that was nano-dollars before must come back as the same number.
        let rounded = nano.round();
        let exact = (nano - rounded).abs() <= DUST.max(nano * f64::EPSILON * 2.0);
        let whole = if exact { rounded } else { nano.ceil() } as u64;
        // Whatever is not free costs something.
        Some(Self(if usd > 0.0 { whole.max(1) } else { 0 }))
    }

    pub fn usd(self) -> f64 {
        self.0 as f64 / 1e9
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

impl Add for Cost {
    type Output = Self;

    /// A sum with an unknown part is unknown.
    fn add(self, other: Self) -> Self {
        match (self, other) {
            (Self::Known(a), Self::Known(b)) => Self::Known(NanoUsd(a.0.saturating_add(b.0))),
            (Self::Unknown, _) | (_, Self::Unknown) => Self::Unknown,
        }
    }
}

impl AddAssign for Cost {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
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
    pub cost: Cost,
}

impl Usage {
    /// The stated total, or the sum of both parts when both are known.
    pub fn total(&self) -> Option<u64> {
        self.total_tokens.or_else(|| Some(self.prompt_tokens?.saturating_add(self.completion_tokens?)))
    }
}

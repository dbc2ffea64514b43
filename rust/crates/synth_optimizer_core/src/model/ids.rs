//! Identifiers. Each kind has its own type, so that the compiler rejects a mix-up.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::cache_key::RolloutRequest;
use super::canonical::{CONTENT_ID_DIGITS, canonical_digest, content_id};

/// The texts of a candidate by mutable field.
pub type Payload = BTreeMap<String, String>;

macro_rules! name {
    ($(#[$meta:meta])* $name:ident) => {
        $(#[$meta])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
        #[serde(transparent)]
        pub struct $name(#[schemars(with = "String")] Arc<str>);

        impl $name {
            pub fn new(name: &str) -> Self {
                Self(Arc::from(name))
            }

            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(out, "{:?}", &*self.0)
            }
        }
    };
}

name! {
    /// The id of a candidate, derived from its texts: equal texts have equal ids in every run.
    CandidateId
}
name! {
    /// The id of a row, as the container names it.
    RowId
}

impl CandidateId {
    /// Returns the id of a candidate with these texts.
    pub fn of(prefix: &str, payload: &Payload) -> Self {
        Self::new(&content_id(prefix, payload))
    }

    /// Returns the hex digits at the end of the id as a number, for fast lookups.
    pub fn number(&self) -> u64 {
        let digits = self.0.len().saturating_sub(CONTENT_ID_DIGITS);
        self.0.get(digits..).and_then(|digits| u64::from_str_radix(digits, 16).ok()).unwrap_or(u64::MAX)
    }
}

/// The number of one outbound call, a rollout or a proposer turn. The engine numbers calls in the order in which it
/// requests them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct CallId(pub u64);

/// The index of a train row in the run's list of train rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TrainRow(pub u32);

/// The index of a held-out row in the run's list of held-out rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct HeldoutRow(pub u32);

/// What all rollouts of a run have in common and their requests do not contain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RolloutScope<'a> {
    pub run_id: &'a str,
    /// Version of the container's contract.
    pub contract_version: &'a str,
    /// The routes of the container, which define the form of a request.
    pub routes: BTreeMap<String, String>,
    /// The mode in which the run begins to submit rollouts. Some containers refuse a known id with another mode.
    pub submission_mode: &'a str,
}

impl RolloutScope<'_> {
    pub fn digest(&self) -> String {
        canonical_digest(self)
    }
}

/// Everything that identifies one rollout, independent of when it is sent.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RolloutIdentity<'a> {
    /// Digest of the run's `RolloutScope`.
    pub scope: &'a str,
    /// Everything that determines the answer: the rollout's part of its cache key.
    pub request: RolloutRequest<'a>,
    pub candidate: &'a CandidateId,
    pub row: &'a RowId,
    pub stage: &'a str,
    pub attempt: u32,
}

impl RolloutIdentity<'_> {
    /// Returns the id that is sent to the container. A rollout that is sent twice has the same id both times, so a
    /// container can recognise it after a crash and return the stored result. Rollouts that may have different answers have
    /// different ids.
    pub fn rollout_id(&self) -> String {
        format!("r-{}", canonical_digest(self).get(..32).unwrap_or_default())
    }
}

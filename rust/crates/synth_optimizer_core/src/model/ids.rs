//! Names and numbers that identify things; each has its own type so that they cannot be mixed up.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::canonical::{CONTENT_ID_DIGITS, canonical_digest, content_id};

/// The texts of a candidate, by mutable field.
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
    /// A candidate, by its content: equal texts have equal ids in every run.
    CandidateId
}
name! {
    /// A row of the task, as the container names it.
    RowId
}

impl CandidateId {
    /// The id of these texts.
    pub fn of(prefix: &str, payload: &Payload) -> Self {
        Self::new(&content_id(prefix, payload))
    }

    /// The content as a number: the hex digits at the end of the id.
    pub fn number(&self) -> u64 {
        let digits = self.0.len().saturating_sub(CONTENT_ID_DIGITS);
        self.0.get(digits..).and_then(|digits| u64::from_str_radix(digits, 16).ok()).unwrap_or(u64::MAX)
    }
}

/// A request of the engine: numbered in the order in which requests are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct CallId(pub u64);

/// A train row, by its place in the run's list of train rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TrainRow(pub u32);

/// A held-out row, by its place in the run's list of held-out rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct HeldoutRow(pub u32);

/// What a rollout measures, without regard to when and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RolloutIdentity<'a> {
    pub run_id: &'a str,
    pub candidate: &'a CandidateId,
    pub row: &'a RowId,
    pub stage: &'a str,
    pub replicate: u32,
    pub attempt: u32,
}

impl RolloutIdentity<'_> {
    /// The id that is sent to the container. The same rollout sent twice has the same id, so that a container can
    /// recognise it after a crash and not run it again.
    pub fn rollout_id(&self) -> String {
        let identity = (self.run_id, self.candidate, self.row, self.stage, self.replicate, self.attempt);
        format!("r-{}", canonical_digest(&identity).get(..32).unwrap_or_default())
    }
}

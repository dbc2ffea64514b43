//! The parts of a rollout record that are read; everything else, the trace above all, is skipped without being built.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

/// A record. Leaves are open values, because any of them may be null or of a wrong type.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Record {
    pub(super) rollout_id: Value,
    pub(super) status: Value,
    pub(super) state: Value,
    pub(super) phase: Value,
    pub(super) success_status: Value,
    pub(super) status_detail: Value,
    pub(super) detail: Value,
    pub(super) error: Value,
    pub(super) reward: Value,
    pub(super) reward_info: Loose<RewardInfo>,
    pub(super) objective_scores: Value,
    pub(super) summary: Loose<Part>,
    pub(super) usage: Loose<BTreeMap<String, Value>>,
    pub(super) trace: Loose<Trace>,
    pub(super) metadata: Loose<Part>,
    pub(super) seed: Value,
    pub(super) example_id: Value,
    pub(super) task_instance_id: Value,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct RewardInfo {
    pub(super) outcome_reward: Value,
    pub(super) score: Value,
    pub(super) details: Loose<Part>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Trace {
    pub(super) metadata: Loose<Part>,
}

/// Any of the free objects of a record.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Part {
    pub(super) outcome_reward: Value,
    pub(super) objective_scores: Value,
    pub(super) seed: Value,
    pub(super) example_id: Value,
    pub(super) task_instance_id: Value,
    pub(super) task_id: Value,
    pub(super) candidate: Loose<BTreeMap<String, Value>>,
}

/// An object, or nothing where something else stands.
#[derive(Debug)]
pub(super) struct Loose<T>(pub(super) Option<T>);

impl<T> Default for Loose<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T: Default> Loose<T> {
    pub(super) fn or_empty(self) -> T {
        self.0.unwrap_or_default()
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Loose<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(LooseVisitor(PhantomData))
    }
}

struct LooseVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for LooseVisitor<T> {
    type Value = Loose<T>;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("anything")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(|value| Loose(Some(value)))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Loose(None))
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(Loose(None))
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
        Ok(Loose(None))
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
        Ok(Loose(None))
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> {
        Ok(Loose(None))
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
        Ok(Loose(None))
    }

    fn visit_str<E>(self, _: &str) -> Result<Self::Value, E> {
        Ok(Loose(None))
    }
}

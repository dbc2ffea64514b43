//! The parts of a rollout record that are read; everything else, the trace above all, is skipped without being built.

use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::leaf::{Fields, Leaf};

/// A record. Leaves are open values, because any of them may be null or of a wrong type.
#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(super) struct Record<'a> {
    pub(super) rollout_id: Leaf<'a>,
    pub(super) status: Leaf<'a>,
    pub(super) state: Leaf<'a>,
    pub(super) phase: Leaf<'a>,
    pub(super) success_status: Leaf<'a>,
    pub(super) status_detail: Leaf<'a>,
    pub(super) detail: Leaf<'a>,
    pub(super) error: Leaf<'a>,
    pub(super) reward: Leaf<'a>,
    pub(super) reward_info: Loose<RewardInfo<'a>>,
    pub(super) objective_scores: Leaf<'a>,
    pub(super) summary: Loose<Part<'a>>,
    pub(super) usage: Loose<Fields<'a>>,
    pub(super) trace: Loose<Trace<'a>>,
    pub(super) metadata: Loose<Part<'a>>,
    pub(super) seed: Leaf<'a>,
    pub(super) example_id: Leaf<'a>,
    pub(super) task_instance_id: Leaf<'a>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(super) struct RewardInfo<'a> {
    pub(super) outcome_reward: Leaf<'a>,
    pub(super) score: Leaf<'a>,
    pub(super) details: Loose<Part<'a>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(super) struct Trace<'a> {
    pub(super) metadata: Loose<Part<'a>>,
}

/// Any of the free objects of a record.
#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(super) struct Part<'a> {
    pub(super) outcome_reward: Leaf<'a>,
    pub(super) objective_scores: Leaf<'a>,
    pub(super) seed: Leaf<'a>,
    pub(super) example_id: Leaf<'a>,
    pub(super) task_instance_id: Leaf<'a>,
    pub(super) task_id: Leaf<'a>,
    pub(super) candidate: Loose<Fields<'a>>,
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

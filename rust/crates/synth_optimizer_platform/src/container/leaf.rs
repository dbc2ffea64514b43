//! Open JSON that borrows its texts from the body it was read from.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Number, Value};

use crate::http::shown_value;

/// Any JSON value.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) enum Leaf<'a> {
    #[default]
    Null,
    Bool(bool),
    Number(Number),
    Text(Cow<'a, str>),
    List(Vec<Leaf<'a>>),
    Object(Fields<'a>),
}

/// The entries of an object, in the order of the text.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Fields<'a>(Vec<(Cow<'a, str>, Leaf<'a>)>);

impl<'a> Fields<'a> {
    /// The entry of a name; of several, the last one.
    pub(super) fn get(&self, name: &str) -> Option<&Leaf<'a>> {
        self.0.iter().rev().find(|(known, _)| known == name).map(|(_, value)| value)
    }
}

impl<'a> Leaf<'a> {
    pub(super) fn is_null(&self) -> bool {
        matches!(self, Self::Null)
    }

    pub(super) fn is_number(&self) -> bool {
        matches!(self, Self::Number(_))
    }

    pub(super) fn as_str(&self) -> Option<&str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }

    pub(super) fn as_f64(&self) -> Option<f64> {
        if let Self::Number(number) = self { number.as_f64() } else { None }
    }

    pub(super) fn as_u64(&self) -> Option<u64> {
        if let Self::Number(number) = self { number.as_u64() } else { None }
    }

    /// The entry of an object.
    pub(super) fn get(&self, name: &str) -> Option<&Leaf<'a>> {
        if let Self::Object(fields) = self { fields.get(name) } else { None }
    }

    /// As an error may show it.
    pub(super) fn shown(&self) -> String {
        shown_value(&self.to_value())
    }

    fn to_value(&self) -> Value {
        match self {
            Self::Null => Value::Null,
            Self::Bool(value) => Value::Bool(*value),
            Self::Number(number) => Value::Number(number.clone()),
            Self::Text(text) => Value::String(text.clone().into_owned()),
            Self::List(items) => items.iter().map(Self::to_value).collect(),
            Self::Object(fields) => {
                fields.0.iter().map(|(name, value)| (name.clone().into_owned(), value.to_value())).collect()
            }
        }
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Leaf<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(LeafVisitor)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Fields<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(FieldsVisitor)
    }
}

struct LeafVisitor;

impl<'de> Visitor<'de> for LeafVisitor {
    type Value = Leaf<'de>;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("anything")
    }

    fn visit_unit<E>(self) -> Result<Leaf<'de>, E> {
        Ok(Leaf::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Leaf<'de>, E> {
        Ok(Leaf::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Leaf<'de>, E> {
        Ok(Leaf::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Leaf<'de>, E> {
        Ok(Leaf::Number(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Leaf<'de>, E> {
        Ok(Number::from_f64(value).map_or(Leaf::Null, Leaf::Number))
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Leaf<'de>, E> {
        Ok(Leaf::Text(Cow::Borrowed(text)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Leaf<'de>, E> {
        Ok(Leaf::Text(Cow::Owned(text.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Leaf<'de>, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Leaf::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Leaf<'de>, A::Error> {
        FieldsVisitor.visit_map(map).map(Leaf::Object)
    }
}

struct FieldsVisitor;

impl<'de> Visitor<'de> for FieldsVisitor {
    type Value = Fields<'de>;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields<'de>, A::Error> {
        let mut entries = Vec::new();
        while let Some(Name(name)) = map.next_key()? {
            entries.push((name, map.next_value()?));
        }
        Ok(Fields(entries))
    }
}

/// A key. `Cow` alone would always copy it.
pub(super) struct Name<'a>(pub(super) Cow<'a, str>);

impl<'de> Deserialize<'de> for Name<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NameVisitor;
        impl<'de> Visitor<'de> for NameVisitor {
            type Value = Name<'de>;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("a name")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Name<'de>, E> {
                Ok(Name(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Name<'de>, E> {
                Ok(Name(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(NameVisitor)
    }
}

//! Serializes into canonical JSON at once, without a tree of values in between: keys and feeds are written for every
//! rollout, and going through `serde_json::Value` takes two to four times as long.

use std::borrow::Cow;
use std::fmt::{Display, Write as _};

use serde::ser::{
    Error as _, Serialize, SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant, SerializeTuple,
    SerializeTupleStruct, SerializeTupleVariant, Serializer,
};
use serde_json::{Error, Value};

use super::canonical::{write_float, write_string};

type Written = Result<(), Error>;

/// Writes one value to the end of a text.
pub(super) struct CanonicalWriter<'w> {
    out: &'w mut String,
    /// Entries that are left out, should the value be a struct. Their values stay as they are.
    left_out: &'w [&'w str],
}

impl<'w> CanonicalWriter<'w> {
    pub(super) fn new(out: &'w mut String, left_out: &'w [&'w str]) -> Self {
        Self { out, left_out }
    }

    fn plain(self, value: impl Display) -> Written {
        // Writing to memory cannot fail.
        let _ = write!(self.out, "{value}");
        Ok(())
    }

    fn list(self, close: &'static str) -> Result<Items<'w>, Error> {
        self.out.push('[');
        Ok(Items { out: self.out, is_first: true, close })
    }

    fn entries(self, room: usize, close: &'static str) -> Result<Entries<'w>, Error> {
        let (start, entries) = (self.out.len(), Vec::with_capacity(room));
        Ok(Entries { start, out: self.out, entries, left_out: self.left_out, close })
    }

    /// An enum's variant with content is an object of one entry.
    fn variant(self, variant: &str) -> Self {
        self.out.push('{');
        write_string(variant, self.out);
        self.out.push(':');
        Self { out: self.out, left_out: &[] }
    }
}

macro_rules! plain {
    ($($method:ident: $type:ty),+) => { $(fn $method(self, value: $type) -> Written { self.plain(value) })+ };
}

impl<'w> Serializer for CanonicalWriter<'w> {
    type Ok = ();
    type Error = Error;
    type SerializeSeq = Items<'w>;
    type SerializeTuple = Items<'w>;
    type SerializeTupleStruct = Items<'w>;
    type SerializeTupleVariant = Items<'w>;
    type SerializeMap = Entries<'w>;
    type SerializeStruct = Entries<'w>;
    type SerializeStructVariant = Entries<'w>;

    plain!(serialize_bool: bool, serialize_i8: i8, serialize_i16: i16, serialize_i32: i32, serialize_i64: i64);
    plain!(serialize_u8: u8, serialize_u16: u16, serialize_u32: u32, serialize_u64: u64);

    fn serialize_f32(self, value: f32) -> Written {
        self.serialize_f64(value.into())
    }

    fn serialize_f64(self, value: f64) -> Written {
        write_float(value, self.out);
        Ok(())
    }

    fn serialize_char(self, value: char) -> Written {
        self.serialize_str(value.encode_utf8(&mut [0; 4]))
    }

    fn serialize_str(self, value: &str) -> Written {
        write_string(value, self.out);
        Ok(())
    }

    fn serialize_bytes(self, value: &[u8]) -> Written {
        self.collect_seq(value)
    }

    fn serialize_none(self) -> Written {
        self.out.push_str("null");
        Ok(())
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Written {
        value.serialize(self)
    }

    fn serialize_unit(self) -> Written {
        self.serialize_none()
    }

    fn serialize_unit_struct(self, _: &'static str) -> Written {
        self.serialize_none()
    }

    fn serialize_unit_variant(self, _: &'static str, _: u32, variant: &'static str) -> Written {
        self.serialize_str(variant)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _: &'static str, value: &T) -> Written {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        value: &T,
    ) -> Written {
        let out = self.variant(variant).out;
        value.serialize(CanonicalWriter::new(out, &[]))?;
        out.push('}');
        Ok(())
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Items<'w>, Error> {
        self.list("]")
    }

    fn serialize_tuple(self, _: usize) -> Result<Items<'w>, Error> {
        self.list("]")
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Items<'w>, Error> {
        self.list("]")
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Items<'w>, Error> {
        self.variant(variant).list("]}")
    }

    fn serialize_map(self, size: Option<usize>) -> Result<Entries<'w>, Error> {
        self.entries(size.unwrap_or_default(), "}")
    }

    fn serialize_struct(self, _: &'static str, size: usize) -> Result<Entries<'w>, Error> {
        self.entries(size, "}")
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        size: usize,
    ) -> Result<Entries<'w>, Error> {
        self.variant(variant).entries(size, "}}")
    }
}

/// A list that is being written.
pub(super) struct Items<'w> {
    out: &'w mut String,
    is_first: bool,
    close: &'static str,
}

macro_rules! sequence {
    ($($trait:ident::$method:ident),+) => { $(
        impl $trait for Items<'_> {
            type Ok = ();
            type Error = Error;

            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Written {
                if !std::mem::take(&mut self.is_first) {
                    self.out.push(',');
                }
                value.serialize(CanonicalWriter::new(self.out, &[]))
            }

            fn end(self) -> Written {
                self.out.push_str(self.close);
                Ok(())
            }
        }
    )+ };
}

sequence!(SerializeSeq::serialize_element, SerializeTuple::serialize_element);
sequence!(SerializeTupleStruct::serialize_field, SerializeTupleVariant::serialize_field);

/// An object that is being written: its entries stand one after the other as they come, and are put in order at its end.
pub(super) struct Entries<'w> {
    out: &'w mut String,
    start: usize,
    entries: Vec<Entry>,
    left_out: &'w [&'w str],
    close: &'static str,
}

struct Entry {
    key: Cow<'static, str>,
    /// Where its text begins and ends, counted from the start of the object.
    begin: usize,
    end: usize,
}

impl Entries<'_> {
    fn key(&mut self, key: Cow<'static, str>) {
        let begin = self.out.len() - self.start;
        write_string(&key, self.out);
        self.out.push(':');
        self.entries.push(Entry { key, begin, end: begin });
    }

    fn value<T: Serialize + ?Sized>(&mut self, value: &T) -> Written {
        value.serialize(CanonicalWriter::new(self.out, &[]))?;
        if let Some(entry) = self.entries.last_mut() {
            entry.end = self.out.len() - self.start;
        }
        Ok(())
    }

    fn close(mut self) -> Written {
        let written = self.out.split_off(self.start);
        self.entries.sort_by(|left, right| left.key.as_bytes().cmp(right.key.as_bytes()));
        self.out.reserve(written.len() + self.entries.len() + 2);
        self.out.push('{');
        for (index, entry) in self.entries.iter().enumerate() {
            if index > 0 {
                self.out.push(',');
            }
            self.out.push_str(&written[entry.begin..entry.end]);
        }
        self.out.push_str(self.close);
        Ok(())
    }
}

impl SerializeMap for Entries<'_> {
    type Ok = ();
    type Error = Error;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Written {
        let key = match serde_json::to_value(key)? {
            Value::String(text) => text,
            plain @ (Value::Bool(_) | Value::Number(_)) => plain.to_string(),
            Value::Null | Value::Array(_) | Value::Object(_) => return Err(Error::custom("a key must be a text")),
        };
        self.key(Cow::Owned(key));
        Ok(())
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Written {
        self.value(value)
    }

    fn end(self) -> Written {
        self.close()
    }
}

macro_rules! structure {
    ($($trait:ident),+) => { $(
        impl $trait for Entries<'_> {
            type Ok = ();
            type Error = Error;

            fn serialize_field<T: Serialize + ?Sized>(&mut self, key: &'static str, value: &T) -> Written {
                if self.left_out.contains(&key) {
                    return Ok(());
                }
                self.key(Cow::Borrowed(key));
                self.value(value)
            }

            fn end(self) -> Written {
                self.close()
            }
        }
    )+ };
}

structure!(SerializeStruct, SerializeStructVariant);

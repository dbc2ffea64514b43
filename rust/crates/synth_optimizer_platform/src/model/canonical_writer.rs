//! Serializes into canonical JSON at once, without a tree of values in between.

use std::fmt::Display;

use serde::ser::{Serialize, Serializer};
use serde_json::Error;

use super::canonical::{write_float, write_string};
use super::canonical_parts::{Entries, Items};

pub(super) type Written = Result<(), Error>;

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

    fn whole(self, number: impl Display) -> Written {
        use std::fmt::Write;
        // Writing to memory cannot fail.
        let _ = write!(self.out, "{number}");
        Ok(())
    }

    fn list(self, close: &'static str) -> Items<'w> {
        Items::open(self.out, close)
    }

    fn entries(self, room: usize, close: &'static str) -> Entries<'w> {
        Entries::open(self.out, room, self.left_out, close)
    }

    /// An enum's variant with content is an object of one entry.
    fn variant(self, variant: &str) -> Self {
        self.out.push('{');
        write_string(variant, self.out);
        self.out.push(':');
        Self { out: self.out, left_out: &[] }
    }
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

    fn serialize_bool(self, value: bool) -> Written {
        self.out.push_str(if value { "true" } else { "false" });
        Ok(())
    }

    fn serialize_i8(self, value: i8) -> Written {
        self.whole(value)
    }

    fn serialize_i16(self, value: i16) -> Written {
        self.whole(value)
    }

    fn serialize_i32(self, value: i32) -> Written {
        self.whole(value)
    }

    fn serialize_i64(self, value: i64) -> Written {
        self.whole(value)
    }

    fn serialize_u8(self, value: u8) -> Written {
        self.whole(value)
    }

    fn serialize_u16(self, value: u16) -> Written {
        self.whole(value)
    }

    fn serialize_u32(self, value: u32) -> Written {
        self.whole(value)
    }

    fn serialize_u64(self, value: u64) -> Written {
        self.whole(value)
    }

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
        self.serialize_unit()
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Written {
        value.serialize(self)
    }

    fn serialize_unit(self) -> Written {
        self.out.push_str("null");
        Ok(())
    }

    fn serialize_unit_struct(self, _: &'static str) -> Written {
        self.serialize_unit()
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
        let CanonicalWriter { out, left_out } = self.variant(variant);
        value.serialize(CanonicalWriter { out: &mut *out, left_out })?;
        out.push('}');
        Ok(())
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Items<'w>, Error> {
        Ok(self.list("]"))
    }

    fn serialize_tuple(self, _: usize) -> Result<Items<'w>, Error> {
        Ok(self.list("]"))
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Items<'w>, Error> {
        Ok(self.list("]"))
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Items<'w>, Error> {
        Ok(self.variant(variant).list("]}"))
    }

    fn serialize_map(self, size: Option<usize>) -> Result<Entries<'w>, Error> {
        Ok(self.entries(size.unwrap_or_default(), "}"))
    }

    fn serialize_struct(self, _: &'static str, size: usize) -> Result<Entries<'w>, Error> {
        Ok(self.entries(size, "}"))
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        size: usize,
    ) -> Result<Entries<'w>, Error> {
        Ok(self.variant(variant).entries(size, "}}"))
    }
}

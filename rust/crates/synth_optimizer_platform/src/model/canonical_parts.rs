//! Lists and objects of canonical JSON while they are being written.

use std::borrow::Cow;

use serde::ser::{
    Error as _, Serialize, SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant, SerializeTuple,
    SerializeTupleStruct, SerializeTupleVariant,
};
use serde_json::{Error, Value};

use super::canonical::write_string;
use super::canonical_writer::{CanonicalWriter, Written};

/// A list that is being written.
pub(super) struct Items<'w> {
    out: &'w mut String,
    is_first: bool,
    close: &'static str,
}

impl<'w> Items<'w> {
    pub(super) fn open(out: &'w mut String, close: &'static str) -> Self {
        out.push('[');
        Self { out, is_first: true, close }
    }

    fn item<T: Serialize + ?Sized>(&mut self, value: &T) -> Written {
        if !std::mem::take(&mut self.is_first) {
            self.out.push(',');
        }
        value.serialize(CanonicalWriter::new(self.out, &[]))
    }

    fn close(self) -> Written {
        self.out.push_str(self.close);
        Ok(())
    }
}

impl SerializeSeq for Items<'_> {
    type Ok = ();
    type Error = Error;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Written {
        self.item(value)
    }

    fn end(self) -> Written {
        self.close()
    }
}

impl SerializeTuple for Items<'_> {
    type Ok = ();
    type Error = Error;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Written {
        self.item(value)
    }

    fn end(self) -> Written {
        self.close()
    }
}

impl SerializeTupleStruct for Items<'_> {
    type Ok = ();
    type Error = Error;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, value: &T) -> Written {
        self.item(value)
    }

    fn end(self) -> Written {
        self.close()
    }
}

impl SerializeTupleVariant for Items<'_> {
    type Ok = ();
    type Error = Error;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, value: &T) -> Written {
        self.item(value)
    }

    fn end(self) -> Written {
        self.close()
    }
}

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

impl<'w> Entries<'w> {
    pub(super) fn open(out: &'w mut String, room: usize, left_out: &'w [&'w str], close: &'static str) -> Self {
        Self { start: out.len(), out, entries: Vec::with_capacity(room), left_out, close }
    }

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

    fn field<T: Serialize + ?Sized>(&mut self, key: &'static str, value: &T) -> Written {
        if self.left_out.contains(&key) {
            return Ok(());
        }
        self.key(Cow::Borrowed(key));
        self.value(value)
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

impl SerializeStruct for Entries<'_> {
    type Ok = ();
    type Error = Error;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, key: &'static str, value: &T) -> Written {
        self.field(key, value)
    }

    fn end(self) -> Written {
        self.close()
    }
}

impl SerializeStructVariant for Entries<'_> {
    type Ok = ();
    type Error = Error;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, key: &'static str, value: &T) -> Written {
        self.field(key, value)
    }

    fn end(self) -> Written {
        self.close()
    }
}

//! Canonical JSON and content ids: equal values have equal bytes, on every machine.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::ser::{CharEscape, CompactFormatter, Formatter, Serializer};
use sha2::{Digest, Sha256};

/// The canonical text of a value: keys sorted by bytes, no white space, whole numbers without a fraction.
pub fn canonical_json(value: &serde_json::Value) -> String {
    // JSON is text.
    String::from_utf8(canonical_bytes(value)).unwrap_or_default()
}

/// SHA-256 of the canonical text, as 64 hex digits.
pub fn canonical_digest<T: Serialize + ?Sized>(value: &T) -> String {
    sha256_hex(&canonical_bytes(value))
}

/// The canonical text of anything that serializes to JSON; what cannot (non-text keys) counts as null.
fn canonical_bytes<T: Serialize + ?Sized>(value: &T) -> Vec<u8> {
    // Most values are events and keys of this size.
    let mut out = Vec::with_capacity(512);
    match write_canonical(value, &[], &mut out) {
        Ok(()) => out,
        Err(_) => b"null".to_vec(),
    }
}

/// Adds the canonical text of anything that serializes to JSON. Of the outermost object, the fields that are named in
/// `left_out` are not written; those of its parts are.
pub fn write_canonical<T: Serialize + ?Sized>(
    value: &T,
    left_out: &[&str],
    out: &mut Vec<u8>,
) -> Result<(), serde_json::Error> {
    // The formatter keeps the text, because it puts entries in order; whatever missed it could not be written here.
    let nowhere: &mut [u8] = &mut [];
    let formatter = CanonicalFormatter {
        out,
        left_out,
        open: Vec::with_capacity(4),
        entries: Vec::with_capacity(16),
        has_escaped_key: false,
        unordered: Vec::with_capacity(512),
    };
    value.serialize(&mut Serializer::with_formatter(nowhere, formatter))
}

/// SHA-256 of bytes, as 64 hex digits.
pub fn sha256_hex(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// Hex digits of a content id.
pub const CONTENT_ID_DIGITS: usize = 12;

/// A short id that depends on the content alone: the prefix and 12 hex digits.
pub fn content_id<T: Serialize + ?Sized>(prefix: &str, value: &T) -> String {
    format!("{prefix}{}", canonical_digest(value).get(..CONTENT_ID_DIGITS).unwrap_or_default())
}

/// Lower-case hex.
pub fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |value: u8| char::from(DIGITS[usize::from(value & 15)]);
    let mut out = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        out.push(digit(byte >> 4));
        out.push(digit(*byte));
    }
    out
}

/// Writes canonical JSON while a value is serialized, without a tree of values in between: keys and feeds are written
/// for every rollout. The entries of an object are written as they come and put in order at its end.
struct CanonicalFormatter<'w> {
    out: &'w mut Vec<u8>,
    left_out: &'w [&'w str],
    /// Where the objects begin that are being written, and how many entries stand before theirs; the innermost last.
    open: Vec<(usize, usize)>,
    entries: Vec<Entry>,
    /// Whether some key was escaped: its order is that of its text.
    has_escaped_key: bool,
    /// Room to put entries in order.
    unordered: Vec<u8>,
}

/// Where an entry begins, where its key ends, and where it ends itself.
#[derive(Clone, Copy)]
struct Entry {
    begin: usize,
    key_end: usize,
    end: usize,
}

impl Entry {
    /// The key without its quotes.
    fn key<'t>(&self, text: &'t [u8]) -> &'t [u8] {
        &text[self.begin + 1..self.key_end - 1]
    }
}

fn unescaped(key: &[u8]) -> Option<String> {
    serde_json::from_slice(&[b"\"", key, b"\""].concat()).ok()
}

/// Methods that write what compact JSON has.
macro_rules! compact {
    ($($method:ident($($value:ident: $type:ty)?),)+) => { $(
        fn $method<W: ?Sized + Write>(&mut self, _: &mut W $(, $value: $type)?) -> io::Result<()> {
            CompactFormatter.$method(self.out $(, $value)?)
        }
    )+ };
}

impl Formatter for CanonicalFormatter<'_> {
    compact! {
        write_null(), write_bool(value: bool), write_number_str(value: &str), write_raw_fragment(value: &str),
        write_i8(value: i8), write_i16(value: i16), write_i32(value: i32), write_i64(value: i64), write_i128(value: i128),
        write_u8(value: u8), write_u16(value: u16), write_u32(value: u32), write_u64(value: u64), write_u128(value: u128),
        begin_string(), write_string_fragment(value: &str), end_string(),
        begin_array(), begin_array_value(first: bool), end_array(), begin_object_value(),
    }

    fn write_char_escape<W: ?Sized + Write>(&mut self, _: &mut W, escape: CharEscape) -> io::Result<()> {
        self.has_escaped_key |= self.entries.last().is_some_and(|entry| entry.key_end == 0);
        CompactFormatter.write_char_escape(self.out, escape)
    }

    fn write_f32<W: ?Sized + Write>(&mut self, writer: &mut W, value: f32) -> io::Result<()> {
        self.write_f64(writer, value.into())
    }

    /// 1.0 and 1 are the same number to every reader, so they have the same bytes, as far as whole numbers reach.
    fn write_f64<W: ?Sized + Write>(&mut self, writer: &mut W, value: f64) -> io::Result<()> {
        const WHOLE: std::ops::Range<f64> = i64::MIN as f64..u64::MAX as f64;
        if value.fract() != 0.0 || !WHOLE.contains(&value) {
            CompactFormatter.write_f64(self.out, value)
        } else if value < 0.0 {
            self.write_i64(writer, value as i64)
        } else {
            self.write_u64(writer, value as u64)
        }
    }

    fn begin_object<W: ?Sized + Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.open.push((self.out.len(), self.entries.len()));
        self.out.push(b'{');
        Ok(())
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, _: &mut W, first: bool) -> io::Result<()> {
        if !first {
            self.out.push(b',');
        }
        self.entries.push(Entry { begin: self.out.len(), key_end: 0, end: 0 });
        Ok(())
    }

    fn end_object_key<W: ?Sized + Write>(&mut self, _: &mut W) -> io::Result<()> {
        if let Some(entry) = self.entries.last_mut() {
            entry.key_end = self.out.len();
        }
        Ok(())
    }

    fn end_object_value<W: ?Sized + Write>(&mut self, _: &mut W) -> io::Result<()> {
        if let Some(entry) = self.entries.last_mut() {
            entry.end = self.out.len();
        }
        Ok(())
    }

    fn end_object<W: ?Sized + Write>(&mut self, _: &mut W) -> io::Result<()> {
        let Some((start, first)) = self.open.pop() else { return Ok(()) };
        let (entries, out) = (&mut self.entries[first..], &*self.out);
        let by_key = |left: &Entry, right: &Entry| match self.has_escaped_key {
            true => unescaped(left.key(out)).cmp(&unescaped(right.key(out))),
            false => left.key(out).cmp(right.key(out)),
        };
        let left_out = if self.open.is_empty() { self.left_out } else { &[] };
        if !left_out.is_empty() || !entries.is_sorted_by(|left, right| by_key(left, right).is_le()) {
            entries.sort_by(by_key);
            self.unordered.clear();
            self.unordered.extend_from_slice(&self.out[start..]);
            self.out.truncate(start);
            self.out.push(b'{');
            let text = |from: usize, to: usize| &self.unordered[from - start..to - start];
            for entry in entries {
                if left_out.iter().any(|name| name.as_bytes() == text(entry.begin + 1, entry.key_end - 1)) {
                    continue;
                }
                if self.out.len() > start + 1 {
                    self.out.push(b',');
                }
                self.out.extend_from_slice(text(entry.begin, entry.end));
            }
        }
        self.entries.truncate(first);
        self.out.push(b'}');
        Ok(())
    }
}

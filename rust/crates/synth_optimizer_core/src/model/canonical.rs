//! Canonical JSON, digests and content ids. Equal values have equal bytes on every machine.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::ser::{CharEscape, CompactFormatter, Formatter, Serializer};
use sha2::{Digest, Sha256};

/// Returns the canonical text of a value: keys sorted by bytes, no white space, whole numbers without a fraction.
pub fn canonical_json(value: &serde_json::Value) -> String {
    // JSON is always UTF-8.
    String::from_utf8(canonical_bytes(value)).unwrap_or_default()
}

/// Returns the SHA-256 of the canonical JSON of a value, as 64 hex digits.
pub fn canonical_digest<T: Serialize + ?Sized>(value: &T) -> String {
    sha256_hex(&canonical_bytes(value))
}

/// Returns the canonical JSON of a value. A value that JSON cannot represent (non-text keys) counts as null.
fn canonical_bytes<T: Serialize + ?Sized>(value: &T) -> Vec<u8> {
    // Most values are events and cache keys of about this size.
    let mut out = Vec::with_capacity(512);
    match write_canonical(value, &[], &mut out) {
        Ok(()) => out,
        // Only a map whose keys are not text fails to serialize, and no type of the model has one.
        Err(_) => b"null".to_vec(),
    }
}

/// Appends the canonical JSON of a value. Omits the fields of the outermost object that `left_out` names; nested objects
/// are written completely.
pub fn write_canonical<T: Serialize + ?Sized>(
    value: &T,
    left_out: &[&str],
    out: &mut Vec<u8>,
) -> Result<(), serde_json::Error> {
    // The formatter writes to `out`, because it has to sort entries. The serializer's own writer stays unused, and a write
    // to it would fail.
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

/// Returns the SHA-256 of bytes, as 64 hex digits.
pub fn sha256_hex(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// Number of hex digits of a content id.
pub const CONTENT_ID_DIGITS: usize = 12;

/// Returns a short id that depends only on the content: the prefix and 12 hex digits.
pub fn content_id<T: Serialize + ?Sized>(prefix: &str, value: &T) -> String {
    format!("{prefix}{}", canonical_digest(value).get(..CONTENT_ID_DIGITS).unwrap_or_default())
}

/// Returns bytes as lower-case hex digits.
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

/// Writes canonical JSON directly while a value is serialized, because keys and feeds are written for every rollout. The
/// entries of an object are written as they arrive and sorted when the object ends.
struct CanonicalFormatter<'w> {
    out: &'w mut Vec<u8>,
    left_out: &'w [&'w str],
    /// The open objects, innermost last: where each begins, and the number of entries that precede its own.
    open: Vec<(usize, usize)>,
    entries: Vec<Entry>,
    /// Whether some key is escaped. Keys are then compared in their unescaped form.
    has_escaped_key: bool,
    /// Scratch buffer for sorting entries.
    unordered: Vec<u8>,
}

/// Byte offsets of an entry of an object: its begin, the end of its key, and its end.
#[derive(Clone, Copy)]
struct Entry {
    begin: usize,
    key_end: usize,
    end: usize,
}

impl Entry {
    /// Returns the key without its quotes.
    fn key<'t>(&self, text: &'t [u8]) -> &'t [u8] {
        &text[self.begin + 1..self.key_end - 1]
    }
}

fn unescaped(key: &[u8]) -> Option<String> {
    serde_json::from_slice(&[b"\"", key, b"\""].concat()).ok()
}

/// Defines methods that write the same as the compact formatter.
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

    /// Writes a whole number without a fraction, within the range of 64-bit integers: 1.0 and 1 are the same JSON number
    /// and get the same bytes.
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

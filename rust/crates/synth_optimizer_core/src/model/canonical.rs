//! Canonical JSON and content ids: equal values have equal bytes, on every machine.

use std::fmt::Write;

use serde::Serialize;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::canonical_writer::CanonicalWriter;

/// The canonical text of a value: keys sorted by bytes, no white space, whole numbers without a fraction.
pub fn canonical_json(value: &Value) -> String {
    // Most values are events and keys of this size.
    let mut out = String::with_capacity(512);
    write_value(value, &mut out);
    out
}

/// SHA-256 of the canonical text, as 64 hex digits.
pub fn digest(value: &Value) -> String {
    hex(&Sha256::digest(canonical_json(value).as_bytes()))
}

/// The digest of anything that serializes to JSON; what cannot (NaN, non-text keys) counts as null.
pub fn digest_of<T: Serialize + ?Sized>(value: &T) -> String {
    let mut out = String::with_capacity(256);
    if write_canonical(value, &[], &mut out).is_err() {
        "null".clone_into(&mut out);
    }
    hex(&Sha256::digest(out.as_bytes()))
}

/// Adds the canonical text of anything that serializes to JSON. Of a struct, the fields that are named in `left_out` are
/// not written; those of its parts are.
pub fn write_canonical<T: Serialize + ?Sized>(
    value: &T,
    left_out: &[&str],
    out: &mut String,
) -> Result<(), serde_json::Error> {
    value.serialize(CanonicalWriter::new(out, left_out))
}

/// SHA-256 of bytes, as 64 hex digits.
pub fn digest_bytes(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// Hex digits of a content id.
pub const CONTENT_DIGITS: usize = 12;

/// A short id that depends on the content alone: the prefix and 12 hex digits.
pub fn content_id(prefix: &str, value: &Value) -> String {
    let mut id = String::with_capacity(prefix.len() + CONTENT_DIGITS);
    id.push_str(prefix);
    id.push_str(digest(value).get(..CONTENT_DIGITS).unwrap_or_default());
    id
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

fn write_value(value: &Value, out: &mut String) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(true) => out.push_str("true"),
        Value::Bool(false) => out.push_str("false"),
        Value::Number(number) => write_number(number, out),
        Value::String(text) => write_string(text, out),
        Value::Array(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                write_value(item, out);
            }
            out.push(']');
        }
        Value::Object(map) => {
            let mut entries: Vec<_> = map.iter().collect();
            entries.sort_unstable_by_key(|(key, _)| key.as_bytes());
            out.push('{');
            for (index, (key, item)) in entries.into_iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                write_string(key, out);
                out.push(':');
                write_value(item, out);
            }
            out.push('}');
        }
    }
}

fn write_number(number: &serde_json::Number, out: &mut String) {
    match number.as_f64() {
        Some(float) if number.is_f64() => write_float(float, out),
        _ => {
            let _ = write!(out, "{number}");
        }
    }
}

/// 1.0 and 1 are the same number to every reader, so they have the same bytes, as far as whole numbers reach. What is not
/// finite is null.
pub(super) fn write_float(float: f64, out: &mut String) {
    const WHOLE: std::ops::Range<f64> = i64::MIN as f64..u64::MAX as f64;
    let _ = match serde_json::Number::from_f64(float) {
        Some(_) if float.fract() == 0.0 && WHOLE.contains(&float) => {
            if float < 0.0 {
                write!(out, "{}", float as i64)
            } else {
                write!(out, "{}", float as u64)
            }
        }
        Some(number) => write!(out, "{number}"),
        None => out.write_str("null"),
    };
}

/// Bytes that do not stand for themselves in a text.
static ESCAPED: [bool; 256] = {
    let mut escaped = [false; 256];
    let mut control = 0;
    while control < 0x20 {
        escaped[control] = true;
        control += 1;
    }
    escaped[b'"' as usize] = true;
    escaped[b'\\' as usize] = true;
    escaped
};

pub(super) fn write_string(text: &str, out: &mut String) {
    out.push('"');
    let mut rest = text;
    // What is to be escaped is one byte long, so that the text can be cut there.
    while let Some(at) = rest.bytes().position(|byte| ESCAPED[usize::from(byte)]) {
        out.push_str(&rest[..at]);
        match rest.as_bytes()[at] {
            b'"' => out.push_str("\\\""),
            b'\\' => out.push_str("\\\\"),
            b'\n' => out.push_str("\\n"),
            b'\r' => out.push_str("\\r"),
            b'\t' => out.push_str("\\t"),
            0x08 => out.push_str("\\b"),
            0x0c => out.push_str("\\f"),
            control => {
                let _ = write!(out, "\\u{control:04x}");
            }
        }
        rest = &rest[at + 1..];
    }
    out.push_str(rest);
    out.push('"');
}

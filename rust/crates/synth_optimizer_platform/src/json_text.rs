//! Makes the JSON of a reply readable, once, when the reply arrives.
//!
//! Containers and models send JSON that some readers refuse: lone surrogates (half of an emoji that was cut), bytes that are
//! not UTF-8, numbers beyond the range of a 64-bit float, NaN and infinities, and deep nesting. Such a reply is paid for, so
//! it is changed as little as possible, and stored only in a form that every later reader accepts.

use std::borrow::Cow;
use std::fmt;

use serde_json::Value;

/// Nesting beyond this many levels is kept as text. Readers allow 127 levels, and documents that embed a reply add some.
const MAX_DEPTH: usize = 100;

/// A number with fewer characters and without an exponent is within the range of a 64-bit float.
const MIN_LONG_NUMBER: usize = 300;

const REPLACEMENT_ESCAPE: &[u8] = b"\\ufffd";

/// What was changed in a reply.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Alterations {
    /// Whether bytes that are not UTF-8 became U+FFFD.
    has_invalid_utf8: bool,
    /// Lone surrogates that became U+FFFD.
    lone_surrogates: u64,
    /// Numbers without a finite value that became texts.
    numbers: u64,
    /// Values beyond the nesting limit that became texts.
    deep_values: u64,
}

impl fmt::Display for Alterations {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counted = |count: u64, what: &str| (count > 0).then(|| format!("{count} {what}"));
        let parts = [
            self.has_invalid_utf8.then(|| "bytes that are not UTF-8 became U+FFFD".to_owned()),
            counted(self.lone_surrogates, "lone surrogates became U+FFFD"),
            counted(self.numbers, "numbers that are not finite or beyond range became texts"),
            counted(self.deep_values, &format!("values below {MAX_DEPTH} levels became texts")),
        ];
        out.write_str(&parts.into_iter().flatten().collect::<Vec<_>>().join(", "))
    }
}

/// Returns the text in a form that every reader accepts and what was changed, or `None` if nothing has to be changed. Text
/// that is not JSON stays invalid.
pub(crate) fn normalize(text: &[u8]) -> Option<(Vec<u8>, Alterations)> {
    let (utf8, has_invalid_utf8) = match std::str::from_utf8(text) {
        Ok(_) => (Cow::Borrowed(text), false),
        Err(_) => (Cow::Owned(String::from_utf8_lossy(text).into_owned().into_bytes()), true),
    };
    let altered = Alterations { has_invalid_utf8, ..Alterations::default() };
    let mut scan = Scan { text: &utf8, at: 0, copied: 0, out: Vec::new(), altered };
    scan.values();
    let Scan { copied, mut out, altered, .. } = scan;
    (altered != Alterations::default()).then(|| {
        out.extend_from_slice(&utf8[copied..]);
        (out, altered)
    })
}

/// Parses a JSON text after it is normalized. Also returns what was changed.
pub(crate) fn parse(text: &[u8]) -> Result<(Value, Option<Alterations>), serde_json::Error> {
    match normalize(text) {
        None => serde_json::from_slice(text).map(|value| (value, None)),
        Some((text, altered)) => serde_json::from_slice(&text).map(|value| (value, Some(altered))),
    }
}

/// Returns a stored reply. A reply that is not JSON is returned as text.
pub(crate) fn stored_value(reply: &[u8]) -> Value {
    parse(reply).map_or_else(|_| Value::String(String::from_utf8_lossy(reply).into_owned()), |(value, _)| value)
}

/// A pass over a JSON text. It copies the text only if it changes something.
struct Scan<'t> {
    text: &'t [u8],
    at: usize,
    /// Everything before this offset is in `out`.
    copied: usize,
    out: Vec<u8>,
    altered: Alterations,
}

impl Scan<'_> {
    fn values(&mut self) {
        let mut depth = 0_usize;
        while let Some(byte) = self.text.get(self.at) {
            match byte {
                b'"' => self.string(),
                b'[' | b'{' if depth == MAX_DEPTH => {
                    let end = self.end_of_value();
                    self.quote(end);
                    self.altered.deep_values += 1;
                }
                b'[' | b'{' => {
                    depth += 1;
                    self.at += 1;
                }
                b']' | b'}' => {
                    depth = depth.saturating_sub(1);
                    self.at += 1;
                }
                b'-' | b'0'..=b'9' | b'N' | b'I' => self.number(),
                _ => self.at += 1,
            }
        }
    }

    /// Passes a string and replaces its lone surrogates.
    fn string(&mut self) {
        self.at += 1;
        while let Some(place) = self.text[self.at..].iter().position(|byte| matches!(byte, b'"' | b'\\')) {
            self.at += place;
            if self.text[self.at] == b'"' {
                self.at += 1;
                return;
            }
            match (escaped_unit(self.text, self.at), escaped_unit(self.text, self.at + 6)) {
                (Some(0xD800..=0xDBFF), Some(0xDC00..=0xDFFF)) => self.at += 12,
                (Some(0xD800..=0xDFFF), _) => {
                    self.replace(self.at + 6, REPLACEMENT_ESCAPE);
                    self.altered.lone_surrogates += 1;
                }
                _ => self.at = (self.at + 2).min(self.text.len()),
            }
        }
        self.at = self.text.len();
    }

    /// Passes a number, and quotes it if it has no finite value.
    fn number(&mut self) {
        let is_part = |byte: &&u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'+' | b'.');
        let length = self.text[self.at..].iter().take_while(is_part).count();
        let number = &self.text[self.at..self.at + length];
        let may_be_beyond = length > MIN_LONG_NUMBER || number.iter().any(u8::is_ascii_alphabetic);
        let value = may_be_beyond.then(|| std::str::from_utf8(number).ok()?.parse::<f64>().ok()).flatten();
        if value.is_some_and(|value| !value.is_finite()) {
            self.quote(self.at + length);
            self.altered.numbers += 1;
        } else {
            self.at += length;
        }
    }

    /// Returns the offset after the list or object that begins here.
    fn end_of_value(&self) -> usize {
        let mut inner = Scan { text: self.text, at: self.at, copied: 0, out: Vec::new(), altered: self.altered };
        let mut depth = 0_usize;
        while let Some(byte) = inner.text.get(inner.at) {
            match byte {
                b'"' => {
                    inner.string();
                    continue;
                }
                b'[' | b'{' => depth += 1,
                b']' | b'}' => depth = depth.saturating_sub(1),
                _ => {}
            }
            inner.at += 1;
            if depth == 0 {
                break;
            }
        }
        inner.at
    }

    /// Replaces the text up to `end` by a JSON string with that text.
    fn quote(&mut self, end: usize) {
        let quoted = Value::String(String::from_utf8_lossy(&self.text[self.at..end]).into_owned()).to_string();
        self.replace(end, quoted.as_bytes());
    }

    fn replace(&mut self, end: usize, with: &[u8]) {
        self.out.extend_from_slice(&self.text[self.copied..self.at]);
        self.out.extend_from_slice(with);
        (self.copied, self.at) = (end, end);
    }
}

/// Returns the UTF-16 unit of the escape `\uXXXX` at this offset.
fn escaped_unit(text: &[u8], at: usize) -> Option<u16> {
    let digits = text.get(at..at + 6)?.strip_prefix(b"\\u")?;
    digits.iter().try_fold(0, |unit, digit| Some(unit * 16 + (*digit as char).to_digit(16)? as u16))
}

#[cfg(test)]
#[path = "json_text_tests.rs"]
mod tests;

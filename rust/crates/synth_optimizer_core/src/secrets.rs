//! `Secret`, a credential that cannot be printed, and functions that recognize and hide credentials in text, by name and by
//! shape.

use std::fmt;
use std::ops::Range;

use serde_json::Value;

/// The replacement text of a secret.
pub const HIDDEN: &str = "[hidden]";

/// A credential of the optimizer. It prints as `[hidden]` and cannot be serialized. Only `expose` returns its text.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Returns the text, to send it or to search for it in output.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(HIDDEN)
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(HIDDEN)
    }
}

/// Returns whether a field with this name holds a credential. Names of variables (`…_env`) and token counts do not count.
pub fn is_credential_name(name: &str) -> bool {
    let folded: String = name.trim().trim_start_matches('-').to_lowercase().replace(['-', '.', ' '], "_");
    // A cache key is not a credential.
    if folded.ends_with("_env") || folded.ends_with("_env_var") || folded.ends_with("cache_key") {
        return false;
    }
    let compact: String = folded.chars().filter(char::is_ascii_alphanumeric).collect();
    const ANYWHERE: &[&str] = &[
        "apikey",
        "secret",
        "password",
        "passwd",
        "passphrase",
        "authorization",
        "bearer",
        "privatekey",
        "accesskey",
        "authtoken",
        "accesstoken",
        "apitoken",
        "refreshtoken",
    ];
    const AT_THE_END: &[&str] = &["token", "credential", "credentials", "cookie"];
    // These also end ordinary words, so they count only as a separate word: `x-key`, `openaiKey`, not `monkey`.
    const LAST_WORD: &[&str] = &["key", "pwd", "pat"];
    const LAST_HUMP: &[&str] = &["Key", "Pwd", "Pat"];
    ANYWHERE.iter().any(|part| compact.contains(part))
        || AT_THE_END.iter().any(|part| compact.ends_with(part))
        || LAST_WORD.iter().any(|word| folded.rsplit('_').next() == Some(word))
        || LAST_HUMP.iter().any(|hump| name.trim().ends_with(hump))
        || compact == "auth"
}

/// Returns whether a field for the name of a variable (`api_key_env`) holds something else, for example a pasted key.
pub fn is_pasted_credential(name: &str, text: &str) -> bool {
    const MAX_LOWERCASE_NAME_LENGTH: usize = 20;
    let folded = name.trim().to_lowercase().replace('-', "_");
    let stem = folded.strip_suffix("_env").or_else(|| folded.strip_suffix("_env_var"));
    let is_usual = !text.chars().any(|c| c.is_ascii_lowercase()) || text.len() < MAX_LOWERCASE_NAME_LENGTH;
    stem.is_some_and(is_credential_name) && !(can_name_variable(text) && !looks_like_key(text) && is_usual)
}

/// Returns whether this is a valid name of an environment variable.
pub fn can_name_variable(word: &str) -> bool {
    word.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        && !word.starts_with(|c: char| c.is_ascii_digit())
        && !word.is_empty()
}

/// Returns whether this word looks like a key by its shape.
pub fn looks_like_key(word: &str) -> bool {
    const PREFIXES: &[&str] = &[
        "sk-",
        "sk_",
        "rk_",
        "ghp_",
        "gho_",
        "ghs_",
        "github_pat_",
        "glpat-",
        "xoxb-",
        "xoxp-",
        "hf_",
        "gsk_",
        "xai-",
        "r8_",
        "AKIA",
        "AIza",
        "eyJ",
        "-----BEGIN",
    ];
    const MIN_KEY_REST_LENGTH: usize = 8;
    let prefixed = PREFIXES.iter().any(|prefix| {
        word.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix))
            && word.len() >= prefix.len() + MIN_KEY_REST_LENGTH
    });
    prefixed || is_hex_key(word) || word.split(['-', '_', '.']).any(is_random)
}

/// Returns whether a word consists of many hex digits only. A run id does not match, because it has a prefix.
fn is_hex_key(word: &str) -> bool {
    const MIN_HEX_KEY_LENGTH: usize = 32;
    word.len() >= MIN_HEX_KEY_LENGTH
        && word.chars().all(|c| c.is_ascii_hexdigit())
        && word.chars().any(|c| c.is_ascii_digit())
        && word.chars().any(|c| c.is_ascii_alphabetic())
}

/// Returns the ranges of a text that must be hidden.
pub fn hidden_ranges(text: &str) -> Vec<Range<usize>> {
    let mut ranges = ranges_in(text);
    if text.contains('\\') {
        ranges.extend(ranges_in(&without_escapes(text)));
    }
    ranges.sort_by_key(|range| (range.start, range.end));
    ranges
}

/// Returns the text with a space for every byte of an escape sequence. A key in quoted JSON often follows a `\n`, whose
/// letter is not part of the key.
fn without_escapes(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        let is_code = |digits: &str| digits.chars().all(|c| c.is_ascii_hexdigit());
        let length = match rest.as_bytes().get(at + 1) {
            Some(b'u') if rest.get(at + 2..at + 6).is_some_and(is_code) => 6,
            Some(b'n' | b'r' | b't' | b'b' | b'f') => 2,
            Some(_) | None => 1,
        };
        out.extend(std::iter::repeat_n(' ', length));
        rest = &rest[at + length..];
    }
    out.push_str(rest);
    out
}

fn ranges_in(text: &str) -> Vec<Range<usize>> {
    let mut ranges = userinfo(text);
    let mut after = String::new();
    for word in pieces(text, 0, |c| c.is_whitespace() || "\"'`,;()<>[]{}".contains(c)) {
        let value = &text[word.clone()];
        // `Basic` is also an ordinary word, so it counts only if no ordinary word follows.
        let follows = (after == "bearer" && value.len() >= 6)
            || (after == "basic" && value.len() >= 8 && !value.chars().all(|c| c.is_lowercase()));
        if follows {
            ranges.push(word.clone());
        }
        after = value.to_lowercase();
        for part in pieces(value, word.start, |c| "?&".contains(c)) {
            if let Some((name, rest)) = text[part.clone()].split_once(['=', ':'])
                && !rest.is_empty()
                && is_credential_name(name)
            {
                ranges.push(part.start + name.len() + 1..part.end);
            }
        }
        for part in pieces(value, word.start, |c| "/:=@?&|!#$%^*".contains(c)) {
            if looks_like_key(&text[part.clone()]) {
                ranges.push(part);
            }
        }
    }
    ranges
}

/// Returns the text with its secrets replaced.
pub fn scrub(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut at = 0;
    for range in hidden_ranges(text) {
        if range.start >= at {
            shown.push_str(&text[at..range.start]);
            shown.push_str(HIDDEN);
        }
        at = at.max(range.end);
    }
    shown.push_str(&text[at..]);
    shown
}

/// Returns the value of a field with its secrets replaced.
pub fn redact(name: &str, value: &Value) -> Value {
    match value {
        Value::Null | Value::Bool(_) => value.clone(),
        _ if is_credential_name(name) => Value::String(HIDDEN.into()),
        Value::Number(_) => value.clone(),
        Value::String(text) if is_pasted_credential(name, text) => Value::String(HIDDEN.into()),
        Value::String(text) => Value::String(scrub(text)),
        Value::Array(items) => {
            let mut shown = Vec::with_capacity(items.len());
            let mut after_flag = false;
            for item in items {
                shown.push(if after_flag { Value::String(HIDDEN.into()) } else { redact("", item) });
                after_flag = item.as_str().is_some_and(is_credential_flag);
            }
            Value::Array(shown)
        }
        Value::Object(entries) => {
            Value::Object(entries.iter().map(|(name, value)| (scrub(name), redact(name, value))).collect())
        }
    }
}

/// Returns whether the argument after this one is a credential, as in `--api-key KEY`.
pub fn is_credential_flag(argument: &str) -> bool {
    argument.starts_with('-') && !argument.contains('=') && is_credential_name(argument)
}

/// Returns the ranges of the user part of every URL in the text.
fn userinfo(text: &str) -> Vec<Range<usize>> {
    text.match_indices("://")
        .filter_map(|(at, mark)| {
            let start = at + mark.len();
            let rest = &text[start..];
            let end = rest.find(|c: char| c.is_whitespace() || "\"'`<>".contains(c)).unwrap_or(rest.len());
            rest[..end].rfind('@').map(|length| start..start + length)
        })
        .collect()
}

/// Returns whether letters and digits alternate so often that the word is random.
fn is_random(word: &str) -> bool {
    const MIN_RANDOM_LENGTH: usize = 20;
    const CHANGES_PER_HUNDRED: usize = 42;
    if word.len() < MIN_RANDOM_LENGTH || !word.is_ascii() {
        return false;
    }
    let kind = |c: char| (c.is_ascii_digit(), c.is_ascii_uppercase());
    let all = [char::is_ascii_digit, char::is_ascii_uppercase, char::is_ascii_lowercase]
        .iter()
        .all(|is_kind| word.chars().any(|c| is_kind(&c)));
    let changes = word.chars().zip(word.chars().skip(1)).filter(|(a, b)| kind(*a) != kind(*b)).count();
    all && changes * 100 >= word.len() * CHANGES_PER_HUNDRED
}

/// Returns the ranges of the non-empty pieces between separators, shifted by `offset`.
fn pieces(text: &str, offset: usize, is_separator: impl Fn(char) -> bool) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut start = 0;
    for (at, c) in text.char_indices() {
        if is_separator(c) {
            if at > start {
                found.push(offset + start..offset + at);
            }
            start = at + c.len_utf8();
        }
    }
    if text.len() > start {
        found.push(offset + start..offset + text.len());
    }
    found
}

#[cfg(test)]
#[path = "secrets_tests.rs"]
mod tests;

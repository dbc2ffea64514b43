//! What of a reply may be shown: a short text without credentials and without what we have sent.

use serde_json::Value;

use synth_optimizer_core::secrets::redact;
use synth_optimizer_core::secrets::scrub;

/// Most characters of a reply that an error shows.
const SHOWN: usize = 200;
/// Most bytes that are looked at of what is no JSON.
const LOOKED_AT: usize = 4 * 1024;

/// The beginning of a reply, as far as it may be shown.
pub(crate) fn excerpt(body: &[u8]) -> String {
    shortened(&summary(body))
}

/// What a reply says, without echoes of the request: pydantic repeats the offending `input`, which may be a whole
/// candidate or policy.
pub(crate) fn summary(body: &[u8]) -> String {
    match serde_json::from_slice::<Value>(body) {
        Ok(value) => match value.get("detail").and_then(Value::as_array).and_then(|list| findings(list)) {
            Some(findings) => scrub(&findings),
            None => text_of(&value),
        },
        Err(_) => {
            let text = String::from_utf8_lossy(&body[..body.len().min(LOOKED_AT)]);
            // JSON that was cut off may hold an echo as well.
            scrub(text.split("\"input\"").next().unwrap_or_default())
        }
    }
}

/// One open value as a short text.
pub(crate) fn shown_value(value: &Value) -> String {
    match value {
        Value::String(text) => shortened(&scrub(text)),
        other => shortened(&text_of(other)),
    }
}

/// What went wrong in the HTTP client, without the address, which may hold a credential.
pub(crate) fn shown_error(error: &reqwest::Error) -> String {
    let mut causes = Vec::new();
    let mut next = std::error::Error::source(error);
    while let Some(cause) = next {
        causes.push(cause.to_string());
        next = cause.source();
    }
    causes.dedup();
    if causes.is_empty() {
        causes.push("the connection broke".into());
    }
    shortened(&scrub(&causes.join(": ")))
}

/// One line without control characters, at most `SHOWN` characters long.
pub(crate) fn shortened(text: &str) -> String {
    let printable: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let line = printable.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None if line.is_empty() => "(empty)".into(),
        None => line,
    }
}

/// The findings of a pydantic error, by type, place and message alone.
fn findings(list: &[Value]) -> Option<String> {
    let finding = |item: &Value| {
        let message = item.get("msg")?.as_str()?;
        let kind = item.get("type").and_then(Value::as_str).unwrap_or("error");
        let place = item.get("loc").and_then(Value::as_array).map(|parts| {
            let parts = parts.iter().map(|part| part.as_str().map_or_else(|| part.to_string(), str::to_owned));
            parts.collect::<Vec<_>>().join(".")
        });
        Some(format!("{kind} at {}: {message}", place.unwrap_or_default()))
    };
    let shown: Option<Vec<String>> = list.iter().map(finding).collect();
    shown.filter(|shown| !shown.is_empty()).map(|shown| shown.join("; "))
}

fn text_of(value: &Value) -> String {
    match redact("", &without_echoes(value)) {
        Value::String(text) => text,
        other => other.to_string(),
    }
}

fn without_echoes(value: &Value) -> Value {
    match value {
        Value::Object(entries) => {
            let kept = entries.iter().filter(|(name, _)| !matches!(name.as_str(), "input" | "ctx"));
            Value::Object(kept.map(|(name, value)| (name.clone(), without_echoes(value))).collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(without_echoes).collect()),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
    }
}

#[cfg(test)]
#[path = "excerpt_tests.rs"]
mod tests;

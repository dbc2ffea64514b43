//! Short excerpts of replies for messages, without credentials and without echoes of the request.

use std::io;

use serde_json::Value;

use synth_optimizer_core::secrets::redact;
use synth_optimizer_core::secrets::scrub;

/// Maximum number of characters of a reply in an error.
const MAX_SHOWN_CHARS: usize = 200;
/// Maximum number of bytes of a non-JSON reply to scan.
const MAX_SCANNED_BYTES: usize = 4 * 1024;

/// Returns the beginning of a reply in a form that is safe to show.
pub(crate) fn excerpt(body: &[u8]) -> String {
    shorten(&summary(body))
}

/// Returns the text of a reply without echoes of the request. Pydantic repeats the invalid `input`, which may be a
/// whole candidate or policy.
pub(crate) fn summary(body: &[u8]) -> String {
    match serde_json::from_slice::<Value>(body) {
        Ok(value) => match value.get("detail").and_then(Value::as_array).and_then(|list| findings(list)) {
            Some(findings) => scrub(&findings),
            None => text_of(&value),
        },
        Err(_) => {
            let text = String::from_utf8_lossy(&body[..body.len().min(MAX_SCANNED_BYTES)]);
            // Truncated JSON may contain an echo too.
            scrub(text.split("\"input\"").next().unwrap_or_default())
        }
    }
}

/// Returns a JSON value as a short text.
pub(crate) fn describe_value(value: &Value) -> String {
    match value {
        Value::String(text) => shorten(&scrub(text)),
        other => shorten(&text_of(other)),
    }
}

/// Describes an error of the HTTP client without the URL, which may contain a credential.
pub(crate) fn describe_error(error: &reqwest::Error) -> String {
    let mut causes = Vec::new();
    let mut next = std::error::Error::source(error);
    while let Some(cause) = next {
        if cause.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::ConnectionRefused) {
            return "nothing listens there (connection refused)".to_owned();
        }
        causes.push(cause.to_string());
        next = cause.source();
    }
    // The client's own name for the phase says nothing that the causes below it do not say.
    if causes.len() > 1 && causes[0].starts_with("client error (") {
        causes.remove(0);
    }
    causes.dedup();
    if causes.is_empty() {
        causes.push("the connection was closed".into());
    }
    shorten(&scrub(&causes.join(": ")))
}

/// Returns one line without control characters, at most `MAX_SHOWN_CHARS` characters long.
pub(crate) fn shorten(text: &str) -> String {
    let printable: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let line = printable.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(MAX_SHOWN_CHARS) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None if line.is_empty() => "(empty)".into(),
        None => line,
    }
}

/// Lists the problems of a pydantic error with type, location and message only.
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

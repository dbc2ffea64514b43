//! Normalized feeds: two runs of one config give the same lines, whatever their names, times, places and caches.

use serde_json::{Map, Value};

use super::canonical::{canonical_json, write_canonical};
use super::error::{ErrorCode, OptimizerError};
use super::event::{EVENT_TYPES, Event};

/// The part of an event that depends on config, seed and answers alone; `None` for events that only tell how the run was carried out.
///
/// Only the type's declared volatile fields are removed, and only at the top of `fields`: texts of users are never
/// touched. Normalizing twice changes nothing.
pub fn normalize(mut event: Value) -> Result<Option<Value>, OptimizerError> {
    let wire = event.get("type").and_then(Value::as_str).unwrap_or_default();
    let Some(known) = EVENT_TYPES.iter().find(|known| known.wire == wire) else {
        return Err(OptimizerError::new(ErrorCode::Json, format!("unknown event type {wire:?}"))
            .with_hint("Read this feed with the release that wrote it, or a newer one."));
    };
    if known.aside {
        return Ok(None);
    }
    let mut out = Map::new();
    out.insert("type".into(), known.wire.into());
    if let Some(message) = event.get_mut("message") {
        out.insert("message".into(), message.take());
    }
    let fields = event.get_mut("fields").map(Value::take);
    let mut fields = if let Some(Value::Object(fields)) = fields { fields } else { Map::new() };
    fields.retain(|key, _| !known.volatile.contains(&key.as_str()));
    out.insert("fields".into(), Value::Object(fields));
    Ok(Some(Value::Object(out)))
}

/// Adds the line of an event with its line break, if normalized feeds have it: the same bytes as `normalize_feed`.
pub fn write_normalized_line(event: &Event, message: &str, out: &mut Vec<u8>) -> Result<(), serde_json::Error> {
    let before = out.len();
    out.extend(br#"{"fields":"#);
    if !event.write_kept_fields(out)? {
        out.truncate(before);
        return Ok(());
    }
    out.extend(br#","message":"#);
    write_canonical(message, &[], out)?;
    out.extend(br#","type":""#);
    out.extend(event.wire().as_bytes());
    out.extend(b"\"}\n");
    Ok(())
}

/// A whole feed, one canonical line per event that is kept.
pub fn normalize_feed(feed: &str) -> Result<String, OptimizerError> {
    let mut out = String::with_capacity(feed.len());
    for (index, line) in feed.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let at = |error: OptimizerError| {
            let message = format!("line {}: {}", index + 1, error.message);
            OptimizerError { message, ..error }
        };
        let event: Value = serde_json::from_str(line)
            .map_err(|error| at(OptimizerError::new(ErrorCode::Json, format!("not JSON: {error}"))))?;
        if let Some(normalized) = normalize(event).map_err(at)? {
            out.push_str(&canonical_json(&normalized));
            out.push('\n');
        }
    }
    Ok(out)
}

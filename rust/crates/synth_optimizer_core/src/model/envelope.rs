//! Lines of event feeds: an event with its sequence number, run and time. Also the normalized feed, which is equal for two
//! runs of one config, independent of their names, times, directories and caches.

use jiff::Timestamp;
use jiff::fmt::temporal::DateTimePrinter;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::canonical::write_canonical;
use super::error::{ErrorCode, OptimizerError};
use super::event::{EVENT_TYPES, Event, message};

/// Version of the envelope's shape.
pub const ENVELOPE_VERSION: u32 = 1;

/// One line of `events.jsonl`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Envelope {
    pub version: u32,
    pub sequence_number: u64,
    pub run_id: String,
    /// RFC 3339, UTC, milliseconds.
    pub ts: String,
    #[serde(flatten)]
    pub event: Event,
    /// The event as a sentence.
    pub message: String,
}

impl Envelope {
    pub fn new(sequence_number: u64, run_id: &str, unix_millis: u64, event: Event) -> Self {
        Self {
            version: ENVELOPE_VERSION,
            sequence_number,
            run_id: run_id.to_owned(),
            ts: rfc3339(unix_millis),
            message: message(&event),
            event,
        }
    }

    /// Returns the envelope as one line of JSON, without the line break.
    pub fn to_line(&self) -> Result<String, OptimizerError> {
        serde_json::to_string(self)
            .map_err(|error| OptimizerError::from_cause(ErrorCode::Json, "encoding an event failed", error))
    }

    /// Parses a line. The line number is for error messages.
    pub fn from_line(line: &str, number: usize) -> Result<Self, OptimizerError> {
        let read = serde_json::from_str::<Self>(line);
        // A newer envelope may not parse as this version, so the version is read separately.
        let version = match &read {
            Ok(envelope) => envelope.version,
            // A line that this version cannot read may still tell its version.
            Err(_) => serde_json::from_str::<Versioned>(line).map_or(ENVELOPE_VERSION, |found| found.version),
        };
        if version > ENVELOPE_VERSION {
            return Err(OptimizerError::new(
                ErrorCode::Json,
                format!("line {number} has version {version}, newer than {ENVELOPE_VERSION}"),
            )
            .with_hint("Read this feed with a newer release."));
        }
        read.map_err(|error| {
            OptimizerError::from_cause(ErrorCode::Json, format!("line {number} is not an event"), error)
                .with_hint("Restore the line from workspace.sqlite. Each line must be one JSON object.")
        })
    }
}

/// The field that every version of the envelope has.
#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

/// Parses a time like `2026-01-31T12:00:00.250Z`, or with an offset like `+02:00`. Returns `None` before 1970.
pub fn unix_millis_of(text: &str) -> Option<u64> {
    u64::try_from(text.parse::<Timestamp>().ok()?.as_millisecond()).ok()
}

/// Formats a time as RFC 3339 in UTC with milliseconds. Times after the year 9999 are clamped to its last millisecond.
pub fn rfc3339(unix_millis: u64) -> String {
    const PRINTER: DateTimePrinter = DateTimePrinter::new().precision(Some(3));
    let moment = i64::try_from(unix_millis).ok().and_then(|millis| Timestamp::from_millisecond(millis).ok());
    PRINTER.timestamp_to_string(&moment.unwrap_or(Timestamp::MAX))
}

/// Returns the part of an event that depends only on config, random seed and answers. Returns `None` for operational events.
///
/// Removes only the declared volatile fields at the top level of `fields`, so texts of users stay as they are. Normalizing
/// twice has the same result as once.
pub fn normalize(mut event: Value) -> Result<Option<Value>, OptimizerError> {
    let wire = event.get("type").and_then(Value::as_str).unwrap_or_default();
    let Some(known) = EVENT_TYPES.iter().find(|known| known.name == wire) else {
        return Err(OptimizerError::new(ErrorCode::Json, format!("unknown event type {wire:?}"))
            .with_hint("Read this feed with the release that wrote it, or a newer one."));
    };
    if known.is_operational {
        return Ok(None);
    }
    let mut out = Map::new();
    out.insert("type".into(), known.name.into());
    if let Some(message) = event.get_mut("message") {
        out.insert("message".into(), message.take());
    }
    let fields = event.get_mut("fields").map(Value::take);
    let mut fields = if let Some(Value::Object(fields)) = fields { fields } else { Map::new() };
    fields.retain(|key, _| !known.volatile.contains(&key.as_str()));
    out.insert("fields".into(), Value::Object(fields));
    Ok(Some(Value::Object(out)))
}

/// Appends the normalized line of an event with its line break: the same bytes as `normalize` returns. Operational events
/// have no such line.
pub fn write_normalized_line(event: &Event, message: &str, out: &mut Vec<u8>) -> Result<(), serde_json::Error> {
    let before = out.len();
    out.extend(br#"{"fields":"#);
    if !event.write_stable_fields(out)? {
        out.truncate(before);
        return Ok(());
    }
    out.extend(br#","message":"#);
    write_canonical(message, &[], out)?;
    out.extend(br#","type":""#);
    out.extend(event.type_name().as_bytes());
    out.extend(b"\"}\n");
    Ok(())
}

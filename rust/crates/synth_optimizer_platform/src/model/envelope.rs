//! One line of the event feed: an event with its sequence number, run and time.

use serde::{Deserialize, Serialize};

use super::error::{ErrorCode, OptimizerError};
use super::event::Event;
use super::message::message;

/// Version of the envelope's shape.
pub const ENVELOPE_VERSION: u32 = 1;

/// An event as it stands in `events.jsonl`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Envelope {
    pub version: u32,
    pub sequence_number: u64,
    pub run_id: String,
    /// RFC 3339, UTC, milliseconds.
    pub ts: String,
    #[serde(flatten)]
    pub event: Event,
    /// The event in words.
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

    /// The envelope as one line of JSON, without the line break.
    pub fn to_line(&self) -> Result<String, OptimizerError> {
        serde_json::to_string(self).map_err(|error| OptimizerError::new(ErrorCode::Json, error.to_string()))
    }

    /// Reads a line; the number is for the message.
    pub fn from_line(line: &str, number: usize) -> Result<Self, OptimizerError> {
        let read = serde_json::from_str::<Self>(line);
        // A newer shape need not be readable as this one, so its version is looked for in broken lines too.
        let version = match &read {
            Ok(envelope) => envelope.version,
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
            OptimizerError::new(ErrorCode::Json, format!("line {number} is not an event: {error}"))
                .with_hint("Events are one JSON object per line; restore the line from workspace.sqlite.")
        })
    }
}

/// What every version of the envelope has.
#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

/// Reads a moment like `2026-01-31T12:00:00.250Z` or with an offset like `+02:00`; nothing before 1970.
pub fn unix_millis_of(text: &str) -> Option<u64> {
    let (date, time) = text.split_once(['T', 't', ' '])?;
    let number = |part: &str, width: usize| {
        (part.len() == width && part.bytes().all(|byte| byte.is_ascii_digit())).then(|| part.parse::<i64>().ok())?
    };
    let mut parts = date.splitn(3, '-');
    let (year, month, day) = (number(parts.next()?, 4)?, number(parts.next()?, 2)?, number(parts.next()?, 2)?);
    let at = time.find(['Z', 'z', '+', '-'])?;
    let (clock, zone) = time.split_at(at);
    let offset = match zone.as_bytes() {
        [b'Z' | b'z'] => 0,
        [sign, ..] => {
            let (hours, minutes) = zone[1..].split_once(':')?;
            let minutes = number(hours, 2)? * 60 + number(minutes, 2)?;
            if *sign == b'-' { -minutes } else { minutes }
        }
        [] => return None,
    };
    let (clock, fraction) = clock.split_once('.').unwrap_or((clock, "0"));
    let mut parts = clock.splitn(3, ':');
    let (hour, minute, second) = (number(parts.next()?, 2)?, number(parts.next()?, 2)?, number(parts.next()?, 2)?);
    let thousandths =
        number(fraction, fraction.len()).map(|_| format!("{fraction:0<3}")[..3].parse::<i64>().ok())??;
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let longest = match month {
        4 | 6 | 9 | 11 => 30,
        2 => 28 + i64::from(leap),
        _ => 31,
    };
    if !(1..=12).contains(&month) || !(1..=longest).contains(&day) || hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    // Days since 1970-01-01 of a civil date, counted in years that begin on 1 March.
    let (years, months) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * years + years / 4 - years / 100 + years / 400 + (153 * months + 2) / 5 + day - 1 - 719_468;
    let seconds = ((days * 24 + hour) * 60 + minute - offset) * 60 + second;
    u64::try_from(seconds * 1000 + thousandths).ok()
}

/// A moment as RFC 3339 in UTC with milliseconds.
pub fn rfc3339(unix_millis: u64) -> String {
    let (seconds, millis) = (unix_millis / 1000, unix_millis % 1000);
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    // Civil date from days since 1970-01-01, counted in eras of 400 years that begin on 1 March of year 0.
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_index = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_index + 2) / 5 + 1;
    let month = if month_index < 10 { month_index + 3 } else { month_index - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

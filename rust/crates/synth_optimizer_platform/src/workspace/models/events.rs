//! The log, page by page, as it stands in `events.jsonl`.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

use super::super::reader::Reader;
use super::query::first;
use super::refusal::{ReadError, after_sequence, page_size};
use synth_optimizer_core::model::envelope::Envelope;

/// Events in their order.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct EventPage {
    /// The events, as they stand in `events.jsonl`.
    #[schemars(with = "Vec<EventEnvelope>")]
    pub items: Vec<Envelope>,
    /// Pass it as `after` to go on from here.
    pub next_after: i64,
    /// The last event of the log; null while there is none.
    pub last_sequence: Option<u64>,
    /// Whether the run is over. Once it is and `next_after` is `last_sequence`, no more will come.
    pub is_over: bool,
}

/// An event: one line of `events.jsonl`.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct EventEnvelope {
    /// Version of this shape.
    pub version: u32,
    /// Its number, without gaps from 0.
    pub sequence_number: u64,
    /// The run.
    pub run_id: String,
    /// When it was stored: RFC 3339, UTC, milliseconds.
    pub ts: String,
    /// The type, such as `candidate.accepted`.
    #[serde(rename = "type")]
    pub event_type: String,
    /// What the type tells.
    pub fields: Map<String, Value>,
    /// The event in words.
    pub message: String,
}

/// After which and how many; whether that can be asked.
pub fn event_window(after: Option<i64>, limit: Option<i64>) -> Result<(i64, usize), ReadError> {
    Ok((after_sequence("after", after)?, page_size(limit, 100, 1000)?))
}

impl Reader {
    /// Events after a sequence number; -1 and nothing mean from the first on. `limit` is 1 to 1000, 100 if it is not set.
    pub fn event_page(&self, after: Option<i64>, limit: Option<i64>) -> Result<EventPage, ReadError> {
        let (after, limit) = event_window(after, limit)?;
        let run_id: Option<String> =
            self.with(|db| first(db, "read the log", "SELECT run_id FROM run", [], |row| row.get(0)))?;
        let run_id = run_id.unwrap_or_default();
        // The state is read after the events: what it counts and the page lacks is on the next page.
        let from = u64::try_from(after.saturating_add(1)).unwrap_or(0);
        let stored = self.events(from, limit)?;
        let totals = self.totals()?;
        let items: Vec<Envelope> = stored
            .into_iter()
            .map(|stored| Envelope::new(stored.sequence, &run_id, stored.unix_millis, stored.event))
            .collect();
        Ok(EventPage {
            next_after: items.last().map_or(after, |last| last.sequence_number as i64),
            items,
            last_sequence: totals.last_sequence,
            is_over: totals.is_over(),
        })
    }
}

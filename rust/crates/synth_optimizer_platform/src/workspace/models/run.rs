//! A run as a whole: its log, page by page, as it stands in `events.jsonl`, and which models it asks.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

use super::super::query::first;
use super::super::reader::Reader;
use super::read_error::{ReadError, after_sequence, page_size};
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

/// The models of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct RunModels {
    /// The model that the program runs with.
    pub policy: ModelUse,
    /// The model that writes proposals.
    pub proposer: ModelUse,
}

/// A model that was asked for, and the one that answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ModelUse {
    /// The model that is asked for; null where the config names none.
    pub requested: Option<String>,
    /// The model that answered last; null is unknown. Containers do not tell it of the policy.
    pub effective: Option<String>,
}

impl RunModels {
    /// The models of a run that has not begun: nobody has answered yet.
    pub fn asked(policy: Option<String>, proposer: Option<String>) -> Self {
        let of = |requested| ModelUse { requested, effective: None };
        Self { policy: of(policy), proposer: of(proposer) }
    }
}

impl Reader {
    /// Events after a sequence number; -1 and nothing mean from the first on. `limit` is 1 to 1000, 100 if it is not set.
    pub fn event_page(&self, after: Option<i64>, limit: Option<i64>) -> Result<EventPage, ReadError> {
        let (after, limit) = event_window(after, limit)?;
        let run_id = self.run_row()?.run_id;
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

    /// The models of the run.
    pub fn run_models(&self) -> Result<RunModels, ReadError> {
        let doing = "read the models";
        self.in_snapshot(|db| {
            let sql = "SELECT config_json ->> '$.policy.model', config_json ->> '$.proposer.model' FROM run";
            let (policy, proposer) = first(db, doing, sql, [], |row| row.try_into())?.unwrap_or_default();
            let sql = "SELECT requested_model, effective_model FROM proposer_calls
                       WHERE status = 'completed' ORDER BY request DESC LIMIT 1";
            let (asked, effective): (Option<String>, _) =
                first(db, doing, sql, [], |row| row.try_into())?.unwrap_or_default();
            let policy = ModelUse { requested: policy, effective: None };
            Ok(RunModels { policy, proposer: ModelUse { requested: asked.or(proposer), effective } })
        })
    }
}

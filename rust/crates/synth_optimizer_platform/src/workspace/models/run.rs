//! Pages of a run's log, as in `events.jsonl`, the language models that the run uses, and its search.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

use super::super::query::{MILESTONES, document, first};
use super::super::reader::Reader;
use super::read_error::{ReadError, after_sequence, page_size};
use synth_optimizer_core::model::envelope::Envelope;
use synth_optimizer_core::model::error::OptimizerError;
use synth_optimizer_core::model::event_fields::{SearchChosen, SearchMode};

/// A page of events, in order.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct EventPage {
    /// The events, as in `events.jsonl`.
    #[schemars(with = "Vec<EventEnvelope>")]
    pub items: Vec<Envelope>,
    /// Pass it as `after` to get the next page.
    pub next_after: i64,
    /// Sequence number of the last event. Null while the log is empty.
    pub last_sequence: Option<u64>,
    /// Whether the run has ended. If it has, and `next_after` equals `last_sequence`, there are no more events.
    pub is_terminal: bool,
}

/// An event: one line of `events.jsonl`.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct EventEnvelope {
    /// Version of the envelope.
    pub version: u32,
    /// Sequence number, from 0 without gaps.
    pub sequence_number: u64,
    /// The run.
    pub run_id: String,
    /// When it was stored: RFC 3339, UTC, milliseconds.
    pub ts: String,
    /// The type, such as `candidate.accepted`.
    #[serde(rename = "type")]
    pub event_type: String,
    /// The fields of this event type.
    pub fields: Map<String, Value>,
    /// The event as a sentence.
    pub message: String,
}

/// Checks the parameters of an event page. Returns the sequence number after which it begins, and its size.
pub fn event_window(after: Option<i64>, limit: Option<i64>) -> Result<(i64, usize), ReadError> {
    Ok((after_sequence("after", after)?, page_size(limit, 100, 1000)?))
}

/// The language models of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct RunModels {
    /// The model that the program runs with.
    pub policy: ModelUse,
    /// The model that writes proposals.
    pub proposer: ModelUse,
}

/// A requested model, and the one that answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ModelUse {
    /// The requested model. Null if the config names none.
    pub requested: Option<String>,
    /// The model that answered last. Null if unknown; containers do not report it for the policy.
    pub effective: Option<String>,
}

impl RunModels {
    /// Returns the models of a run that has not started, for which no model has answered yet.
    pub fn asked(policy: Option<String>, proposer: Option<String>) -> Self {
        let of = |requested| ModelUse { requested, effective: None };
        Self { policy: of(policy), proposer: of(proposer) }
    }
}

impl Reader {
    /// Returns a page of events after a sequence number. -1 and `None` mean from the first on. `limit` is 1 to 1000, by
    /// default 100.
    pub fn event_page(&self, after: Option<i64>, limit: Option<i64>) -> Result<EventPage, ReadError> {
        let (after, limit) = event_window(after, limit)?;
        let run_id = self.run_row()?.run_id;
        // The totals are read after the events. Events that are stored in between are on the next page.
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
            is_terminal: totals.is_terminal(),
        })
    }

    /// Returns the models of the run.
    pub fn run_models(&self) -> Result<RunModels, ReadError> {
        let doing = "read the models";
        self.in_snapshot(|db| {
            let sql = "SELECT config_json ->> '$.policy.model', config_json ->> '$.proposer.model' FROM run";
            let (policy, proposer) = first(db, doing, sql, [], |row| row.try_into())?.unwrap_or_default();
            let sql = "SELECT requested_model, effective_model FROM proposer_calls
                       WHERE status = 'completed' ORDER BY call_id DESC LIMIT 1";
            let (asked, effective): (Option<String>, _) =
                first(db, doing, sql, [], |row| row.try_into())?.unwrap_or_default();
            let policy = ModelUse { requested: policy, effective: None };
            Ok(RunModels { policy, proposer: ModelUse { requested: asked.or(proposer), effective } })
        })
    }

    /// Returns the search of the run and why it was chosen; `None` before the choice.
    ///
    /// The log has no choice if the configuration asks for the reference search, or if no other was known when the run started.
    pub fn search(&self) -> Result<Option<SearchChosen>, OptimizerError> {
        let doing = "read the search";
        self.in_snapshot(|db| {
            let sql = format!("SELECT fields FROM {MILESTONES} AND type = 'search.chosen' LIMIT 1");
            let chosen = document(db, doing, &sql, [])?;
            if chosen.is_some() || self.totals()?.counts.candidates == 0 {
                return Ok(chosen);
            }
            let sql = "SELECT config_json ->> '$.gepa.search' FROM run";
            let set: Option<String> = first(db, doing, sql, [], |row| row.get(0))?.flatten();
            let reason = match set {
                Some(set) => format!("`gepa.search` is {set:?}"),
                None => "the version that started the run has no other".to_owned(),
            };
            Ok(Some(SearchChosen { search: SearchMode::Reference, reason }))
        })
    }
}

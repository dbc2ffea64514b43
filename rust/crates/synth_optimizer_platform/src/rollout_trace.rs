//! One rollout with the reply of the container, and the part of the reply that a proposer sees.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use crate::json_text;
use crate::proposer::shown_reply;
use crate::workspace::models::{ReadError, RolloutEntry, RowSplit};
use crate::workspace::{Reader, SnapshotKind};
use synth_optimizer_core::config::redacted;
use synth_optimizer_core::model::ids::CallId;

/// The largest reply that is returned, in bytes.
const MAX_REPLY_BYTES: u64 = 8 << 20;
/// How much of a reply the evidence holds, in bytes: what a proposer sees when its evidence fits.
const MAX_EVIDENCE_BYTES: usize = 16 << 10;

/// A rollout, with the container's reply if the caller asked for it.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct RolloutDetail {
    /// The rollout.
    #[serde(flatten)]
    pub rollout: RolloutEntry,
    /// The stored reply. Null if the caller did not ask for it, or if none is stored.
    pub trace: Option<RolloutTrace>,
}

/// The reply of the container to a rollout.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct RolloutTrace {
    /// Size of the reply in bytes.
    pub bytes: u64,
    /// Whether the reply is too large to be returned here. It can be read from the workspace.
    pub is_too_large: bool,
    /// The reply, with credentials hidden.
    pub reply: Option<Value>,
    /// The part of the reply that a proposer sees.
    pub evidence: Option<RolloutEvidence>,
}

/// The part of a reply that a proposer sees.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct RolloutEvidence {
    /// The container's feedback on the rollout, from each field in which containers may put it.
    pub feedback: Vec<RolloutFeedback>,
    /// The rest of the reply, without repeated inputs and empty entries. The middle of a long record is left out.
    pub record: String,
}

/// One piece of feedback.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct RolloutFeedback {
    /// `Feedback` or `Details`.
    pub name: String,
    /// The text.
    pub text: String,
}

impl Reader {
    /// Returns one rollout by its call number or by its `rollout_id`, with the reply if `with_trace` is true.
    pub fn rollout(&self, name: &str, with_trace: bool) -> Result<RolloutDetail, ReadError> {
        let rollout = self.rollout_entry(name)?;
        let reply = if with_trace { self.reply_up_to(CallId(rollout.call_id), MAX_REPLY_BYTES)? } else { None };
        Ok(RolloutDetail { rollout, trace: reply.map(|(bytes, reply)| trace(bytes, reply.as_deref())) })
    }
}

/// The fields in which containers put the id of a row.
const ID_FIELDS: [&str; 4] = ["example_id", "id", "task_instance_id", "task_id"];

impl Reader {
    /// Returns the row as the container described it, with credentials hidden. `None` if it did not name the row.
    pub fn row_document(&self, split: RowSplit, example_id: &str) -> Result<Option<Value>, ReadError> {
        let kind = match split {
            RowSplit::Train => SnapshotKind::TrainRows,
            RowSplit::Heldout => SnapshotKind::HeldoutRows,
        };
        let is_named = |row: &Value| {
            let mut names = ID_FIELDS.iter().filter_map(|field| row.get(*field)).chain(row.get("seed"));
            names.any(|name| match name {
                Value::String(name) => name == example_id,
                Value::Number(number) => {
                    let number = number.to_string();
                    example_id == number || example_id.rsplit_once(':').is_some_and(|(_, last)| last == number)
                }
                _ => false,
            })
        };
        let rows = self.snapshot(kind)?.unwrap_or_default();
        Ok(rows.as_array().into_iter().flatten().find(|row| is_named(row)).map(redacted))
    }
}

/// Builds the trace of a reply. `reply` is `None` if the reply is too large.
fn trace(bytes: u64, reply: Option<&[u8]>) -> RolloutTrace {
    let Some(plain) = reply else {
        return RolloutTrace { bytes, is_too_large: true, reply: None, evidence: None };
    };
    let reply = json_text::stored_value(plain);
    let (feedback, record) = shown_reply(&shown_fields(reply.clone()), MAX_EVIDENCE_BYTES);
    let feedback = feedback.into_iter().map(|(name, text)| RolloutFeedback { name: name.to_owned(), text });
    let evidence = RolloutEvidence { feedback: feedback.collect(), record };
    RolloutTrace { bytes, is_too_large: false, reply: Some(redacted(&reply)), evidence: Some(evidence) }
}

/// Fields of a reply that hold ids and timestamps, which say nothing about the task.
const VOLATILE_REPLY_FIELDS: &[&str] = &["rollout_id", "trace_correlation_id", "created_at", "updated_at"];

/// Returns a reply without its ids and timestamps, which a proposer does not see.
pub(crate) fn shown_fields(mut reply: Value) -> Value {
    if let Some(fields) = reply.as_object_mut() {
        fields.retain(|name, _| !VOLATILE_REPLY_FIELDS.contains(&name.as_str()));
    }
    reply
}

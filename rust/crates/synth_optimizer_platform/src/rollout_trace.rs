//! One rollout with the reply of the container, and what a proposer is shown of it.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use crate::proposer::shown_reply;
use crate::workspace::Reader;
use crate::workspace::models::{ReadError, RolloutEntry};
use synth_optimizer_core::config::redacted;
use synth_optimizer_core::model::ids::RequestId;

/// The largest reply that is shown.
const MOST_BYTES: u64 = 8 << 20;
/// How much of a reply a proposer would be shown, in bytes, where evidence is not scarce.
const EVIDENCE_BYTES: usize = 16 << 10;

/// A rollout with its reply, where that was asked for.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct RolloutDetail {
    /// The rollout.
    #[serde(flatten)]
    pub rollout: RolloutEntry,
    /// The stored reply; null where it was not asked for or there is none.
    pub trace: Option<RolloutTrace>,
}

/// The reply of the container to a rollout.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct RolloutTrace {
    /// Bytes of the reply.
    pub bytes: u64,
    /// Whether it is too large to be shown here; read it from the workspace then.
    pub is_too_large: bool,
    /// The reply, with credentials hidden.
    pub reply: Option<Value>,
    /// What of it a proposer is shown.
    pub evidence: Option<RolloutEvidence>,
}

/// What of a reply a proposer is shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct RolloutEvidence {
    /// What the container says about how it went, from each place where containers put it.
    pub feedback: Vec<RolloutFeedback>,
    /// The record without echoes and empty entries, cut in its middle where it is long.
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
    /// One rollout, by its number or by the id under which the container knows it, with its reply if it is wanted.
    pub fn rollout(&self, name: &str, with_trace: bool) -> Result<RolloutDetail, ReadError> {
        let rollout = self.rollout_entry(name)?;
        let reply = if with_trace { self.reply_up_to(RequestId(rollout.request), MOST_BYTES)? } else { None };
        Ok(RolloutDetail { rollout, trace: reply.map(|(bytes, reply)| trace(bytes, reply.as_deref())) })
    }
}

/// What is shown of a reply; without the reply, it is too large.
fn trace(bytes: u64, reply: Option<&[u8]>) -> RolloutTrace {
    let Some(plain) = reply else {
        return RolloutTrace { bytes, is_too_large: true, reply: None, evidence: None };
    };
    let reply = serde_json::from_slice::<Value>(plain)
        .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(plain).into_owned()));
    let (feedback, record) = shown_reply(&without_names(&reply), EVIDENCE_BYTES);
    let feedback = feedback.into_iter().map(|(name, text)| RolloutFeedback { name: name.to_owned(), text });
    let evidence = RolloutEvidence { feedback: feedback.collect(), record };
    RolloutTrace { bytes, is_too_large: false, reply: Some(redacted(&reply)), evidence: Some(evidence) }
}

/// A reply without the parts that tell when and under which name it ran: a proposer is not shown them.
fn without_names(reply: &Value) -> Value {
    let mut reply = reply.clone();
    if let Some(fields) = reply.as_object_mut() {
        for name in ["rollout_id", "trace_correlation_id", "created_at", "updated_at"] {
            fields.shift_remove(name);
        }
    }
    reply
}

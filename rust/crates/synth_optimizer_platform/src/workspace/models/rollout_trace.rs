//! One rollout, with the reply of the container and what a proposer is shown of it.

use rusqlite::Connection;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use super::super::error::{DAMAGED, sqlite};
use super::super::reader::Reader;
use super::super::store::int;
use super::query::{at_one_moment, first, whole};
use super::refusal::{ReadError, quoted};
use super::rollouts::{RolloutEntry, rollout};
use crate::proposer::shown_reply;
use crate::unpack::unpack;
use synth_optimizer_core::config::redacted;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};

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
    /// One rollout, by its number or by the id under which the container knows it. By id, the calls of the run are looked
    /// through.
    pub fn rollout(&self, name: &str, with_trace: bool) -> Result<RolloutDetail, ReadError> {
        let (rollout, packed) = at_one_moment(self, |db| {
            let request = request_of(db, name)?.ok_or_else(|| no_rollout(name))?;
            let rollout = rollout(db, request)?.ok_or_else(|| no_rollout(name))?;
            let packed = if with_trace { packed_reply(db, rollout.request)? } else { None };
            Ok((rollout, packed))
        })?;
        let trace = packed.map(|packed| self.trace(rollout.request, packed)).transpose()?;
        Ok(RolloutDetail { rollout, trace })
    }

    fn trace(&self, request: u64, packed: Packed) -> Result<RolloutTrace, OptimizerError> {
        let Packed { bytes, data } = packed;
        let Some(data) = data else {
            return Ok(RolloutTrace { bytes, is_too_large: true, reply: None, evidence: None });
        };
        let plain = unpack(&data, bytes).ok_or_else(|| {
            let message = format!("the reply to request {request} in {} is damaged", self.path().display());
            OptimizerError::new(ErrorCode::Sqlite, message).with_hint(DAMAGED)
        })?;
        let reply = serde_json::from_slice::<Value>(&plain)
            .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&plain).into_owned()));
        let (feedback, record) = shown_reply(&without_names(&reply), EVIDENCE_BYTES);
        let feedback = feedback.into_iter().map(|(name, text)| RolloutFeedback { name: name.to_owned(), text });
        let evidence = RolloutEvidence { feedback: feedback.collect(), record };
        Ok(RolloutTrace { bytes, is_too_large: false, reply: Some(redacted(&reply)), evidence: Some(evidence) })
    }
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

fn no_rollout(name: &str) -> ReadError {
    let message = format!("the run has no rollout {}", quoted(name));
    let hint = "Name a rollout by its request number or by its rollout_id; list the rollouts of the run to see both.";
    ReadError::not_found("rollout_not_found", "rollout_id", message, hint)
}

/// The number of a rollout that is named by it or by its id.
fn request_of(db: &Connection, name: &str) -> Result<Option<i64>, OptimizerError> {
    if !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit()) {
        return Ok(name.parse().ok());
    }
    // No index: it would slow down every rollout for the few that are looked up so.
    let sql = "SELECT request FROM calls WHERE rollout_id = ?1 ORDER BY request LIMIT 1";
    first(db, "look for a rollout", sql, [name], |row| row.get(0))
}

struct Packed {
    bytes: u64,
    /// None where it is too large.
    data: Option<Vec<u8>>,
}

fn packed_reply(db: &Connection, request: u64) -> Result<Option<Packed>, OptimizerError> {
    let sql = "SELECT size, CASE WHEN size <= ?2 THEN data END FROM replies WHERE request = ?1";
    db.prepare_cached(sql)
        .and_then(|mut statement| {
            let mut rows = statement.query([int(request), int(MOST_BYTES)])?;
            rows.next()?.map(|row| Ok(Packed { bytes: whole(row, 0)?, data: row.get(1)? })).transpose()
        })
        .map_err(sqlite(format_args!("read the reply to request {request}")))
}

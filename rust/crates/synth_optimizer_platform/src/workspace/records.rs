//! What the workspace stores: batches of the log, each in one transaction, and records beside the log.

use std::sync::OnceLock;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::reply::Reply;
use synth_optimizer_core::model::answer::Answer;
use synth_optimizer_core::model::envelope::{ENVELOPE_VERSION, rfc3339};
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::event::Event;
use synth_optimizer_core::model::event_effects::CallKind;
use synth_optimizer_core::model::ids::CallId;
use synth_optimizer_core::string_enum;

/// An event with its sequence number and time in the log.
#[derive(Debug, Clone)]
pub struct StoredEvent {
    pub sequence: u64,
    pub unix_millis: u64,
    pub event: Event,
    /// The serialized fields of the event. The log and the feed contain the same text.
    text: OnceLock<String>,
}

impl StoredEvent {
    pub fn new(sequence: u64, unix_millis: u64, event: Event) -> Self {
        Self { sequence, unix_millis, event, text: OnceLock::new() }
    }

    /// Returns the fields as JSON. They are serialized once.
    pub fn fields_json(&self) -> Result<&str, serde_json::Error> {
        if let Some(text) = self.text.get() {
            return Ok(text);
        }
        let text = self.event.fields_json()?;
        Ok(self.text.get_or_init(|| text))
    }

    /// Appends the event as a line of `events.jsonl`, without the line break: the same bytes as `Envelope::to_line`, but
    /// built from the fields that are already serialized. `message` describes the event in words.
    pub fn write_line(&self, run_id: &str, message: &str, out: &mut Vec<u8>) -> Result<(), OptimizerError> {
        self.write_envelope(run_id, message, out)
            .map_err(|error| OptimizerError::from_cause(ErrorCode::Json, "an event cannot be written as JSON", error))
    }

    fn write_envelope(&self, run_id: &str, message: &str, out: &mut Vec<u8>) -> Result<(), serde_json::Error> {
        out.extend(br#"{"version":"#);
        serde_json::to_writer(&mut *out, &ENVELOPE_VERSION)?;
        out.extend(br#","sequence_number":"#);
        serde_json::to_writer(&mut *out, &self.sequence)?;
        out.extend(br#","run_id":"#);
        serde_json::to_writer(&mut *out, run_id)?;
        out.extend(br#","ts":""#);
        out.extend(rfc3339(self.unix_millis).as_bytes());
        out.extend(br#"","type":""#);
        out.extend(self.event.type_name().as_bytes());
        out.extend(br#"","fields":"#);
        out.extend(self.fields_json()?.as_bytes());
        out.extend(br#","message":"#);
        serde_json::to_writer(&mut *out, message)?;
        out.push(b'}');
        Ok(())
    }
}

impl PartialEq for StoredEvent {
    fn eq(&self, other: &Self) -> bool {
        (self.sequence, self.unix_millis, &self.event) == (other.sequence, other.unix_millis, &other.event)
    }
}

/// A call that is about to be sent. It is stored before it is sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SentCall {
    pub call_id: CallId,
    pub kind: CallKind,
    /// The id under which the container knows the rollout.
    pub rollout_id: Option<String>,
    pub unix_millis: u64,
}

string_enum! {
    /// How a call used the cache.
    CacheAction { Hit = "hit", Miss = "miss", Write = "write", }
}

/// A call's use of the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheUse {
    /// Hex digest.
    pub key: String,
    pub action: CacheAction,
}

/// A call with its answer.
#[derive(Debug, Clone, PartialEq)]
pub struct AnsweredCall {
    pub call_id: CallId,
    pub kind: CallKind,
    pub unix_millis: u64,
    pub answer: Answer,
    /// Whether the answer's event is in the same batch. If not, the answer waits in the inbox.
    pub retired: bool,
    pub cache: Option<CacheUse>,
    /// The complete reply. Its digest is the answer's `trace_digest`.
    pub reply: Option<Reply>,
}

/// Events and calls that are stored together in one transaction.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Batch {
    pub events: Vec<StoredEvent>,
    pub sent: Vec<SentCall>,
    pub answered: Vec<AnsweredCall>,
    /// Calls that were stored as sent in an earlier batch and did not leave the process, because of an outage.
    pub unsent: Vec<CallId>,
    /// Requests whose answers came in an earlier batch and whose events are in this one.
    pub retired: Vec<CallId>,
}

/// The description of the run. Written once, when the workspace is created.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunRow {
    pub run_id: String,
    pub algorithm: String,
    /// The effective config, without secrets.
    pub config: Value,
    pub config_digest: String,
    pub container_url: String,
    /// `off`, `readwrite` or `readonly`.
    pub cache_mode: String,
    pub cache_namespace: String,
    pub cache_path: Option<String>,
    pub output_dir: String,
    pub run_dir: String,
    pub created_at: u64,
}

string_enum! {
    /// Which document of the container a snapshot contains.
    SnapshotKind {
        /// `/metadata`
        Contract = "contract",
        Program = "program",
        TaskInfo = "task_info",
        /// The reply of the dataset or taskset route.
        Dataset = "dataset",
        /// The train rows, as an array.
        TrainRows = "train_rows",
        HeldoutRows = "heldout_rows",
    }
}

/// A file of the run, with the digest of its content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ArtifactRef {
    pub path: String,
    pub kind: String,
    /// Hex.
    pub sha256: String,
    pub bytes: u64,
    pub retention: String,
}

/// A record that is stored beside the log.
#[derive(Debug, Clone, PartialEq)]
pub enum Record {
    /// A call that loads the task. Its boundary is a name such as `container.program`.
    SetupCall { boundary: String, unix_millis: u64, cache: Option<CacheUse> },
    /// A document that the container returned. Equal documents are stored once.
    Snapshot { kind: SnapshotKind, unix_millis: u64, document: Value },
    /// A file, with its path relative to the run directory. A second record of the same path replaces the first.
    Artifact { file: ArtifactRef, unix_millis: u64 },
    /// The manifest of a run that has ended.
    Manifest { path: String, document: Value, unix_millis: u64 },
    /// An operation on the run, such as `start` or `resume`, and the process that did it.
    Operation { operation_type: String, subject: String, unix_millis: u64 },
}

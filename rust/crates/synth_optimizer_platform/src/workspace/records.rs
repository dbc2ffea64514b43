//! What is stored: batches of the log, each in one transaction, and what stands beside the log.

use std::sync::OnceLock;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use synth_optimizer_core::model::answer::Answer;
use synth_optimizer_core::model::envelope::{ENVELOPE_VERSION, rfc3339};
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::event::Event;
use synth_optimizer_core::model::event_meaning::CallKind;
use synth_optimizer_core::model::ids::RequestId;
use synth_optimizer_core::words;

/// An event with its place and moment in the log.
#[derive(Debug, Clone)]
pub struct Stored {
    pub sequence: u64,
    pub unix_millis: u64,
    pub event: Event,
    /// The fields of the event on the wire: the log and the feed have the same text.
    text: OnceLock<String>,
}

impl Stored {
    pub fn new(sequence: u64, unix_millis: u64, event: Event) -> Self {
        Self { sequence, unix_millis, event, text: OnceLock::new() }
    }

    /// The fields as JSON, written once.
    pub fn fields_json(&self) -> Result<&str, serde_json::Error> {
        if let Some(text) = self.text.get() {
            return Ok(text);
        }
        let text = self.event.fields_json()?;
        Ok(self.text.get_or_init(|| text))
    }

    /// The event as a line of `events.jsonl`, without the line break: the same bytes as `Envelope::to_line`, put together
    /// from what is serialized already. `message` is the event in words.
    pub fn line(&self, run_id: &str, message: &str) -> Result<String, OptimizerError> {
        let fields = self.fields_json().map_err(|error| {
            OptimizerError::from_cause(ErrorCode::Json, "an event cannot be written as JSON", error)
        })?;
        let (run_id, message) = (Value::from(run_id), Value::from(message));
        let (sequence, at, wire) = (self.sequence, rfc3339(self.unix_millis), self.event.wire());
        Ok(format!(
            r#"{{"version":{ENVELOPE_VERSION},"sequence_number":{sequence},"run_id":{run_id},"ts":"{at}","type":"{wire}","fields":{fields},"message":{message}}}"#
        ))
    }
}

impl PartialEq for Stored {
    fn eq(&self, other: &Self) -> bool {
        (self.sequence, self.unix_millis, &self.event) == (other.sequence, other.unix_millis, &other.event)
    }
}

/// A call that is about to be sent. It is stored before it is sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sent {
    pub request: RequestId,
    pub kind: CallKind,
    /// The id under which the container knows the rollout.
    pub rollout_id: Option<String>,
    pub unix_millis: u64,
}

words! {
    /// What the cache did for a call.
    CacheAction { Hit = "hit", Miss = "miss", Write = "write", }
}

/// A call's use of the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheUse {
    /// Hex digest.
    pub key: String,
    pub action: CacheAction,
}

/// An answer that has come.
#[derive(Debug, Clone, PartialEq)]
pub struct Answered {
    pub request: RequestId,
    pub kind: CallKind,
    pub unix_millis: u64,
    pub answer: Answer,
    /// Whether its event is in the same batch. If not, the answer waits in the inbox.
    pub retired: bool,
    pub cache: Option<CacheUse>,
    /// The whole reply. Its digest is the answer's `trace_digest`.
    pub reply: Option<Bytes>,
}

/// One transaction of the log.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Batch {
    pub events: Vec<Stored>,
    pub sent: Vec<Sent>,
    pub answered: Vec<Answered>,
    /// Requests whose answers came in an earlier batch and whose events are in this one.
    pub retired: Vec<RequestId>,
}

/// What the run is; written once, when the workspace is created.
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

words! {
    /// Which document of the container a snapshot is.
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

/// A file of the run, named by its content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ArtifactRef {
    pub path: String,
    pub kind: String,
    /// Hex.
    pub sha256: String,
    pub bytes: u64,
    pub retention: String,
}

/// Anything that is stored beside the log.
#[derive(Debug, Clone, PartialEq)]
pub enum Record {
    /// A call that loads the task; its boundary is such as `container.program`.
    SetupCall { boundary: String, unix_millis: u64, cache: Option<CacheUse> },
    /// A document that the container gave. The same document twice is stored once.
    Snapshot { kind: SnapshotKind, unix_millis: u64, document: Value },
    /// A file, with its path relative to the run directory. A path written again replaces its row.
    Artifact { file: ArtifactRef, unix_millis: u64 },
    /// The manifest of a run that is over.
    Manifest { path: String, document: Value, unix_millis: u64 },
    /// Something that was asked of the run and done, such as `start` or `resume`, and who asked.
    Operation { operation_type: String, subject: String, unix_millis: u64 },
}

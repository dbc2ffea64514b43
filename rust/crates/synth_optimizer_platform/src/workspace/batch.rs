//! What is stored together: all of it in one transaction, or none.

use std::sync::OnceLock;

use bytes::Bytes;

use synth_optimizer_core::model::answer::Answer;
use synth_optimizer_core::model::event::Event;
use synth_optimizer_core::model::event_meaning::CallKind;
use synth_optimizer_core::model::ids::RequestId;

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

/// What the cache did for a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheAction {
    Hit,
    Miss,
    Write,
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

/// One transaction.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Batch {
    pub events: Vec<Stored>,
    pub sent: Vec<Sent>,
    pub answered: Vec<Answered>,
    /// Requests whose answers came in an earlier batch and whose events are in this one.
    pub retired: Vec<RequestId>,
}

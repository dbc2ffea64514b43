//! Lines of `events.jsonl`, put together from an event that is serialized once.

use std::io::Write;

use crate::workspace::Stored;
use synth_optimizer_core::model::envelope::{ENVELOPE_VERSION, rfc3339};
use synth_optimizer_core::model::error::OptimizerError;

use super::fault;

/// Writes lines of one run.
#[derive(Debug)]
pub(super) struct LineWriter {
    run_id: String,
    /// The last moment with its text: the events of a batch often share it.
    moment: (u64, String),
}

impl LineWriter {
    pub(super) fn new(run_id: &str) -> Self {
        Self { run_id: quoted(run_id), moment: (0, rfc3339(0)) }
    }

    /// Adds the line of an event with its line break; `message` is the event in words. The same bytes as `Envelope::to_line`.
    pub(super) fn push(&mut self, stored: &Stored, message: &str, out: &mut Vec<u8>) -> Result<(), OptimizerError> {
        let failed = |error: serde_json::Error| fault::json("an event", error);
        if self.moment.0 != stored.unix_millis {
            self.moment = (stored.unix_millis, rfc3339(stored.unix_millis));
        }
        // Writing to memory cannot fail.
        let _ = write!(
            out,
            r#"{{"version":{ENVELOPE_VERSION},"sequence_number":{},"run_id":{},"ts":"{}","type":"{}","fields":"#,
            stored.sequence,
            self.run_id,
            self.moment.1,
            stored.event.wire(),
        );
        out.extend_from_slice(stored.fields_json().map_err(failed)?.as_bytes());
        out.extend_from_slice(br#","message":"#);
        serde_json::to_writer(&mut *out, message).map_err(failed)?;
        out.extend_from_slice(b"}\n");
        Ok(())
    }
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

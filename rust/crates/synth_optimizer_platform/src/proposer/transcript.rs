//! Transcripts of turns, compressed and without secrets.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};
use serde_json::{Value, json};

use super::TurnId;
use super::files::make_dir;
use crate::artifacts::TRANSCRIPTS;
use crate::clock::unix_millis;
use crate::warn_if_err;
use synth_optimizer_core::config::redacted;
use synth_optimizer_core::secrets::{HIDDEN, Secret, scrub};

/// Maximum size of one transcript, and of one message in it.
const MAX_TRANSCRIPT_BYTES: usize = 32 * 1024 * 1024;
const MAX_MESSAGE_BYTES: usize = 1024 * 1024;
/// Shorter values are not redacted, because that would hide ordinary words.
const MIN_SECRET_BYTES: usize = 6;

/// Hides credentials: texts that look like one, and the values that this process knows.
#[derive(Debug, Clone, Default)]
pub(super) struct Redactor {
    known: Arc<[Secret]>,
}

impl Redactor {
    /// Creates a redactor. `known` are the credentials of the proposer.
    pub(super) fn new(known: impl IntoIterator<Item = Secret>) -> Self {
        Self { known: known.into_iter().filter(|secret| secret.expose().len() >= MIN_SECRET_BYTES).collect() }
    }

    pub(super) fn text(&self, text: &str) -> String {
        scrub(&self.hide_known(text))
    }

    /// Hides only the known credentials in a text.
    pub(super) fn hide_known(&self, text: &str) -> String {
        self.known.iter().fold(text.to_owned(), |text, secret| text.replace(secret.expose(), HIDDEN))
    }

    /// Hides only the known credentials in the values and keys of a document.
    pub(super) fn hide_known_in(&self, value: &Value) -> Value {
        map_texts(value, &|text| self.hide_known(text))
    }
}

/// Applies a function to every text of a document, in values and keys.
pub(super) fn map_texts(value: &Value, change: &dyn Fn(&str) -> String) -> Value {
    match value {
        Value::String(text) => Value::String(change(text)),
        Value::Array(items) => items.iter().map(|item| map_texts(item, change)).collect(),
        Value::Object(entries) => {
            Value::Object(entries.iter().map(|(name, value)| (change(name), map_texts(value, change))).collect())
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
    }
}

/// A transcript in progress. It is written when it is dropped, so an aborted turn leaves one too.
#[derive(Debug)]
pub(super) struct Transcript {
    path: Utf8PathBuf,
    redactor: Redactor,
    lines: Vec<u8>,
}

impl Transcript {
    pub(super) fn new(run_dir: &Utf8Path, turn: TurnId, redactor: Redactor) -> Self {
        let path = run_dir.join(TRANSCRIPTS).join(format!("{}.jsonl.zst", turn.name()));
        Self { path, redactor, lines: Vec::new() }
    }

    /// Adds one message; `from` is its sender.
    pub(super) fn add(&mut self, from: &str, message: &Value) {
        let mut message = redacted(&self.redactor.hide_known_in(message));
        let size = message.to_string().len();
        if size > MAX_MESSAGE_BYTES {
            message = json!({ "left_out": format!("{size} bytes") });
        }
        let line = json!({ "at": unix_millis(), "from": from, "message": message }).to_string();
        if self.lines.len() + line.len() < MAX_TRANSCRIPT_BYTES {
            self.lines.extend_from_slice(line.as_bytes());
            self.lines.push(b'\n');
        }
    }

    fn write(&self) -> std::io::Result<()> {
        make_dir(self.path.parent().unwrap_or(&self.path))?;
        let packed = zstd::bulk::compress(&self.lines, 3)?;
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&self.path)?.write_all(&packed)
    }
}

impl Drop for Transcript {
    fn drop(&mut self) {
        // A lost transcript does not fail the run. A full disk is reported by other writes.
        warn_if_err!(self.write(), "writing the transcript of a turn failed");
    }
}

#[cfg(test)]
#[path = "transcript_tests.rs"]
mod tests;

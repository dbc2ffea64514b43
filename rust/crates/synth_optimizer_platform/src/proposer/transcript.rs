//! What was said in a turn, kept compressed and without secrets.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};
use serde_json::{Value, json};

use super::TurnId;
use super::files::make_dir;
use crate::clock::unix_millis;
use crate::warn_if_err;
use synth_optimizer_core::config::redacted;
use synth_optimizer_core::secrets::{HIDDEN, Secret, scrub};

/// Directory of the transcripts in the run directory.
pub const TRANSCRIPTS: &str = "proposer_transcripts";

/// Most bytes of one transcript, and of one message in it.
const MOST: usize = 32 * 1024 * 1024;
const MOST_OF_ONE: usize = 1024 * 1024;
/// Secrets shorter than this are no secrets, and hiding them would hide ordinary words.
const SHORTEST: usize = 6;

/// Hides credentials: those that look like one, and those that this process knows.
#[derive(Debug, Clone, Default)]
pub(super) struct Redactor {
    known: Arc<[Secret]>,
}

impl Redactor {
    /// `known` are the values of the credentials that a proposer was given.
    pub(super) fn new(known: impl IntoIterator<Item = Secret>) -> Self {
        Self { known: known.into_iter().filter(|secret| secret.expose().len() >= SHORTEST).collect() }
    }

    pub(super) fn text(&self, text: &str) -> String {
        scrub(&self.known_hidden(text))
    }

    /// The text without the credentials that this process knows, and otherwise as it is.
    pub(super) fn known_hidden(&self, text: &str) -> String {
        self.known.iter().fold(text.to_owned(), |text, secret| text.replace(secret.expose(), HIDDEN))
    }

    /// A document without the credentials that this process knows, in values and in names.
    pub(super) fn without_known(&self, value: &Value) -> Value {
        with_texts(value, &|text| self.known_hidden(text))
    }
}

/// A document with other texts, in values and in names.
pub(super) fn with_texts(value: &Value, change: &dyn Fn(&str) -> String) -> Value {
    match value {
        Value::String(text) => Value::String(change(text)),
        Value::Array(items) => items.iter().map(|item| with_texts(item, change)).collect(),
        Value::Object(entries) => {
            Value::Object(entries.iter().map(|(name, value)| (change(name), with_texts(value, change))).collect())
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
    }
}

/// A transcript under way. It is written when it is dropped, so that a turn that is broken off leaves one as well.
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

    /// Adds one message; `from` is who said it.
    pub(super) fn add(&mut self, from: &str, message: &Value) {
        let mut message = redacted(&self.redactor.without_known(message));
        let size = message.to_string().len();
        if size > MOST_OF_ONE {
            message = json!({ "left_out": format!("{size} bytes") });
        }
        let line = json!({ "at": unix_millis(), "from": from, "message": message }).to_string();
        if self.lines.len() + line.len() < MOST {
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
        // A transcript is evidence, not a part of the run: a full disk is noticed where it matters.
        warn_if_err!(self.write(), "the transcript of a turn was not written");
    }
}

#[cfg(test)]
#[path = "transcript_tests.rs"]
mod tests;

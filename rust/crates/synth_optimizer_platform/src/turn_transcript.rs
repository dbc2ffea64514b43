//! One proposer turn in detail: what the proposer was shown and what it answered, from the transcript of the turn.

use std::io::Read;

use camino::Utf8Path;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::artifacts::{TRANSCRIPTS, open_artifact};
use crate::json_text;
use crate::packing::unpack_whole;
use crate::workspace::Reader;
use crate::workspace::models::{ReadError, TurnEntry};
use synth_optimizer_core::config::redacted;
use synth_optimizer_core::model::ids::CallId;

/// The largest packed transcript that is read, in bytes. A larger file was not written by a run.
const MAX_FILE_BYTES: u64 = 40 << 20;
/// How much of a transcript and of an answer is returned, in bytes.
const MAX_SHOWN_BYTES: usize = 2 << 20;

/// A proposer turn, with its answer and its transcript.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct TurnDetail {
    /// The turn.
    #[serde(flatten)]
    pub turn: TurnEntry,
    /// The stored answer: the proposals with their texts or edits and rationales. Null if there is none.
    pub answer: Option<Value>,
    /// Why the answer is missing.
    pub answer_problem: Option<String>,
    /// The exchange with the proposer.
    pub transcript: TurnTranscript,
}

/// The exchange of a turn. Credentials are hidden.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
pub struct TurnTranscript {
    /// Name of the artifact with the whole transcript. Null if there is none.
    pub artifact: Option<String>,
    /// Why the transcript, or a part of it, is missing.
    pub problem: Option<String>,
    /// The texts that the proposer was shown, in order.
    pub shown: Vec<TranscriptText>,
    /// The texts that the proposer wrote, in order.
    pub answered: Vec<TranscriptText>,
    /// Every message, in order, as far as they fit.
    pub messages: Vec<TranscriptMessage>,
    /// Number of messages that are left out, because the transcript is too large.
    pub left_out: u64,
}

/// A text of the exchange.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct TranscriptText {
    /// The role of its author, such as `system`, `user` or `assistant`.
    pub role: String,
    /// The text.
    pub text: String,
}

/// A message of a transcript.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TranscriptMessage {
    /// When it was sent or received, in milliseconds since 1970.
    pub at: u64,
    /// The sender: `optimizer`, `codex`, `endpoint` or `note`.
    pub from: String,
    /// The message.
    pub message: Value,
}

impl Reader {
    /// Returns one proposer turn by its number, with its answer and its transcript. A transcript that is missing or damaged is a
    /// problem in the answer, not an error.
    pub fn turn(&self, name: &str) -> Result<TurnDetail, ReadError> {
        let turn = self.turn_entry(name)?;
        let (answer, answer_problem) = match self.answer_of(turn.call.call_id) {
            Ok(answer) => (Some(answer), None),
            Err(problem) => (None, Some(problem)),
        };
        let transcript = self.transcript(&turn);
        Ok(TurnDetail { turn, answer, answer_problem, transcript })
    }

    fn answer_of(&self, call_id: u64) -> Result<Value, String> {
        match self.reply_up_to(CallId(call_id), MAX_SHOWN_BYTES as u64) {
            Err(error) => Err(error.message),
            Ok(None) => Err("no answer is stored for this turn".to_owned()),
            Ok(Some((bytes, None))) => Err(format!("the answer has {bytes} bytes, which is too large to be shown")),
            Ok(Some((_, Some(reply)))) => Ok(redacted(&json_text::stored_value(&reply))),
        }
    }

    fn transcript(&self, turn: &TurnEntry) -> TurnTranscript {
        let name = format!("{TRANSCRIPTS}/turn_{:06}_{}.jsonl.zst", turn.call.call_id, turn.call.attempt);
        let of = |problem: String| TurnTranscript { problem: Some(problem), ..TurnTranscript::default() };
        let Some(dir) = self.path().parent().and_then(Utf8Path::from_path) else {
            return of("the run directory is not known".to_owned());
        };
        let packed = match open_artifact(dir, None, &name) {
            Ok(opened) if opened.entry.bytes > MAX_FILE_BYTES => Err(format!("{name} is too large to be a transcript")),
            Ok(opened) => {
                let mut packed = Vec::new();
                let read = opened.file.take(opened.entry.bytes).read_to_end(&mut packed);
                read.map(|_| packed).map_err(|error| format!("{name} cannot be read: {error}"))
            }
            Err(ReadError::NotFound(_)) => {
                let why = match turn.call.cached {
                    Some(true) => "the cache answered this turn, so the proposer was not asked",
                    Some(false) => "the run directory has no transcript of this turn",
                    None => "the transcript is written when the turn ends",
                };
                return of(why.to_owned());
            }
            Err(ReadError::Invalid(refusal)) => Err(refusal.message),
            Err(ReadError::Failed(error)) => Err(error.message),
        };
        let plain = packed.and_then(|packed| {
            unpack_whole(&packed).ok_or_else(|| format!("{name} is damaged: it is not a complete zstd file"))
        });
        match plain {
            Ok(plain) => TurnTranscript { artifact: Some(name), ..read_lines(&plain) },
            Err(problem) => TurnTranscript { artifact: Some(name), ..of(problem) },
        }
    }
}

/// Reads the lines of a transcript, up to the size that is shown.
fn read_lines(plain: &[u8]) -> TurnTranscript {
    let (mut found, mut bytes, mut damaged) = (TurnTranscript::default(), 0_usize, 0_u64);
    for line in plain.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        bytes = bytes.saturating_add(line.len());
        let Ok(message) = serde_json::from_slice::<TranscriptMessage>(line) else {
            damaged += 1;
            continue;
        };
        if bytes > MAX_SHOWN_BYTES {
            found.left_out += 1;
            continue;
        }
        match message.from.as_str() {
            "optimizer" => found.shown.extend(shown_texts(&message.message)),
            _ => found.answered.extend(answered_texts(&message.message)),
        }
        found.messages.push(message);
    }
    found.problem = (damaged > 0).then(|| format!("{damaged} lines of the transcript are damaged and left out"));
    found
}

fn text(role: &str, text: &str) -> TranscriptText {
    TranscriptText { role: role.to_owned(), text: text.to_owned() }
}

/// Returns the texts of a question: of a chat request, a request for a response, or a turn of codex.
fn shown_texts(question: &Value) -> Vec<TranscriptText> {
    let mut found = Vec::new();
    found.extend(question["instructions"].as_str().map(|instructions| text("system", instructions)));
    found.extend(question["input"].as_str().map(|input| text("user", input)));
    for message in question["messages"].as_array().into_iter().flatten() {
        found.extend(message["content"].as_str().map(|said| text(message["role"].as_str().unwrap_or("user"), said)));
    }
    for item in question["input"].as_array().into_iter().flatten() {
        found.extend(item["text"].as_str().map(|said| text("user", said)));
    }
    found
}

/// Returns the texts of an answer: of a chat completion, a response, or a completed item of codex.
fn answered_texts(answer: &Value) -> Vec<TranscriptText> {
    let (mut found, body) = (Vec::new(), &answer["body"]);
    for choice in body["choices"].as_array().into_iter().flatten() {
        found.extend(choice["message"]["content"].as_str().map(|said| text("assistant", said)));
    }
    for item in body["output"].as_array().into_iter().flatten() {
        for part in item["content"].as_array().into_iter().flatten() {
            found.extend(part["text"].as_str().map(|said| text("assistant", said)));
        }
    }
    let item = &answer["params"]["item"];
    if answer["method"] == "item/completed" && item["type"] == "agentMessage" {
        found.extend(item["text"].as_str().map(|said| text("assistant", said)));
    }
    found
}

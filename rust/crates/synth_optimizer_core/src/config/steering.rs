//! What a user demands of candidates: instructions, texts to keep, guarded rows and a maximum length.

use std::collections::BTreeMap;

use camino::Utf8PathBuf;
use serde_json::Value;

use super::load::ReadText;
use super::proposer::ProposerSection;
use super::report::{Code, EntryPart, Report};
use super::tree::SourceLocation;
use crate::model::ids::Payload;

/// Maximum length of `proposer.instructions`, in characters.
pub(super) const MAX_INSTRUCTIONS_CHARS: usize = 32_768;
/// Maximum length of one text to keep, in characters.
pub(super) const MAX_KEEP_CHARS: usize = 4096;

const INSTRUCTIONS: &str = "proposer.instructions";
const INSTRUCTIONS_FILE: &str = "proposer.instructions_file";

/// A guarded row as the configuration names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GuardRow {
    /// A row number of the train split, for `[dataset]`.
    Number(i64),
    /// The id of a row, as the run shows it.
    Id(String),
}

impl GuardRow {
    /// Reads an entry of `gepa.guard_ids`. Returns `None` if it is neither a text nor a whole number.
    pub fn read(entry: &Value) -> Option<Self> {
        match entry {
            Value::String(id) => Some(Self::Id(id.clone())),
            Value::Number(number) => number.as_i64().map(Self::Number),
            Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
        }
    }
}

/// Estimates the tokens of a text with this many characters: one for each 4 characters, rounded up. A run has no tokenizer of the
/// policy's model, and the same text must have the same length in every run.
pub fn estimated_tokens(chars: usize) -> u64 {
    (chars as u64).div_ceil(4)
}

/// Estimates the tokens of a candidate: all of its target texts together.
pub fn candidate_tokens(payload: &Payload, targets: &[String]) -> u64 {
    let chars = |field: &String| payload.get(field).map_or(0, |text| text.chars().count());
    estimated_tokens(targets.iter().map(chars).sum())
}

/// Returns what is wrong with a text of the user, if anything: code, the rest of a sentence about it, and the hint.
pub(super) fn text_problem(text: &str, most: usize) -> Option<(Code, String, String)> {
    let is_control = |c: &char| c.is_control() && !matches!(c, '\n' | '\r' | '\t');
    if text.trim().is_empty() {
        return Some((Code::Blank, "is blank".to_owned(), "Give the text, or leave it out.".to_owned()));
    }
    if let Some(found) = text.chars().find(is_control) {
        let line = text.split(found).next().unwrap_or_default().matches('\n').count() + 1;
        let problem = format!("contains the control character U+{:04X} in line {line} of its text", u32::from(found));
        return Some((Code::ControlCharacter, problem, "Remove it; line breaks and tabs are allowed.".to_owned()));
    }
    let chars = text.chars().count();
    (chars > most).then(|| {
        (Code::TextTooLong, format!("has {chars} characters"), format!("Shorten it to at most {most} characters."))
    })
}

/// Replaces `instructions_file` with the text of that file. A problem of the file is a finding.
pub(super) fn read_instructions(
    proposer: &mut ProposerSection,
    locations: &mut BTreeMap<String, SourceLocation>,
    report: &mut Report<'_>,
    read: ReadText<'_>,
) {
    let is_readable = report.is_readable(INSTRUCTIONS) && report.is_readable(INSTRUCTIONS_FILE);
    // If both are set, or the path begins with `~`, that is already reported.
    let is_home = |path: &Utf8PathBuf| path.components().any(|part| part.as_str() == "~");
    if proposer.instructions.is_some() || !is_readable || proposer.instructions_file.as_ref().is_some_and(is_home) {
        return;
    }
    let Some(path) = proposer.instructions_file.take() else { return };
    let location = locations.get(INSTRUCTIONS_FILE).cloned();
    let read = read(&path).map(|text| text.strip_prefix('\u{feff}').map_or(text.clone(), str::to_owned));
    let problem = match &read {
        Ok(text) => text_problem(text, MAX_INSTRUCTIONS_CHARS),
        Err(reason) => {
            let hint = "Name a readable text file, relative to the config file, or write proposer.instructions.";
            Some((Code::UnreadableFile, reason.clone(), hint.to_owned()))
        }
    };
    match (problem, read) {
        (None, Ok(text)) => {
            proposer.instructions = Some(text);
            locations.extend(location.map(|location| (INSTRUCTIONS.to_owned(), location)));
        }
        (Some((code, problem, hint)), _) => {
            let message = format!("`{INSTRUCTIONS_FILE}`: {path} {problem}");
            let location = location.as_ref().map(|location| (location, EntryPart::Value));
            report.push(code, INSTRUCTIONS_FILE, message, hint, location);
        }
        (None, Err(_)) => {}
    }
}

#[cfg(test)]
#[path = "steering_tests.rs"]
mod tests;

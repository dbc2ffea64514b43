//! Edits: changes of a text that quote the places that they change, and how they are laid over it.

use std::borrow::Cow;
use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::string_enum;

string_enum! {
    /// What an edit does.
    EditOperation {
        /// Puts `text` in the place of `find`.
        Replace = "replace",
        /// Adds the lines of `text` after the line in which `find` ends.
        InsertAfter = "insert_after",
        /// Adds the lines of `text` at the end.
        Append = "append",
        /// Removes `find`; with whole lines, also their line breaks.
        Delete = "delete",
    }
}

/// One change of a text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Edit {
    pub operation: EditOperation,
    /// The place, quoted exactly. It occurs once in the text as it is after the edits before this one. Unused by `append`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub find: String,
    /// The new text. Unused by `delete`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub text: String,
}

/// An edit that cannot be applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EditFault {
    /// Position of the edit in its list, from 1.
    pub number: usize,
    pub operation: EditOperation,
    /// The quoted place.
    pub find: String,
    pub cause: EditCause,
}

/// Why an edit cannot be applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EditCause {
    /// `find` is empty.
    EmptyFind,
    /// There is nothing to add.
    EmptyText,
    /// `find` occurs in the original text, and an edit before this one changed it.
    ChangedBefore,
    /// Every part of `find` occurs, but not together: order, spaces or line breaks differ.
    NotTogether,
    /// A part of `find` does not occur. `nearest` is the most similar part of the text, if there is a similar one.
    NotFound { nearest: Option<String> },
    /// `find` occurs more than once. The count ends at [`MAX_COUNTED`].
    Ambiguous { count: usize },
}

/// The number at which counting occurrences ends.
pub const MAX_COUNTED: usize = 100;

/// Maximum number of faults that are returned. Later edits are not tried.
const MAX_FAULTS: usize = 16;

/// Lines with more characters are compared sentence by sentence.
const MAX_LINE_CHARS: usize = 120;

/// Minimum similarity of the nearest part of a text.
const MIN_SIMILARITY: f64 = 0.2;

/// Lays edits over a text, one after the other, or returns every edit that cannot be applied. An edit after a faulty one is
/// tried on the text without it.
///
/// Line breaks in edits are those of the text: `\r\n` and `\n` are the same, unless the text mixes them.
pub fn lay_over(base: &str, edits: &[Edit]) -> Result<String, Vec<EditFault>> {
    let breaks = LineBreaks::of(base);
    let (mut text, mut faults) = (base.to_owned(), Vec::new());
    for (index, edit) in edits.iter().enumerate() {
        match breaks.apply(&text, edit) {
            Ok(changed) => text = changed,
            Err(cause) => {
                let is_missing = matches!(cause, EditCause::NotFound { .. } | EditCause::NotTogether);
                let was_changed = is_missing && base.contains(&*breaks.adapted(&edit.find));
                faults.push(EditFault {
                    number: index + 1,
                    operation: edit.operation,
                    find: edit.find.clone(),
                    cause: if was_changed { EditCause::ChangedBefore } else { cause },
                });
                if faults.len() == MAX_FAULTS {
                    break;
                }
            }
        }
    }
    if faults.is_empty() { Ok(text) } else { Err(faults) }
}

/// The line breaks of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LineBreaks {
    Unix,
    Windows,
    Mixed,
}

impl LineBreaks {
    fn of(text: &str) -> Self {
        match (text.matches('\n').count(), text.matches("\r\n").count()) {
            (_, 0) => Self::Unix,
            (all, windows) if all == windows => Self::Windows,
            _ => Self::Mixed,
        }
    }

    const fn as_str(self) -> &'static str {
        match self {
            Self::Windows => "\r\n",
            Self::Unix | Self::Mixed => "\n",
        }
    }

    /// Returns a part of an edit with these line breaks.
    fn adapted(self, part: &str) -> Cow<'_, str> {
        match self {
            _ if !part.contains('\n') => part.into(),
            Self::Mixed => part.into(),
            Self::Unix => part.replace("\r\n", "\n").into(),
            Self::Windows => part.replace("\r\n", "\n").replace('\n', "\r\n").into(),
        }
    }

    fn apply(self, text: &str, edit: &Edit) -> Result<String, EditCause> {
        let (find, new) = (self.adapted(&edit.find), self.adapted(&edit.text));
        let adds_lines = matches!(edit.operation, EditOperation::InsertAfter | EditOperation::Append);
        if adds_lines && new.trim().is_empty() {
            return Err(EditCause::EmptyText);
        }
        if edit.operation == EditOperation::Append {
            return Ok(self.append(text, &new));
        }
        if find.is_empty() {
            return Err(EditCause::EmptyFind);
        }
        let start = only_place(text, &find)?;
        let end = start + find.len();
        Ok(if edit.operation == EditOperation::InsertAfter {
            self.insert_lines(text, end, &new)
        } else if edit.operation == EditOperation::Delete || new.is_empty() {
            delete(text, start, end)
        } else {
            [&text[..start], &*new, &text[end..]].concat()
        })
    }

    fn append(self, text: &str, new: &str) -> String {
        let lines = lines_of(new);
        match text {
            "" => lines.to_owned(),
            _ if text.ends_with('\n') => [text, lines, self.as_str()].concat(),
            _ => [text, self.as_str(), lines].concat(),
        }
    }

    /// Adds lines after the line in which a match ends.
    fn insert_lines(self, text: &str, end: usize, new: &str) -> String {
        let lines = lines_of(new);
        if text[..end].ends_with('\n') {
            return [&text[..end], lines, self.as_str(), &text[end..]].concat();
        }
        let line_end = text[end..].find('\n').map_or(text.len(), |place| end + place);
        let line_end = if text[end..line_end].ends_with('\r') { line_end - 1 } else { line_end };
        [&text[..line_end], self.as_str(), lines, &text[line_end..]].concat()
    }
}

/// Returns lines to add, without the line break of the last one. A line break at the beginning is an empty line.
fn lines_of(text: &str) -> &str {
    text.strip_suffix("\r\n").or_else(|| text.strip_suffix('\n')).unwrap_or(text)
}

/// Removes a range. If it consists of whole lines, their last line break is removed too.
fn delete(text: &str, start: usize, end: usize) -> String {
    let (before, after) = (&text[..start], &text[end..]);
    let is_start = before.is_empty() || before.ends_with('\n');
    let line_break = ["\r\n", "\n"].into_iter().find(|line_break| after.starts_with(line_break));
    match (is_start && !text[start..end].ends_with('\n'), line_break) {
        (true, Some(line_break)) => [before, &after[line_break.len()..]].concat(),
        (true, None) if after.is_empty() => {
            let before = before.strip_suffix('\n').unwrap_or(before);
            before.strip_suffix('\r').unwrap_or(before).to_owned()
        }
        _ => [before, after].concat(),
    }
}

/// Returns where a text occurs, if it occurs once.
fn only_place(text: &str, find: &str) -> Result<usize, EditCause> {
    let mut places = Vec::new();
    let mut from = 0;
    // Occurrences that overlap count too.
    while let Some(place) = text[from..].find(find).map(|place| from + place) {
        places.push(place);
        from = text.ceil_char_boundary(place + 1);
        if places.len() == MAX_COUNTED {
            break;
        }
    }
    match places[..] {
        [] => Err(missing(text, find)),
        [place] => Ok(place),
        _ => Err(EditCause::Ambiguous { count: places.len() }),
    }
}

/// Returns why a text does not occur.
fn missing(text: &str, find: &str) -> EditCause {
    let Some(part) = parts(find).find(|part| !text.contains(part)) else { return EditCause::NotTogether };
    let wanted = pairs(part);
    let similarity = |known: &str| {
        let known = pairs(known);
        let shared = wanted.intersection(&known).count();
        2.0 * shared as f64 / (wanted.len() + known.len()).max(1) as f64
    };
    let similar = parts(text).map(|known| (similarity(known), known)).filter(|(score, _)| *score >= MIN_SIMILARITY);
    // Among equal ones, the first.
    let nearest = similar.reduce(|best, next| if next.0 > best.0 { next } else { best });
    EditCause::NotFound { nearest: nearest.map(|(_, known)| known.to_owned()) }
}

/// Returns the lines of a text, and the sentences of long lines, without white space around them.
fn parts<'t>(text: &'t str) -> impl Iterator<Item = &'t str> {
    let split = |line: &'t str| {
        let is_long = line.chars().nth(MAX_LINE_CHARS).is_some();
        let is_end = move |c: char| is_long && matches!(c, '.' | '!' | '?' | ';' | '。' | '！' | '？');
        line.split_inclusive(is_end)
    };
    text.lines().flat_map(split).map(str::trim).filter(|part| !part.is_empty())
}

/// Returns the pairs of neighbouring characters, in lower case.
fn pairs(text: &str) -> BTreeSet<(char, char)> {
    let folded: Vec<char> = text.to_lowercase().chars().collect();
    folded.windows(2).map(|pair| (pair[0], pair[1])).collect()
}

#[cfg(test)]
#[path = "edit_tests.rs"]
mod tests;

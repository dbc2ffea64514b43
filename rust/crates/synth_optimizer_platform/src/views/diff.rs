//! The difference of two texts, word by word.

use std::collections::VecDeque;

use maud::{Markup, PreEscaped, html};
use parking_lot::Mutex;
use similar::{Algorithm, DiffTag, capture_diff_slices};

use super::words::{cut, visible};
use crate::digest::Sha256;

/// What became of a piece of text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    Same,
    Removed,
    Added,
}

/// Above this many pieces, texts are compared by lines; above as many lines, as a whole.
const MAX_PIECES: usize = 8_000;
/// Unchanged lines that are shown around a change.
const CONTEXT_LINES: usize = 3;

/// Returns the pieces of both texts in order. Those that are not added make up `before`, and those that are not removed make up
/// `after`.
pub(super) fn word_diff(before: &str, after: &str) -> Vec<(Change, String)> {
    let (old, new) = (words(before), words(after));
    let (old_lines, new_lines) = (lines(before), lines(after));
    if let Some(found) = compare(&old, &new) {
        found
    } else if let Some(found) = compare(&old_lines, &new_lines) {
        found
    } else {
        vec![(Change::Removed, before.to_owned()), (Change::Added, after.to_owned())]
    }
}

/// Compares two lists of pieces. Returns `None` if they are too long.
fn compare(old: &[&str], new: &[&str]) -> Option<Vec<(Change, String)>> {
    // A proposal keeps most of a long text, and the time of a comparison grows with the number of differences.
    let start = old.iter().zip(new).take_while(|(left, right)| left == right).count();
    let (rest_old, rest_new) = (old.get(start..)?, new.get(start..)?);
    let end = rest_old.iter().rev().zip(rest_new.iter().rev()).take_while(|(left, right)| left == right).count();
    let (mid_old, tail) = rest_old.split_at(rest_old.len() - end);
    let mid_new = rest_new.get(..rest_new.len() - end)?;
    if mid_old.len() + mid_new.len() > MAX_PIECES {
        return None;
    }
    let mut found = vec![(Change::Same, old.get(..start)?.concat())];
    for operation in capture_diff_slices(Algorithm::Myers, mid_old, mid_new) {
        let removed = mid_old.get(operation.old_range())?.concat();
        match operation.tag() {
            DiffTag::Equal => found.push((Change::Same, removed)),
            DiffTag::Delete | DiffTag::Insert | DiffTag::Replace => {
                found.push((Change::Removed, removed));
                found.push((Change::Added, mid_new.get(operation.new_range())?.concat()));
            }
        }
    }
    found.push((Change::Same, tail.concat()));
    found.retain(|(_, text)| !text.is_empty());
    Some(found)
}

/// Splits a text into words, runs of white space and single signs.
fn words(text: &str) -> Vec<&str> {
    #[derive(PartialEq, Clone, Copy)]
    enum Kind {
        Space,
        Word,
        Sign,
    }
    let kind = |ch: char| match ch {
        ch if ch.is_whitespace() => Kind::Space,
        ch if ch.is_alphanumeric() || ch == '_' => Kind::Word,
        _ => Kind::Sign,
    };
    let mut found = Vec::new();
    let mut begin = 0;
    let mut last = None;
    for (at, ch) in text.char_indices() {
        let now = kind(ch);
        if last.is_some_and(|last| last != now || now == Kind::Sign) {
            found.extend(text.get(begin..at));
            begin = at;
        }
        last = Some(now);
    }
    found.extend(text.get(begin..).filter(|rest| !rest.is_empty()));
    found
}

fn lines(text: &str) -> Vec<&str> {
    text.split_inclusive('\n').collect()
}

/// The differences that were shown last, by the digest of both texts. A live run shows the same one again and again.
static RECENT: Mutex<VecDeque<([u8; 32], String)>> = Mutex::new(VecDeque::new());
/// Differences that are kept. Each is at most a few times as long as its texts, which are cut.
const MAX_RECENT: usize = 16;

/// Shows the difference of two texts. Long parts without a change are folded.
pub(super) fn diff_block(before: &str, after: &str) -> Markup {
    let mut digest = Sha256::new();
    [&before.len().to_le_bytes()[..], before.as_bytes(), after.as_bytes()].iter().for_each(|part| digest.update(part));
    let digest = digest.finish();
    let known = RECENT.lock().iter().find(|(known, _)| *known == digest).map(|(_, html)| html.clone());
    if let Some(html) = known {
        return PreEscaped(html);
    }
    let shown = new_diff_block(before, after);
    let mut recent = RECENT.lock();
    recent.truncate(MAX_RECENT - 1);
    recent.push_front((digest, shown.0.clone()));
    shown
}

fn new_diff_block(before: &str, after: &str) -> Markup {
    let ((before, cut_before), (after, cut_after)) = (cut(before), cut(after));
    let pieces = word_diff(before, after);
    let last = pieces.len().saturating_sub(1);
    html! {
        div.diff dir="auto" tabindex="0" role="group" aria-label="changes" {
            @for (place, (change, text)) in pieces.iter().enumerate() {
                @match change {
                    Change::Same => (same(text, place == 0, place == last)),
                    Change::Removed => del { (visible(text)) },
                    Change::Added => ins { (visible(text)) },
                }
            }
        }
        @if cut_before + cut_after > 0 {
            p.muted { "The texts are too long to be compared as a whole; the difference is that of their beginnings." }
        }
    }
}

/// Shows unchanged text, of which the lines next to changes are enough.
fn same(text: &str, is_first: bool, is_last: bool) -> Markup {
    let all = lines(text);
    let (head, tail) = (if is_first { 0 } else { CONTEXT_LINES }, if is_last { 0 } else { CONTEXT_LINES });
    if all.len() <= head + tail + CONTEXT_LINES {
        return html! { (visible(text)) };
    }
    let (head, rest) = all.split_at(head);
    let (hidden, tail) = rest.split_at(rest.len() - tail);
    html! {
        (visible(&head.concat()))
        details.same {
            summary { (hidden.len()) " unchanged lines" }
            (visible(&hidden.concat()))
        }
        (visible(&tail.concat()))
    }
}

#[cfg(test)]
mod tests {
    use super::{Change, MAX_RECENT, RECENT, diff_block, word_diff, words};

    fn sides(pieces: &[(Change, String)]) -> (String, String) {
        let of = |left_out: Change| {
            pieces.iter().filter(|(change, _)| *change != left_out).map(|(_, text)| text.as_str()).collect()
        };
        (of(Change::Added), of(Change::Removed))
    }

    #[test]
    fn pieces_make_up_both_texts() {
        let long = "word ".repeat(20_000);
        let other = "other\n".repeat(20_000);
        for (before, after) in [
            ("", ""),
            ("", "new"),
            ("old", ""),
            ("Route the ticket.", "Route each ticket to a queue."),
            ("a\nb\nc\n", "a\nc\nd\n"),
            ("\u{e4}\u{f6} \u{1f600}!", "\u{e4} \u{1f600}\u{1f600}!?"),
            (&long, &other),
        ] {
            let pieces = word_diff(before, after);
            assert_eq!(sides(&pieces), (before.to_owned(), after.to_owned()));
        }
    }

    #[test]
    fn only_changed_words_are_changes() {
        let pieces = word_diff("Answer with one word.", "Answer with two words.");
        let changed: Vec<&str> =
            pieces.iter().filter(|(change, _)| *change != Change::Same).map(|(_, text)| text.as_str()).collect();
        assert_eq!(changed, ["one", "two", "word", "words"]);
        assert_eq!(words("a_1, b"), ["a_1", ",", " ", "b"]);
    }

    #[test]
    fn a_difference_is_shown_again_and_told_apart_from_others() {
        let first = diff_block("kept old", "kept new").into_string();
        assert_eq!(diff_block("kept old", "kept new").into_string(), first);
        assert_ne!(diff_block("kept ol", "dkept new").into_string(), first);
        for number in 0..2 * MAX_RECENT {
            diff_block("a", &format!("b{number}"));
        }
        assert!(RECENT.lock().len() <= MAX_RECENT);
        assert_eq!(diff_block("kept old", "kept new").into_string(), first);
    }

    #[test]
    fn a_word_in_a_long_text_is_found() {
        let before = "word ".repeat(100_000);
        let after = format!("{before}end");
        assert_eq!(word_diff(&before, &after).last(), Some(&(Change::Added, "end".to_owned())));
    }
}

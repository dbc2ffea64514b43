//! Blanks the secrets of a TOML text in place, also where the text is not valid TOML.

use std::ops::Range;

use super::scan::{Scan, may_name_credential};
use super::secrets::{hidden_ranges, is_credential_name, is_variable_name, names_key_variable};
use super::tree::{Node, Place, Tree};

/// Whether the parser understood the whole text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Syntax {
    Valid,
    Broken,
}

/// The text with every secret character replaced by `*`; lines and columns stay where they are.
///
/// Two readings are joined: the parsed tree knows decoded names, and the scan of the text knows what the parser gave up on.
pub(super) fn mask(text: &str, tree: &Node, syntax: Syntax) -> String {
    let mut ranges = Scan::new(text).run();
    known_secrets(tree, text, &mut ranges);
    match syntax {
        Syntax::Valid => {}
        Syntax::Broken => suspicious_lines(text, &mut ranges),
    }
    let mut hidden = vec![false; text.len()];
    for range in ranges {
        for flag in &mut hidden[range.start..range.end.min(text.len())] {
            *flag = true;
        }
    }
    text.char_indices().map(|(at, c)| if hidden[at] && c != '\n' && c != '\r' { '*' } else { c }).collect()
}

/// Where brackets and quotes cannot be trusted, whatever follows a credential's name on its line is hidden.
fn suspicious_lines(text: &str, ranges: &mut Vec<Range<usize>>) {
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        let mut at = start;
        for word in line.split_inclusive(|c: char| !(c.is_alphanumeric() || "_-\\".contains(c))) {
            at += word.len();
            let name = word.trim_end_matches(|c: char| !(c.is_alphanumeric() || c == '_'));
            if may_name_credential(name) || names_key_variable(name) {
                let rest = &text[at..start + line.len()];
                let is_open = ['"', '\''].iter().any(|quote| rest.matches(*quote).count() % 2 == 1)
                    || rest.matches(['[', '{']).count() > rest.matches([']', '}']).count();
                // A value that goes on below has no end that could be trusted.
                ranges.push(at..if is_open { text.len() } else { start + line.len() });
                break;
            }
        }
        start += line.len();
    }
}

fn known_secrets(node: &Node, text: &str, ranges: &mut Vec<Range<usize>>) {
    match &node.tree {
        Tree::Table(entries) => {
            for (name, child) in entries {
                let is_pasted =
                    matches!(&child.tree, Tree::Text(text) if names_key_variable(name) && !is_variable_name(text));
                if is_pasted || is_credential_name(name) {
                    everything(child, ranges);
                } else {
                    known_secrets(child, text, ranges);
                }
            }
        }
        Tree::Array(items) => items.iter().for_each(|item| known_secrets(item, text, ranges)),
        Tree::Text(value) => {
            if let Place::File { value: span, .. } = &node.place
                && !hidden_ranges(value).is_empty()
                && text.get(span.clone()).is_some_and(|raw| raw.contains('\\'))
            {
                ranges.push(span.clone());
            }
        }
        Tree::Null | Tree::Flag(_) | Tree::Integer(_) | Tree::Float(_) => {}
    }
}

/// Hides all values below a node but no header, whose span would cover the name only.
fn everything(node: &Node, ranges: &mut Vec<Range<usize>>) {
    match &node.tree {
        Tree::Table(entries) => entries.iter().for_each(|(_, child)| everything(child, ranges)),
        Tree::Array(items) => items.iter().for_each(|item| everything(item, ranges)),
        Tree::Null | Tree::Flag(_) | Tree::Integer(_) | Tree::Float(_) | Tree::Text(_) => {
            if let Place::File { value, .. } = &node.place {
                ranges.push(value.clone());
            }
        }
    }
}

#[cfg(test)]
#[path = "mask_tests.rs"]
mod tests;

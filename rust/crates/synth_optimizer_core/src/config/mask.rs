//! Masks secrets and comments in excerpts of a configuration file.

use std::collections::BTreeSet;
use std::ops::Range;

use super::shape::root;
use super::tree::{Node, SourceLocation, Tree};
use crate::secrets::{hidden_ranges, is_credential_flag, is_credential_name, is_pasted_credential};

/// Returns the text of a valid file with `*` for each character of a secret and spaces for comments. All positions stay
/// the same.
pub(super) fn mask(text: &str, tree: &Node) -> String {
    let mut parts = Vec::new();
    collect(tree, false, &mut parts);
    let (mut is_part, mut is_secret) = (vec![false; text.len()], vec![false; text.len()]);
    for (range, secret) in parts.into_iter().filter(|(range, _)| range.end <= text.len()) {
        is_part[range.clone()].fill(true);
        is_secret[range].fill(secret);
    }
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        hidden_ranges(line).into_iter().for_each(|found| is_secret[start + found.start..start + found.end].fill(true));
        start += line.len();
    }
    let mut in_comment = false;
    let shown = text.char_indices().map(|(at, c)| {
        // Outside of keys and values, `#` starts a comment.
        in_comment = c != '\n' && (in_comment || (c == '#' && !is_part[at]));
        match c {
            '\n' | '\r' => c,
            _ if in_comment => ' ',
            _ if is_secret[at] => '*',
            _ => c,
        }
    });
    shown.collect()
}

/// Returns the text of a file that is not TOML. Shows the names of sections and fields at the start of lines and `*` for
/// everything else, because the extent of values is unknown.
pub(super) fn outline(text: &str) -> String {
    let names: BTreeSet<&str> = root().fields_below().into_iter().map(|(_, field)| field.name.as_str()).collect();
    text.split('\n').map(|line| outline_line(line, &names)).collect::<Vec<_>>().join("\n")
}

fn outline_line(line: &str, names: &BTreeSet<&str>) -> String {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut at = 0;
    while let Some(c) = line[at..].chars().next() {
        let rest = &line[at..];
        let name = &rest[..rest.find(|c| !is_name(c)).unwrap_or(rest.len())];
        match c {
            '=' => {
                at += 1;
                break;
            }
            ' ' | '\t' | '.' | '[' | ']' => at += 1,
            _ if names.contains(name) => at += name.len(),
            _ => break,
        }
    }
    let (shown, rest) = line.split_at(at);
    shown.chars().chain(rest.chars().map(|c| if c.is_whitespace() { c } else { '*' })).collect()
}

/// Collects the ranges of all keys and plain values, and whether each is a secret.
fn collect(node: &Node, is_secret: bool, parts: &mut Vec<(Range<usize>, bool)>) {
    match &node.tree {
        Tree::Table(entries) => {
            for (name, child) in entries {
                if let SourceLocation::File { key, .. } = &child.location {
                    parts.push((key.clone(), !hidden_ranges(name).is_empty()));
                }
                let is_pasted = matches!(&child.tree, Tree::Text(text) if is_pasted_credential(name, text));
                collect(child, is_secret || is_pasted || is_credential_name(name), parts);
            }
        }
        Tree::Array(items) => {
            let mut after_flag = false;
            for item in items {
                collect(item, is_secret || after_flag, parts);
                after_flag = matches!(&item.tree, Tree::Text(text) if is_credential_flag(text));
            }
        }
        value => {
            let holds_secret =
                |text: &str| !hidden_ranges(text).is_empty() || (text.contains("://") && text.contains('@'));
            let is_secret = is_secret || matches!(value, Tree::Text(text) if holds_secret(text));
            if let SourceLocation::File { value, .. } = &node.location {
                parts.push((value.clone(), is_secret));
            }
        }
    }
}

#[cfg(test)]
#[path = "mask_tests.rs"]
mod tests;

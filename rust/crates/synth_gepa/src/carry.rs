//! Carries the change of a late candidate over to another text: a three-way merge of lines.

use std::collections::BTreeSet;

use similar::{Algorithm, DiffOp, capture_diff_slices};

/// Lines of at least this many characters are not added twice.
const MIN_REPEATED_CHARS: usize = 25;
/// A line that shares at least this part of its word triples with a line that the other side added repeats it.
const MAX_SHARED_TRIPLES: f64 = 0.4;
const MIN_TRIPLES: usize = 4;

/// The result of carrying a change over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Carried {
    /// The text with the change.
    Clean(String),
    /// The text already has the change.
    Nothing,
    /// The change does not fit, and why.
    Conflict(&'static str),
}

/// Lays the change from `base` to `child` over `onto`. Both sides may add lines at the same place: the lines of `onto` come
/// first.
pub(crate) fn carry(base: &str, child: &str, onto: &str) -> Carried {
    if child == base || child == onto {
        return Carried::Nothing;
    }
    if onto == base {
        return Carried::Clean(child.to_owned());
    }
    let (base, ours, theirs) = (lines(base), lines(onto), lines(child));
    let (own, carried) = (hunks(&base, &ours), hunks(&base, &theirs));
    let is_repeated = |line: &&str| added(&own).any(|known| folded(known) != folded(line) && shares_words(known, line));
    if added(&carried).any(|line| is_repeated(&line)) {
        return Carried::Conflict("it repeats a line that the head added");
    }
    let Some(merged) = merge(&base, &own, &carried, &ours) else {
        return Carried::Conflict("both change the same lines");
    };
    let end = if onto.ends_with('\n') && !merged.is_empty() { "\n" } else { "" };
    let text = merged.join("\n") + end;
    if text == onto { Carried::Nothing } else { Carried::Clean(text) }
}

/// A replacement of the lines `start..end` of the base.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Hunk<'t> {
    start: usize,
    end: usize,
    lines: Vec<&'t str>,
}

/// Returns the lines of a text, without their ends.
fn lines(text: &str) -> Vec<&str> {
    text.split_inclusive('\n').map(|line| line.strip_suffix('\n').unwrap_or(line)).collect()
}

/// Returns the changes of a side. They are derived from the equal lines, because the ranges of the other operations need not
/// be adjacent.
fn hunks<'t>(base: &[&str], side: &[&'t str]) -> Vec<Hunk<'t>> {
    let (mut hunks, mut old, mut new) = (Vec::new(), 0, 0);
    let close = |hunks: &mut Vec<Hunk<'t>>, to: (usize, usize), from: (usize, usize)| {
        if from != to {
            hunks.push(Hunk { start: from.0, end: to.0, lines: side[from.1..to.1].to_vec() });
        }
    };
    for operation in capture_diff_slices(Algorithm::Myers, base, side) {
        if let DiffOp::Equal { old_index, new_index, len } = operation {
            close(&mut hunks, (old_index, new_index), (old, new));
            (old, new) = (old_index + len, new_index + len);
        }
    }
    close(&mut hunks, (base.len(), side.len()), (old, new));
    hunks
}

fn added<'h, 't: 'h>(hunks: &'h [Hunk<'t>]) -> impl Iterator<Item = &'t str> + 'h {
    hunks.iter().flat_map(|hunk| hunk.lines.iter().copied())
}

/// Returns the base with the changes of both sides, or `None` if they overlap. Changes that only touch do not overlap.
fn merge<'t>(base: &[&'t str], own: &[Hunk<'t>], carried: &[Hunk<'t>], known: &[&str]) -> Option<Vec<&'t str>> {
    let overlap = |one: &Hunk<'_>, other: &Hunk<'_>| one.start < other.end && other.start < one.end;
    if own.iter().any(|one| carried.iter().any(|other| one != other && overlap(one, other))) {
        return None;
    }
    // At the same place, insertions come before replacements, and those of the head before carried ones.
    let fresh = carried.iter().filter(|hunk| !own.contains(hunk)).map(|hunk| (hunk, true));
    let mut all: Vec<(&Hunk<'t>, bool)> = own.iter().map(|hunk| (hunk, false)).chain(fresh).collect();
    all.sort_by_key(|(hunk, is_carried)| (hunk.start, hunk.end, *is_carried));
    let long: BTreeSet<String> =
        known.iter().map(|line| folded(line)).filter(|line| line.chars().count() >= MIN_REPEATED_CHARS).collect();
    let (mut merged, mut place) = (Vec::new(), 0);
    for (hunk, is_carried) in all {
        merged.extend_from_slice(&base[place..hunk.start]);
        place = hunk.end;
        merged.extend(hunk.lines.iter().filter(|line| !is_carried || !long.contains(&folded(line))));
    }
    merged.extend_from_slice(&base[place..]);
    Some(merged)
}

/// Returns a line in lower case, with single spaces.
fn folded(line: &str) -> String {
    line.to_lowercase().split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns whether two lines share so many word triples that one repeats or contradicts the other.
fn shares_words(one: &str, other: &str) -> bool {
    let triples = |line: &str| -> BTreeSet<[String; 3]> {
        let words: Vec<String> = folded(line).split(' ').map(str::to_owned).collect();
        words.windows(3).map(|words| [words[0].clone(), words[1].clone(), words[2].clone()]).collect()
    };
    let (one, other) = (triples(one), triples(other));
    let fewest = one.len().min(other.len());
    fewest >= MIN_TRIPLES && one.intersection(&other).count() as f64 >= MAX_SHARED_TRIPLES * fewest as f64
}

#[cfg(test)]
#[path = "carry_tests.rs"]
mod tests;

//! Finds text of rows that a proposal repeats to the letter.

use std::collections::BTreeSet;

use synth_optimizer_platform::model::program::Row;

const BASE: u64 = 0x0000_0100_0000_01b3;

/// Text that a proposal shares with a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leak {
    /// Place of the row in the list that was scanned.
    pub row: usize,
    /// Length of the longest shared span, in characters.
    pub chars: u32,
}

/// The first row that shares at least `span` characters with the text, apart from what `known` texts contain.
/// White space is folded, so that a changed line break does not hide a repetition.
pub fn find<'a>(text: &str, known: impl Iterator<Item = &'a str>, rows: &[Row], span: usize) -> Option<Leak> {
    let text = fold(text);
    if span == 0 || text.len() < span {
        return None;
    }
    let known: BTreeSet<u64> = known.flat_map(|text| windows(&fold(text), span)).collect();
    let own: BTreeSet<u64> = windows(&text, span).into_iter().filter(|hash| !known.contains(hash)).collect();
    if own.is_empty() {
        return None;
    }
    rows.iter().enumerate().find_map(|(row, facts)| {
        let chars = facts.texts.iter().filter_map(|row_text| longest(&text, &fold(row_text), &own, span)).max()?;
        Some(Leak { row, chars })
    })
}

/// The longest shared span that contains one of the given windows.
fn longest(text: &[char], row: &[char], own: &BTreeSet<u64>, span: usize) -> Option<u32> {
    let mut best = 0;
    for (start, hash) in windows(row, span).into_iter().enumerate() {
        if best >= row.len() - start || !own.contains(&hash) {
            continue;
        }
        // Equal hashes are only a hint; the characters decide.
        for at in 0..=text.len() - span {
            if text[at] != row[start] {
                continue;
            }
            let shared = text[at..].iter().zip(&row[start..]).take_while(|(a, b)| a == b).count();
            if shared >= span {
                best = best.max(shared);
            }
        }
    }
    (best > 0).then_some(best as u32)
}

/// A rolling hash of every window of `span` characters.
fn windows(text: &[char], span: usize) -> Vec<u64> {
    if text.len() < span {
        return Vec::new();
    }
    let top = (1..span).fold(1u64, |power, _| power.wrapping_mul(BASE));
    let mut hash =
        text[..span].iter().fold(0u64, |hash, ch| hash.wrapping_mul(BASE).wrapping_add(u64::from(*ch as u32)));
    let mut out = vec![hash];
    for (gone, come) in text.iter().zip(&text[span..]) {
        hash = hash.wrapping_sub(u64::from(*gone as u32).wrapping_mul(top));
        hash = hash.wrapping_mul(BASE).wrapping_add(u64::from(*come as u32));
        out.push(hash);
    }
    out
}

fn fold(text: &str) -> Vec<char> {
    text.split_whitespace().collect::<Vec<_>>().join(" ").chars().collect()
}

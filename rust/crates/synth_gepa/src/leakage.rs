//! Finds verbatim text of rows in proposals.

use std::collections::BTreeMap;
use std::ops::Range;

use synth_optimizer_core::model::ids::Payload;
use synth_optimizer_core::model::program::Row;

const HASH_BASE: u64 = 0x0000_0100_0000_01b3;

/// Text of a row that a proposal repeats.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leak {
    /// Index of the row in the indexed list.
    pub row: usize,
    /// Length of the shared span, in characters.
    pub chars: u32,
}

/// An index over the texts of rows.
///
/// Each text is split into consecutive blocks of half a span, and each block is indexed by its hash. A shared span of full
/// length contains at least one whole block, so a scan over all offsets of the proposal always finds it.
#[derive(Debug)]
pub struct LeakIndex {
    span: usize,
    block: usize,
    texts: Vec<(usize, String)>,
    /// Hash of a block, the index of its text and its offset; sorted by hash.
    blocks: Vec<(u64, u32, u32)>,
    /// Sorted hashes of all spans that a proposal may repeat.
    known: Vec<u64>,
}

impl LeakIndex {
    /// Builds an index of train rows that finds repetitions of at least `span` characters. White space is folded, so that a
    /// changed line break does not hide a repetition. Text of the initial candidate, and text that several rows share, may
    /// be repeated.
    pub fn train(rows: &[Row], seed: &Payload, span: usize) -> Self {
        let mut pieces: Vec<(u64, usize)> = Vec::new();
        for (row, facts) in rows.iter().enumerate() {
            let hashes = facts.texts.iter().flat_map(|text| rolling(fold(text).as_bytes(), span));
            pieces.extend(hashes.map(|hash| (hash, row)));
        }
        pieces.sort_unstable();
        pieces.dedup();
        let common = pieces.windows(2).filter(|pair| pair[0].0 == pair[1].0).map(|pair| pair[0].0);
        Self::new(rows, common.chain(pieces_of(seed.values(), span)).collect(), span)
    }

    /// Builds an index of held-out rows. Text of the initial candidate or of a train row may be repeated.
    pub fn heldout(rows: &[Row], train: &[Row], seed: &Payload, span: usize) -> Self {
        let known = pieces_of(seed.values().chain(train.iter().flat_map(|row| &row.texts)), span);
        Self::new(rows, known.collect(), span)
    }

    fn new(rows: &[Row], mut known: Vec<u64>, span: usize) -> Self {
        let (span, block) = (span.max(1), block_of(span));
        let mut texts = Vec::new();
        let mut blocks = Vec::new();
        for (row, facts) in rows.iter().enumerate() {
            for text in facts.texts.iter().map(|text| fold(text)).filter(|text| text.len() >= span) {
                let number = texts.len() as u32;
                let starts = (0..=text.len() - block).step_by(block);
                blocks.extend(starts.map(|at| (hash(&text.as_bytes()[at..at + block]), number, at as u32)));
                texts.push((row, text));
            }
        }
        blocks.sort_unstable();
        known.sort_unstable();
        known.dedup();
        Self { span, block, texts, blocks, known }
    }

    /// Returns a repetition in a text, if there is one.
    pub fn find(&self, text: &str) -> Option<Leak> {
        let text = fold(text);
        let is_new = self.new_bytes(&text);
        // The end of the last checked repetition, by text and offset.
        let mut looked_at: BTreeMap<(u32, usize), usize> = BTreeMap::new();
        for (at, hash) in rolling(text.as_bytes(), self.block).into_iter().enumerate() {
            let first = self.blocks.partition_point(|(other, _, _)| *other < hash);
            for (_, number, start) in self.blocks[first..].iter().take_while(|(other, _, _)| *other == hash) {
                let start = *start as usize;
                let (row, row_text) = &self.texts[*number as usize];
                let offset = (*number, at + row_text.len() - start);
                if looked_at.get(&offset).is_some_and(|end| at < *end) {
                    continue;
                }
                let Some(shared) = self.shared(&text, at, row_text, start) else { continue };
                looked_at.insert(offset, shared.end);
                let chars = text.get(shared.clone()).map_or(0, |shared| shared.chars().count());
                let new = is_new[shared].iter().filter(|new| **new).count();
                if chars >= self.span && new >= self.block {
                    return Some(Leak { row: *row, chars: chars as u32 });
                }
            }
        }
        None
    }

    /// Returns for every byte of a text whether it is outside of all spans that may be repeated.
    fn new_bytes(&self, text: &str) -> Vec<bool> {
        let mut is_new = vec![true; text.len()];
        let mut done = 0;
        for (at, hash) in rolling(text.as_bytes(), self.span).into_iter().enumerate() {
            if self.known.binary_search(&hash).is_ok() {
                is_new[done.max(at)..at + self.span].fill(false);
                done = at + self.span;
            }
        }
        is_new
    }

    /// Returns the range in the first text of the span around a block that both texts share.
    fn shared(&self, text: &str, at: usize, row: &str, start: usize) -> Option<Range<usize>> {
        let (ours, theirs) = (text.as_bytes(), row.as_bytes());
        // Equal hashes are only a hint; the bytes decide.
        if ours[at..at + self.block] != theirs[start..start + self.block] {
            return None;
        }
        let back = (1..=at.min(start)).take_while(|back| ours[at - back] == theirs[start - back]).count();
        let ahead = ours[at..].iter().zip(&theirs[start..]).take_while(|(ours, theirs)| ours == theirs).count();
        Some(text.ceil_char_boundary(at - back)..text.floor_char_boundary(at + ahead))
    }
}

fn block_of(span: usize) -> usize {
    (span / 2).max(1)
}

fn pieces_of<'t>(texts: impl Iterator<Item = &'t String>, span: usize) -> impl Iterator<Item = u64> {
    texts.flat_map(move |text| rolling(fold(text).as_bytes(), span))
}

/// Returns the rolling hashes of all windows of `size` bytes.
fn rolling(bytes: &[u8], size: usize) -> Vec<u64> {
    if size == 0 || bytes.len() < size {
        return Vec::new();
    }
    let top = (1..size).fold(1u64, |power, _| power.wrapping_mul(HASH_BASE));
    let mut current = hash(&bytes[..size]);
    let mut out = Vec::with_capacity(bytes.len() - size + 1);
    out.push(current);
    for (gone, come) in bytes.iter().zip(&bytes[size..]) {
        current = current.wrapping_sub(u64::from(*gone).wrapping_mul(top));
        current = current.wrapping_mul(HASH_BASE).wrapping_add(u64::from(*come));
        out.push(current);
    }
    out
}

fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0u64, |hash, byte| hash.wrapping_mul(HASH_BASE).wrapping_add(u64::from(*byte)))
}

fn fold(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

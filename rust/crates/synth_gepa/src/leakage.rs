//! Finds text of rows that a proposal repeats to the letter.

use synth_optimizer_platform::model::program::Row;

const BASE: u64 = 0x0000_0100_0000_01b3;

/// Text that a proposal shares with a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leak {
    /// Place of the row in the list that was indexed.
    pub row: usize,
    /// Length of the span that they share, in characters.
    pub chars: u32,
}

/// An index over the texts of rows.
///
/// Every block of half a span is entered once per text, end to end. A shared span of full length contains at least one
/// whole block, so a scan over all places of the proposal cannot miss it, and the index stays small.
#[derive(Debug)]
pub struct LeakIndex {
    span: usize,
    block: usize,
    texts: Vec<(usize, String)>,
    /// Hash of a block, its text and where it begins; sorted by hash.
    blocks: Vec<(u64, u32, u32)>,
    /// Hashes of every block-sized piece of what may be said: the texts of the seed. Sorted.
    known: Vec<u64>,
}

impl LeakIndex {
    /// Indexes rows for repetitions of at least `span` characters. White space is folded, so that a changed line break
    /// does not hide one. What the known texts say already does not count.
    pub fn new<'a>(rows: &[Row], known: impl Iterator<Item = &'a str>, span: usize) -> Self {
        let block = (span / 2).max(1);
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
        let mut known: Vec<u64> = known.flat_map(|text| rolling(fold(text).as_bytes(), block)).collect();
        known.sort_unstable();
        Self { span, block, texts, blocks, known }
    }

    /// A repetition in a text, if there is one.
    pub fn find(&self, text: &str) -> Option<Leak> {
        let text = fold(text);
        let hashes = rolling(text.as_bytes(), self.block);
        let is_new = self.new_bytes(&hashes, text.len());
        for (at, hash) in hashes.iter().enumerate() {
            if !is_new[at..at + self.block].iter().all(|new| *new) {
                continue;
            }
            let first = self.blocks.partition_point(|(other, _, _)| other < hash);
            for (_, number, start) in self.blocks[first..].iter().take_while(|(other, _, _)| other == hash) {
                let (row, row_text) = &self.texts[*number as usize];
                let chars = self.shared(&text, at, row_text, *start as usize, &is_new);
                if chars >= self.span {
                    return Some(Leak { row: *row, chars: chars as u32 });
                }
            }
        }
        None
    }

    /// For every byte of a text, whether the known texts do not say it.
    fn new_bytes(&self, hashes: &[u64], len: usize) -> Vec<bool> {
        let mut is_new = vec![true; len];
        let mut done = 0;
        for (at, hash) in hashes.iter().enumerate() {
            if self.known.binary_search(hash).is_ok() {
                is_new[done.max(at)..at + self.block].fill(false);
                done = at + self.block;
            }
        }
        is_new
    }

    /// Length in characters of what both texts share around a block, as far as it is new.
    fn shared(&self, text: &str, at: usize, row: &str, start: usize, is_new: &[bool]) -> usize {
        let (ours, theirs) = (text.as_bytes(), row.as_bytes());
        // Equal hashes are only a hint; the bytes decide.
        if ours[at..at + self.block] != theirs[start..start + self.block] {
            return 0;
        }
        let back = (1..=at.min(start)).take_while(|back| is_new[at - back] && ours[at - back] == theirs[start - back]);
        let most = (ours.len() - at).min(theirs.len() - start);
        let ahead = (0..most).take_while(|ahead| is_new[at + ahead] && ours[at + ahead] == theirs[start + ahead]);
        let from = text.ceil_char_boundary(at - back.count());
        let to = text.floor_char_boundary(at + ahead.count());
        text.get(from..to).map_or(0, |shared| shared.chars().count())
    }
}

/// Hashes of every piece of `block` bytes.
fn rolling(bytes: &[u8], block: usize) -> Vec<u64> {
    if bytes.len() < block {
        return Vec::new();
    }
    let top = (1..block).fold(1u64, |power, _| power.wrapping_mul(BASE));
    let mut current = hash(&bytes[..block]);
    let mut out = Vec::with_capacity(bytes.len() - block + 1);
    out.push(current);
    for (gone, come) in bytes.iter().zip(&bytes[block..]) {
        current = current.wrapping_sub(u64::from(*gone).wrapping_mul(top));
        current = current.wrapping_mul(BASE).wrapping_add(u64::from(*come));
        out.push(current);
    }
    out
}

fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0u64, |hash, byte| hash.wrapping_mul(BASE).wrapping_add(u64::from(*byte)))
}

fn fold(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

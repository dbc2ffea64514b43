//! Finds text of rows in proposals, also if case, spacing or separators differ.

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
    /// Length of the shared span, in characters of the row's text after normalization.
    pub chars: u32,
    /// The span in the proposal, after normalization.
    pub text: String,
}

/// An index over the texts of rows.
///
/// Texts are compared by their letters (see `NormalText`). The letters of a row are split into consecutive blocks of a quarter
/// of a span, and each block is indexed by its hash. At least half of the characters of a span are letters, so a shared span of
/// full length contains at least one whole block, and a scan over all offsets of the proposal always finds it.
#[derive(Debug)]
pub struct LeakIndex {
    span: usize,
    block: usize,
    texts: Vec<(usize, NormalText)>,
    /// Hash of a block, the index of its text and its offset; sorted by hash.
    blocks: Vec<(u64, u32, u32)>,
    /// Sorted hashes of all spans that a proposal may repeat.
    known: Vec<u64>,
}

impl LeakIndex {
    /// Builds an index of train rows that finds repetitions of at least `span` characters. Text of the initial candidate,
    /// and text that several rows share, may be repeated.
    pub fn train(rows: &[Row], seed: &Payload, span: usize) -> Self {
        let mut pieces: Vec<(u64, usize)> = Vec::new();
        for (row, facts) in rows.iter().enumerate() {
            let hashes = facts.texts.iter().flat_map(|text| rolling(NormalText::new(text).spaced.as_bytes(), span));
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
        let (span, block) = (span.max(1), (span / 4).max(1));
        let mut texts = Vec::new();
        let mut blocks = Vec::new();
        for (row, facts) in rows.iter().enumerate() {
            for text in facts.texts.iter().map(|text| NormalText::new(text)) {
                if text.spaced.len() < span {
                    continue;
                }
                let number = texts.len() as u32;
                let starts = (0..=text.letters.len() - block).step_by(block);
                blocks.extend(starts.map(|at| (hash(&text.letters.as_bytes()[at..at + block]), number, at as u32)));
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
        let text = NormalText::new(text);
        let is_new = self.new_bytes(&text.spaced);
        // The end of the last checked repetition, by text and offset.
        let mut looked_at: BTreeMap<(u32, usize), usize> = BTreeMap::new();
        for (at, hash) in rolling(text.letters.as_bytes(), self.block).into_iter().enumerate() {
            let first = self.blocks.partition_point(|(other, _, _)| *other < hash);
            for (_, number, start) in self.blocks[first..].iter().take_while(|(other, _, _)| *other == hash) {
                let start = *start as usize;
                let (row, row_text) = &self.texts[*number as usize];
                let offset = (*number, at + row_text.letters.len() - start);
                if looked_at.get(&offset).is_some_and(|end| at < *end) {
                    continue;
                }
                let Some((ours, theirs)) = self.shared(&text, at, row_text, start) else { continue };
                looked_at.insert(offset, ours.end);
                let (ours, theirs) = spaced_ranges(&text, ours, row_text, theirs);
                let chars = row_text.spaced.get(theirs).map_or(0, |shared| shared.chars().count());
                let new = is_new[ours.clone()].iter().filter(|new| **new).count();
                if chars >= self.span && new >= (self.span / 2).max(1) {
                    let repeated = text.spaced.get(ours).unwrap_or_default().trim().to_owned();
                    return Some(Leak { row: *row, chars: chars as u32, text: repeated });
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

    /// Returns the range of the letters around a block that both texts share, in the first and in the second text.
    fn shared(
        &self,
        text: &NormalText,
        at: usize,
        row: &NormalText,
        start: usize,
    ) -> Option<(Range<usize>, Range<usize>)> {
        let (ours, theirs) = (text.letters.as_bytes(), row.letters.as_bytes());
        // Equal hashes are only a hint; the bytes decide.
        if ours[at..at + self.block] != theirs[start..start + self.block] {
            return None;
        }
        let back = (1..=at.min(start)).take_while(|back| ours[at - back] == theirs[start - back]).count();
        let ahead = ours[at..].iter().zip(&theirs[start..]).take_while(|(ours, theirs)| ours == theirs).count();
        let shared = text.letters.ceil_char_boundary(at - back)..text.letters.floor_char_boundary(at + ahead);
        let begin = start + shared.start - at;
        (!shared.is_empty()).then(|| (shared.clone(), begin..begin + shared.len()))
    }
}

/// A text as the leakage check reads it: in lower case, without invisible characters, and with a single space for white space and
/// separators. Its letters are all characters except these spaces.
///
/// Letters are compared without their spaces, because a proposer can also write the words of a row without spaces, or with a
/// separator after every letter. Lengths are measured with the spaces, as a reader counts them.
#[derive(Debug, Default)]
struct NormalText {
    spaced: String,
    letters: String,
    /// For every byte of `letters`, its offset in `spaced`.
    offsets: Vec<u32>,
}

impl NormalText {
    fn new(text: &str) -> Self {
        let mut normal = Self::default();
        for letter in text.chars().filter(|letter| !is_invisible(*letter)) {
            if letter.is_whitespace() || is_separator(letter) {
                if !normal.spaced.is_empty() && !normal.spaced.ends_with(' ') {
                    normal.spaced.push(' ');
                }
                continue;
            }
            for letter in letter.to_lowercase() {
                let at = normal.spaced.len() as u32;
                normal.offsets.extend(at..at + letter.len_utf8() as u32);
                normal.spaced.push(letter);
                normal.letters.push(letter);
            }
        }
        normal.spaced.truncate(normal.spaced.trim_end().len());
        normal
    }

    /// Returns the range of `spaced` that spans a range of letters.
    fn spaced_range(&self, letters: Range<usize>) -> Range<usize> {
        self.offsets[letters.start] as usize..self.offsets[letters.end - 1] as usize + 1
    }
}

/// Converts ranges of letters that two texts share to ranges of their spaced texts, with the spaces at the ends that both have.
fn spaced_ranges(
    text: &NormalText,
    ours: Range<usize>,
    row: &NormalText,
    theirs: Range<usize>,
) -> (Range<usize>, Range<usize>) {
    let (mut ours, mut theirs) = (text.spaced_range(ours), row.spaced_range(theirs));
    if text.spaced[..ours.start].ends_with(' ') && row.spaced[..theirs.start].ends_with(' ') {
        (ours.start, theirs.start) = (ours.start - 1, theirs.start - 1);
    }
    if text.spaced[ours.end..].starts_with(' ') && row.spaced[theirs.end..].starts_with(' ') {
        (ours.end, theirs.end) = (ours.end + 1, theirs.end + 1);
    }
    (ours, theirs)
}

/// Returns whether a character has no width: soft hyphens, zero-width characters, marks of direction, variation selectors and
/// tags.
fn is_invisible(letter: char) -> bool {
    matches!(
        letter,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{e0000}'..='\u{e0fff}'
    )
}

/// Returns whether a character joins or separates words like a space: an underscore, a hyphen or a dash.
fn is_separator(letter: char) -> bool {
    matches!(letter, '_' | '-' | '\u{2010}'..='\u{2015}' | '\u{2212}')
}

fn pieces_of<'t>(texts: impl Iterator<Item = &'t String>, span: usize) -> impl Iterator<Item = u64> {
    texts.flat_map(move |text| rolling(NormalText::new(text).spaced.as_bytes(), span))
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

//! Finds text of rows that a proposal repeats to the letter.

use synth_optimizer_platform::model::program::Row;

const BASE: u64 = 0x0000_0100_0000_01b3;

/// Text that a proposal shares with a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leak {
    /// Place of the row in the list that was indexed.
    pub row: usize,
    /// Length of the shared span, in characters.
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
    /// What may be said: the texts of the seed.
    known: Vec<String>,
}

impl LeakIndex {
    /// Indexes rows for repetitions of at least `span` characters. White space is folded, so that a changed line break
    /// does not hide one. What the known texts say already is no leak.
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
        Self { span, block, texts, blocks, known: known.map(fold).collect() }
    }

    /// The longest repetition in a text, of the first row that has one of that length.
    pub fn find(&self, text: &str) -> Option<Leak> {
        let text = fold(text);
        let bytes = text.as_bytes();
        if self.blocks.is_empty() || bytes.len() < self.block {
            return None;
        }
        let top = (1..self.block).fold(1u64, |power, _| power.wrapping_mul(BASE));
        let mut rolling = hash(&bytes[..self.block]);
        let mut best: Option<Leak> = None;
        for at in 0..=bytes.len() - self.block {
            if at > 0 {
                rolling = rolling.wrapping_sub(u64::from(bytes[at - 1]).wrapping_mul(top));
                rolling = rolling.wrapping_mul(BASE).wrapping_add(u64::from(bytes[at + self.block - 1]));
            }
            let first = self.blocks.partition_point(|(hash, _, _)| *hash < rolling);
            for (_, number, start) in self.blocks[first..].iter().take_while(|(hash, _, _)| *hash == rolling) {
                let (row, row_text) = &self.texts[*number as usize];
                let Some(shared) = self.shared(&text, at, row_text, *start as usize) else { continue };
                let chars = shared.chars().count() as u32;
                if best.as_ref().is_none_or(|best| chars > best.chars) {
                    best = Some(Leak { row: *row, chars });
                }
            }
        }
        best
    }

    /// The whole span that both texts share around a block, if it is long enough and says something new.
    fn shared<'t>(&self, text: &'t str, at: usize, row: &str, start: usize) -> Option<&'t str> {
        let (ours, theirs) = (text.as_bytes(), row.as_bytes());
        // Equal hashes are only a hint; the bytes decide.
        if ours[at..at + self.block] != theirs[start..start + self.block] {
            return None;
        }
        let back = ours[..at].iter().rev().zip(theirs[..start].iter().rev()).take_while(|(a, b)| a == b).count();
        let ahead = ours[at..].iter().zip(&theirs[start..]).take_while(|(a, b)| a == b).count();
        let from = text.ceil_char_boundary(at - back);
        let to = text.floor_char_boundary(at + ahead);
        let shared = text.get(from..to)?;
        let starts: Vec<usize> = shared.char_indices().map(|(index, _)| index).chain([shared.len()]).collect();
        let is_new = |window: &[usize]| {
            let span = &shared[window[0]..window[self.span]];
            !self.known.iter().any(|known| known.contains(span))
        };
        starts.windows(self.span + 1).any(is_new).then_some(shared)
    }
}

fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0u64, |hash, byte| hash.wrapping_mul(BASE).wrapping_add(u64::from(*byte)))
}

fn fold(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

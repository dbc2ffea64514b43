//! Random choices that depend only on `run.seed`: one independent stream per label and index.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use sha2::{Digest, Sha256};

/// A stream of random choices.
#[derive(Debug)]
pub struct RandomStream(ChaCha8Rng);

/// Returns the stream of a label and index. Streams are independent, so an additional choice in one stream does not affect
/// the others.
pub fn random_stream(seed: u64, label: &str, index: u64) -> RandomStream {
    let mut hash = Sha256::new();
    hash.update(b"synth_gepa.stream.v1");
    hash.update(seed.to_le_bytes());
    hash.update((label.len() as u64).to_le_bytes());
    hash.update(label.as_bytes());
    hash.update(index.to_le_bytes());
    RandomStream(ChaCha8Rng::from_seed(hash.finalize().into()))
}

impl RandomStream {
    /// Returns 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Returns a whole number below `bound`, without bias; 0 if `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        if bound < 2 {
            return 0;
        }
        // Rejection sampling: discards draws from the incomplete last multiple of the bound.
        let zone = u64::MAX - u64::MAX % bound;
        loop {
            let draw = self.0.next_u64();
            if draw < zone {
                return draw % bound;
            }
        }
    }

    /// Returns a number in `[0, 1)` with 53 bits.
    pub fn unit(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Returns an index of a list of `len` items; 0 for an empty list.
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// Returns an index with a probability proportional to its weight; `None` if all weights are 0.
    pub fn weighted(&mut self, weights: &[u64]) -> Option<usize> {
        let total: u64 = weights.iter().sum();
        if total == 0 {
            return None;
        }
        let mut rest = self.below(total);
        for (index, weight) in weights.iter().enumerate() {
            if rest < *weight {
                return Some(index);
            }
            rest -= weight;
        }
        None
    }

    /// Returns `count` random items without repetition, or all of them if there are fewer.
    pub fn sample<T: Clone>(&mut self, items: &[T], count: usize) -> Vec<T> {
        let mut rest = items.to_vec();
        let count = count.min(rest.len());
        for place in 0..count {
            let other = place + self.index(rest.len() - place);
            rest.swap(place, other);
        }
        rest.truncate(count);
        rest
    }

    /// Shuffles the items.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.index(last + 1));
        }
    }
}

//! SHA-256 of replies, files and cache entries, with the assembly that TLS uses: about twice as fast as the portable code of
//! the pure crates.

use ring::digest::{Context, SHA256, SHA256_OUTPUT_LEN};

/// A digest of parts that are added one after the other.
#[derive(Clone)]
pub(crate) struct Sha256(Context);

impl Sha256 {
    pub(crate) fn new() -> Self {
        Self(Context::new(&SHA256))
    }

    pub(crate) fn update(&mut self, part: &[u8]) {
        self.0.update(part);
    }

    pub(crate) fn finish(self) -> [u8; SHA256_OUTPUT_LEN] {
        let mut bytes = [0; SHA256_OUTPUT_LEN];
        bytes.copy_from_slice(self.0.finish().as_ref());
        bytes
    }
}

/// Returns the SHA-256 of bytes.
pub(crate) fn sha256(bytes: &[u8]) -> [u8; SHA256_OUTPUT_LEN] {
    let mut digest = Sha256::new();
    digest.update(bytes);
    digest.finish()
}

#[cfg(test)]
#[path = "digest_tests.rs"]
mod tests;

//! Compresses replies for the workspace and the cache, and decompresses stored data without trusting the size that is written
//! next to it.

use std::cell::RefCell;
use std::io;

use zstd::bulk::{Compressor, Decompressor};
use zstd::zstd_safe::{CParameter, get_frame_content_size};

/// The zstd level. A faster one keeps a third more of a small reply; a slower one keeps as much.
const COMPRESSION_LEVEL: i32 = 1;

thread_local! {
    /// Reused, because creating them costs more than the work on a small reply.
    static COMPRESSOR: RefCell<Option<Compressor<'static>>> = const { RefCell::new(None) };
    static DECOMPRESSOR: RefCell<Option<Decompressor<'static>>> = const { RefCell::new(None) };
}

/// Packs data, with a checksum.
pub(crate) fn pack(plain: &[u8]) -> io::Result<Vec<u8>> {
    COMPRESSOR.with_borrow_mut(|kept| {
        let compressor = match kept {
            Some(compressor) => compressor,
            None => {
                let mut new = Compressor::new(COMPRESSION_LEVEL)?;
                new.set_parameter(CParameter::ChecksumFlag(true))?;
                kept.insert(new)
            }
        };
        compressor.compress(plain)
    })
}

/// Unpacks data whose size is known only from its own header.
pub(crate) fn unpack_whole(packed: &[u8]) -> Option<Vec<u8>> {
    unpack(packed, get_frame_content_size(packed).ok().flatten()?)
}

/// Unpacks data of a known size. Returns `None` if the result does not have exactly `size` bytes.
pub(crate) fn unpack(packed: &[u8], size: u64) -> Option<Vec<u8>> {
    // Both sizes must agree before memory is reserved: damage would hardly change both to the same value.
    if get_frame_content_size(packed).ok().flatten() != Some(size) {
        return None;
    }
    let size = usize::try_from(size).ok()?;
    DECOMPRESSOR.with_borrow_mut(|kept| {
        if kept.is_none() {
            *kept = Decompressor::new().ok();
        }
        kept.as_mut()?.decompress(packed, size).ok().filter(|plain| plain.len() == size)
    })
}

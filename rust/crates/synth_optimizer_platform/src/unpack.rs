//! Decompresses stored data without trusting the size that is written next to it.

use std::cell::RefCell;

use zstd::bulk::Decompressor;
use zstd::zstd_safe::get_frame_content_size;

thread_local! {
    /// Reused, because creating a decompressor costs more than unpacking a small reply.
    static DECOMPRESSOR: RefCell<Option<Decompressor<'static>>> = const { RefCell::new(None) };
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

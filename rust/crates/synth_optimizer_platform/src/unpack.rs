//! Unpacks what was stored compressed, without trusting what is written about its size.

use std::cell::RefCell;

use zstd::bulk::Decompressor;
use zstd::zstd_safe::get_frame_content_size;

thread_local! {
    /// Making one costs more than unpacking a small reply with it.
    static DECOMPRESSOR: RefCell<Option<Decompressor<'static>>> = const { RefCell::new(None) };
}

/// The plain bytes of something whose size is written nowhere else.
pub(crate) fn unpack_whole(packed: &[u8]) -> Option<Vec<u8>> {
    unpack(packed, get_frame_content_size(packed).ok().flatten()?)
}

/// The plain bytes, or nothing where they are not the `size` bytes that were packed.
pub(crate) fn unpack(packed: &[u8], size: u64) -> Option<Vec<u8>> {
    // Either statement may be damaged, but not both to the same value, so that memory is reserved for a true size only.
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

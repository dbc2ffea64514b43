//! The bytes of a file on their way to a client: read as the client takes them, never as a whole.

use std::fs::File;
use std::io::{Error, Read, Result};

use axum::body::{Body, Bytes};
use futures_util::stream::unfold;

/// Bytes that are read at once.
const PIECE: usize = 64 * 1024;

/// The first bytes of a file. One that turns out to be shorter breaks the answer off, which the client notices.
pub(super) fn body(file: File, bytes: u64) -> Body {
    Body::from_stream(unfold(Some((file, bytes)), |rest| async move {
        let (file, left) = rest.filter(|(_, left)| *left > 0)?;
        Some(match tokio::task::spawn_blocking(move || piece(file, left)).await {
            Ok(Ok((read, rest))) => (Ok(read), Some(rest)),
            Ok(Err(error)) => (Err(error), None),
            Err(error) => (Err(Error::other(error)), None),
        })
    }))
}

fn piece(mut file: File, left: u64) -> Result<(Bytes, (File, u64))> {
    let mut read = vec![0; usize::try_from(left).unwrap_or(PIECE).min(PIECE)];
    file.read_exact(&mut read)?;
    let left = left - read.len() as u64;
    Ok((Bytes::from(read), (file, left)))
}

//! The reply to a call. It is packed at most once, whatever stores it.

use std::fmt;
use std::io;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;

use crate::packing::{pack, unpack};

/// The bytes of a reply, which cache and workspace store.
#[derive(Clone)]
pub struct Reply(Arc<Content>);

struct Content {
    bytes: Bytes,
    /// The packed form, or why there is none.
    packed: OnceLock<Result<Vec<u8>, String>>,
}

impl Reply {
    /// Returns a reply from its packed form. `None` if that is damaged.
    pub(crate) fn from_packed(packed: Vec<u8>, size: u64) -> Option<Self> {
        let bytes = Bytes::from(unpack(&packed, size)?);
        Some(Self(Arc::new(Content { bytes, packed: OnceLock::from(Ok(packed)) })))
    }

    pub fn bytes(&self) -> &Bytes {
        &self.0.bytes
    }

    /// Returns the form in which the reply is stored. Of the threads of cache and workspace, the first one packs it, and the
    /// other one waits.
    pub(crate) fn packed(&self) -> io::Result<&[u8]> {
        let packed = self.0.packed.get_or_init(|| pack(&self.0.bytes).map_err(|error| error.to_string()));
        packed.as_deref().map_err(|cause| io::Error::other(cause.clone()))
    }
}

impl Deref for Reply {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0.bytes
    }
}

impl From<Bytes> for Reply {
    fn from(bytes: Bytes) -> Self {
        Self(Arc::new(Content { bytes, packed: OnceLock::new() }))
    }
}

impl From<Vec<u8>> for Reply {
    fn from(bytes: Vec<u8>) -> Self {
        Bytes::from(bytes).into()
    }
}

impl PartialEq for Reply {
    fn eq(&self, other: &Self) -> bool {
        self.0.bytes == other.0.bytes
    }
}

impl Eq for Reply {}

/// Replies are large and may have secrets of a task: only the size is shown.
impl fmt::Debug for Reply {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Reply({} bytes)", self.0.bytes.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_from_its_packed_form_keeps_it() {
        let reply = Reply::from(b"one reply".repeat(9));
        let packed = reply.packed().unwrap().to_vec();
        let again = Reply::from_packed(packed.clone(), 81).unwrap();
        assert_eq!(again, reply);
        assert_eq!(again.0.packed.get(), Some(&Ok(packed.clone())));
        assert!(Reply::from_packed(packed, 80).is_none(), "another size");
        assert!(Reply::from_packed(b"no archive".to_vec(), 10).is_none());
    }
}

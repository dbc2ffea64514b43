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
    packed: OnceLock<Vec<u8>>,
}

impl Reply {
    /// Returns a reply from its packed form. `None` if that is damaged.
    pub(crate) fn from_packed(packed: Vec<u8>, size: u64) -> Option<Self> {
        let bytes = Bytes::from(unpack(&packed, size)?);
        Some(Self(Arc::new(Content { bytes, packed: OnceLock::from(packed) })))
    }

    pub fn bytes(&self) -> &Bytes {
        &self.0.bytes
    }

    /// Returns the form in which the reply is stored.
    pub(crate) fn packed(&self) -> io::Result<&[u8]> {
        if let Some(packed) = self.0.packed.get() {
            return Ok(packed);
        }
        let packed = pack(&self.0.bytes)?;
        Ok(self.0.packed.get_or_init(|| packed))
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
        assert_eq!(again.0.packed.get(), Some(&packed));
        assert!(Reply::from_packed(packed, 80).is_none(), "another size");
        assert!(Reply::from_packed(b"no archive".to_vec(), 10).is_none());
    }
}

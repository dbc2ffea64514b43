//! An outage: the container or the proposer is unavailable, and the same call may succeed later.

use std::borrow::Cow;
use std::time::Duration;

/// Why something that a run needs is unavailable. The run waits and sends the call again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outage {
    pub cause: String,
    /// What a user can do about it, if the cause does not tell.
    pub hint: Option<Cow<'static, str>>,
    /// The pause that a server asked for.
    pub retry_after: Option<Duration>,
}

impl Outage {
    pub fn new(cause: impl Into<String>) -> Self {
        Self { cause: cause.into(), hint: None, retry_after: None }
    }
}

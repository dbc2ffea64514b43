//! Places at which a run can be watched from inside: every moment between two durable steps.

use std::fmt;
use std::sync::Arc;

/// A moment between two durable steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Boundary {
    BeforeCommit,
    AfterCommit,
    AfterFeed,
    BeforeResults,
    AfterResults,
}

/// Called at every boundary; tests end the process there.
#[derive(Clone, Default)]
pub struct Hooks(Option<Arc<dyn Fn(Boundary) + Send + Sync>>);

impl Hooks {
    pub fn new(hook: impl Fn(Boundary) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(hook)))
    }

    pub(super) fn at(&self, boundary: Boundary) {
        if let Some(hook) = &self.0 {
            hook(boundary);
        }
    }
}

impl fmt::Debug for Hooks {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Hooks({})", if self.0.is_some() { "set" } else { "none" })
    }
}

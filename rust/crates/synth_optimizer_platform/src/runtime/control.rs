//! What people may ask of a run while it goes on, and how it tells them what happens.

use std::sync::Arc;

use tokio::sync::{broadcast, mpsc};

use crate::workspace::Stored;

/// One wish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Signal {
    /// Let go of the run: finish what is under way, save, end. It can be resumed. A second one does not wait.
    Interrupt { reason: String },
    /// Finish early: no new search, then the held-out evaluation.
    Stop { reason: String },
    /// End the run for good, now. What was paid for is kept.
    Cancel { reason: String },
}

impl Signal {
    pub fn reason(&self) -> &str {
        match self {
            Self::Interrupt { reason } | Self::Stop { reason } | Self::Cancel { reason } => reason,
        }
    }
}

/// Steers a run from outside; may be cloned and used from any thread.
#[derive(Debug, Clone)]
pub struct Control {
    signals: mpsc::UnboundedSender<Signal>,
    live: broadcast::Sender<Arc<Stored>>,
}

/// The run's end of a `Control`.
#[derive(Debug)]
pub struct Controlled {
    pub(super) signals: mpsc::UnboundedReceiver<Signal>,
    pub(super) live: broadcast::Sender<Arc<Stored>>,
}

impl Control {
    /// Both ends. A subscriber that falls `buffer` events behind misses some, and reads them from the workspace.
    pub fn new(buffer: u32) -> (Self, Controlled) {
        let (sender, signals) = mpsc::unbounded_channel();
        let (live, _) = broadcast::channel(buffer.max(1) as usize);
        (Self { signals: sender, live: live.clone() }, Controlled { signals, live })
    }

    /// Whether the run was still there to hear it.
    pub fn send(&self, signal: Signal) -> bool {
        self.signals.send(signal).is_ok()
    }

    /// Every event from now on, as soon as it is stored.
    pub fn subscribe(&self) -> broadcast::Receiver<Arc<Stored>> {
        self.live.subscribe()
    }
}

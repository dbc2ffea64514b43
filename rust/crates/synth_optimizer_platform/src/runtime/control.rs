//! What people may ask of a run while it goes on, and how it tells them what happens.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{broadcast, mpsc, watch};

use super::stepping::StepReport;
use crate::workspace::Stored;

/// What a pause leaves to calls under way: what comes within it need not be asked for again.
const PAUSE: Duration = Duration::from_millis(500);

/// One wish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Signal {
    /// Let go of the run: wait for what is under way as long as the grace allows, save, end. It can be resumed. A second
    /// one does not wait. Without a grace, `run.interrupt_grace_seconds` is meant.
    Interrupt { reason: String, grace: Option<Duration> },
    /// Finish early: no new search, then the held-out evaluation. What was not sent is taken back and a proposer turn is
    /// broken off, at once; rollouts that were sent are paid for, and are waited for.
    Stop { reason: String },
    /// End the run for good, now. What was paid for is kept. Without a grace, `run.cancel_grace_seconds` is meant.
    Cancel { reason: String, grace: Option<Duration> },
    /// Let a held run send what it wants now. Others do not hear it.
    Step,
}

impl Signal {
    pub fn interrupt(reason: impl Into<String>) -> Self {
        Self::Interrupt { reason: reason.into(), grace: None }
    }

    /// An interrupt that hardly waits, for whoever must let go within two seconds.
    pub fn pause(reason: impl Into<String>) -> Self {
        Self::Interrupt { reason: reason.into(), grace: Some(PAUSE) }
    }

    pub fn stop(reason: impl Into<String>) -> Self {
        Self::Stop { reason: reason.into() }
    }

    pub fn cancel(reason: impl Into<String>) -> Self {
        Self::Cancel { reason: reason.into(), grace: None }
    }

    pub fn reason(&self) -> &str {
        match self {
            Self::Interrupt { reason, .. } | Self::Stop { reason } | Self::Cancel { reason, .. } => reason,
            Self::Step => "a step",
        }
    }
}

/// Steers a run from outside; may be cloned and used from any thread.
#[derive(Debug, Clone)]
pub struct Control {
    signals: mpsc::UnboundedSender<Signal>,
    live: broadcast::Sender<Arc<Stored>>,
    steps: watch::Receiver<StepReport>,
}

/// The run's end of a `Control`.
#[derive(Debug)]
pub struct Controlled {
    pub(super) signals: mpsc::UnboundedReceiver<Signal>,
    pub(super) live: broadcast::Sender<Arc<Stored>>,
    pub(super) steps: watch::Sender<StepReport>,
    /// What was asked before the run could hear it.
    pub(super) early: Vec<Signal>,
}

impl Control {
    /// Both ends. A subscriber that falls `buffer` events behind misses some, and reads them from the workspace.
    pub fn new(buffer: u32) -> (Self, Controlled) {
        let (sender, signals) = mpsc::unbounded_channel();
        let (live, _) = broadcast::channel(buffer.max(1) as usize);
        let (reports, steps) = watch::channel(StepReport::default());
        let controlled = Controlled { signals, live: live.clone(), steps: reports, early: Vec::new() };
        (Self { signals: sender, live, steps }, controlled)
    }

    /// Whether the run was still there to hear it.
    pub fn send(&self, signal: Signal) -> bool {
        self.signals.send(signal).is_ok()
    }

    /// Every event from now on, as soon as it is stored.
    pub fn subscribe(&self) -> broadcast::Receiver<Arc<Stored>> {
        self.live.subscribe()
    }

    /// Lets a held run take a step and waits until that is done or the run has ended. None when the run has ended
    /// before, or never began. A run that is not held never does one: this then waits for its end.
    pub async fn step(&self) -> Option<StepReport> {
        let mut steps = self.steps.clone();
        let before = steps.borrow().steps_done;
        if !self.send(Signal::Step) {
            return None;
        }
        let done = |report: &StepReport| report.has_ended || (report.is_waiting && report.steps_done > before);
        steps.wait_for(done).await.ok().map(|report| *report)
    }
}

//! Runs that are held: they send only what a step lets them send, and say when that is settled.

use tokio::sync::watch;

use super::driver::Driver;
use crate::model::engine::Engine;
use crate::model::lifecycle::RunState;

/// How far a held run is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StepReport {
    /// Steps that are settled: everything that they sent has its answer in the log.
    pub steps_done: u64,
    /// Whether the run waits for a step.
    pub is_waiting: bool,
    /// The last event of the log. None before the first.
    pub last_sequence: Option<u64>,
    pub state: Option<RunState>,
    /// Whether this process has let go of the run, which need not be over.
    pub has_ended: bool,
}

/// What is told of a held run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Whether {
    Waiting,
    Ended,
}

/// Who steps the run, and how far that is.
#[derive(Debug)]
pub(super) struct Stepping {
    pub(super) reports: watch::Sender<StepReport>,
    pub(super) is_held: bool,
    pub(super) asked: u64,
    pub(super) state: Option<RunState>,
}

impl<E: Engine> Driver<'_, E> {
    /// Lets what waits now begin.
    pub(super) fn step(&mut self) {
        if self.stepping.is_held {
            self.stepping.asked += 1;
            self.lanes.step();
        }
    }

    /// Says that a step is done, when everything that it sent is settled and stored.
    pub(super) fn report_step(&self) {
        if self.stepping.is_held && self.lanes.is_settled() {
            self.report(Whether::Waiting);
        }
    }

    /// Says that this process has let go.
    pub(super) fn report_end(&self) {
        self.report(Whether::Ended);
    }

    fn report(&self, whether: Whether) {
        let report = StepReport {
            steps_done: self.stepping.asked,
            is_waiting: whether == Whether::Waiting,
            last_sequence: self.ground.next_sequence.checked_sub(1),
            state: self.stepping.state,
            has_ended: whether == Whether::Ended,
        };
        self.stepping.reports.send_if_modified(|known| std::mem::replace(known, report) != report);
    }
}

//! Runs that are held: they send only what a step lets them send, and report when that is settled.

use tokio::sync::watch;

use super::driver::Driver;
use synth_optimizer_core::model::engine::Engine;
use synth_optimizer_core::model::lifecycle::RunState;

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
    /// Whether the work of this process on the run has ended. The run itself need not be over.
    pub has_ended: bool,
}

/// Where a run stands between two steps.
#[derive(Debug)]
pub(super) struct Stepping {
    pub(super) reports: watch::Sender<StepReport>,
    pub(super) is_held: bool,
    pub(super) asked: u64,
    pub(super) state: Option<RunState>,
}

impl<E: Engine> Driver<'_, E> {
    /// Lets calls that wait now begin.
    pub(super) fn step(&mut self) {
        if self.stepping.is_held {
            self.stepping.asked += 1;
            self.lanes.step();
        }
    }

    /// Reports that a step is done, when everything that it sent is settled and stored.
    pub(super) fn report_step(&self) {
        if self.stepping.is_held && self.lanes.is_settled() {
            self.report(StepReport { is_waiting: true, ..StepReport::default() });
        }
    }

    /// Reports that the work of this process has ended.
    pub(super) fn report_end(&self) {
        self.report(StepReport { has_ended: true, ..StepReport::default() });
    }

    fn report(&self, report: StepReport) {
        let report = StepReport {
            steps_done: self.stepping.asked,
            last_sequence: self.ground.next_sequence.checked_sub(1),
            state: self.stepping.state,
            ..report
        };
        self.stepping.reports.send_if_modified(|known| std::mem::replace(known, report) != report);
    }
}

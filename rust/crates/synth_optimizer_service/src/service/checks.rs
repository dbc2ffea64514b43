//! Preflight checks, each on its own thread, because a check may start processes and wait for them. Also one lock per
//! container address, because a check and a run must not start a container at the same address.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedMutexGuard, oneshot, watch};

use crate::queue::container_lane;
use synth_gepa::{GepaEngine, plan, shortfalls};
use synth_optimizer_core::config::{ConfigFinding, Severity, rows_are_known};
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_platform::runtime::{CheckReport, Monitor, RunSpec, check, spawn};

type Report = Result<CheckReport, OptimizerError>;

/// A running check. Dropping it interrupts the check, which then ends the processes that it started.
#[derive(Debug)]
pub struct Check {
    report: Arc<Monitor<Option<Report>>>,
    cancel: Option<oneshot::Sender<()>>,
    thread: JoinHandle<()>,
}

impl Check {
    /// Starts a check. `problems` are the findings about the configuration. `kept` is dropped when the check has ended
    /// completely.
    pub fn start(
        request: RunSpec,
        problems: Vec<ConfigFinding>,
        guards: impl Send + 'static,
    ) -> Result<Self, OptimizerError> {
        let report = Arc::new(Monitor::default());
        let (report_slot, (cancel, cancelled)) = (Arc::clone(&report), oneshot::channel::<()>());
        let work = move || async move {
            tokio::select! {
                report = run_check(&request, &problems) => Ok(report),
                _ = cancelled => Err(OptimizerError::new(ErrorCode::Cancelled, "the preflight was interrupted")),
            }
        };
        let thread = spawn("check", work, move |report| {
            drop(guards);
            report_slot.update(|report_slot| *report_slot = Some(report));
        })?;
        Ok(Self { report, cancel: Some(cancel), thread })
    }

    /// Waits for the report.
    pub async fn report(&self) -> Report {
        self.report.wait_for(Option::is_some).await;
        let lost = || Err(OptimizerError::new(ErrorCode::Invariant, "the preflight has no report"));
        self.report.get().clone().unwrap_or_else(lost)
    }

    /// Blocks until the report is ready. Returns `None` if the time passes first.
    pub fn wait(&self, time: Duration) -> Option<Report> {
        self.report.wait_blocking(time, Option::is_some);
        self.report.get().clone()
    }

    /// Interrupts the check and waits until it has ended completely.
    pub fn cancel(mut self) {
        self.cancel = None;
        // A panic of the check is part of its report.
        let _ = self.thread.join();
    }
}

async fn run_check(request: &RunSpec, problems: &[ConfigFinding]) -> CheckReport {
    // The plan and the budget of an invalid configuration would be meaningless.
    let is_sound = problems.iter().all(|found| found.severity == Severity::Warning);
    let (plan, budget) = match is_sound {
        true => (serde_json::to_value(plan(&request.config)).ok(), shortfalls(&request.config)),
        false => (None, Vec::new()),
    };
    let mut report = CheckReport { plan, ..check::<GepaEngine>(request, problems, &budget).await };
    // The container has named the rows that the configuration leaves to it.
    if let Some(config) = report.resolved.take().filter(|_| is_sound && !rows_are_known(&request.config)) {
        report.plan = serde_json::to_value(synth_gepa::plan(&config)).ok();
        report.add_budget(&shortfalls(&config));
    }
    report
}

/// The locks of all containers that a run or a check is about to start.
#[derive(Debug, Default)]
pub(super) struct ContainerLocks(Mutex<BTreeMap<String, Weak<ContainerLock>>>);

/// The lock for starting a container at one address.
#[derive(Debug, Default)]
pub(super) struct ContainerLock {
    lock: Arc<tokio::sync::Mutex<()>>,
    /// How many runs wait for the lock.
    demands: watch::Sender<usize>,
}

impl ContainerLock {
    /// Waits until the lock is free and acquires it.
    pub(super) async fn lock(&self) -> OwnedMutexGuard<()> {
        Arc::clone(&self.lock).lock_owned().await
    }

    /// Acquires the lock with priority: asks the current holder to yield.
    pub(super) async fn lock_preempting(&self) -> OwnedMutexGuard<()> {
        let _demand = Demand::new(&self.demands);
        self.lock().await
    }

    /// Waits until a run wants the lock.
    pub(super) async fn wait_for_demand(&self) {
        // The channel cannot be closed, because this struct owns the sender.
        let _ = self.demands.subscribe().wait_for(|demands| *demands > 0).await;
    }
}

/// A run that waits for a lock.
struct Demand<'a>(&'a watch::Sender<usize>);

impl<'a> Demand<'a> {
    fn new(demands: &'a watch::Sender<usize>) -> Self {
        demands.send_modify(|demands| *demands += 1);
        Self(demands)
    }
}

impl Drop for Demand<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|demands| *demands -= 1);
    }
}

impl ContainerLocks {
    /// Returns the lock of the container at this address.
    pub(super) fn lock_for(&self, url: &str) -> Arc<ContainerLock> {
        let mut locks = self.0.lock();
        locks.retain(|_, lock| lock.strong_count() > 0);
        let lane = container_lane(url);
        if let Some(lock) = locks.get(&lane).and_then(Weak::upgrade) {
            return lock;
        }
        let lock = Arc::new(ContainerLock::default());
        locks.insert(lane, Arc::downgrade(&lock));
        lock
    }
}

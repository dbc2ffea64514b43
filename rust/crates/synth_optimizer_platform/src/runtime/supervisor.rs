//! Runs a future on its own thread with its own runtime. Runs, checks and cleanup use this. Such a future may block its
//! thread and need not be `Send`.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};
use tokio::sync::Notify;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tracing::{error, warn};

use super::control::{ControlReceiver, RunControl, next_from_file};
use super::execute::{RunOutcome, execute};
use super::run_spec::RunSpec;
use crate::artifacts::RunPaths;
use crate::logs::in_current_span;
use crate::workspace::{Reader, StoredEvent};
use synth_optimizer_core::engine::Engine;
use synth_optimizer_core::model::control::ControlRequest;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};

/// A value whose changes both threads and tasks can wait for.
#[derive(Debug, Default)]
pub struct Monitor<T> {
    value: Mutex<T>,
    /// Wakes threads.
    changed: Condvar,
    /// Wakes tasks.
    notify: Notify,
}

impl<T> Monitor<T> {
    pub fn new(value: T) -> Self {
        Self { value: Mutex::new(value), changed: Condvar::new(), notify: Notify::new() }
    }

    /// Locks and returns the value. Callers must release it quickly.
    pub fn get(&self) -> MutexGuard<'_, T> {
        self.value.lock()
    }

    /// Changes the value and wakes every thread and task that waits for it.
    pub fn update(&self, change: impl FnOnce(&mut T)) {
        change(&mut self.value.lock());
        self.changed.notify_all();
        self.notify.notify_waiters();
    }

    /// Waits in a task until `is_wanted` returns true for the value.
    pub async fn wait_for(&self, mut is_wanted: impl FnMut(&T) -> bool) {
        loop {
            // Subscribes before it reads the value, so that it misses no change.
            let changed = self.notify.notified();
            if is_wanted(&self.value.lock()) {
                return;
            }
            changed.await;
        }
    }

    /// Waits in a thread until `is_wanted` returns true for the value, or until the timeout. Returns whether it did.
    pub fn wait_blocking(&self, timeout: Duration, mut is_wanted: impl FnMut(&T) -> bool) -> bool {
        let mut value = self.value.lock();
        self.changed.wait_while_for(&mut value, |value| !is_wanted(value), timeout);
        is_wanted(&value)
    }
}

/// Runs a future on a new thread and passes its result to `on_end` on that thread. A panic becomes an error.
pub fn spawn<T, F: Future<Output = Result<T, OptimizerError>>>(
    what: &'static str,
    work: impl FnOnce() -> F + Send + 'static,
    on_end: impl FnOnce(Result<T, OptimizerError>) + Send + 'static,
) -> Result<JoinHandle<()>, OptimizerError> {
    let thread = std::thread::Builder::new().name(format!("synth-optimizers-{what}"));
    thread.spawn(in_current_span(move || on_end(block_on(what, work)))).map_err(|error| {
        OptimizerError::from_cause(ErrorCode::Io, format!("cannot start the thread of the {what}"), error)
    })
}

/// Runs a future on this thread, on a runtime that lives as long as the future.
pub fn block_on<T, F: Future<Output = Result<T, OptimizerError>>>(
    what: &str,
    work: impl FnOnce() -> F,
) -> Result<T, OptimizerError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|error| {
        OptimizerError::from_cause(ErrorCode::Io, format!("cannot start the runtime of the {what}"), error)
    })?;
    catch_panic(what, || runtime.block_on(work()))
}

/// Calls `work` and turns a panic into an error.
pub fn catch_panic<T>(what: &str, work: impl FnOnce() -> Result<T, OptimizerError>) -> Result<T, OptimizerError> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().map(ToString::to_string);
        let cause = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
        error!(what, cause, "a thread panicked");
        let message = format!("the thread of the {what} ended without a result");
        Err(OptimizerError::new(ErrorCode::Invariant, message).with_detail(cause))
    })
}

/// Executes a run. Calls `on_event` for every stored event and `on_control` for every control request from another
/// process.
pub async fn execute_watched<E: Engine>(
    request: RunSpec,
    (control, receiver): (&RunControl, ControlReceiver),
    paths: &RunPaths,
    mut on_event: impl FnMut(&StoredEvent),
    mut on_control: impl FnMut(ControlRequest),
) -> Result<RunOutcome, OptimizerError> {
    let mut live = control.subscribe();
    let mut last = None;
    let mut on_next = |stored: &StoredEvent| {
        // A listener that fell behind the broadcast reads from the log what it has missed.
        for missed in missed_events(paths, last, stored.sequence) {
            on_event(&missed);
        }
        last = Some(stored.sequence);
        on_event(stored);
    };
    let ended = {
        let events = async {
            loop {
                match live.recv().await {
                    Ok(stored) => on_next(&stored),
                    // The next event reads the missed ones from the log.
                    Err(RecvError::Lagged(_)) => {}
                    Err(RecvError::Closed) => std::future::pending().await,
                }
            }
        };
        let requests = async {
            loop {
                on_control(next_from_file(paths).await);
            }
        };
        tokio::select! {
            ended = execute::<E>(request, receiver) => ended,
            never = events => never,
            never = requests => never,
        }
    };
    loop {
        match live.try_recv() {
            Ok(stored) => on_next(&stored),
            Err(TryRecvError::Lagged(_)) => {}
            Err(TryRecvError::Empty | TryRecvError::Closed) => break,
        }
    }
    ended
}

/// Returns the events between the last one that was received and the next one.
fn missed_events(paths: &RunPaths, last: Option<u64>, next: u64) -> Vec<StoredEvent> {
    let Some(from) = last.map(|last| last + 1).filter(|from| *from < next) else { return Vec::new() };
    let count = usize::try_from(next - from).unwrap_or(usize::MAX);
    let read = Reader::open(paths.workspace_db().as_std_path()).and_then(|reader| reader.events(from, count));
    read.unwrap_or_else(|error| {
        warn!(from, count, %error, "reading missed events failed");
        Vec::new()
    })
}

#[cfg(test)]
#[path = "supervisor_tests.rs"]
mod tests;

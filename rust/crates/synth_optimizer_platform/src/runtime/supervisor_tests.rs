#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::Arc;
use std::time::Duration;

use super::{Monitor, block_on, catch_panic, spawn};
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};

const TIMEOUT: Duration = Duration::from_secs(30);

#[test]
fn a_change_wakes_threads_and_tasks() {
    let monitor = Arc::new(Monitor::new(0));
    assert!(!monitor.wait_blocking(Duration::from_millis(1), |value| *value > 0), "nothing has changed");
    let waiting: Vec<_> = (0..4)
        .map(|_| Arc::clone(&monitor))
        .map(|monitor| std::thread::spawn(move || monitor.wait_blocking(TIMEOUT, |value| *value == 2)))
        .collect();
    let task = Arc::clone(&monitor);
    let (results_sender, results) = std::sync::mpsc::channel();
    let work = move || async move {
        task.wait_for(|value| *value == 2).await;
        Ok(())
    };
    let thread = spawn("test", work, move |done| results_sender.send(done).unwrap()).unwrap();
    monitor.update(|value| *value = 1);
    monitor.update(|value| *value = 2);
    assert!(waiting.into_iter().all(|thread| thread.join().unwrap()));
    assert_eq!(results.recv_timeout(TIMEOUT).unwrap(), Ok(()));
    thread.join().unwrap();
}

#[test]
fn a_panic_is_reported_as_an_error() {
    let (results_sender, results) = std::sync::mpsc::channel();
    let work = || async { if true { panic!("broken") } else { Ok::<u8, OptimizerError>(1) } };
    spawn("test", work, move |done| results_sender.send(done).unwrap()).unwrap();
    let error = results.recv_timeout(TIMEOUT).unwrap().unwrap_err();
    assert_eq!(
        (error.code, error.message.as_str(), error.detail.as_deref()),
        (ErrorCode::Invariant, "the thread of the test ended without a result", Some("broken"))
    );
    let formatted = catch_panic("test", || -> Result<(), OptimizerError> { panic!("row {}", 7) });
    assert_eq!(formatted.unwrap_err().detail.as_deref(), Some("row 7"));
    assert_eq!(block_on("test", || async { Ok(1) }), Ok(1));
}

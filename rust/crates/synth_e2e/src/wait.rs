//! How tests wait for a condition.

use std::time::{Duration, Instant};

/// A wait fails after this time. It prevents hanging tests; it is not a performance limit.
pub const WAIT_TIMEOUT: Duration = Duration::from_secs(60);
/// Longer than any test runs.
pub const FOREVER: Duration = Duration::from_secs(3600);
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Polls until `poll` returns a value, and returns it.
#[track_caller]
pub fn wait_for<T>(what: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + WAIT_TIMEOUT;
    loop {
        if let Some(found) = poll() {
            return found;
        }
        assert!(Instant::now() < deadline, "this did not happen: {what}");
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Polls until the condition holds.
#[track_caller]
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    wait_for(what, || condition().then_some(()));
}

/// Polls until the condition holds, without blocking other tasks.
pub async fn wait_until_async(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + WAIT_TIMEOUT;
    while !condition() {
        assert!(Instant::now() < deadline, "this did not happen: {what}");
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Awaits a future and panics if it takes longer than `WAIT_TIMEOUT`.
pub async fn with_timeout<T>(future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(WAIT_TIMEOUT, future).await {
        Ok(output) => output,
        Err(late) => unreachable!("this should have ended: {late}"),
    }
}

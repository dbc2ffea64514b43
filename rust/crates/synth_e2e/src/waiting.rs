//! The one way in which tests wait for something that happens elsewhere.

use std::time::{Duration, Instant};

/// After this, what a test waits for has failed: a guard against a hang, not a promise about speed.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// Longer than any test waits: what takes this long was not waited for.
pub const FOREVER: Duration = Duration::from_secs(3600);
const LOOK: Duration = Duration::from_millis(2);

/// Looks until a look finds something, and returns it.
#[track_caller]
pub fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "this did not happen: {what}");
        std::thread::sleep(LOOK);
    }
}

/// Looks until it is so.
#[track_caller]
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    wait_for(what, || is_so().then_some(()));
}

/// Looks until it is so, and lets other tasks go on meanwhile.
pub async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "this did not happen: {what}");
        tokio::time::sleep(LOOK).await;
    }
}

/// What a future gives, which must be in bounded time.
pub async fn in_time<T>(future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(given) => given,
        Err(late) => unreachable!("this should have ended: {late}"),
    }
}

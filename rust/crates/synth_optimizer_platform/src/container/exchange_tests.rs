//! The pauses between retries.

use std::time::Duration;

use super::Limits;

#[test]
fn the_pause_doubles_up_to_the_longest() {
    let limits = Limits {
        connect_retries: 0,
        overload_retries: 0,
        backoff_first: Duration::from_millis(200),
        backoff_max: Duration::from_millis(1000),
        max_reply: 0,
    };
    let pauses: Vec<u128> = [1, 2, 3, 4, 100].map(|retry| limits.backoff(retry).as_millis()).to_vec();
    assert_eq!(pauses, [200, 400, 800, 1000, 1000]);
}

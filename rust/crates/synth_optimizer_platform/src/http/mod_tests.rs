//! `Retry-After` and the delays before retries.

use std::time::{Duration, UNIX_EPOCH};

use super::retry_after;

#[test]
fn retry_after_accepts_seconds_and_dates() {
    let now = UNIX_EPOCH + Duration::from_secs(784_111_770);
    assert_eq!(retry_after(" 7 ", now), Some(Duration::from_secs(7)));
    assert_eq!(retry_after("Sun, 06 Nov 1994 08:49:37 GMT", now), Some(Duration::from_secs(7)));
    assert_eq!(retry_after("Sun, 06 Nov 1994 08:49:20 GMT", now), Some(Duration::ZERO));
    for unreadable in ["", "soon", "-1", "1.5", "Sun, 06 Nov 1994 08:49:37 CET", "Sun, 99 Nov 1994 08:49:37 GMT"] {
        assert_eq!(retry_after(unreadable, now), None, "{unreadable:?}");
    }
}

#[test]
fn the_delay_doubles_up_to_the_maximum() {
    let backoff_delays = |first, longest, retries| {
        let backoff_delays =
            super::backoff_delays(Duration::from_millis(first), Duration::from_millis(longest), retries);
        backoff_delays.map(|pause| pause.as_millis()).collect::<Vec<_>>()
    };
    assert_eq!(backoff_delays(200, 1000, 6), [200, 400, 800, 1000, 1000, 1000]);
    assert_eq!(backoff_delays(200, 100, 2), [100, 100]);
    assert_eq!(backoff_delays(0, 100, 2), [0, 0]);
    assert_eq!(backoff_delays(200, 1000, 0), []);
}

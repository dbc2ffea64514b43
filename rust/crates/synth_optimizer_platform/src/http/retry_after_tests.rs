//! Both forms of the header, and what is neither.

use std::time::{Duration, UNIX_EPOCH};

use super::{pause_at, seconds_of_date};

#[test]
fn seconds_and_dates_are_read() {
    let now = UNIX_EPOCH + Duration::from_secs(784_111_770);
    assert_eq!(pause_at(" 7 ", now), Some(Duration::from_secs(7)));
    assert_eq!(pause_at("Sun, 06 Nov 1994 08:49:37 GMT", now), Some(Duration::from_secs(7)));
    assert_eq!(pause_at("Sun, 06 Nov 1994 08:49:20 GMT", now), Some(Duration::ZERO));
    for unreadable in ["", "soon", "-1", "1.5", "Sun, 06 Nov 1994 08:49:37 CET", "Sun, 99 Nov 1994 08:49:37 GMT"] {
        assert_eq!(pause_at(unreadable, now), None, "{unreadable:?}");
    }
}

#[test]
fn dates_around_leap_days_are_right() {
    assert_eq!(seconds_of_date("Thu, 01 Jan 1970 00:00:00 GMT"), Some(0));
    assert_eq!(seconds_of_date("Tue, 29 Feb 2000 12:00:00 GMT"), Some(951_825_600));
    assert_eq!(seconds_of_date("Fri, 01 Mar 2024 00:00:00 GMT"), Some(1_709_251_200));
}

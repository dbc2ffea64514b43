//! Reads `Retry-After`: a number of seconds or a date.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How long the header asks us to wait; nothing when it is absent or cannot be read.
pub(super) fn pause(header: &str) -> Option<Duration> {
    pause_at(header, SystemTime::now())
}

fn pause_at(header: &str, now: SystemTime) -> Option<Duration> {
    let header = header.trim();
    if let Ok(seconds) = header.parse::<u64>() {
        return Some(Duration::from_secs(seconds));
    }
    let until = UNIX_EPOCH + Duration::from_secs(seconds_of_date(header)?);
    // A date that has passed asks for no pause.
    Some(until.duration_since(now).unwrap_or_default())
}

/// Seconds since 1970 of a date like `Sun, 06 Nov 1994 08:49:37 GMT`, the one form that servers may write.
fn seconds_of_date(text: &str) -> Option<u64> {
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let mut words = text.split_once(", ")?.1.split(' ');
    let day: i64 = words.next()?.parse().ok().filter(|day| (1..=31).contains(day))?;
    let month = words.next()?;
    let month = MONTHS.iter().position(|name| *name == month)? as i64 + 1;
    let year: i64 = words.next()?.parse().ok().filter(|year| (1970..=9999).contains(year))?;
    let mut clock = words.next()?.split(':').map(|part| part.parse::<i64>().ok());
    let (hour, minute, second) = (clock.next()??, clock.next()??, clock.next()??);
    let in_range = (0..24).contains(&hour) && (0..60).contains(&minute) && (0..=60).contains(&second);
    if !in_range || words.next()? != "GMT" {
        return None;
    }
    // Years begin in March here, so that a leap day is the last of its year.
    let (year, month) = if month <= 2 { (year - 1, month + 9) } else { (year, month - 3) };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1 - 719_468;
    u64::try_from(days * 86_400 + hour * 3_600 + minute * 60 + second).ok()
}

#[cfg(test)]
#[path = "retry_after_tests.rs"]
mod tests;

//! The clocks of the machine, read in one place.

use std::fs;
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

/// Milliseconds since 1970, as the clock on the wall has it. It may jump: it is shown and never decides.
pub fn unix_millis() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// Milliseconds since the machine started, the time that it slept included. Nobody can set this clock.
pub fn boot_millis() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    let (seconds, nanos) = (u64::try_from(now.tv_sec).unwrap_or(0), u64::try_from(now.tv_nsec).unwrap_or(0));
    seconds * 1000 + nanos / 1_000_000
}

/// Names the time since the machine started last. Empty where the system has no such name.
pub fn boot_id() -> &'static str {
    static ID: OnceLock<String> = OnceLock::new();
    ID.get_or_init(|| fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned())
}

/// One moment on both clocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Moment {
    /// Milliseconds since 1970, to be shown.
    pub wall: u64,
    /// Milliseconds since the machine started, to decide by.
    pub boot: u64,
    /// Which start of the machine that was.
    pub boot_id: String,
}

/// Where moments come from.
pub trait Clock: Send + Sync + std::fmt::Debug {
    fn now(&self) -> Moment;
}

/// The clocks of this machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Moment {
        Moment { wall: unix_millis(), boot: boot_millis(), boot_id: boot_id().to_owned() }
    }
}

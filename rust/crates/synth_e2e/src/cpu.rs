//! CPU time and memory of processes, for benchmarks.

use std::io;
use std::time::Duration;

/// The clock tick of `/proc/PID/stat`: 10 ms on all supported Linux systems.
const TICK: Duration = Duration::from_millis(10);

/// Returns user and system time of this process and all its threads, including ended ones.
pub fn cpu_time() -> io::Result<Duration> {
    cpu_time_of(std::process::id())
}

/// Returns user and system time of another process.
pub fn cpu_time_of(pid: u32) -> io::Result<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    parse(&stat).ok_or_else(|| io::Error::other("/proc/PID/stat is not what Linux writes"))
}

/// Returns the peak resident memory of a process, in bytes.
pub fn peak_memory_bytes(pid: u32) -> io::Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let peak =
        status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    peak.map(|kilobytes| kilobytes * 1024).ok_or_else(|| io::Error::other("/proc/PID/status is not what Linux writes"))
}

/// Parses `/proc/PID/stat`. The process name may contain anything, so fields are counted from its closing bracket.
fn parse(stat: &str) -> Option<Duration> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let (user, system): (u32, u32) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some(TICK * (user.checked_add(system)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_the_process_does_not_shift_the_fields() {
        let stat = "7 (a b) c) S 1 7 7 0 -1 4194560 100 0 0 0 30 12 5 6 20 0 1 0 9 0 0";
        assert_eq!(parse(stat), Some(Duration::from_millis(420)));
    }

    #[test]
    fn the_cpu_time_of_this_process_can_be_read() {
        assert!(cpu_time().unwrap() < Duration::from_secs(3600));
    }
}

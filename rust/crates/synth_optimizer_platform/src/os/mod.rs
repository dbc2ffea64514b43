//! The only place that knows which operating system this is.
//!
//! [`System`] is the contract: every call that Linux has and another POSIX system lacks, with what it guarantees.
//! `linux` uses the kernel's own interfaces. `posix` uses what Linux, macOS and the BSDs share, and its guarantees are
//! weaker where the contract says so. [`system`] returns the one of this build: `linux` on Linux, `posix` elsewhere, and
//! `posix` on Linux too with `--cfg synth_portable_os` (`make portable-test`). One suite tests both, in every build on Linux.
//!
//! Everything else is plain POSIX. `tools/purity` rejects `/proc`, `target_os` and calls that only Linux has outside
//! `os/linux.rs`.

#[cfg(target_os = "linux")]
pub mod linux;
pub mod posix;

use std::fmt::Debug;
use std::fs::File;
use std::path::Path;

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};

#[cfg(all(target_os = "linux", not(synth_portable_os)))]
use linux::Linux as Current;
#[cfg(not(all(target_os = "linux", not(synth_portable_os))))]
use posix::Posix as Current;

/// Returns the implementation of this build.
pub fn system() -> &'static dyn System {
    &Current
}

/// Selects processes: those that carry a mark in their environment, and the members of a process group.
#[derive(Debug, Clone, Copy)]
pub struct ProcessFilter<'a> {
    /// Name and value of an environment variable, as `NAME=value`, without spaces.
    pub mark: &'a str,
    /// A group whose leader is an unreaped child of this process, so that its id cannot be reused.
    pub group: Option<i32>,
}

/// What the platform needs from the operating system beyond the calls that all POSIX systems share.
pub trait System: Debug + Send + Sync {
    /// Returns the name of the implementation.
    fn name(&self) -> &'static str;

    /// Returns the milliseconds of a clock that never goes back during a boot, that the user cannot set, and that all
    /// processes of the machine share. Leases, pauses and retries are measured with it.
    ///
    /// Linux counts the time that the machine sleeps. The portable form reads the POSIX monotonic clock: macOS documents
    /// that it counts that time, other systems may not. Without it, a lease outlasts the sleep and ends later;
    /// it never ends early, because the holder and the others read the same clock.
    fn boot_millis(&self) -> u64;

    /// Returns an id that all processes see during a boot, and that changes with every boot. `boot_millis` of different
    /// boots are not comparable.
    ///
    /// Returns an empty text if the system has no such id. A restart of the machine is then not noticed: a lease of the
    /// earlier boot ends with the proof that its holder is gone, or when the new boot has lasted as long as the old one.
    /// An id computed from the wall clock would be worse: setting the clock would look like a restart and end the leases
    /// of workers that are alive.
    fn boot_id(&self) -> String;

    /// Returns the start time of a running process, or `None` if there is no such process, if it is a zombie, or if the
    /// system does not tell. Pass it only to `is_running`: its unit differs between implementations.
    fn process_start_time(&self, pid: i32) -> Option<u64>;

    /// Returns whether the process with this pid and start time still runs. A pid that now belongs to another process, and
    /// a zombie, are not running.
    ///
    /// The portable form knows the start to the second. It takes a process for the same one if their starts are at most
    /// two seconds apart, so it can confuse them if the system reuses a pid within that time. If it cannot ask, it returns
    /// true: a lease then ends by its deadline.
    fn is_running(&self, pid: i32, start_time: u64) -> bool;

    /// Returns a name for the set of pids that this process sees. Pids of different sets are not comparable. Returns `None`
    /// if it is unknown.
    ///
    /// The portable form has one name, because macOS has one set. Where containers have sets of their own, it must not
    /// share a queue between them.
    fn pid_namespace(&self) -> Option<String>;

    /// Returns the pids of the running processes that the filter selects, without zombies. Returns none if the system does
    /// not list its processes.
    ///
    /// The portable form asks `ps`, which shows the environment of the user's own processes. macOS hides it for programs of
    /// the system such as `/bin/sh`; these are found by their group only, and not after a crash of the run. `ps` does not
    /// tell arguments from variables, so a process with the mark as an argument is selected as well.
    fn processes(&self, filter: ProcessFilter<'_>) -> Vec<i32>;

    /// Sends a signal to every process that the filter selects.
    ///
    /// Linux sends it to the process that was checked, even if its pid is reused meanwhile. The portable form signals the
    /// pid directly after the check.
    fn signal(&self, filter: ProcessFilter<'_>, signal: Signal);

    /// Opens an existing file beneath `root` for reading, without waiting for the writer of a pipe. `..` and symbolic links
    /// are followed as long as they stay beneath the root, also while another process changes the directories. A path that
    /// leads out fails with `XDEV`, an absolute link as well, and a circle of links with `LOOP`.
    ///
    /// On Linux the kernel resolves the path in one call. The portable form opens one component after the other and follows
    /// no link blindly. It needs the right to read each directory, where Linux needs only the right to search it.
    fn open_beneath(&self, root: &Path, relative: &Path) -> Result<File, Errno>;

    /// Raises the limit of open files of this process as far as the system allows, and returns it. `None` is no limit.
    ///
    /// The portable form also tries the fixed limit of macOS, which refuses the "unlimited" that it reports.
    fn raise_open_file_limit(&self) -> Option<u64>;

    /// Returns what a user can do if the sandbox of codex does not work. The sandbox itself is tested by running a
    /// command in it, which is the same everywhere.
    fn sandbox_hint(&self) -> &'static str;
}

/// Returns the milliseconds of a clock.
fn millis_of(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    let (seconds, nanos) = (u64::try_from(now.tv_sec).unwrap_or(0), u64::try_from(now.tv_nsec).unwrap_or(0));
    seconds * 1000 + nanos / 1_000_000
}

/// Raises the limit of open files to the first of the values that the system accepts. Returns the limit that applies.
fn raise_open_file_limit(values: &[Option<u64>]) -> Option<u64> {
    let limits = getrlimit(Resource::Nofile);
    let is_raised = |value: &Option<u64>| setrlimit(Resource::Nofile, Rlimit { current: *value, ..limits }).is_ok();
    values.iter().copied().find(is_raised).unwrap_or(limits.current)
}

#[cfg(test)]
#[path = "contract_tests.rs"]
mod contract_tests;

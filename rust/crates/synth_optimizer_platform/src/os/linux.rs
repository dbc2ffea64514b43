//! Linux: the boot clock, `/proc`, pidfds and `openat2`.

use std::fs::{self, File};
use std::path::Path;

use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Resource, Signal, getrlimit, kill_process, pidfd_open, pidfd_send_signal};
use rustix::time::ClockId;

use super::{ProcessFilter, System, millis_of, raise_open_file_limit};

/// Maximum number of times that a path is resolved again because of renames elsewhere.
const MAX_RACED_OPENS: u32 = 1000;

/// The interfaces of the Linux kernel.
#[derive(Debug, Clone, Copy)]
pub struct Linux;

impl System for Linux {
    fn name(&self) -> &'static str {
        "linux"
    }

    fn boot_millis(&self) -> u64 {
        millis_of(ClockId::Boottime)
    }

    fn boot_id(&self) -> String {
        fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
    }

    /// Returns the start time in clock ticks since boot.
    fn process_start_time(&self, pid: i32) -> Option<u64> {
        process_stat(pid).map(|(_, start_time)| start_time)
    }

    fn is_running(&self, pid: i32, start_time: u64) -> bool {
        self.process_start_time(pid) == Some(start_time)
    }

    fn pid_namespace(&self) -> Option<String> {
        fs::read_link("/proc/self/ns/pid").ok().map(|link| link.to_string_lossy().into_owned())
    }

    fn processes(&self, filter: ProcessFilter<'_>) -> Vec<i32> {
        let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
        let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        pids.filter(|pid| is_selected(*pid, filter)).collect()
    }

    fn signal(&self, filter: ProcessFilter<'_>, signal: Signal) {
        for raw in self.processes(filter) {
            let Some(pid) = Pid::from_raw(raw) else { continue };
            // A pidfd always refers to the process it was opened for, so the process that is checked now is the one that
            // receives the signal. Errors are ignored: a process that has exited in the meantime needs no signal.
            let _ = match pidfd_open(pid, PidfdFlags::empty()) {
                Ok(handle) if is_selected(raw, filter) => pidfd_send_signal(handle, signal),
                Ok(_) | Err(Errno::SRCH) => Ok(()),
                // The kernel has no pidfds.
                Err(_) => kill_process(pid, signal),
            };
        }
    }

    fn open_beneath(&self, root: &Path, relative: &Path) -> Result<File, Errno> {
        let directory = rustix::fs::open(root, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        // Without NONBLOCK, opening a named pipe would block until a writer opens it.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
        let within = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        // The kernel answers AGAIN to a path with `..` if any file of the machine was renamed meanwhile.
        let mut attempts = 0;
        loop {
            match openat2(&directory, relative, flags, Mode::empty(), within) {
                Err(Errno::AGAIN) if attempts < MAX_RACED_OPENS => attempts += 1,
                opened => return opened.map(File::from),
            }
        }
    }

    fn raise_open_file_limit(&self) -> Option<u64> {
        raise_open_file_limit(&[getrlimit(Resource::Nofile).maximum])
    }

    fn sandbox_hint(&self) -> &'static str {
        "Commands of codex need unprivileged user namespaces: allow them for this user \
         (kernel.unprivileged_userns_clone, user.max_user_namespaces, or the AppArmor rule for bwrap), or run \
         the optimizer where they are allowed."
    }
}

fn is_selected(pid: i32, filter: ProcessFilter<'_>) -> bool {
    let is_marked = |environ: Vec<u8>| environ.split(|byte| *byte == 0).any(|entry| entry == filter.mark.as_bytes());
    process_stat(pid).is_some_and(|(group, _)| {
        filter.group == Some(group) || fs::read(format!("/proc/{pid}/environ")).is_ok_and(is_marked)
    })
}

/// Returns the group and start time of a running process, or `None` for a zombie or missing process.
fn process_stat(pid: i32) -> Option<(i32, u64)> {
    // `pid (name) state ppid pgrp …`; the name may contain any character.
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut rest = stat.rsplit_once(") ")?.1.split(' ');
    rest.next().filter(|state| !matches!(*state, "Z" | "X"))?;
    Some((rest.nth(1)?.parse().ok()?, rest.nth(16)?.parse().ok()?))
}

//! Finds and ends the processes of a managed container or proposer, by the token in their environment and by their group.

use std::fs;
use std::time::{Duration, Instant};

use camino::Utf8Path;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};

use super::lease::{Holder, Lease};
use crate::model::error::OptimizerError;

/// How often a dying process is looked at.
pub(crate) const GLANCE: Duration = Duration::from_millis(20);
/// How long the system may take to remove killed processes.
pub(crate) const AFTER_KILL: Duration = Duration::from_secs(5);

/// Ends what a crashed run has left of its container and its proposer, and counts it. A process whose environment does
/// not hold the lease's token is never touched, whatever its pid.
///
/// It blocks for at most the leases' stop timeouts and a few seconds.
pub fn reap_orphans(run_dir: &Utf8Path) -> Result<u32, OptimizerError> {
    Ok(reap(run_dir, Holder::Container)? + reap(run_dir, Holder::Proposer)?)
}

/// The same for what has nothing to save: it is given no time to end by itself.
pub(crate) fn kill_orphans(run_dir: &Utf8Path) -> Result<u32, OptimizerError> {
    let kill = |holder| reap_within(run_dir, holder, Duration::ZERO);
    Ok(kill(Holder::Container)? + kill(Holder::Proposer)?)
}

/// The same for one of them.
pub(crate) fn reap(run_dir: &Utf8Path, holder: Holder) -> Result<u32, OptimizerError> {
    reap_within(run_dir, holder, Duration::MAX)
}

fn reap_within(run_dir: &Utf8Path, holder: Holder, most: Duration) -> Result<u32, OptimizerError> {
    let Some(lease) = Lease::read(run_dir, holder)? else {
        Lease::remove(run_dir, holder)?;
        return Ok(0);
    };
    let family = Family { holder, token: lease.token.clone(), group: None };
    let found = if lease.is_of_this_boot() { family.members() } else { Vec::new() };
    let known: Vec<(i32, Option<u64>)> = found.iter().map(|pid| (*pid, started(*pid))).collect();
    if !found.is_empty() {
        family.signal(Signal::TERM);
        let patience = Duration::from_secs(lease.stop_timeout_seconds).min(most);
        if !family.is_gone_within(patience) && !family.is_killed_within(AFTER_KILL) {
            return Err(family.still_there());
        }
        // A process that ends loses its environment a moment before it closes its sockets.
        let deadline = Instant::now() + AFTER_KILL;
        let lingers = |(pid, began): &(i32, Option<u64>)| {
            state_and_group(*pid).is_some_and(|(state, _)| !matches!(state, 'Z' | 'X')) && started(*pid) == *began
        };
        while known.iter().any(lingers) && Instant::now() < deadline {
            std::thread::sleep(GLANCE);
        }
    }
    Lease::remove_own(run_dir, holder, &lease.token)?;
    Ok(found.len() as u32)
}

/// Whether a crashed run has left processes. Nothing is ended.
pub(crate) fn has_orphans(run_dir: &Utf8Path, holder: Holder) -> bool {
    let lease = Lease::read(run_dir, holder).ok().flatten().filter(Lease::is_of_this_boot);
    lease.is_some_and(|lease| !Family { holder, token: lease.token, group: None }.members().is_empty())
}

/// The processes of one managed container or proposer.
#[derive(Debug, Clone)]
pub(crate) struct Family {
    pub(crate) holder: Holder,
    pub(crate) token: String,
    /// Set while we are the parent: the group cannot have been given to others as long as it has members.
    pub(crate) group: Option<i32>,
}

impl Family {
    /// The processes that run. Dead ones that nobody has buried do not count.
    pub(crate) fn members(&self) -> Vec<i32> {
        let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
        let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        pids.filter(|pid| self.is_member(*pid)).collect()
    }

    /// Signals every member. A pidfd keeps naming the process it was opened for, so that what is checked is what is hit.
    pub(crate) fn signal(&self, signal: Signal) {
        for raw in self.members() {
            let Some(pid) = Pid::from_raw(raw) else { continue };
            // Whoever has ended meanwhile is as is wanted.
            let _ = match pidfd_open(pid, PidfdFlags::empty()) {
                Ok(handle) if self.is_member(raw) => pidfd_send_signal(handle, signal),
                Ok(_) | Err(Errno::SRCH) => Ok(()),
                // A system without pidfds.
                Err(_) => kill_process(pid, signal),
            };
        }
    }

    /// Waits, blocking, until no member is left.
    pub(super) fn is_gone_within(&self, limit: Duration) -> bool {
        self.is_empty_within(limit, || {})
    }

    /// Kills, again and again for the sake of those that are just being born, until no member is left.
    pub(crate) fn is_killed_within(&self, limit: Duration) -> bool {
        self.is_empty_within(limit, || self.signal(Signal::KILL))
    }

    fn is_empty_within(&self, limit: Duration, nudge: impl Fn()) -> bool {
        let deadline = Instant::now() + limit;
        while !self.members().is_empty() {
            if Instant::now() >= deadline {
                return false;
            }
            nudge();
            std::thread::sleep(GLANCE);
        }
        true
    }

    pub(crate) fn still_there(&self) -> OptimizerError {
        let pids = self.members().iter().map(i32::to_string).collect::<Vec<_>>().join(", ");
        let message = format!("processes of the {} do not end although they were killed: {pids}", self.holder.noun());
        OptimizerError::new(self.holder.code(), message).with_hint("End them by hand before the next run.")
    }

    fn is_member(&self, pid: i32) -> bool {
        let Some((state, group)) = state_and_group(pid) else { return false };
        if matches!(state, 'Z' | 'X') {
            return false;
        }
        self.group == Some(group) || holds(pid, self.holder.variable(), &self.token)
    }
}

fn holds(pid: i32, variable: &str, token: &str) -> bool {
    let wanted = format!("{variable}={token}");
    fs::read(format!("/proc/{pid}/environ"))
        .is_ok_and(|environ| environ.split(|byte| *byte == 0).any(|entry| entry == wanted.as_bytes()))
}

/// Whether the process that began then is still running. A dead one that nobody has buried is not.
pub(crate) fn is_running(pid: i32, began: u64) -> bool {
    state_and_group(pid).is_some_and(|(state, _)| !matches!(state, 'Z' | 'X')) && started(pid) == Some(began)
}

/// When a process began, in clock ticks since the machine did: with its pid, it names one process.
pub(crate) fn started(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(19)?.parse().ok()
}

/// From `/proc/<pid>/stat`: `pid (name) state ppid pgrp …`, where the name may hold anything.
fn state_and_group(pid: i32) -> Option<(char, i32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut rest = stat.rsplit_once(") ")?.1.split(' ');
    let state = rest.next()?.chars().next()?;
    Some((state, rest.nth(1)?.parse().ok()?))
}

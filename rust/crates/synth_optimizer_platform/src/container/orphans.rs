//! What a managed container or proposer leaves: the lease by which the next start finds it, and its processes, found by the
//! token in their environment and by their group, and ended.

use std::fs;
use std::io::ErrorKind;
use std::time::{Duration, Instant};

use camino::Utf8Path;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

use crate::artifacts::write_atomic;
use crate::clock::boot_id;
use crate::warn_if_err;
use synth_optimizer_core::model::canonical::hex;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};

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
pub fn kill_orphans(run_dir: &Utf8Path) -> Result<u32, OptimizerError> {
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
    let found = if lease.boot_id == boot_id() { family.members() } else { Vec::new() };
    let known: Vec<(i32, u64)> = found.iter().filter_map(|pid| Some((*pid, started(*pid)?))).collect();
    if !found.is_empty() {
        family.end_within(Duration::from_secs(lease.stop_timeout_seconds).min(most))?;
        // A process that ends loses its environment a moment before it closes its sockets.
        let deadline = Instant::now() + AFTER_KILL;
        while known.iter().any(|(pid, began)| is_running(*pid, *began)) && Instant::now() < deadline {
            std::thread::sleep(GLANCE);
        }
    }
    Lease::remove_own(run_dir, holder, &lease.token)?;
    Ok(found.len() as u32)
}

/// Whether a crashed run has left processes. Nothing is ended.
pub(crate) fn has_orphans(run_dir: &Utf8Path, holder: Holder) -> bool {
    let lease = Lease::read(run_dir, holder);
    warn_if_err!(&lease, "whether processes are left is not known");
    let lease = lease.ok().flatten().filter(|lease| lease.boot_id == boot_id());
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
            // Lost: a process that has ended meanwhile is as is wanted.
            let _ = match pidfd_open(pid, PidfdFlags::empty()) {
                Ok(handle) if self.is_member(raw) => pidfd_send_signal(handle, signal),
                Ok(_) | Err(Errno::SRCH) => Ok(()),
                // A system without pidfds.
                Err(_) => kill_process(pid, signal),
            };
        }
    }

    /// Asks every member to end and kills those that have not within `patience`. Blocks until none is left.
    pub(super) fn end_within(&self, patience: Duration) -> Result<(), OptimizerError> {
        self.signal(Signal::TERM);
        if self.is_empty_within(patience, || {}) || self.kill_within(AFTER_KILL) {
            return Ok(());
        }
        Err(self.still_there())
    }

    /// Kills every member, again and again for the sake of those that are just being born; tells whether none is left.
    pub(crate) fn kill_within(&self, limit: Duration) -> bool {
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
        let (code, noun) = match self.holder {
            Holder::Container => (ErrorCode::Container, "container"),
            Holder::Proposer => (ErrorCode::Proposer, "proposer"),
        };
        let message = format!("processes of the {noun} do not end although they were killed: {pids}");
        OptimizerError::new(code, message).with_hint("End them by hand before the next run.")
    }

    fn is_member(&self, pid: i32) -> bool {
        let is_marked = |environ: Vec<u8>| {
            let mark = format!("{}={}", self.holder.variable(), self.token);
            environ.split(|byte| *byte == 0).any(|entry| entry == mark.as_bytes())
        };
        running(pid).is_some_and(|(group, _)| {
            self.group == Some(group) || fs::read(format!("/proc/{pid}/environ")).is_ok_and(is_marked)
        })
    }
}

/// Whether the process that began then is still running.
pub fn is_running(pid: i32, began: u64) -> bool {
    started(pid) == Some(began)
}

/// When a running process began, in clock ticks since the machine did: with its pid, it names one process.
pub fn started(pid: i32) -> Option<u64> {
    running(pid).map(|(_, began)| began)
}

/// The group of a process, and when it began. A dead one that nobody has buried is not running.
fn running(pid: i32) -> Option<(i32, u64)> {
    // `pid (name) state ppid pgrp …`, where the name may hold anything.
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut rest = stat.rsplit_once(") ")?.1.split(' ');
    rest.next().filter(|state| !matches!(*state, "Z" | "X"))?;
    Some((rest.nth(1)?.parse().ok()?, rest.nth(16)?.parse().ok()?))
}

/// Name of the container's file in the run directory.
pub const LEASE_FILE: &str = "container.lease.json";

/// Whose processes a lease names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Holder {
    Container,
    Proposer,
}

impl Holder {
    /// Name of the file in the run directory.
    pub(crate) fn file(self) -> &'static str {
        match self {
            Self::Container => LEASE_FILE,
            Self::Proposer => "proposer.lease.json",
        }
    }

    /// The variable that marks every process of the holder.
    pub(crate) fn variable(self) -> &'static str {
        match self {
            Self::Container => "SYNTH_OPTIMIZERS_CONTAINER_LEASE",
            Self::Proposer => "SYNTH_OPTIMIZERS_PROPOSER_LEASE",
        }
    }
}

/// Who is meant. A process belongs to the lease if its environment holds the token; its pid alone says nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Lease {
    pub(crate) token: String,
    /// Unset between the writing of the file and the start of the process.
    pub(crate) pid: Option<u32>,
    pub(crate) pgid: Option<u32>,
    /// Nothing survives a restart of the machine.
    boot_id: String,
    stop_timeout_seconds: u64,
}

impl Lease {
    pub(crate) fn new(stop_timeout_seconds: u64) -> Result<Self, OptimizerError> {
        let mut token = [0; 16];
        getrandom::fill(&mut token)
            .map_err(|error| OptimizerError::from_cause(ErrorCode::Io, "the system gives no random numbers", error))?;
        Ok(Self { token: hex(&token), pid: None, pgid: None, boot_id: boot_id().to_owned(), stop_timeout_seconds })
    }

    /// Replaces the file as a whole.
    pub(crate) fn write(&self, run_dir: &Utf8Path, holder: Holder) -> Result<(), OptimizerError> {
        let text =
            serde_json::to_vec(self).map_err(|error| OptimizerError::from_cause(ErrorCode::Json, "a lease", error))?;
        write_atomic(&run_dir.join(holder.file()), &text)
    }

    /// The lease that an earlier start has left, if any. A file that cannot be read as one names nobody.
    fn read(run_dir: &Utf8Path, holder: Holder) -> Result<Option<Self>, OptimizerError> {
        let path = run_dir.join(holder.file());
        let bytes = match fs::read(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            read => read.map_err(|error| io(&path, "read", &error))?,
        };
        let lease = serde_json::from_slice(&bytes);
        warn_if_err!(&lease, "a lease cannot be read: what it names is not looked for", %path);
        Ok(lease.ok())
    }

    /// Removes the file if it is still the one of this token: another process may have taken the run over.
    pub(crate) fn remove_own(run_dir: &Utf8Path, holder: Holder, token: &str) -> Result<(), OptimizerError> {
        match Self::read(run_dir, holder)? {
            Some(lease) if lease.token != token => Ok(()),
            Some(_) | None => Self::remove(run_dir, holder),
        }
    }

    pub(crate) fn remove(run_dir: &Utf8Path, holder: Holder) -> Result<(), OptimizerError> {
        let path = run_dir.join(holder.file());
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(io(&path, "removed", &error)),
            Ok(()) | Err(_) => Ok(()),
        }
    }
}

fn io(path: &Utf8Path, done: &str, error: &std::io::Error) -> OptimizerError {
    OptimizerError::new(ErrorCode::Io, format!("{path} cannot be {done}: {error}"))
}

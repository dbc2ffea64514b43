//! What a managed container or proposer leaves: the lease by which the next start finds it, and its processes, found by the
//! token in their environment and by their group, and ended.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use tracing::warn;

use crate::clock::boot_id;
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
    let found = if lease.is_of_this_boot() { family.members() } else { Vec::new() };
    let known: Vec<(i32, Option<u64>)> = found.iter().map(|pid| (*pid, started(*pid))).collect();
    if !found.is_empty() {
        family.signal(Signal::TERM);
        let patience = Duration::from_secs(lease.stop_timeout_seconds).min(most);
        if !family.is_gone_within(patience) && !family.kill_within(AFTER_KILL) {
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
    let lease = Lease::read(run_dir, holder).unwrap_or_else(|error| {
        warn!(%error, "whether processes are left is not known");
        None
    });
    let lease = lease.filter(Lease::is_of_this_boot);
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

    /// Waits, blocking, until no member is left.
    pub(super) fn is_gone_within(&self, limit: Duration) -> bool {
        self.is_empty_within(limit, || {})
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
pub fn is_running(pid: i32, began: u64) -> bool {
    state_and_group(pid).is_some_and(|(state, _)| !matches!(state, 'Z' | 'X')) && started(pid) == Some(began)
}

/// When a process began, in clock ticks since the machine did: with its pid, it names one process.
pub fn started(pid: i32) -> Option<u64> {
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

    pub(super) fn noun(self) -> &'static str {
        match self {
            Self::Container => "container",
            Self::Proposer => "proposer",
        }
    }

    pub(super) fn code(self) -> ErrorCode {
        match self {
            Self::Container => ErrorCode::Container,
            Self::Proposer => ErrorCode::Proposer,
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
    pub(super) boot_id: String,
    pub(super) stop_timeout_seconds: u64,
}

impl Lease {
    pub(crate) fn new(stop_timeout_seconds: u64) -> Result<Self, OptimizerError> {
        let mut token = [0; 16];
        getrandom::fill(&mut token).map_err(|error| {
            OptimizerError::new(ErrorCode::Io, format!("the system gives no random numbers: {error}"))
        })?;
        Ok(Self { token: hex(&token), pid: None, pgid: None, boot_id: boot_id().to_owned(), stop_timeout_seconds })
    }

    /// Replaces the file as a whole.
    pub(crate) fn write(&self, run_dir: &Utf8Path, holder: Holder) -> Result<(), OptimizerError> {
        let path = path(run_dir, holder);
        let draft = run_dir.join(format!("{}.new", holder.file()));
        let write = || {
            let mut file = OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&draft)?;
            file.write_all(&serde_json::to_vec(self)?)?;
            file.sync_all()?;
            fs::rename(&draft, &path)
        };
        write().map_err(|error: std::io::Error| io(&path, "written", &error))
    }

    /// The lease that an earlier start has left, if any. A file that cannot be read as one names nobody.
    pub(super) fn read(run_dir: &Utf8Path, holder: Holder) -> Result<Option<Self>, OptimizerError> {
        let path = path(run_dir, holder);
        match fs::read(&path) {
            Ok(bytes) => Ok(match serde_json::from_slice(&bytes) {
                Ok(lease) => Some(lease),
                Err(error) => {
                    warn!(%path, %error, "a lease cannot be read: what it names is not looked for");
                    None
                }
            }),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(io(&path, "read", &error)),
        }
    }

    /// Removes the file if it is still the one of this token: another process may have taken the run over.
    pub(crate) fn remove_own(run_dir: &Utf8Path, holder: Holder, token: &str) -> Result<(), OptimizerError> {
        match Self::read(run_dir, holder)? {
            Some(lease) if lease.token != token => Ok(()),
            Some(_) | None => Self::remove(run_dir, holder),
        }
    }

    pub(crate) fn remove(run_dir: &Utf8Path, holder: Holder) -> Result<(), OptimizerError> {
        let path = path(run_dir, holder);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(io(&path, "removed", &error)),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Whether the machine has not been restarted since.
    pub(super) fn is_of_this_boot(&self) -> bool {
        self.boot_id == boot_id()
    }
}

fn path(run_dir: &Utf8Path, holder: Holder) -> Utf8PathBuf {
    run_dir.join(holder.file())
}

fn io(path: &Utf8Path, done: &str, error: &std::io::Error) -> OptimizerError {
    OptimizerError::new(ErrorCode::Io, format!("{path} cannot be {done}: {error}"))
}

//! Finds and ends the processes of a managed container or proposer, also after a crash of the run that started them.
//!
//! Each managed program has a lease file with a token. Its processes are found by that token in their environment, and
//! by their process group.

use std::fs;
use std::time::{Duration, Instant};

use camino::Utf8Path;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use crate::atomic_file::write_atomic;
use crate::clock::{boot_id, random_hex};
use crate::file_error::{self, if_exists};
use crate::os::{self, ProcessFilter};
use crate::warn_if_err;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};

/// How often to check whether a process has exited.
pub(crate) const PROCESS_POLL_INTERVAL: Duration = Duration::from_millis(20);
/// How long to wait for killed processes to exit.
pub(crate) const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// Ends the container and proposer processes of a crashed run, and returns their number. Only processes with the
/// lease's token in their environment are ended; a reused pid is never affected.
///
/// Blocks for at most the stop timeouts of the leases plus a few seconds.
pub fn reap_orphans(run_dir: &Utf8Path) -> Result<u32, OptimizerError> {
    Ok(reap_orphans_of(run_dir, ProcessOwner::Container)? + reap_orphans_of(run_dir, ProcessOwner::Proposer)?)
}

/// Kills the container and proposer processes of a crashed run without a grace period, and returns their number.
pub fn kill_orphans(run_dir: &Utf8Path) -> Result<u32, OptimizerError> {
    let kill = |owner| reap_within(run_dir, owner, Duration::ZERO);
    Ok(kill(ProcessOwner::Container)? + kill(ProcessOwner::Proposer)?)
}

/// Ends the processes of one owner that a crashed run left behind, and returns their number.
pub(crate) fn reap_orphans_of(run_dir: &Utf8Path, owner: ProcessOwner) -> Result<u32, OptimizerError> {
    reap_within(run_dir, owner, Duration::MAX)
}

fn reap_within(run_dir: &Utf8Path, owner: ProcessOwner, most: Duration) -> Result<u32, OptimizerError> {
    let Some(lease) = ProcessLease::read(run_dir, owner)? else {
        ProcessLease::remove(run_dir, owner)?;
        return Ok(0);
    };
    let processes = ProcessSet { owner, token: lease.token.clone(), group: None };
    let found = if lease.boot_id == boot_id() { processes.members() } else { Vec::new() };
    let system = os::system();
    let identified: Vec<(i32, u64)> =
        found.iter().filter_map(|pid| Some((*pid, system.process_start_time(*pid)?))).collect();
    if !found.is_empty() {
        processes.end_within(Duration::from_secs(lease.stop_timeout_seconds).min(most))?;
        // An exiting process loses its environment shortly before it closes its sockets.
        let deadline = Instant::now() + KILL_TIMEOUT;
        let is_running = |(pid, start_time): &(i32, u64)| system.is_running(*pid, *start_time);
        while identified.iter().any(is_running) && Instant::now() < deadline {
            std::thread::sleep(PROCESS_POLL_INTERVAL);
        }
    }
    ProcessLease::remove_own(run_dir, owner, &lease.token)?;
    Ok(found.len() as u32)
}

/// Returns whether a crashed run left processes behind. Ends none of them.
pub(crate) fn has_orphans(run_dir: &Utf8Path, owner: ProcessOwner) -> bool {
    let lease = ProcessLease::read(run_dir, owner);
    warn_if_err!(&lease, "reading the leases of an earlier process failed");
    let lease = lease.ok().flatten().filter(|lease| lease.boot_id == boot_id());
    lease.is_some_and(|lease| !ProcessSet { owner, token: lease.token, group: None }.members().is_empty())
}

/// The processes of one managed container or proposer.
#[derive(Debug, Clone)]
pub(crate) struct ProcessSet {
    pub(crate) owner: ProcessOwner,
    pub(crate) token: String,
    /// Process group; set while this process is the parent. A group id is not reused while the group has members.
    pub(crate) group: Option<i32>,
}

impl ProcessSet {
    /// Returns the pids of the running processes, without zombies.
    pub(crate) fn members(&self) -> Vec<i32> {
        os::system().processes(ProcessFilter { mark: &self.mark(), group: self.group })
    }

    /// Sends a signal to every member.
    pub(crate) fn signal(&self, signal: Signal) {
        os::system().signal(ProcessFilter { mark: &self.mark(), group: self.group }, signal);
    }

    /// Returns the variable and the token in the environment of every member.
    fn mark(&self) -> String {
        format!("{}={}", self.owner.variable(), self.token)
    }

    /// Sends SIGTERM to every member and SIGKILL to those that still run after `patience`. Blocks until all have
    /// exited.
    pub(super) fn end_within(&self, patience: Duration) -> Result<(), OptimizerError> {
        self.signal(Signal::TERM);
        if self.wait_until_empty(patience, || {}) || self.kill_within(KILL_TIMEOUT) {
            return Ok(());
        }
        Err(self.survivors_error())
    }

    /// Kills every member, repeatedly because a member may be forking. Returns whether all have exited within the
    /// limit.
    pub(crate) fn kill_within(&self, limit: Duration) -> bool {
        self.wait_until_empty(limit, || self.signal(Signal::KILL))
    }

    fn wait_until_empty(&self, limit: Duration, nudge: impl Fn()) -> bool {
        let deadline = Instant::now() + limit;
        while !self.members().is_empty() {
            if Instant::now() >= deadline {
                return false;
            }
            nudge();
            std::thread::sleep(PROCESS_POLL_INTERVAL);
        }
        true
    }

    pub(crate) fn survivors_error(&self) -> OptimizerError {
        let pids = self.members().iter().map(i32::to_string).collect::<Vec<_>>().join(", ");
        let (code, noun) = match self.owner {
            ProcessOwner::Container => (ErrorCode::Container, "container"),
            ProcessOwner::Proposer => (ErrorCode::Proposer, "proposer"),
        };
        let message = format!("processes of the {noun} did not end after SIGKILL: {pids}");
        OptimizerError::new(code, message).with_hint("End these processes before the next run.")
    }
}

/// Name of the container's lease file in the run directory.
pub const CONTAINER_LEASE_FILE: &str = "container.lease.json";

/// The managed program to which processes belong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProcessOwner {
    Container,
    Proposer,
}

impl ProcessOwner {
    /// Returns the name of the lease file in the run directory.
    pub(crate) fn file(self) -> &'static str {
        match self {
            Self::Container => CONTAINER_LEASE_FILE,
            Self::Proposer => "proposer.lease.json",
        }
    }

    /// Returns the environment variable that holds the token in every process of this owner.
    pub(crate) fn variable(self) -> &'static str {
        match self {
            Self::Container => "SYNTH_OPTIMIZERS_CONTAINER_LEASE",
            Self::Proposer => "SYNTH_OPTIMIZERS_PROPOSER_LEASE",
        }
    }
}

/// Identifies the processes of one managed program. A process belongs to the lease if its environment contains the
/// token; the pid alone proves nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProcessLease {
    pub(crate) token: String,
    /// `None` until the process is started; the file is written first.
    pub(crate) pid: Option<u32>,
    pub(crate) pgid: Option<u32>,
    /// Boot during which the lease was written. No process survives a reboot.
    boot_id: String,
    stop_timeout_seconds: u64,
}

impl ProcessLease {
    pub(crate) fn new(stop_timeout_seconds: u64) -> Result<Self, OptimizerError> {
        Ok(Self {
            token: random_hex::<16>()?,
            pid: None,
            pgid: None,
            boot_id: boot_id().to_owned(),
            stop_timeout_seconds,
        })
    }

    /// Writes the lease file atomically.
    pub(crate) fn write(&self, run_dir: &Utf8Path, owner: ProcessOwner) -> Result<(), OptimizerError> {
        let text = serde_json::to_vec(self).map_err(file_error::json("a lease"))?;
        write_atomic(&run_dir.join(owner.file()), &text)
    }

    /// Reads the lease of an earlier start, if there is one. An unreadable lease counts as missing.
    fn read(run_dir: &Utf8Path, owner: ProcessOwner) -> Result<Option<Self>, OptimizerError> {
        let path = run_dir.join(owner.file());
        let read = if_exists(fs::read(&path)).map_err(file_error::io(&path, "reading"))?;
        let Some(bytes) = read else { return Ok(None) };
        let lease = serde_json::from_slice(&bytes);
        warn_if_err!(&lease, "reading a lease failed; its processes are not searched", %path);
        Ok(lease.ok())
    }

    /// Removes the lease file if it still has this token. Another process may have taken over the run.
    pub(crate) fn remove_own(run_dir: &Utf8Path, owner: ProcessOwner, token: &str) -> Result<(), OptimizerError> {
        match Self::read(run_dir, owner)? {
            Some(lease) if lease.token != token => Ok(()),
            Some(_) | None => Self::remove(run_dir, owner),
        }
    }

    pub(crate) fn remove(run_dir: &Utf8Path, owner: ProcessOwner) -> Result<(), OptimizerError> {
        let path = run_dir.join(owner.file());
        if_exists(fs::remove_file(&path)).map(drop).map_err(file_error::io(&path, "removing"))
    }
}

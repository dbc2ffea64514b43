//! The lease of a managed container or proposer: the file by which the next start finds what a crash has left running.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;

use camino::{Utf8Path, Utf8PathBuf};
use serde::{Deserialize, Serialize};

use crate::clock::boot_id;
use crate::model::canonical::hex;
use crate::model::error::{ErrorCode, OptimizerError};

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
            Ok(bytes) => Ok(serde_json::from_slice(&bytes).ok()),
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

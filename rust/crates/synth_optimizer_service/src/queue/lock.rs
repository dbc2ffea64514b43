//! The service lock: a kernel lock on a file beside the database, so that one service at a time works on it. Also the kinds
//! of lease holders, and how to tell that the process of a holder has ended.

use std::path::{Path, PathBuf};

use camino::Utf8PathBuf;
use serde::Deserialize;

use super::error::QueueError;
use super::open::create_directory;
use crate::ServiceErrorCode;
use synth_optimizer_core::model::envelope::rfc3339;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_platform::artifacts::{FileLock, LockError};
use synth_optimizer_platform::clock::{random_hex, unix_millis};
use synth_optimizer_platform::os;
use synth_optimizer_platform::workspace::error::io;

/// The lock of a database, held until it is dropped.
#[derive(Debug)]
pub struct ServiceLock {
    lock: FileLock,
    path: Utf8PathBuf,
    since: String,
    /// Identifies this start of the service. It is created with the lock.
    pub instance_id: String,
}

impl ServiceLock {
    /// Takes the lock and writes pid, address and time into the lock file. `bind` is the address that the service listens on.
    pub fn take(database: &Path, bind: &str) -> Result<Self, QueueError> {
        create_directory(database)?;
        let path = resolved_path(database)?.with_added_extension("lock");
        let path = Utf8PathBuf::from_path_buf(path)
            .map_err(|path| OptimizerError::new(ErrorCode::Io, format!("{} is not a path in UTF-8", path.display())))?;
        let since = rfc3339(unix_millis());
        let lock = FileLock::take(&path, &holder_note(bind, &since), None).map_err(|refused| match refused {
            LockError::Failed(error) => error.into(),
            LockError::Held(holder) => {
                let code = ServiceErrorCode::DatabaseInUse;
                let message =
                    format!("{}: {} is in use by another service: {holder}", code.as_str(), database.display());
                let hint = "Use that service, stop it, or choose another --db.";
                let error = OptimizerError::new(ErrorCode::Io, message).with_hint(hint);
                QueueError { code: Some(code), ..error.into() }
            }
        })?;
        Ok(Self { lock, path, since, instance_id: format!("svc_{}", random_hex::<16>()?) })
    }

    /// Fails when the lock file was removed or replaced, because another service may have taken the lock then.
    pub fn check(&self) -> Result<(), OptimizerError> {
        if self.lock.identity().check().is_ok() {
            return Ok(());
        }
        let message = format!("the lock {} was removed or replaced while the service held it", self.path);
        let hint = "Start the service again, and do not remove the lock file beside its database.";
        Err(OptimizerError::new(ErrorCode::Io, message).with_hint(hint))
    }

    /// Updates the address in the lock file, after the system has chosen the port.
    pub fn note_bind(&mut self, bind: &str) -> Result<(), QueueError> {
        let text = holder_note(bind, &self.since);
        self.lock.note(&text).map_err(|error| io("write", self.path.as_std_path())(error).into())
    }
}

fn holder_note(bind: &str, since: &str) -> String {
    format!("pid {} bind {bind} since {since}", std::process::id())
}

/// Returns the path of the file with all links resolved, also before the file exists.
fn resolved_path(database: &Path) -> Result<PathBuf, OptimizerError> {
    if let Ok(found) = database.canonicalize() {
        return Ok(found);
    }
    let parent = database.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = database.file_name().ok_or_else(|| {
        OptimizerError::new(ErrorCode::Io, format!("{} is not the name of a file", database.display()))
    })?;
    Ok(parent.canonicalize().map_err(io("open", parent))?.join(name))
}

/// The kind of a lease holder. It decides how the lease can end early.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaseHolder {
    /// A worker of the service with this `instance_id`. Its leases end when another service takes the lock.
    Service(String),
    /// A process that executes one request itself. Its lease ends with the process.
    Worker,
    /// A caller that may exit before the lease ends, such as a script. Its lease ends only by expiry.
    Caller,
}

impl LeaseHolder {
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Service(_) => "service",
            Self::Worker => "worker",
            Self::Caller => "caller",
        }
    }

    pub(crate) fn instance_id(&self) -> Option<&str> {
        match self {
            Self::Service(instance_id) => Some(instance_id),
            Self::Worker | Self::Caller => None,
        }
    }

    pub(super) fn process(&self) -> Option<HolderProcess> {
        match self {
            Self::Service(_) | Self::Worker => HolderProcess::current(),
            Self::Caller => None,
        }
    }
}

/// Identifies a process. The pid alone is not enough, because the system reuses pids.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct HolderProcess {
    pub(super) holder_pid: i32,
    /// Start time of the process, in the unit of [`os::System::process_start_time`].
    pub(super) holder_started: u64,
    /// The pid namespace in which the pid is valid.
    pub(super) holder_pid_namespace: String,
}

impl HolderProcess {
    /// Returns the current process, or `None` if the system does not tell its start time.
    fn current() -> Option<Self> {
        let (pid, system) = (i32::try_from(std::process::id()).ok()?, os::system());
        let (holder_started, holder_pid_namespace) = (system.process_start_time(pid)?, system.pid_namespace()?);
        Some(Self { holder_pid: pid, holder_started, holder_pid_namespace })
    }

    /// Returns whether the process has certainly ended. A process in another pid namespace may be alive.
    pub(super) fn has_ended(&self) -> bool {
        let system = os::system();
        system.pid_namespace().is_some_and(|ours| ours == self.holder_pid_namespace)
            && !system.is_running(self.holder_pid, self.holder_started)
    }
}

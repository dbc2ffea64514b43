//! One service per database, by a lock of the kernel on the file beside it. Who may hold a request, and how to tell that such
//! a holder is gone.

use std::path::{Path, PathBuf};

use camino::Utf8PathBuf;
use serde::Deserialize;

use super::error::QueueError;
use super::open::{make_directory, random};
use crate::Code;
use synth_optimizer_core::model::envelope::rfc3339;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_platform::artifacts::{FileLock, NotTaken};
use synth_optimizer_platform::clock::unix_millis;
use synth_optimizer_platform::container::{is_running, started};
use synth_optimizer_platform::workspace::error::io;

/// The right to serve a database, held as long as this lives.
#[derive(Debug)]
pub struct ServiceLock {
    lock: FileLock,
    path: Utf8PathBuf,
    since: String,
    /// Names this start of the service; only whoever has the lock has one.
    pub instance_id: String,
}

impl ServiceLock {
    /// Takes the lock and notes who has it. `bind` is the address that is or will be served.
    pub fn take(database: &Path, bind: &str) -> Result<Self, QueueError> {
        make_directory(database)?;
        let path = true_path(database)?.with_added_extension("lock");
        let path = Utf8PathBuf::from_path_buf(path)
            .map_err(|path| OptimizerError::new(ErrorCode::Io, format!("{} is not a path in UTF-8", path.display())))?;
        let since = rfc3339(unix_millis());
        let lock = FileLock::take(&path, &note(bind, &since), None).map_err(|refused| match refused {
            NotTaken::Failed(error) => error.into(),
            NotTaken::Held(holder) => {
                let code = Code::DatabaseInUse;
                let message = format!("{}: {} is served by another process: {holder}", code.wire(), database.display());
                let hint = "Use that service, end it, or name another database.";
                let error = OptimizerError::new(ErrorCode::Io, message).with_hint(hint);
                QueueError { code: Some(code), ..error.into() }
            }
        })?;
        Ok(Self { lock, path, since, instance_id: format!("svc_{}", random()?) })
    }

    /// Fails when the file was removed or replaced: somebody else may have the database then.
    pub fn check(&self) -> Result<(), OptimizerError> {
        if self.lock.mark().check().is_ok() {
            return Ok(());
        }
        let message = format!("the lock {} was removed or replaced while the service held it", self.path);
        let hint = "Start the service again; leave the file beside its database alone.";
        Err(OptimizerError::new(ErrorCode::Io, message).with_hint(hint))
    }

    /// Notes the address that was bound, where the port was chosen by the system.
    pub fn note_bind(&mut self, bind: &str) -> Result<(), QueueError> {
        let text = note(bind, &self.since);
        self.lock.note(&text).map_err(|error| io("write", self.path.as_std_path())(error).into())
    }
}

fn note(bind: &str, since: &str) -> String {
    format!("pid {} bind {bind} since {since}", std::process::id())
}

/// Where the file is or will be, whatever links lead there.
fn true_path(database: &Path) -> Result<PathBuf, OptimizerError> {
    if let Ok(found) = database.canonicalize() {
        return Ok(found);
    }
    let parent = database.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = database.file_name().ok_or_else(|| {
        OptimizerError::new(ErrorCode::Io, format!("{} is not the name of a file", database.display()))
    })?;
    Ok(parent.canonicalize().map_err(io("open", parent))?.join(name))
}

/// Who claims.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Holder {
    /// A worker of the service that holds the lock, which this names: its leases are over when another one has the lock.
    Service(String),
    /// A process that works on one request itself: its lease is over when it ends.
    Worker,
    /// Somebody who may not live as long as the lease, such as a script: only time ends it.
    Caller,
}

impl Holder {
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

    pub(super) fn process(&self) -> Option<Process> {
        match self {
            Self::Service(_) | Self::Worker => Process::this(),
            Self::Caller => None,
        }
    }
}

/// A process: its pid alone may be given to another one.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct Process {
    pub(super) holder_pid: i32,
    /// In clock ticks since the machine started.
    pub(super) holder_started: u64,
    /// Where the pid means this process. Another namespace may not even see it.
    pub(super) holder_pid_namespace: String,
}

impl Process {
    /// This one; `None` where the system does not say.
    fn this() -> Option<Self> {
        let pid = i32::try_from(std::process::id()).ok()?;
        Some(Self { holder_pid: pid, holder_started: started(pid)?, holder_pid_namespace: namespace()? })
    }

    /// Whether it has certainly ended.
    pub(super) fn is_gone(&self) -> bool {
        namespace().is_some_and(|ours| ours == self.holder_pid_namespace)
            && !is_running(self.holder_pid, self.holder_started)
    }
}

fn namespace() -> Option<String> {
    std::fs::read_link("/proc/self/ns/pid").ok().map(|link| link.to_string_lossy().into_owned())
}

//! Who may hold a request, and how to tell that such a holder is gone.

use synth_optimizer_platform::container::{is_running, started};

/// One start of a service: whoever has it holds the lock of the database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceIdentity {
    pub(super) instance_id: String,
}

impl ServiceIdentity {
    /// Names this start of the service.
    pub fn instance_id(&self) -> &str {
        &self.instance_id
    }
}

/// Who claims.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Holder {
    /// A worker of the service that holds the lock: its leases are over when another service has the lock.
    Service(ServiceIdentity),
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

    pub(super) fn instance(&self) -> Option<&str> {
        match self {
            Self::Service(identity) => Some(identity.instance_id()),
            Self::Worker | Self::Caller => None,
        }
    }

    pub(crate) fn identity(&self) -> Option<&ServiceIdentity> {
        match self {
            Self::Service(identity) => Some(identity),
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
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) pid: i32,
    /// In clock ticks since the machine started.
    pub(super) started: u64,
    /// Where the pid means this process. Another namespace may not even see it.
    pub(super) namespace: String,
}

impl Process {
    /// This one; `None` where the system does not say.
    fn this() -> Option<Self> {
        let pid = i32::try_from(std::process::id()).ok()?;
        Some(Self { pid, started: started(pid)?, namespace: namespace()? })
    }

    /// Whether it has certainly ended.
    pub(super) fn is_gone(&self) -> bool {
        namespace().is_some_and(|ours| ours == self.namespace) && !is_running(self.pid, self.started)
    }
}

fn namespace() -> Option<String> {
    std::fs::read_link("/proc/self/ns/pid").ok().map(|link| link.to_string_lossy().into_owned())
}

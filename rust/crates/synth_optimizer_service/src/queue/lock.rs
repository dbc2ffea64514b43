//! One service per database: a lock of the kernel on the file beside it.

use std::path::{Path, PathBuf};

use camino::Utf8PathBuf;

use super::error::{QueueCode, QueueError};
use super::holder::ServiceIdentity;
use super::open::{beside, make_directory, random};
use synth_optimizer_core::model::envelope::rfc3339;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_platform::artifacts::{FileLock, NotTaken};
use synth_optimizer_platform::clock::unix_millis;
use synth_optimizer_platform::workspace::error::io;

/// The right to serve a database, held as long as this lives.
#[derive(Debug)]
pub struct ServiceLock {
    lock: FileLock,
    path: Utf8PathBuf,
    since: String,
    identity: ServiceIdentity,
}

impl ServiceLock {
    /// Takes the lock and notes who has it. `bind` is the address that is or will be served.
    pub fn take(database: &Path, bind: &str) -> Result<Self, QueueError> {
        make_directory(database)?;
        let path = beside(&true_path(database)?, ".lock");
        let path = Utf8PathBuf::from_path_buf(path)
            .map_err(|path| OptimizerError::new(ErrorCode::Io, format!("{} is not a path in UTF-8", path.display())))?;
        let since = rfc3339(unix_millis());
        let lock = FileLock::take(&path, &note(bind, &since), None).map_err(|refused| match refused {
            NotTaken::Failed(error) => error.into(),
            NotTaken::Held(holder) => {
                let code = QueueCode::ServiceDbInUse.word();
                let message = format!("{code}: {} is served by another process: {holder}", database.display());
                let hint = "Use that service, end it, or name another database.";
                QueueError::new(QueueCode::ServiceDbInUse, message, hint)
            }
        })?;
        Ok(Self { lock, path, since, identity: ServiceIdentity { instance_id: format!("svc_{}", random()?) } })
    }

    /// Names this start of the service; only whoever has the lock has one.
    pub fn identity(&self) -> &ServiceIdentity {
        &self.identity
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

//! A kernel lock on a file that contains a note about its holder. The kernel releases it when the process ends.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};

use crate::clock::unix_millis;
use crate::file_error;
use crate::warn_if_err;
use crate::workspace::ownership_lost;
use synth_optimizer_core::model::envelope::rfc3339;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};

/// How long to retry. A process that only reads the holder takes the lock for a moment.
const LOCK_RETRY_TIMEOUT: Duration = Duration::from_millis(200);

/// A lock that is held until this is dropped. The kernel releases it when the process ends, however it ends.
#[derive(Debug)]
pub struct FileLock {
    file: File,
    identity: LockIdentity,
}

/// Identifies the file of a lock, without holding the lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockIdentity {
    path: Utf8PathBuf,
    inode: (u64, u64),
}

/// Why a lock could not be acquired.
#[derive(Debug)]
pub enum LockError {
    /// Another process holds it. Contains the note of that process.
    Held(String),
    Failed(OptimizerError),
}

impl LockIdentity {
    /// Fails if another process has replaced the lock file with its own.
    pub fn check(&self) -> Result<(), OptimizerError> {
        match std::fs::metadata(&self.path) {
            Ok(found) if inode(&found) == self.inode => return Ok(()),
            Ok(_) => {}
            Err(error) => {
                return Err(file_error::io(&self.path, "looking at")(error)
                    .with_hint("Restore the run directory: it was removed or moved while the run used it."));
            }
        }
        let holder = std::fs::read_to_string(&self.path).unwrap_or_default();
        let detail = format!("{} now says {:?}", self.path, holder.trim());
        Err(ownership_lost("another process has taken over the run; nothing was written").with_detail(detail))
    }
}

impl FileLock {
    /// Acquires the lock for this process and writes its note: one line that identifies the process. If the process that
    /// `superseded` names holds the lock, the lock file is replaced by a new one, so that the old lock is on a file without
    /// a name. A process is named by its whole note, or by `pid N`.
    pub fn take(path: &Utf8Path, note: &str, superseded: Option<&str>) -> Result<Self, LockError> {
        let deadline = Instant::now() + LOCK_RETRY_TIMEOUT;
        loop {
            let opened = OpenOptions::new().create(true).read(true).write(true).truncate(false).mode(0o600).open(path);
            let mut file = opened.map_err(failed(path))?;
            match file.try_lock() {
                Ok(()) => {
                    let mut lock = Self::of(file, path)?;
                    // Another process may have replaced the file after this one opened it.
                    if lock.identity.check().is_ok() {
                        lock.note(note).map_err(failed(path))?;
                        return Ok(lock);
                    }
                }
                Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                Err(TryLockError::WouldBlock) => {
                    let holder = noted(&mut file);
                    return match superseded {
                        Some(superseded) if is_named(&holder, superseded) => Self::replace(path, note, superseded),
                        Some(_) | None => Err(LockError::Held(holder)),
                    };
                }
                Err(TryLockError::Error(error)) => return Err(failed(path)(error)),
            }
        }
    }

    /// Replaces the lock file that the named process holds.
    fn replace(path: &Utf8Path, note: &str, superseded: &str) -> Result<Self, LockError> {
        let place = path.parent().unwrap_or(Utf8Path::new("."));
        // A lock on the directory ensures that one process at a time replaces the lock file.
        let turn = File::open(place).map_err(failed(path))?;
        turn.lock().map_err(failed(path))?;
        match Self::holder(path).map_err(LockError::Failed)? {
            Some(holder) if is_named(&holder, superseded) => {}
            Some(holder) => return Err(LockError::Held(holder)),
            None => return Self::take(path, note, None),
        }
        let draft = place.join(format!(".run.lock.{}.tmp", std::process::id()));
        let made = OpenOptions::new().create(true).read(true).write(true).truncate(true).mode(0o600).open(&draft);
        let mut lock = Self::of(made.map_err(failed(path))?, path)?;
        lock.file.lock().map_err(failed(path))?;
        lock.note(note).map_err(failed(path))?;
        std::fs::rename(&draft, path).map_err(failed(path))?;
        Ok(lock)
    }

    fn of(file: File, path: &Utf8Path) -> Result<Self, LockError> {
        let found = file.metadata().map_err(failed(path))?;
        Ok(Self { file, identity: LockIdentity { path: path.to_owned(), inode: inode(&found) } })
    }

    /// Replaces the note.
    pub fn note(&mut self, note: &str) -> std::io::Result<()> {
        self.file.set_len(0)?;
        self.file.seek(SeekFrom::Start(0))?;
        self.file.write_all(format!("{note}\n").as_bytes())
    }

    /// Returns the identity of the lock file.
    pub fn identity(&self) -> &LockIdentity {
        &self.identity
    }

    /// Returns the note of the process that holds the lock now.
    pub fn holder(path: &Utf8Path) -> Result<Option<String>, OptimizerError> {
        let failed = file_error::io(path, "reading");
        let Some(mut file) = file_error::if_exists(File::open(path)).map_err(failed)? else { return Ok(None) };
        match file.try_lock_shared() {
            Ok(()) => {
                file.unlock().map_err(failed)?;
                Ok(None)
            }
            Err(TryLockError::WouldBlock) => Ok(Some(noted(&mut file))),
            Err(TryLockError::Error(error)) => Err(failed(error)),
        }
    }
}

impl Drop for FileLock {
    /// Releases the lock explicitly. Closing the file is not enough, because a child process that is just being started
    /// has it open as well.
    fn drop(&mut self) {
        warn_if_err!(self.file.unlock(), "a lock was not released");
    }
}

fn failed(path: &Utf8Path) -> impl Fn(std::io::Error) -> LockError {
    move |error| LockError::Failed(file_error::io(path, "locking")(error))
}

fn inode(found: &std::fs::Metadata) -> (u64, u64) {
    (found.dev(), found.ino())
}

/// Returns whether `name` names the process with this note.
fn is_named(note: &str, name: &str) -> bool {
    let name = name.trim();
    !name.is_empty() && (note == name || note.strip_prefix(name).is_some_and(|rest| rest.starts_with(" since ")))
}

/// Reads the note of the holder. The holder may not have written it yet.
fn noted(file: &mut File) -> String {
    let mut note = String::new();
    match file.read_to_string(&mut note) {
        Ok(_) if !note.trim().is_empty() => note.trim().to_owned(),
        _ => "another process".to_owned(),
    }
}

/// Acquires the lock of a run directory for this process and writes a note that identifies it. Only one process executes a
/// run. `what` names the run in error messages. The process that `superseded` names (`pid N`, or its whole note) loses the
/// lock.
pub fn lock_run(path: &Utf8Path, what: &str, superseded: Option<&str>) -> Result<FileLock, OptimizerError> {
    let note = format!("pid {} since {}", std::process::id(), rfc3339(unix_millis()));
    FileLock::take(path, &note, superseded).map_err(|refused| match refused {
        LockError::Held(holder) => held_error(what, &holder),
        LockError::Failed(error) => error,
    })
}

pub(super) fn held_error(what: &str, holder: &str) -> OptimizerError {
    OptimizerError::new(ErrorCode::Io, format!("{what} is in use by {holder}")).with_hint(
        "Wait for that process, or end the run with `synth-optimizers runs cancel`. Start a new run under another run.run_id.",
    )
}

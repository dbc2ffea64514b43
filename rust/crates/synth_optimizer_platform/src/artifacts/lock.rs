//! A lock of the kernel on a file that notes who has it. Only a process that lives can hold one.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};

use super::file_error;
use crate::clock::unix_millis;
use crate::warn_if_err;
use crate::workspace::ownership_lost;
use synth_optimizer_core::model::envelope::rfc3339;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};

/// Whoever only looks who holds the lock has it for a moment.
const LOCK_RETRY_TIMEOUT: Duration = Duration::from_millis(200);

/// The lock, held as long as this lives. The kernel lets go of it when the process ends, however it ends.
#[derive(Debug)]
pub struct FileLock {
    file: File,
    identity: LockIdentity,
}

/// Which file the lock is. It does not hold it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockIdentity {
    path: Utf8PathBuf,
    inode: (u64, u64),
}

/// Why a lock was not taken.
#[derive(Debug)]
pub enum LockError {
    /// Another process has it; its note.
    Held(String),
    Failed(OptimizerError),
}

impl LockIdentity {
    /// Fails when another process has put its own lock in the place of this one.
    pub fn check(&self) -> Result<(), OptimizerError> {
        match std::fs::metadata(&self.path) {
            Ok(found) if inode(&found) == self.inode => return Ok(()),
            Ok(_) => {}
            Err(error) => {
                return Err(file_error::io(&self.path, "looking at")(error)
                    .with_hint("The directory of the run was removed or moved while it was in use."));
            }
        }
        let holder = std::fs::read_to_string(&self.path).unwrap_or_default();
        let detail = format!("{} now says {:?}", self.path, holder.trim());
        Err(ownership_lost("another process has taken the run over; nothing was written").with_detail(detail))
    }
}

impl FileLock {
    /// Takes the lock for this process and leaves a note: one line that says who it is. Where the process that is named
    /// in `superseded` holds the lock, a new one is put in the place of that: its lock is then one of a file that nobody
    /// finds any more. The process is named by its whole note, or by `pid N`.
    pub fn take(path: &Utf8Path, note: &str, superseded: Option<&str>) -> Result<Self, LockError> {
        let deadline = Instant::now() + LOCK_RETRY_TIMEOUT;
        loop {
            let opened = OpenOptions::new().create(true).read(true).write(true).truncate(false).mode(0o600).open(path);
            let mut file = opened.map_err(failed(path))?;
            match file.try_lock() {
                Ok(()) => {
                    let mut lock = Self::of(file, path)?;
                    // Somebody may have replaced the file between its opening and its locking.
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

    /// Puts a new lock in the place of the one that the named process holds.
    fn replace(path: &Utf8Path, note: &str, superseded: &str) -> Result<Self, LockError> {
        let place = path.parent().unwrap_or(Utf8Path::new("."));
        // One process at a time replaces the lock; the directory itself is the lock for that.
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

    /// Which file this lock is.
    pub fn identity(&self) -> &LockIdentity {
        &self.identity
    }

    /// Who holds the lock at this moment.
    pub fn holder(path: &Utf8Path) -> Result<Option<String>, OptimizerError> {
        let failed = file_error::io(path, "reading");
        let mut file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
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
    /// Closing the file is not enough: a child that is being started at this moment has it open as well.
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

/// Whether a holder's note is the one that is meant.
fn is_named(note: &str, name: &str) -> bool {
    let name = name.trim();
    !name.is_empty() && (note == name || note.strip_prefix(name).is_some_and(|rest| rest.starts_with(" since ")))
}

/// The note of the holder, which it may not have written yet.
fn noted(file: &mut File) -> String {
    let mut note = String::new();
    match file.read_to_string(&mut note) {
        Ok(_) if !note.trim().is_empty() => note.trim().to_owned(),
        _ => "another process".to_owned(),
    }
}

/// Takes the lock of a run directory for this process and notes who it is: one process works on a run, and everybody can
/// see which. `what` names what is locked, for the message; the process that `superseded` names (`pid N`, or its whole note)
/// loses the lock.
pub fn lock_run(path: &Utf8Path, what: &str, superseded: Option<&str>) -> Result<FileLock, OptimizerError> {
    let note = format!("pid {} since {}", std::process::id(), rfc3339(unix_millis()));
    FileLock::take(path, &note, superseded).map_err(|refused| match refused {
        LockError::Held(holder) => held_error(what, &holder),
        LockError::Failed(error) => error,
    })
}

pub(super) fn held_error(what: &str, holder: &str) -> OptimizerError {
    OptimizerError::new(ErrorCode::Io, format!("{what} is held by {holder}")).with_hint(
        "Wait for that process or end it with `synth-optimizers runs cancel`; a new run needs another run.run_id.",
    )
}

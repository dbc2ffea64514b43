//! The lock of a run directory: one process works on a run, and everybody can see which.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::time::{Duration, Instant};

use camino::Utf8Path;

use super::fault;
use crate::clock::unix_millis;
use crate::model::envelope::rfc3339;
use crate::model::error::{ErrorCode, OptimizerError};

/// Whoever only looks who holds the lock has it for a moment.
const GLANCE: Duration = Duration::from_millis(200);

/// The lock, held as long as this lives. The kernel lets go of it when the process ends, however it ends.
#[derive(Debug)]
pub struct RunLock {
    file: File,
}

impl RunLock {
    /// Takes the lock for this process and notes who it is; `what` names what is locked, for the message.
    pub fn take(path: &Utf8Path, what: &str) -> Result<Self, OptimizerError> {
        let failed = |error: std::io::Error| fault::io(path, "locking", &error);
        let opened = OpenOptions::new().create(true).read(true).write(true).truncate(false).mode(0o600).open(path);
        let mut file = opened.map_err(failed)?;
        let deadline = Instant::now() + GLANCE;
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                Err(TryLockError::WouldBlock) => return Err(held(what, &noted(&mut file))),
                Err(TryLockError::Error(error)) => return Err(failed(error)),
            }
        }
        let note = format!("pid {} since {}\n", std::process::id(), rfc3339(unix_millis()));
        file.set_len(0).and_then(|()| file.seek(SeekFrom::Start(0))).map_err(failed)?;
        file.write_all(note.as_bytes()).map_err(failed)?;
        Ok(Self { file })
    }

    /// Who holds the lock at this moment.
    pub fn holder(path: &Utf8Path) -> Result<Option<String>, OptimizerError> {
        let failed = |error: std::io::Error| fault::io(path, "reading", &error);
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

impl Drop for RunLock {
    /// Closing the file is not enough: a child that is being started at this moment has it open as well.
    fn drop(&mut self) {
        let _ = self.file.unlock();
    }
}

pub(super) fn held(what: &str, holder: &str) -> OptimizerError {
    OptimizerError::new(ErrorCode::Io, format!("{what} is held by {holder}"))
        .with_hint("Wait for that process to end or cancel it, or give this run another run.run_id.")
}

/// The note of the holder, which it may not have written yet.
fn noted(file: &mut File) -> String {
    let mut note = String::new();
    match file.read_to_string(&mut note) {
        Ok(_) if !note.trim().is_empty() => note.trim().to_owned(),
        _ => "another process".to_owned(),
    }
}

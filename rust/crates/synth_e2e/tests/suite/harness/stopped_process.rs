//! Processes that are stopped with SIGSTOP and continued, and digests of their files.

use std::collections::BTreeMap;
use std::io::Read;
use std::process::{Child, Command};

use camino::{Utf8Path, Utf8PathBuf};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use sha2::{Digest, Sha256};
use synth_e2e::wait::{wait_for, wait_until};

/// A child process that can be stopped and continued. It is killed when this is dropped.
pub(crate) struct StoppableProcess(pub(crate) Child);

impl StoppableProcess {
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    /// Stops the process and waits until it is stopped.
    pub(crate) fn stop(&self) {
        self.signal(Signal::STOP);
        wait_until("the process is stopped", || {
            let stat = Command::new("ps").args(["-o", "stat=", "-p", &self.0.id().to_string()]).output().unwrap();
            stat.stdout.starts_with(b"T")
        });
    }

    /// Continues the process, waits for its end, and returns its output and exit code.
    pub(crate) fn continue_to_end(mut self) -> (Value, Option<i32>) {
        self.signal(Signal::CONT);
        let status = wait_for("the process has ended", || self.0.try_wait().unwrap());
        let mut out = String::new();
        self.0.stdout.take().unwrap().read_to_string(&mut out).unwrap();
        (serde_json::from_str(out.trim()).unwrap(), status.code())
    }
}

impl Drop for StoppableProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the digest of every file below a directory, except SQLite's WAL and shared memory files, which exist only while
/// a process has the database open.
pub(crate) fn digests(root: &Utf8Path) -> BTreeMap<Utf8PathBuf, String> {
    let (mut open, mut found) = (vec![root.to_owned()], BTreeMap::new());
    while let Some(dir) = open.pop() {
        for entry in dir.read_dir_utf8().unwrap() {
            let path = entry.unwrap().into_path();
            let is_side_file = ["-wal", "-shm"].iter().any(|end| path.as_str().ends_with(end));
            if path.is_symlink() {
                found.insert(path.clone(), path.read_link_utf8().unwrap().into_string());
            } else if path.is_dir() {
                open.push(path);
            } else if !is_side_file {
                found.insert(path.clone(), format!("{:x?}", Sha256::digest(std::fs::read(&path).unwrap())));
            }
        }
    }
    found
}

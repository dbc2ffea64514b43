//! Processes that are stopped for a while, and what is left of the world meanwhile.

use std::collections::BTreeMap;
use std::io::Read;
use std::process::Child;

use camino::{Utf8Path, Utf8PathBuf};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use sha2::{Digest, Sha256};
use synth_e2e::wait::{wait_for, wait_until};

/// The process that is stopped. Whatever happens, it does not outlive the test.
pub(crate) struct Sleeper(pub(crate) Child);

impl Sleeper {
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    /// Stops it and waits until it stands still.
    pub(crate) fn stop(&self) {
        self.signal(Signal::STOP);
        wait_until("the process is stopped", || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0.id())).unwrap();
            stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'))
        });
    }

    /// Lets it go on, and gives what it printed and how it ended.
    pub(crate) fn wake(mut self) -> (Value, Option<i32>) {
        self.signal(Signal::CONT);
        let status = wait_for("the process has ended", || self.0.try_wait().unwrap());
        let mut out = String::new();
        self.0.stdout.take().unwrap().read_to_string(&mut out).unwrap();
        (serde_json::from_str(out.trim()).unwrap(), status.code())
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Every file below a directory by its digest. SQLite's own side files come and go with whoever has the database open.
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

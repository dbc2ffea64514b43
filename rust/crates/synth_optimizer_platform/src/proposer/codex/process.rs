//! Codex as a child process: an environment of a few named variables, its own group, a log without secrets, and an end
//! that leaves nothing behind.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use super::access::Access;
use super::home::Home;
use super::locate::Program;
use crate::container::{AFTER_KILL, Family, GLANCE, Holder, Lease};
use crate::proposer::credentials::Key;
use crate::proposer::transcript::Redactor;
use crate::warn_if_err;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};

/// Name of the log in the run directory.
pub const PROPOSER_LOG: &str = "proposer.log";

/// Most bytes of the log, and of one line in it.
const MOST_OF_LOG: u64 = 4 * 1024 * 1024;
const MOST_OF_LINE: u64 = 16 * 1024;

/// How long a drop may block.
const AT_DROP: Duration = Duration::from_millis(200);

/// A codex that this process has started. Dropped, it is killed.
#[derive(Debug)]
pub(super) struct CodexProcess {
    child: Mutex<Child>,
    family: Family,
    run_dir: Utf8PathBuf,
    /// Whether nothing of it is left to kill.
    is_over: AtomicBool,
}

/// The ends of its pipes.
#[derive(Debug)]
pub(super) struct Pipes {
    pub(super) stdin: ChildStdin,
    pub(super) stdout: ChildStdout,
}

impl CodexProcess {
    /// Starts it; `path` is where programs are looked for.
    pub(super) fn start(
        program: &Program,
        access: &Access,
        home: &Home,
        run_dir: &Utf8Path,
        path: Option<&str>,
        redactor: &Redactor,
        mut lease: Lease,
    ) -> Result<(Self, Pipes), OptimizerError> {
        let mut command = Command::new(&program.path);
        command
            .args(&program.arguments)
            .current_dir(home.desk())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .env_clear()
            .env("PATH", path.unwrap_or("/usr/local/bin:/usr/bin:/bin"))
            .env("HOME", home.path())
            .env("CODEX_HOME", home.path())
            .env("LANG", "C.UTF-8")
            .env(Holder::Proposer.variable(), &lease.token);
        if let Access::Endpoint { key: Some(Key { variable, value }), .. } = access {
            command.env(variable, value.expose());
        }
        let log = open_log(run_dir)?;
        // Written before the process exists, so that no crash leaves one that nobody finds.
        lease.write(run_dir, Holder::Proposer)?;
        let mut child = command.spawn().map_err(|error| {
            warn_if_err!(Lease::remove(run_dir, Holder::Proposer), "the lease of a start that failed stays");
            let message = format!("codex cannot be started from {}: {error}", program.path);
            OptimizerError::new(ErrorCode::Proposer, message)
        })?;
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let id = child.id();
        let process = Self {
            family: Family { holder: Holder::Proposer, token: lease.token.clone(), group: i32::try_from(id).ok() },
            child: Mutex::new(child),
            run_dir: run_dir.to_owned(),
            is_over: AtomicBool::new(false),
        };
        (lease.pid, lease.pgid) = (Some(id), Some(id));
        lease.write(run_dir, Holder::Proposer)?;
        let (Some(stdin), Some(stdout), Some(stderr)) = pipes else {
            return Err(OptimizerError::new(ErrorCode::Proposer, "codex was started without pipes"));
        };
        let redactor = redactor.clone();
        std::thread::spawn(move || keep_log(stderr, log, &redactor));
        Ok((process, Pipes { stdin, stdout }))
    }

    /// How it ended, if it has.
    pub(super) fn ended(&self) -> Option<String> {
        let mut child = self.child.lock();
        match child.try_wait() {
            Ok(None) => None,
            Ok(Some(status)) => Some(status.to_string()),
            Err(error) => Some(error.to_string()),
        }
    }

    /// Waits until nothing is left, and kills what is still there after `patience`.
    pub(super) async fn end_within(&self, patience: Duration) -> Result<(), OptimizerError> {
        let (polite, last) = (Instant::now() + patience, Instant::now() + patience + AFTER_KILL);
        while self.ended().is_none() || !self.family.members().is_empty() {
            let now = Instant::now();
            if now >= last {
                return Err(self.family.still_there());
            }
            // What codex itself leaves behind when it has ended has no reason to stay.
            if now >= polite || self.ended().is_some() {
                self.family.signal(rustix::process::Signal::KILL);
            }
            sleep(GLANCE).await;
        }
        self.is_over.store(true, Ordering::SeqCst);
        Lease::remove_own(&self.run_dir, Holder::Proposer, &self.family.token)
    }

    /// Kills it without a task that could wait.
    pub(super) fn kill_now(&self) {
        if !self.is_over.load(Ordering::SeqCst) {
            let is_over = self.family.kill_within(AT_DROP);
            let is_reaped = self.ended().is_some();
            self.is_over.store(is_over && is_reaped, Ordering::SeqCst);
        }
    }
}

impl Drop for CodexProcess {
    fn drop(&mut self) {
        self.kill_now();
    }
}

fn open_log(run_dir: &Utf8Path) -> Result<File, OptimizerError> {
    let path = run_dir.join(PROPOSER_LOG);
    let opened = OpenOptions::new().create(true).append(true).mode(0o600).open(&path);
    opened.map_err(|error| OptimizerError::from_cause(ErrorCode::Io, format!("{path} cannot be opened"), error))
}

/// Copies what codex says about itself, line by line. It is read to its end whatever becomes of the log.
fn keep_log(stderr: ChildStderr, mut log: File, redactor: &Redactor) {
    let mut room = MOST_OF_LOG.saturating_sub(log.metadata().map_or(0, |found| found.len()));
    let mut reader = BufReader::new(stderr);
    let mut line = Vec::new();
    loop {
        line.clear();
        match reader.by_ref().take(MOST_OF_LINE).read_until(b'\n', &mut line) {
            Ok(0) => return,
            Err(error) => return tracing::warn!(%error, "the output of codex cannot be read"),
            Ok(_) => {}
        }
        let text = redactor.text(&plain(String::from_utf8_lossy(&line).trim_end()));
        if (text.len() as u64) < room && writeln!(log, "{text}").is_ok() {
            room -= text.len() as u64 + 1;
        }
    }
}

/// A line without colours.
fn plain(line: &str) -> String {
    let mut shown = String::with_capacity(line.len());
    let mut rest = line.chars();
    while let Some(next) = rest.next() {
        match next {
            '\u{1b}' => {
                // An escape sequence goes up to its letter.
                rest.by_ref().skip(1).find(char::is_ascii_alphabetic);
            }
            _ => shown.push(next),
        }
    }
    shown
}

#[cfg(test)]
#[path = "process_tests.rs"]
mod tests;

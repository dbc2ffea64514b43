//! Codex as a child process: an environment of a few named variables, its own group, a log without secrets, and an end
//! that leaves nothing behind.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::{Instant, sleep};

use super::access::Access;
use super::home::Home;
use super::locate::Program;
use super::wire::Wire;
use crate::container::{AFTER_KILL, Family, GLANCE, Holder, Lease};
use crate::proposer::credentials::Key;
use crate::proposer::transcript::Redactor;
use crate::warn_if_err;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};

/// Name of the log in the run directory.
pub(super) const PROPOSER_LOG: &str = "proposer.log";

/// Most bytes of the log, and of one line in it.
const MOST_OF_LOG: u64 = 4 * 1024 * 1024;
const MOST_OF_LINE: u64 = 16 * 1024;

/// How long a drop may block.
const AT_DROP: Duration = Duration::from_millis(200);

/// A codex that this process has started, with its home. Dropped, it is killed.
#[derive(Debug)]
pub(super) struct CodexProcess {
    pub(super) wire: Wire,
    pub(super) home: Home,
    child: Mutex<Child>,
    family: Family,
    /// Whether nothing of it runs. Held by the one who ends it, so that every other waits for the end.
    is_over: AsyncMutex<bool>,
}

impl CodexProcess {
    /// Starts it; `path` is where programs are looked for.
    pub(super) fn start(
        program: &Program,
        access: &Access,
        home: Home,
        path: Option<&str>,
        redactor: &Redactor,
        mut lease: Lease,
    ) -> Result<Self, OptimizerError> {
        let (child, wire) = spawn(program, access, &home, path, redactor, &lease).inspect_err(|_| {
            warn_if_err!(Lease::remove(&home.run_dir, Holder::Proposer), "the lease of a start that failed stays");
            warn_if_err!(home.remove(), "the home of codex stays");
        })?;
        let id = child.id();
        let family = Family { holder: Holder::Proposer, token: lease.token.clone(), group: i32::try_from(id).ok() };
        let process = Self { wire, home, child: Mutex::new(child), family, is_over: AsyncMutex::new(false) };
        (lease.pid, lease.pgid) = (Some(id), Some(id));
        lease.write(&process.home.run_dir, Holder::Proposer)?;
        Ok(process)
    }

    pub(super) fn is_usable(&self) -> bool {
        self.wire.is_open() && !self.has_ended()
    }

    fn has_ended(&self) -> bool {
        !matches!(self.child.lock().try_wait(), Ok(None))
    }

    /// Ends it: its input is closed, and after `patience` it is killed with all it started. When this returns, its places
    /// are free, whoever has ended it; broken off, it can be called again.
    pub(super) async fn end(&self, patience: Duration) {
        self.wire.close();
        let mut is_over = self.is_over.lock().await;
        if *is_over {
            return;
        }
        // The lease stays where something could not be ended; the next start tries again.
        let gone = self.gone_within(patience).await;
        *is_over = gone.is_ok();
        let run_dir = &self.home.run_dir;
        let freed = gone.and_then(|()| Lease::remove_own(run_dir, Holder::Proposer, &self.family.token));
        warn_if_err!(freed, "the lease of codex stays");
        warn_if_err!(self.home.remove(), "the home of codex stays");
    }

    /// Waits until nothing is left, and kills what is still there after `patience`.
    async fn gone_within(&self, patience: Duration) -> Result<(), OptimizerError> {
        let (polite, last) = (Instant::now() + patience, Instant::now() + patience + AFTER_KILL);
        while !self.has_ended() || !self.family.members().is_empty() {
            let now = Instant::now();
            if now >= last {
                return Err(self.family.still_there());
            }
            // What codex itself leaves behind when it has ended has no reason to stay.
            if now >= polite || self.has_ended() {
                self.family.signal(rustix::process::Signal::KILL);
            }
            sleep(GLANCE).await;
        }
        Ok(())
    }

    /// The last lines of the log.
    pub(super) fn log_tail(&self) -> String {
        const LINES: usize = 10;
        let text = fs::read(self.home.run_dir.join(PROPOSER_LOG)).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(LINES)..].join("\n")
    }
}

impl Drop for CodexProcess {
    fn drop(&mut self) {
        if !*self.is_over.get_mut() {
            self.wire.close();
            // The lease stays: the next start looks for what is left, if anything is.
            if !self.family.kill_within(AT_DROP) || !self.has_ended() {
                tracing::warn!("codex was killed and is not gone yet");
            }
            warn_if_err!(self.home.remove(), "the home of codex stays");
        }
    }
}

/// Starts the program and the threads that read it.
fn spawn(
    program: &Program,
    access: &Access,
    home: &Home,
    path: Option<&str>,
    redactor: &Redactor,
    lease: &Lease,
) -> Result<(Child, Wire), OptimizerError> {
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
        .env("HOME", &home.path)
        .env("CODEX_HOME", &home.path)
        .env("LANG", "C.UTF-8")
        .env(Holder::Proposer.variable(), &lease.token);
    if let Access::Endpoint { key: Some(Key { variable, value }), .. } = access {
        command.env(variable, value.expose());
    }
    let log = home.run_dir.join(PROPOSER_LOG);
    let log = OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(&log)
        .map_err(|error| OptimizerError::from_cause(ErrorCode::Io, format!("{log} cannot be opened"), error))?;
    // Written before the process exists, so that no crash leaves one that nobody finds.
    lease.write(&home.run_dir, Holder::Proposer)?;
    let mut child = command.spawn().map_err(|error| {
        let what = format!("codex cannot be started from {}", program.path);
        OptimizerError::from_cause(ErrorCode::Proposer, what, error)
    })?;
    let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let (Some(stdin), Some(stdout), Some(stderr)) = pipes else {
        warn_if_err!(child.kill(), "codex was not killed");
        return Err(OptimizerError::new(ErrorCode::Proposer, "codex was started without pipes"));
    };
    let redactor = redactor.clone();
    std::thread::spawn(move || keep_log(stderr, log, &redactor));
    Ok((child, Wire::new(stdin, stdout)))
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

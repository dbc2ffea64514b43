//! Starts codex as a child process: an environment of a few named variables, a group of its own, and a log without secrets.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStderr, Command, Stdio};

use camino::Utf8Path;

use super::access::Access;
use super::home::Home;
use super::locate::Program;
use super::wire::Wire;
use crate::container::{Holder, Lease};
use crate::proposer::credentials::Key;
use crate::proposer::transcript::Redactor;
use crate::warn_if_err;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};

/// Name of the log in the run directory.
pub(super) const PROPOSER_LOG: &str = "proposer.log";

/// Most bytes of the log, and of one line in it.
const MOST_OF_LOG: u64 = 4 * 1024 * 1024;
const MOST_OF_LINE: u64 = 16 * 1024;

/// Starts codex and the threads that read it; `path` is where programs are looked for.
pub(super) fn spawn(
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
    let opened = OpenOptions::new().create(true).append(true).mode(0o600).open(&log);
    let log =
        opened.map_err(|error| OptimizerError::from_cause(ErrorCode::Io, format!("{log} cannot be opened"), error))?;
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

/// The last lines of the log.
pub(super) fn log_tail(run_dir: &Utf8Path) -> String {
    const LINES: usize = 10;
    let text = fs::read(run_dir.join(PROPOSER_LOG)).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
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

//! Finds the codex binary of a run and starts it as a child process with a minimal environment, its own process group,
//! and a log without secrets.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::process::Stdio;

use camino::{Utf8Path, Utf8PathBuf};
use tokio::process::{Child, Command};

use super::access::ModelAccess;
use super::home::CodexHome;
use super::rpc::RpcClient;
use crate::container::{ProcessLease, ProcessOwner};
use crate::file_error;
use crate::logs::in_current_span;
use crate::proposer::credentials::{ApiKey, Env};
use crate::proposer::transcript::Redactor;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};

/// Name of the log in the run directory.
pub(super) const PROPOSER_LOG: &str = "proposer.log";

/// Maximum size of the log, and of one line in it.
const MAX_LOG_BYTES: u64 = 4 * 1024 * 1024;
const MAX_LOG_LINE_BYTES: u64 = 16 * 1024;

const HINT: &str = "Run `pip install \"synth-optimizers[codex]\"`, or name the binary in proposer.command.";

/// The codex binary of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CodexBinary {
    pub(super) path: Utf8PathBuf,
    pub(super) arguments: Vec<String>,
    /// The setting or package that named it.
    pub(super) source: &'static str,
    /// Directory that commands must be able to read, because the sandbox is set up from inside with files of the
    /// package.
    pub(super) package: Utf8PathBuf,
}

/// Returns the first of `proposer.command`, the binary of the PyPI package, and `codex` on `PATH`.
pub(super) fn locate(
    command: &[String],
    env: Env<'_>,
    runtime: Option<&Utf8Path>,
) -> Result<CodexBinary, OptimizerError> {
    let (path, arguments, source) = match (command.split_first(), runtime) {
        (Some((program, arguments)), _) => (find(program, env), arguments, "proposer.command"),
        (None, Some(path)) => (Some(path.to_owned()).filter(|path| is_program(path)), &[][..], "openai-codex-cli-bin"),
        (None, None) => (find("codex", env), &[][..], "PATH"),
    };
    let path = path.ok_or_else(|| {
        let message = match (command.first(), runtime) {
            (Some(program), _) => format!("proposer.command names {program:?}, which is not an executable program"),
            (None, Some(path)) => format!("openai-codex-cli-bin names {path}, which is not an executable program"),
            (None, None) => {
                "no codex binary: proposer.command is empty, the codex extra is not installed, and there is no \
                             `codex` on PATH"
                    .to_owned()
            }
        };
        OptimizerError::new(ErrorCode::Proposer, message).with_hint(HINT)
    })?;
    let path = native_binary(&path).unwrap_or(path);
    let mut arguments = arguments.to_vec();
    for word in ["app-server", "--strict-config"] {
        if !arguments.iter().any(|argument| argument == word) {
            arguments.push(word.to_owned());
        }
    }
    let package = package_of(&path);
    Ok(CodexBinary { path, arguments, source, package })
}

/// Searches a name on `PATH`; takes a path as it is.
fn find(program: &str, env: Env<'_>) -> Option<Utf8PathBuf> {
    if program.contains('/') {
        // Make it absolute, because codex starts in another directory.
        return camino::absolute_utf8(program).ok().filter(|path| is_program(path));
    }
    let path = env("PATH")?;
    let dirs = path.split(':').filter(|dir| dir.starts_with('/'));
    dirs.map(|dir| Utf8Path::new(dir).join(program)).find(|path| is_program(path))
}

fn is_program(path: &Utf8Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

/// Returns the native binary behind the script of the npm package. Killing the script would leave the binary running.
fn native_binary(path: &Utf8Path) -> Option<Utf8PathBuf> {
    let script = path.canonicalize_utf8().ok().filter(|path| path.file_name() == Some("codex.js"))?;
    let package = script.parent()?.parent()?;
    let mut places = vec![package.to_owned()];
    for modules in [package.join("node_modules/@openai"), package.parent()?.to_owned()] {
        let entries = modules.read_dir_utf8().ok().into_iter().flatten().flatten();
        places.extend(
            entries
                .map(|entry| entry.path().to_owned())
                .filter(|path| path.file_name().is_some_and(|name| name.starts_with("codex-"))),
        );
    }
    let targets = places.into_iter().filter_map(|place| place.join("vendor").read_dir_utf8().ok());
    targets.flatten().flatten().map(|target| target.path().join("bin/codex")).find(|path| is_program(path))
}

/// Returns the directory that contains `bin/` and `codex-resources/`, or the binary itself if there is none.
fn package_of(path: &Utf8Path) -> Utf8PathBuf {
    let path = path.canonicalize_utf8().unwrap_or_else(|_| path.to_owned());
    let found =
        path.ancestors().skip(1).take(2).find(|dir| dir.join("codex-resources").is_dir()).map(Utf8Path::to_owned);
    found.unwrap_or(path)
}

/// Starts codex and the threads that read its output. `path` is its `PATH`.
pub(super) fn spawn(
    program: &CodexBinary,
    access: &ModelAccess,
    home: &CodexHome,
    path: Option<&str>,
    redactor: &Redactor,
    lease: &ProcessLease,
) -> Result<(Child, RpcClient), OptimizerError> {
    let mut command = Command::new(&program.path);
    command
        .args(&program.arguments)
        .current_dir(home.scratch_dir())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true)
        .env_clear()
        .env("PATH", path.unwrap_or("/usr/local/bin:/usr/bin:/bin"))
        .env("HOME", &home.path)
        .env("CODEX_HOME", &home.path)
        .env("LANG", "C.UTF-8")
        .env(ProcessOwner::Proposer.variable(), &lease.token);
    if let ModelAccess::Endpoint { key: Some(ApiKey { variable, value }), .. } = access {
        command.env(variable, value.expose());
    }
    let log = home.run_dir.join(PROPOSER_LOG);
    let opened = OpenOptions::new().create(true).append(true).mode(0o600).open(&log);
    let log = opened.map_err(|error| file_error::classified(format!("{log} cannot be opened"), error))?;
    // Write the lease before the process exists, so that a later start can find it after any crash.
    lease.write(&home.run_dir, ProcessOwner::Proposer)?;
    let mut child = command.spawn().map_err(|error| {
        let what = format!("codex cannot be started from {}", program.path);
        match file_error::is_out_of_files(&error) {
            true => file_error::classified(what, error),
            false => OptimizerError::from_cause(ErrorCode::Proposer, what, error),
        }
    })?;
    let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let (Some(stdin), Some(stdout), Some(stderr)) = pipes else {
        return Err(OptimizerError::new(ErrorCode::Proposer, "codex was started without pipes"));
    };
    let lost = |error| OptimizerError::from_cause(ErrorCode::Proposer, "the pipes of codex cannot be used", error);
    let [stdin, stdout, stderr] = [stdin.into_owned_fd(), stdout.into_owned_fd(), stderr.into_owned_fd()];
    let (redactor, stderr) = (redactor.clone(), File::from(stderr.map_err(lost)?));
    std::thread::spawn(in_current_span(move || copy_log(stderr, log, &redactor)));
    Ok((child, RpcClient::new(stdin.map_err(lost)?.into(), stdout.map_err(lost)?.into())))
}

/// Returns the last lines of the log.
pub(super) fn log_tail(run_dir: &Utf8Path) -> String {
    const LINES: usize = 10;
    let text = fs::read(run_dir.join(PROPOSER_LOG)).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}

/// Copies the stderr of codex into the log, line by line. Reads to the end even if the log is full or cannot be
/// written.
fn copy_log(stderr: File, mut log: File, redactor: &Redactor) {
    let mut room = MAX_LOG_BYTES.saturating_sub(log.metadata().map_or(0, |found| found.len()));
    let mut reader = BufReader::new(stderr);
    let mut line = Vec::new();
    loop {
        line.clear();
        match reader.by_ref().take(MAX_LOG_LINE_BYTES).read_until(b'\n', &mut line) {
            Ok(0) => return,
            Err(error) => return tracing::warn!(%error, "reading the output of codex failed"),
            Ok(_) => {}
        }
        let text = redactor.text(&strip_colours(String::from_utf8_lossy(&line).trim_end()));
        if (text.len() as u64) < room && writeln!(log, "{text}").is_ok() {
            room -= text.len() as u64 + 1;
        }
    }
}

/// Removes colour escape sequences from a line.
fn strip_colours(line: &str) -> String {
    let mut parts = line.split('\u{1b}');
    let first = parts.next().unwrap_or_default();
    // An escape sequence ends with a letter.
    let after = |part: &str| part.char_indices().skip(1).find(|(_, c)| c.is_ascii_alphabetic()).map(|(at, _)| at + 1);
    parts.fold(first.to_owned(), |shown, part| shown + after(part).map_or("", |at| &part[at..]))
}

#[cfg(test)]
#[path = "process_tests.rs"]
mod tests;

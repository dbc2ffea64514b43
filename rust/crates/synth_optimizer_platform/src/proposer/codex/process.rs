//! Finds the codex binary that a run uses, and starts it as a child process: an environment of a few named variables, a group
//! of its own, and a log without secrets.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStderr, Command, Stdio};

use camino::{Utf8Path, Utf8PathBuf};

use super::access::Access;
use super::home::Home;
use super::wire::Wire;
use crate::container::{Holder, Lease};
use crate::proposer::credentials::{Env, Key};
use crate::proposer::transcript::Redactor;
use crate::warn_if_err;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};

/// Name of the log in the run directory.
pub(super) const PROPOSER_LOG: &str = "proposer.log";

/// Most bytes of the log, and of one line in it.
const MOST_OF_LOG: u64 = 4 * 1024 * 1024;
const MOST_OF_LINE: u64 = 16 * 1024;

const HINT: &str = "Run `pip install \"synth-optimizers[codex]\"`, or name the binary in proposer.command.";

/// A program that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Program {
    pub(super) path: Utf8PathBuf,
    pub(super) arguments: Vec<String>,
    /// Who named it.
    pub(super) source: &'static str,
    /// What commands must be able to read, because the sandbox is set up by files of the package from within.
    pub(super) package: Utf8PathBuf,
}

/// The first of `proposer.command`, the binary of the PyPI package and `codex` on the path.
pub(super) fn locate(command: &[String], env: Env<'_>, runtime: Option<&Utf8Path>) -> Result<Program, OptimizerError> {
    let (path, arguments, source) = match (command.split_first(), runtime) {
        (Some((program, arguments)), _) => (find(program, env), arguments, "proposer.command"),
        (None, Some(path)) => (Some(path.to_owned()).filter(|path| is_program(path)), &[][..], "openai-codex-cli-bin"),
        (None, None) => (find("codex", env), &[][..], "PATH"),
    };
    let path = path.ok_or_else(|| {
        let message = match (command.first(), runtime) {
            (Some(program), _) => format!("proposer.command names {program:?}, which is no program that can be run"),
            (None, Some(path)) => format!("openai-codex-cli-bin names {path}, which is no program that can be run"),
            (None, None) => {
                "no codex binary: proposer.command is empty, the codex extra is not installed, and there is no \
                             `codex` on PATH"
                    .to_owned()
            }
        };
        OptimizerError::new(ErrorCode::Proposer, message).with_hint(HINT)
    })?;
    let path = native(&path).unwrap_or(path);
    let mut arguments = arguments.to_vec();
    for word in ["app-server", "--strict-config"] {
        if !arguments.iter().any(|argument| argument == word) {
            arguments.push(word.to_owned());
        }
    }
    let package = package_of(&path);
    Ok(Program { path, arguments, source, package })
}

/// A name is looked for on the path; a path is taken as it is.
fn find(program: &str, env: Env<'_>) -> Option<Utf8PathBuf> {
    if program.contains('/') {
        // It is started from another directory.
        return camino::absolute_utf8(program).ok().filter(|path| is_program(path));
    }
    let path = env("PATH")?;
    let dirs = path.split(':').filter(|dir| dir.starts_with('/'));
    dirs.map(|dir| Utf8Path::new(dir).join(program)).find(|path| is_program(path))
}

fn is_program(path: &Utf8Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

/// The npm package puts a script in front of the binary; killed, the script would leave the binary behind.
fn native(path: &Utf8Path) -> Option<Utf8PathBuf> {
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

/// The directory that holds `bin/` and `codex-resources/`; the binary alone where there is none.
fn package_of(path: &Utf8Path) -> Utf8PathBuf {
    let path = path.canonicalize_utf8().unwrap_or_else(|_| path.to_owned());
    let found =
        path.ancestors().skip(1).take(2).find(|dir| dir.join("codex-resources").is_dir()).map(Utf8Path::to_owned);
    found.unwrap_or(path)
}

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
    let mut parts = line.split('\u{1b}');
    let first = parts.next().unwrap_or_default();
    // An escape sequence goes up to its letter.
    let after = |part: &str| part.char_indices().skip(1).find(|(_, c)| c.is_ascii_alphabetic()).map(|(at, _)| at + 1);
    parts.fold(first.to_owned(), |shown, part| shown + after(part).map_or("", |at| &part[at..]))
}

#[cfg(test)]
#[path = "process_tests.rs"]
mod tests;

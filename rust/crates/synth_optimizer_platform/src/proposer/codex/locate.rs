//! Finds the codex binary that a run uses, and the files that its sandbox must be able to read.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use camino::{Utf8Path, Utf8PathBuf};

use crate::proposer::credentials::Env;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};

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
    let none = |message: String| OptimizerError::new(ErrorCode::Proposer, message).with_hint(HINT);
    if let Some((program, arguments)) = command.split_first() {
        let path = named(program, env)
            .ok_or_else(|| none(format!("proposer.command names {program:?}, which is no program that can be run")))?;
        return Ok(program_at(path, arguments.to_vec(), "proposer.command"));
    }
    if let Some(path) = runtime {
        if !is_program(path) {
            return Err(none(format!("openai-codex-cli-bin names {path}, which is no program that can be run")));
        }
        return Ok(program_at(path.to_owned(), Vec::new(), "openai-codex-cli-bin"));
    }
    let message = "no codex binary: proposer.command is empty, the codex extra is not installed, and there is no `codex` on \
                   PATH";
    let path = on_path("codex", env).ok_or_else(|| none(message.to_owned()))?;
    Ok(program_at(path, Vec::new(), "PATH"))
}

fn program_at(path: Utf8PathBuf, mut arguments: Vec<String>, source: &'static str) -> Program {
    let path = native(&path).unwrap_or(path);
    for word in ["app-server", "--strict-config"] {
        if !arguments.iter().any(|argument| argument == word) {
            arguments.push(word.to_owned());
        }
    }
    let package = package_of(&path);
    Program { path, arguments, source, package }
}

/// A name is looked for on the path; a path is taken as it is.
fn named(program: &str, env: Env<'_>) -> Option<Utf8PathBuf> {
    if !program.contains('/') {
        return on_path(program, env);
    }
    // It is started from another directory.
    camino::absolute_utf8(program).ok().filter(|path| is_program(path))
}

fn on_path(name: &str, env: Env<'_>) -> Option<Utf8PathBuf> {
    let path = env("PATH")?;
    path.split(':')
        .filter(|dir| dir.starts_with('/'))
        .map(|dir| Utf8Path::new(dir).join(name))
        .find(|it| is_program(it))
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

#[cfg(test)]
#[path = "locate_tests.rs"]
mod tests;

//! Shared test support: scripted runs as processes, and a stub container for them.

pub(crate) mod run_thread;
pub(crate) mod stopped_process;

use std::process::Command;

use camino::{Utf8Path, Utf8PathBuf};
use synth_e2e::wait::WAIT_TIMEOUT;
use synth_e2e::{ProcessOutput, RunFiles, ServerProcess, run_to_end, write_config};
use synth_optimizer_core::config::Config;
use synth_optimizer_core::model::event::Event;
use synth_optimizer_core::model::event_fields::RunFinished;
use synth_optimizer_platform::workspace::{RebuildMode, rebuild, workspace_status};
use tempfile::TempDir;

/// A temporary directory with a config and its runs.
#[derive(Debug)]
pub(crate) struct TestDir {
    directory: TempDir,
}

impl TestDir {
    pub(crate) fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn path(&self) -> &Utf8Path {
        Utf8Path::from_path(self.directory.path()).unwrap()
    }

    pub(crate) fn configured(config: &Config) -> Self {
        let test_dir = Self::new();
        write_config(&test_dir.config(), config).unwrap();
        test_dir
    }

    pub(crate) fn config(&self) -> Utf8PathBuf {
        self.path().join("gepa.toml")
    }

    pub(crate) fn files(&self, run_id: &str) -> RunFiles {
        RunFiles::new(&self.path().join("runs"), run_id)
    }

    /// Returns the command that starts or resumes a run in this directory.
    pub(crate) fn command(&self, run_id: &str, flags: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_scripted_run"));
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("SYNTH_OPTIMIZERS_")) {
            command.env_remove(name);
        }
        command.args(["--config", self.config().as_str(), "--set", &format!("run.run_id={run_id}")]).args(flags);
        command
    }

    /// Starts or resumes a run and waits for its process.
    pub(crate) fn run(&self, run_id: &str, flags: &[&str]) -> ProcessOutput {
        let ended = run_to_end(self.command(run_id, flags), WAIT_TIMEOUT).unwrap();
        assert!(!ended.timed_out, "{run_id} did not end within {WAIT_TIMEOUT:?}\n{}", ended.stderr);
        ended
    }

    /// Starts or resumes a run and asserts that it completes.
    pub(crate) fn finish(&self, run_id: &str, flags: &[&str]) -> RunFiles {
        let ended = self.run(run_id, flags);
        assert!(ended.status.success(), "{run_id} ended with {}\n{}\n{}", ended.status, ended.stdout, ended.stderr);
        self.files(run_id)
    }
}

pub(crate) fn stub(flags: &[&str]) -> ServerProcess {
    ServerProcess::stub(env!("CARGO_BIN_EXE_stub_container"), flags).unwrap()
}

/// Returns the last event of a completed run.
pub(crate) fn finished(files: &RunFiles) -> RunFinished {
    match files.events().unwrap().pop() {
        Some(Event::RunFinished(finished)) => finished,
        other => panic!("the run did not complete: {other:?}"),
    }
}

/// Returns the number of events of a type in the log of a run.
pub(crate) fn count(files: &RunFiles, wire: &str) -> usize {
    files.events().unwrap().iter().filter(|event| event.type_name() == wire).count()
}

/// Asserts that the projections and invariants of a run match its log.
pub(crate) fn assert_consistent(files: &RunFiles) {
    let path = files.path("workspace.sqlite");
    let status = workspace_status(path.as_std_path()).unwrap();
    let run = &status["runs"][0];
    assert_eq!(run["invariant_report"]["status"], "pass", "{}", run["invariant_report"]);
    for known in run["projection_freshness"].as_array().unwrap() {
        assert_eq!(known["status"], "fresh", "{known}");
    }
    let report = rebuild(path.as_std_path(), RebuildMode::Compare).unwrap();
    assert!(report.differences.is_empty(), "{report:?}");
}

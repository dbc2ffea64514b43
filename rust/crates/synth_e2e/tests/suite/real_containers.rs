//! Complete runs against Python containers: two versions of the published package, hand-written containers, and the
//! bridge.

use std::process::Command;

use crate::harness::{TestDir, count, finished};
use camino::{Utf8Path, Utf8PathBuf};
use synth_e2e::{RowNames, RunFiles, ServerProcess, small_config};
use synth_optimizer_core::config::Config;
use synth_optimizer_core::config::gepa::SubmissionMode;
use synth_optimizer_core::model::answer::FailureClass;
use synth_optimizer_core::model::error::ErrorCode;
use synth_optimizer_core::model::event::Event;

/// Variables with the interpreters for `synth-containers` 0.4.6 and 0.2.0; `make rust-test` creates both.
const PYTHON: &str = "SYNTH_E2E_PYTHON";
const PYTHON_OLD: &str = "SYNTH_E2E_PYTHON_OLD";

/// A container script, the interpreter it needs, and how its rows are identified.
#[derive(Debug, Clone, Copy)]
struct ContainerKind {
    script: &'static str,
    python: &'static str,
    names: RowNames,
}

const SDK: ContainerKind = ContainerKind { script: "sdk_container.py", python: PYTHON, names: RowNames::TaskIds };
const REFERENCE: ContainerKind =
    ContainerKind { script: "reference_container.py", python: PYTHON, names: RowNames::TaskIds };
const REFERENCE_OLD: ContainerKind =
    ContainerKind { script: "reference_container.py", python: PYTHON_OLD, names: RowNames::Seeds };
const DATASET: ContainerKind =
    ContainerKind { script: "handwritten_dataset.py", python: PYTHON, names: RowNames::Seeds };
const TASKSET: ContainerKind =
    ContainerKind { script: "handwritten_taskset.py", python: PYTHON, names: RowNames::TaskIds };
const BRIDGE: ContainerKind = ContainerKind { script: "bridge_container.py", python: PYTHON, names: RowNames::TaskIds };
const BOTH: ContainerKind = ContainerKind { script: "handwritten_both.py", python: PYTHON, names: RowNames::TaskIds };

impl ContainerKind {
    fn start(self, flags: &[&str]) -> ServerProcess {
        let variable = self.python;
        let python = std::env::var(variable).unwrap_or_else(|_| {
            panic!(
                "{variable} names no Python with synth-containers: run `make rust-test`, which makes one and sets it"
            )
        });
        let mut command = Command::new(python);
        command.arg(containers().join(self.script)).arg("--watch-stdin").args(flags);
        ServerProcess::start(command).unwrap()
    }

    fn config(self, server: &ServerProcess, mode: SubmissionMode) -> Config {
        let mut config = small_config(&server.url(), self.names, 6, 3, &["care_notes", "manner"]);
        config.gepa.rollout_submission_mode = mode;
        config.gepa.max_generations = 3;
        config
    }
}

fn containers() -> Utf8PathBuf {
    Utf8Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../tests/containers")
}

/// Asserts that the run completed, its best candidate beats the initial one, and every reply confirmed its row.
fn assert_improves(files: &RunFiles) {
    let finished = finished(files);
    let gain = finished.train_gain.expect("seed and best candidate have scores");
    assert!(gain.difference > 0.0, "the run learned nothing: {gain:?}");
    assert_eq!(count(files, "container.echo.missing"), 0, "the container says which row it ran");
}

/// Runs in both submission modes and asserts that both find the same candidate.
fn improves_in_both_modes(kind: ContainerKind) {
    let server = kind.start(&[]);
    let mut best = Vec::new();
    // The same run id in both modes: a container may reject a rollout id that it knows from another request.
    for mode in [SubmissionMode::Sync, SubmissionMode::Async] {
        let place = TestDir::configured(&kind.config(&server, mode));
        let files = place.finish("e2e-mode", &[]);
        assert_improves(&files);
        assert_eq!(count(&files, "rollout.transport.fallback"), 0, "{kind:?} speaks {mode:?}");
        assert_eq!(count(&files, "rollout.failed"), 0, "{kind:?} fails no rollout");
        best.push(finished(&files).best_candidate_id);
    }
    assert_eq!(best[0], best[1], "{kind:?}: sync and async runs differ");
}

#[test]
fn sdk_container_improves_sync_and_async() {
    improves_in_both_modes(SDK);
}

#[test]
fn reference_container_improves_sync_and_async() {
    improves_in_both_modes(REFERENCE);
}

#[test]
fn old_reference_container_improves_sync_and_async() {
    improves_in_both_modes(REFERENCE_OLD);
}

#[test]
fn handwritten_dataset_container_improves_sync_and_async() {
    improves_in_both_modes(DATASET);
}

#[test]
fn handwritten_taskset_container_improves_sync_and_async() {
    improves_in_both_modes(TASKSET);
}

#[test]
fn handwritten_container_of_both_dialects_improves_sync_and_async() {
    improves_in_both_modes(BOTH);
}

#[test]
fn bridge_improves_sync_and_async() {
    improves_in_both_modes(BRIDGE);
}

#[test]
fn row_numbers_are_mapped_to_task_ids_of_the_container() {
    let server = SDK.start(&[]);
    let by_seed = ContainerKind { names: RowNames::Seeds, ..SDK };
    let place = TestDir::configured(&by_seed.config(&server, SubmissionMode::Sync));
    let files = place.finish("e2e-run", &[]);
    assert_improves(&files);
    assert_eq!(count(&files, "dataset.seeds.mapped"), 1);
}

/// A container that runs another row than the requested one ends the run, so that no wrong score is used.
#[test]
fn a_container_that_runs_the_wrong_row_is_refused() {
    for kind in [SDK, REFERENCE_OLD, BOTH] {
        let server = kind.start(&["--fault", "wrong-row"]);
        for mode in [SubmissionMode::Sync, SubmissionMode::Async] {
            let place = TestDir::configured(&kind.config(&server, mode));
            let ended = place.run("e2e-run", &[]);
            assert_eq!(ended.status.code(), Some(ErrorCode::Container.row().exit.into()), "{kind:?}: {}", ended.stdout);
            assert!(ended.stdout.contains(ErrorCode::Container.as_str()), "{kind:?}: {}", ended.stdout);
        }
    }
}

/// A rejected async rollout falls back to sync mode, and the log records the fallback.
#[test]
fn refused_async_falls_back_to_sync() {
    for (kind, flags) in [
        (REFERENCE, ["--fault", "refuse-async"]),
        (BOTH, ["--fault", "refuse-async"]),
        (DATASET, ["--mode", "blocking"]),
    ] {
        let server = kind.start(&flags);
        let place = TestDir::configured(&kind.config(&server, SubmissionMode::Async));
        let files = place.finish("e2e-run", &[]);
        assert_improves(&files);
        assert!(count(&files, "rollout.transport.fallback") > 0, "{kind:?}: the fallback is in the log");
        assert_eq!(count(&files, "rollout.failed"), 0, "{kind:?}: a refused submission is no failed rollout");
    }
}

/// Invalid rewards and rewards of failed rollouts are failures and never count as zero.
#[test]
fn a_bad_reward_is_a_failed_rollout() {
    let cases = [
        (SDK, "nan", [FailureClass::InvalidScore, FailureClass::Contract]),
        (REFERENCE, "nan", [FailureClass::InvalidScore, FailureClass::Contract]),
        (TASKSET, "nan", [FailureClass::InvalidScore, FailureClass::Contract]),
        (SDK, "failed-status", [FailureClass::Failed, FailureClass::Failed]),
        (DATASET, "failed-status", [FailureClass::Failed, FailureClass::Failed]),
        (BRIDGE, "nan", [FailureClass::Failed, FailureClass::Failed]),
    ];
    for (kind, fault, classes) in cases {
        let server = kind.start(&["--fault", fault]);
        let mut config = kind.config(&server, SubmissionMode::Sync);
        config.gepa.rollout_max_attempts = 1;
        let place = TestDir::configured(&config);
        let ended = place.run("e2e-run", &[]);
        let files = place.files("e2e-run");
        assert!(has_failed(&files), "{kind:?} with {fault} cannot end well: {}", ended.stdout);
        assert_eq!(count(&files, "rollout.finished"), 0, "{kind:?} with {fault} gives no score");
        let failed: Vec<FailureClass> = files.events().unwrap().iter().filter_map(failure).collect();
        assert!(!failed.is_empty(), "{kind:?} with {fault}");
        assert!(failed.iter().all(|class| classes.contains(class)), "{kind:?} with {fault}: {failed:?}");
    }
}

fn has_failed(files: &RunFiles) -> bool {
    matches!(files.events().unwrap().last(), Some(Event::RunFailed(_)))
}

fn failure(event: &Event) -> Option<FailureClass> {
    match event {
        Event::RolloutFailed(failed) => Some(failed.class),
        _ => None,
    }
}

/// A failed rollout is retried under a new id, and the run still improves.
#[test]
fn failed_rollouts_are_retried() {
    for kind in [SDK, REFERENCE, BOTH, BRIDGE] {
        let server = kind.start(&["--fault", "500", "--every", "5"]);
        let mut config = kind.config(&server, SubmissionMode::Sync);
        config.gepa.rollout_max_attempts = 3;
        let place = TestDir::configured(&config);
        let files = place.finish("e2e-run", &["--workers", "1"]);
        assert_improves(&files);
        assert!(count(&files, "rollout.failed") > 0, "{kind:?}: failures are in the log");
    }
}

/// A rollout that is rejected for overload is sent again under the same id and does not fail.
#[test]
fn overload_responses_do_not_fail_rollouts() {
    for kind in [SDK, REFERENCE_OLD, TASKSET] {
        let server = kind.start(&["--fault", "429", "--every", "3"]);
        let place = TestDir::configured(&kind.config(&server, SubmissionMode::Sync));
        let files = place.finish("e2e-run", &["--workers", "1"]);
        assert_improves(&files);
        assert_eq!(count(&files, "rollout.failed"), 0, "{kind:?}: an overload is no failed rollout");
    }
}

/// A slow rollout fails at its timeout, and the run continues.
#[test]
fn slow_rollouts_fail_at_their_timeout() {
    let server = TASKSET.start(&["--fault", "slow", "--every", "9", "--slow-seconds", "30"]);
    let mut config = TASKSET.config(&server, SubmissionMode::Sync);
    config.container.rollout_timeout_seconds = 3;
    config.gepa.rollout_max_attempts = 3;
    let place = TestDir::configured(&config);
    let files = place.finish("e2e-run", &["--workers", "2"]);
    assert_improves(&files);
    let classes: Vec<FailureClass> = files.events().unwrap().iter().filter_map(failure).collect();
    let limit = [FailureClass::Timeout, FailureClass::UnknownOutcome];
    assert!(!classes.is_empty() && classes.iter().all(|class| limit.contains(class)), "{classes:?}");
}

/// If the container dies, the run fails with an error that names it, and keeps its measurements.
#[test]
fn a_container_that_dies_interrupts_the_run() {
    let mut server = SDK.start(&["--fault", "crash", "--every", "4"]);
    let mut config = SDK.config(&server, SubmissionMode::Sync);
    config.container.connect_retries = 1;
    config.run.outage_patience_seconds = 0;
    let place = TestDir::configured(&config);
    let ended = place.run("e2e-run", &["--workers", "1"]);
    let files = place.files("e2e-run");
    assert!(!ended.status.success() && count(&files, "run.interrupted") == 1, "{}", ended.stdout);
    assert!(server.has_ended());
    assert!(count(&files, "rollout.finished") > 0, "what was measured is kept");
}

//! Faults of the machine: they interrupt a run, are named as what they are, and the run resumes once they are fixed.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;
use synth_e2e::run_files::COMPARED_FILES;
use synth_e2e::stub::FIELDS;
use synth_e2e::wait::WAIT_TIMEOUT;
use synth_e2e::{ProcessOutput, RowNames, ScriptedProposer, ServerProcess, run_to_end, small_config};
use synth_optimizer_core::config::gepa::SearchMode;
use synth_optimizer_core::model::answer::{CallFailure, FailureClass};
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::event::Event;
use synth_optimizer_core::model::event_fields::Dependency;
use synth_optimizer_platform::proposer::{ProposalRequest, Proposer, TurnFailure, TurnFuture, TurnId};
use synth_optimizer_platform::runtime::RunSpec;

use crate::harness::run_thread::{start_spec, world};
use crate::harness::{TestDir, assert_consistent, count, stub};

/// Runs a shell script with the arguments of a command as `"$@"`.
fn in_shell(script: &str, command: &Command) -> ProcessOutput {
    let mut shell = Command::new("sh");
    shell.args(["-c", script, "sh"]).arg(command.get_program()).args(command.get_args());
    let ended = run_to_end(shell, WAIT_TIMEOUT).unwrap();
    assert!(!ended.timed_out, "{}", ended.stderr);
    ended
}

#[test]
fn too_many_open_files_interrupt_the_run_and_count_as_no_failure() {
    let container = stub(&["--train", "64", "--latency-ms", "300"]);
    let mut config = small_config(&container.url(), RowNames::TaskIds, 64, 3, &FIELDS[..1]);
    config.gepa.max_generations = Some(1);
    // It rolls the initial candidate out on all rows at once.
    config.gepa.search = SearchMode::Reference;
    let place = TestDir::configured(&config);
    let ended = in_shell("ulimit -n 56; exec \"$@\"", &place.command("e2e-one", &["--workers", "64"]));
    assert!(!ended.status.success(), "{}", ended.stdout);
    let said = format!("{}{}", ended.stdout, ended.stderr);
    assert!(said.contains(ErrorCode::Io.as_str()) && said.contains("open files"), "{said}");
    let files = place.files("e2e-one");
    let is_failure = |event: &&Event| matches!(event, Event::RolloutFailed(_) | Event::RunFailed(_));
    assert_eq!(files.events().unwrap().iter().find(is_failure), None);
    let resumed = place.finish("e2e-one", &["--workers", "64"]);
    assert_consistent(&resumed);
    let clean = place.finish("e2e-clean", &[]);
    for name in COMPARED_FILES {
        assert!(resumed.comparable(name).unwrap() == clean.comparable(name).unwrap(), "{name} differs");
    }
}

/// Fills a file system of two megabytes, then gives it room and resumes the run.
const FULL_DISK: &str = r#"
set -e
mkdir -p "$DISK"
mount -t tmpfs -o size=2m tmpfs "$DISK"
"$@" --set run.outage_patience_seconds=0 >"$OUT/first.out" 2>&1 && exit 7
cp "$DISK/runs/e2e-one/result_manifest.json" "$OUT/first.json"
mount -o remount,size=64m "$DISK"
"$@" >"$OUT/second.out" 2>&1
cp -r "$DISK/runs" "$OUT/"
"#;

/// Fills a file system of two megabytes, and gives it room while the run waits.
const ROOM_ON_DISK: &str = r#"
set -e
mkdir -p "$DISK"
mount -t tmpfs -o size=2m tmpfs "$DISK"
"$@" --set run.outage_retry_ms=50 >"$OUT/first.out" 2>&1 &
until grep -q 'waiting for room' "$OUT/first.out"; do kill -0 $!; sleep 0.02; done
mount -o remount,size=64m "$DISK"
wait $!
cp -r "$DISK/runs" "$OUT/"
"#;

/// A run whose directory is on a small disk.
struct SmallDisk {
    place: TestDir,
    _container: ServerProcess,
}

impl SmallDisk {
    /// Runs the script. Returns `None` where private mounts are not allowed.
    fn run(script: &str, reply_bytes: &str) -> Option<Self> {
        let can_mount =
            Command::new("unshare").args(["-rm", "true"]).output().is_ok_and(|ended| ended.status.success());
        if !can_mount {
            println!("skipped: this machine allows no private mounts");
            return None;
        }
        let container = stub(&["--train", "150", "--reply-bytes", reply_bytes]);
        let mut config = small_config(&container.url(), RowNames::TaskIds, 150, 3, &FIELDS[..1]);
        config.gepa.max_generations = Some(2);
        let place = TestDir::new();
        let disk = place.path().join("disk");
        config.run.output_dir = disk.join("runs");
        synth_e2e::write_config(&place.config(), &config).unwrap();
        let run = place.command("e2e-one", &[]);
        let mut unshare = Command::new("unshare");
        unshare.args(["-rm", "sh", "-c", script, "sh"]).arg(run.get_program()).args(run.get_args());
        unshare.env("DISK", &disk).env("OUT", place.path());
        let ended = run_to_end(unshare, WAIT_TIMEOUT).unwrap();
        let found = Self { place, _container: container };
        assert!(
            ended.status.success(),
            "{}\n{}\n{}",
            ended.stderr,
            found.output("first.out"),
            found.output("second.out")
        );
        Some(found)
    }

    fn output(&self, name: &str) -> String {
        std::fs::read_to_string(self.place.path().join(name)).unwrap_or_default()
    }

    /// Checks that the run ended like one on a large disk.
    fn assert_complete(&self) {
        let files = self.place.files("e2e-one");
        assert_consistent(&files);
        let clean = self.place.finish("e2e-clean", &["--set", "run.output_dir=runs"]);
        for name in COMPARED_FILES {
            assert!(files.comparable(name).unwrap() == clean.comparable(name).unwrap(), "{name} differs");
        }
    }
}

#[test]
fn a_full_disk_is_named_and_the_run_resumes() {
    // A reply does not fit on the disk any more, but a manifest does.
    let Some(disk) = SmallDisk::run(FULL_DISK, "150000") else { return };
    let first = disk.output("first.out");
    assert!(first.contains(ErrorCode::StorageFull.as_str()) && first.contains("the disk is full"), "{first}");
    let interrupted: Value = serde_json::from_str(&disk.output("first.json")).unwrap();
    assert_eq!(interrupted["status"], "interrupted");
    assert!(interrupted["failure"]["message"].as_str().unwrap().contains("the disk is full"), "{interrupted}");
    disk.assert_complete();
}

#[test]
fn a_run_waits_for_room_on_a_full_disk() {
    let Some(disk) = SmallDisk::run(ROOM_ON_DISK, "20000") else { return };
    disk.assert_complete();
    let events = disk.place.files("e2e-one").events().unwrap();
    let waiting = events.iter().find_map(|event| match event {
        Event::RunWaiting(waiting) => Some(waiting),
        _ => None,
    });
    let waiting = waiting.unwrap();
    assert!(waiting.waiting_for == Dependency::Disk && waiting.cause.contains("the disk is full"), "{waiting:?}");
    assert_eq!(count(&disk.place.files("e2e-one"), "rollout.failed"), 0);
    assert_eq!(count(&disk.place.files("e2e-one"), "call.outcome_unknown"), 0);
}

/// A proposer whose first turn meets a fault of this machine.
#[derive(Debug, Default)]
struct FaultyMachine {
    scripted: ScriptedProposer,
    has_failed: AtomicBool,
}

impl Proposer for FaultyMachine {
    fn identity(&self) -> Value {
        self.scripted.identity()
    }

    fn propose(&self, turn: TurnId, request: ProposalRequest) -> TurnFuture<'_> {
        if self.has_failed.swap(true, Ordering::SeqCst) {
            return self.scripted.propose(turn, request);
        }
        let failure = CallFailure::new(FailureClass::NotSent, "too many open files");
        let fatal = Some(OptimizerError::new(ErrorCode::Io, "too many open files"));
        Box::pin(async { Err(TurnFailure { failure, fatal, outage: None }) })
    }
}

#[test]
fn a_turn_that_meets_a_fault_of_the_machine_is_asked_again() {
    let (_stub, test_dir, config) = world(&[]);
    let proposer: Arc<FaultyMachine> = Arc::default();
    let run = || start_spec(RunSpec { proposer: Some(proposer.clone()), ..RunSpec::new(config.clone()) }).end();
    assert_eq!(run().unwrap_err().code, ErrorCode::Io);
    assert_eq!(run().unwrap().end.as_str(), "completed");
    let files = test_dir.files("steered");
    assert_eq!(count(&files, "proposer.failed"), 0);
    assert_consistent(&files);
}

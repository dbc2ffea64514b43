//! Runs in their own threads, controlled by a test.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;

use synth_e2e::stub::FIELDS;
use synth_e2e::wait::{WAIT_TIMEOUT, wait_until};
use synth_e2e::{RowNames, RunFiles, ScriptedProposer, ServerProcess, read_bill, small_config};
use synth_gepa::GepaEngine;
use synth_optimizer_core::config::Config;
use synth_optimizer_core::config::sections::CacheMode;
use synth_optimizer_core::model::answer::FailureClass;
use synth_optimizer_core::model::control::ControlRequest;
use synth_optimizer_core::model::error::OptimizerError;
use synth_optimizer_core::model::event::Event;
use synth_optimizer_platform::runtime::{HookPoint, Hooks, RunControl, RunOutcome, RunSpec, execute};

use crate::harness::{TestDir, stub};

pub(crate) type RunResult = Result<RunOutcome, OptimizerError>;

/// A run in its own thread.
pub(crate) struct RunThread {
    pub(crate) control: RunControl,
    thread: JoinHandle<RunResult>,
}

pub(crate) fn start(config: Config, proposer: ScriptedProposer, hooks: Hooks) -> RunThread {
    start_spec(RunSpec { proposer: Some(Arc::new(proposer)), hooks, ..RunSpec::new(config) })
}

pub(crate) fn start_spec(spec: RunSpec) -> RunThread {
    let (control, receiver) = RunControl::new(100_000);
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(execute::<GepaEngine>(spec, receiver))
    });
    RunThread { control, thread }
}

impl RunThread {
    pub(crate) fn end(self) -> RunResult {
        wait_until("the end of the run", || self.thread.is_finished());
        self.thread.join().unwrap()
    }
}

pub(crate) fn execute_to_end(config: Config) -> RunResult {
    start(config, ScriptedProposer::default(), Hooks::default()).end()
}

/// Returns hooks that call `then` once, at the first commit after the log contains an event for which `wanted` is true.
pub(crate) fn on_event(
    test_dir: &TestDir,
    run_id: &str,
    wanted: fn(&Event) -> bool,
    then: impl Fn() + Send + Sync + 'static,
) -> Hooks {
    let (files, done) = (test_dir.files(run_id), AtomicU64::new(0));
    Hooks::new(move |hook_point| {
        if hook_point == HookPoint::AfterFeed
            && done.load(Ordering::SeqCst) == 0
            && files.events().is_ok_and(|events| events.iter().any(wanted))
        {
            done.store(1, Ordering::SeqCst);
            then();
        }
    })
}

/// Starts a stub container. Returns it with a test directory and a config for both.
pub(crate) fn world(flags: &[&str]) -> (ServerProcess, TestDir, Config) {
    let test_dir = TestDir::new();
    let bill = test_dir.path().join("bill");
    let stub = stub(&[flags, &["--train", "12", "--heldout", "6", "--bill", bill.as_str()]].concat());
    let mut config = small_config(&stub.url(), RowNames::TaskIds, 12, 6, &FIELDS[..1]);
    config.run.output_dir = test_dir.path().join("runs");
    config.run.run_id = Some("steered".into());
    config.cache.mode = CacheMode::Off;
    (stub, test_dir, config)
}

/// Executes a run and sends a control request once an event is in its log.
pub(crate) fn run_with_control(
    test_dir: &TestDir,
    config: Config,
    proposer: ScriptedProposer,
    wanted: fn(&Event) -> bool,
    signal: ControlRequest,
) -> RunResult {
    let (give, take) = mpsc::channel::<RunControl>();
    let take = Mutex::new(take);
    let hooks = on_event(test_dir, config.run.run_id.as_deref().unwrap(), wanted, move || {
        let control = take.lock().unwrap().recv_timeout(WAIT_TIMEOUT).unwrap();
        assert!(control.send(signal.clone()));
    });
    let running = start(config, proposer, hooks);
    give.send(running.control.clone()).unwrap();
    running.end()
}

pub(crate) fn bill(test_dir: &TestDir) -> Vec<String> {
    read_bill(&test_dir.path().join("bill")).unwrap().into_iter().map(|line| line.rollout_id).collect()
}

pub(crate) fn count(files: &RunFiles, wanted: fn(&Event) -> bool) -> usize {
    files.events().unwrap().iter().filter(|event| wanted(event)).count()
}

pub(crate) fn is_withdrawn(event: &Event) -> bool {
    matches!(event, Event::RolloutFailed(failed) if failed.class == FailureClass::Withdrawn)
}

pub(crate) fn is_abandoned(event: &Event) -> bool {
    matches!(event, Event::RolloutFailed(failed) if failed.class == FailureClass::Abandoned)
}

pub(crate) fn is_scored(event: &Event) -> bool {
    matches!(event, Event::RolloutFinished(_))
}

//! Runs in a thread of their own that are steered from outside.

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
use synth_optimizer_platform::runtime::{HookPoint, RunControl, Hooks, RunOutcome, RunSpec, execute};

use crate::harness::{Place, stub};

pub(crate) type Ended = Result<RunOutcome, OptimizerError>;

/// A run in a thread of its own.
pub(crate) struct Running {
    pub(crate) control: RunControl,
    thread: JoinHandle<Ended>,
}

pub(crate) fn start(config: Config, proposer: ScriptedProposer, hooks: Hooks) -> Running {
    begin(RunSpec { proposer: Some(Arc::new(proposer)), hooks, ..RunSpec::new(config) })
}

pub(crate) fn begin(request: RunSpec) -> Running {
    let (control, receiver) = RunControl::new(100_000);
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(execute::<GepaEngine>(request, receiver))
    });
    Running { control, thread }
}

impl Running {
    pub(crate) fn end(self) -> Ended {
        wait_until("the end of the run", || self.thread.is_finished());
        self.thread.join().unwrap()
    }
}

pub(crate) fn whole(config: Config) -> Ended {
    start(config, ScriptedProposer::default(), Hooks::default()).end()
}

/// Calls once, at the first commit after the log of the run holds an event for which `wanted` is true.
pub(crate) fn when(
    place: &Place,
    run_id: &str,
    wanted: fn(&Event) -> bool,
    then: impl Fn() + Send + Sync + 'static,
) -> Hooks {
    let (files, done) = (place.files(run_id), AtomicU64::new(0));
    Hooks::new(move |boundary| {
        if boundary == HookPoint::AfterFeed
            && done.load(Ordering::SeqCst) == 0
            && files.events().is_ok_and(|events| events.iter().any(wanted))
        {
            done.store(1, Ordering::SeqCst);
            then();
        }
    })
}

/// A stub, a place for runs, and a config for both.
pub(crate) fn world(flags: &[&str]) -> (ServerProcess, Place, Config) {
    let place = Place::new();
    let bill = place.path().join("bill");
    let stub = stub(&[flags, &["--train", "12", "--heldout", "6", "--bill", bill.as_str()]].concat());
    let mut config = small_config(&stub.url(), RowNames::TaskIds, 12, 6, &FIELDS[..1]);
    config.run.output_dir = place.path().join("runs");
    config.run.run_id = Some("steered".into());
    config.cache.mode = CacheMode::Off;
    (stub, place, config)
}

/// Sends a signal when an event is in the log.
pub(crate) fn signalled(
    place: &Place,
    config: Config,
    proposer: ScriptedProposer,
    wanted: fn(&Event) -> bool,
    signal: ControlRequest,
) -> Ended {
    let (give, take) = mpsc::channel::<RunControl>();
    let take = Mutex::new(take);
    let hooks = when(place, config.run.run_id.as_deref().unwrap(), wanted, move || {
        let control = take.lock().unwrap().recv_timeout(WAIT_TIMEOUT).unwrap();
        assert!(control.send(signal.clone()));
    });
    let running = start(config, proposer, hooks);
    give.send(running.control.clone()).unwrap();
    running.end()
}

pub(crate) fn bill(place: &Place) -> Vec<String> {
    read_bill(&place.path().join("bill")).unwrap().into_iter().map(|line| line.rollout_id).collect()
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

//! Workers that are stopped (SIGSTOP) longer than their lease: another worker finishes the run, and the stopped worker writes
//! and sends nothing when it continues, and reports that it was fenced.

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Command, Stdio};

use crate::harness::stopped_process::{StoppableProcess, digests};
use crate::harness::{TestDir, assert_consistent, stub};
use camino::Utf8PathBuf;
use rustix::process::{Pid, Signal, kill_process};
use synth_e2e::run_files::COMPARED_FILES;
use synth_e2e::service_process::ServiceProcess;
use synth_e2e::stub::FIELDS;
use synth_e2e::wait::wait_until;
use synth_e2e::{RowNames, ServerProcess, read_bill, small_config, submission, write_config};
use synth_optimizer_core::config::sections::CacheMode;
use synth_optimizer_core::config::{ConfigContent, ConfigSource, load};
use synth_optimizer_core::model::lifecycle::RequestState;
use synth_optimizer_service::queue::{HistoryEntry, Queue, RequestEntry};

const PROGRAM: &str = env!("CARGO_BIN_EXE_scripted_service");
const RUN: &str = "e2e-taken";

/// A queue with one request, and a container that is slow enough to interrupt its run.
struct StoppedWorkerTest {
    dir: TestDir,
    queue: Queue,
    _stub: ServerProcess,
}

impl StoppedWorkerTest {
    fn new() -> Self {
        let dir = TestDir::new();
        let bill = dir.path().join("bill");
        let stub = stub(&["--memory", "remember", "--latency-ms", "200", "--bill", bill.as_str()]);
        let mut config = small_config(&stub.url(), RowNames::TaskIds, 6, 3, &FIELDS[..1]);
        config.cache.mode = CacheMode::Off;
        write_config(&dir.config(), &config).unwrap();
        dir.finish("e2e-clean", &[]);
        let queue = Queue::open(dir.path().join("service.sqlite").as_std_path()).unwrap();
        let test = Self { dir, queue, _stub: stub };
        test.submit(RUN);
        test
    }

    fn submit(&self, run_id: &str) {
        let text = std::fs::read_to_string(self.dir.config()).unwrap();
        let source = ConfigSource { name: "gepa.toml", content: ConfigContent::Toml(&text), base_dir: self.dir.path() };
        let config = load(source, &BTreeMap::new(), &[format!("run.run_id={run_id}")]).unwrap();
        self.queue.submit(&submission(&config)).unwrap();
    }

    fn bill(&self) -> Vec<String> {
        read_bill(&self.dir.path().join("bill")).unwrap().into_iter().map(|line| line.rollout_id).collect()
    }

    /// Starts a process that executes queued requests.
    fn worker(&self, name: &str, lease: &str) -> StoppableProcess {
        let mut command = Command::new(PROGRAM);
        command.args(["--db", self.queue.path.to_str().unwrap(), "--work", name, "--lease-ms", lease]);
        StoppableProcess(command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap())
    }

    /// Waits until rollouts of the run are in flight.
    fn wait_for_rollouts_in_flight(&self, earlier_rollouts: usize) {
        wait_until("rollouts are under way", || self.bill().len() >= earlier_rollouts + 3);
    }

    fn wait_for_end(&self) {
        wait_until("the run has ended", || self.queue.get(RUN).unwrap().is_terminal);
    }

    /// Returns everything that a superseded worker could change.
    fn snapshot(&self) -> (BTreeMap<Utf8PathBuf, String>, RequestEntry, Vec<HistoryEntry>, usize) {
        let entry = self.queue.get(RUN).unwrap();
        let history = self.queue.history(RUN).unwrap();
        (digests(&self.dir.path().join("runs").join(RUN)), entry, history, self.bill().len())
    }

    fn assert_same_as_undisturbed(&self, earlier_rollouts: usize) {
        let (files, clean) = (self.dir.files(RUN), self.dir.files("e2e-clean"));
        for name in COMPARED_FILES {
            assert_eq!(files.comparable(name).unwrap(), clean.comparable(name).unwrap(), "{name}");
        }
        let rollouts = self.bill().split_off(earlier_rollouts);
        assert_eq!(rollouts.len(), rollouts.iter().collect::<BTreeSet<_>>().len(), "a rollout was run twice");
        assert_consistent(&files);
    }
}

#[test]
fn a_worker_stopped_past_its_lease_writes_nothing_when_it_continues() {
    let test = StoppedWorkerTest::new();
    let earlier_rollouts = test.bill().len();
    let first = test.worker("first", "1000");
    test.wait_for_rollouts_in_flight(earlier_rollouts);
    first.stop();
    let service = ServiceProcess::start(PROGRAM, test.dir.path(), &["--workers", "1"]).unwrap();
    test.wait_for_end();
    let before = test.snapshot();
    let (entry, history) = (&before.1, &before.2);
    assert_eq!((entry.status, entry.attempts, entry.recoveries), (RequestState::Completed, 2, 1));
    let evidence = history.iter().find(|row| row.trigger == "lease_expired").unwrap();
    assert_eq!(evidence.detail["evidence"], "deadline_passed");
    let workers: Vec<_> =
        history.iter().filter(|row| row.trigger == "claim").map(|row| row.worker_id.clone()).collect();
    assert_eq!(workers, [Some("first".to_owned()), Some("local-gepa".to_owned())]);

    let (output, code) = first.continue_to_end();
    assert_eq!(code, Some(0), "it finds no other request and exits");
    assert!(output["message"].as_str().unwrap().contains("fenced"), "{output}");
    assert_eq!(test.snapshot(), before);
    test.assert_same_as_undisturbed(earlier_rollouts);
    drop(service);
}

#[test]
fn a_service_stopped_past_its_lease_loses_its_run_and_executes_the_next() {
    let test = StoppedWorkerTest::new();
    let earlier_rollouts = test.bill().len();
    let service = ServiceProcess::start(PROGRAM, test.dir.path(), &["--workers", "1", "--lease-ms", "1000"]).unwrap();
    test.wait_for_rollouts_in_flight(earlier_rollouts);
    let pid = Pid::from_raw(i32::try_from(service.pid()).unwrap()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    // The database lock is for services. A worker process needs no lock.
    wait_until("the lease is over", || {
        let mut second = test.worker("second", "60000");
        second.0.wait().unwrap();
        test.queue.get(RUN).unwrap().is_terminal
    });
    let before = test.snapshot();
    assert_eq!((before.1.status, before.1.attempts), (RequestState::Completed, 2));
    kill_process(pid, Signal::CONT).unwrap();
    test.submit("e2e-next");
    wait_until("the service works again", || test.queue.get("e2e-next").unwrap().is_terminal);
    assert_eq!(test.queue.get("e2e-next").unwrap().status, RequestState::Completed);
    let after = test.snapshot();
    assert_eq!((after.0, after.1, after.2), (before.0, before.1, before.2));
    let next = test.dir.files("e2e-next").comparable(COMPARED_FILES[0]).unwrap();
    assert_eq!(next, test.dir.files("e2e-clean").comparable(COMPARED_FILES[0]).unwrap());
    assert_eq!(service.get("/ready").unwrap().0, 200);
    let files = test.dir.files(RUN);
    for name in COMPARED_FILES {
        let clean = test.dir.files("e2e-clean").comparable(name).unwrap();
        assert_eq!(files.comparable(name).unwrap(), clean, "{name}");
    }
    let rollouts = test.bill().split_off(earlier_rollouts);
    assert_eq!(rollouts.len(), rollouts.iter().collect::<BTreeSet<_>>().len(), "a rollout was run twice");
}

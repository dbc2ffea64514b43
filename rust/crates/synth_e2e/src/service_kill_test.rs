//! Kills a service repeatedly while it executes many runs, and verifies that every run ends exactly once.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use camino::Utf8Path;
use serde_json::json;
use synth_optimizer_core::config::Config;
use synth_optimizer_core::model::lifecycle::RequestState;
use synth_optimizer_service::queue::Queue;

use crate::bill::read_bill;
use crate::process::ServerProcess;
use crate::run_files::{COMPARED_FILES, RunFiles};
use crate::service_process::{ServiceProcess, http_request};
use crate::stub::FIELDS;
use crate::wait::wait_until;
use crate::{RowNames, small_config};

/// Number of clients that submit concurrently.
const CLIENTS: usize = 4;

/// The parameters of a kill test.
#[derive(Debug, Clone, Copy)]
pub struct ServiceKillTest<'a> {
    /// Paths of the programs of the service and of the stub container.
    pub service: &'a str,
    pub stub: &'a str,
    pub runs: usize,
    pub workers: usize,
    pub containers: usize,
    /// Shortest and longest time between two kills.
    pub kill_after: (Duration, Duration),
    /// Random seed for the times of the kills.
    pub seed: u64,
    /// All runs must end within this time.
    pub limit: Duration,
}

/// The result of a kill test.
#[derive(Debug, Default)]
pub struct ServiceKillReport {
    pub kills: usize,
    /// For each start after a kill: the time until the requests of the killed service were recovered.
    pub recoveries: Vec<Duration>,
    /// Latencies of status requests while the service was working.
    pub status_latencies: Vec<Duration>,
    pub elapsed: Duration,
    pub rollouts: usize,
    /// All violations.
    pub problems: Vec<String>,
}

impl ServiceKillTest<'_> {
    /// Runs the test in this directory.
    pub fn run(&self, directory: &Utf8Path) -> io::Result<ServiceKillReport> {
        let containers = (0..self.containers)
            .map(|number| {
                let bill = directory.join(format!("bill-{number}"));
                ServerProcess::stub(self.stub, ["--memory", "remember", "--latency-ms", "5", "--bill", bill.as_str()])
            })
            .collect::<io::Result<Vec<_>>>()?;
        // The first run is not disturbed. All others must produce the same files.
        let mut service = self.start(directory)?;
        let port = AtomicU16::new(service.port());
        self.submit_one(service.port(), &containers, 0)?;
        wait_until("the end of the first run", || completed_count(service.port()).is_ok_and(|count| count > 0));
        let (started, next) = (Instant::now(), AtomicUsize::new(1));
        let (has_ended, mut report) = (AtomicBool::new(false), ServiceKillReport::default());
        std::thread::scope(|scope| {
            for _ in 0..CLIENTS {
                scope.spawn(|| self.submit_all(&port, &containers, &next, &has_ended));
            }
            let mut random = self.seed;
            loop {
                let (least, most) = self.kill_after;
                let until = Instant::now() + least + (most - least).mul_f64(uniform(&mut random));
                let ended = self.poll_until(directory, service.port(), until, &mut report.status_latencies);
                if !matches!(ended, Ok(false)) || started.elapsed() > self.limit {
                    has_ended.store(true, Ordering::SeqCst);
                    return ended.and_then(|done| match done {
                        true => Ok(()),
                        false => Err(io::Error::other(format!("not over after {:?}: {report:?}", self.limit))),
                    });
                }
                service.kill();
                report.kills += 1;
                service = match self.start(directory) {
                    Ok(service) => service,
                    Err(error) => {
                        has_ended.store(true, Ordering::SeqCst);
                        return Err(error);
                    }
                };
                port.store(service.port(), Ordering::SeqCst);
                report.recoveries.push(service.ready_after);
            }
        })?;
        report.elapsed = started.elapsed();
        self.verify(directory, &mut report)?;
        Ok(report)
    }

    fn start(&self, directory: &Utf8Path) -> io::Result<ServiceProcess> {
        ServiceProcess::start(self.service, directory, &["--workers", &self.workers.to_string()])
    }

    fn run_id(number: usize) -> String {
        format!("endured-{number:05}")
    }

    fn config(&self, containers: &[ServerProcess], number: usize) -> io::Result<String> {
        let url = containers[number % containers.len()].url();
        let mut config: Config = small_config(&url, RowNames::TaskIds, 3, 2, &FIELDS[..1]);
        config.run.run_id = Some(Self::run_id(number));
        config.gepa.max_generations = Some(2);
        // Each run has its own namespace. With a shared one, runs would wait for each other and share cached answers.
        config.cache.namespace = Some(Self::run_id(number));
        toml::to_string(&config).map_err(io::Error::other)
    }

    fn submit_one(&self, port: u16, containers: &[ServerProcess], number: usize) -> io::Result<()> {
        let body = json!({"config": self.config(containers, number)?, "allow_unverified": true});
        let key = format!("key-{number}");
        match http_request(port, "POST", "/runs", Some(&body), &[("Idempotency-Key", &key)])? {
            (200 | 201, reply) if reply["run_id"] == Self::run_id(number) => Ok(()),
            (status, reply) => Err(io::Error::other(format!("{status} {reply}"))),
        }
    }

    /// Submits runs as one client: takes the next run and repeats the submission until the service acknowledges it.
    fn submit_all(&self, port: &AtomicU16, containers: &[ServerProcess], next: &AtomicUsize, has_ended: &AtomicBool) {
        loop {
            let number = next.fetch_add(1, Ordering::SeqCst);
            if number >= self.runs {
                return;
            }
            while self.submit_one(port.load(Ordering::SeqCst), containers, number).is_err() {
                if has_ended.load(Ordering::SeqCst) {
                    return;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }

    /// Polls the service until the time comes and every worker can have made progress, because a request that is recovered
    /// too often without progress fails. Returns whether all runs have completed.
    fn poll_until(
        &self,
        directory: &Utf8Path,
        port: u16,
        until: Instant,
        status_latencies: &mut Vec<Duration>,
    ) -> io::Result<bool> {
        let enough = self.executed_rollouts(directory)?.len() + self.workers;
        let last = until + self.limit;
        while Instant::now() < until || (self.executed_rollouts(directory)?.len() < enough && Instant::now() < last) {
            let started = Instant::now();
            let completed = completed_count(port)?;
            status_latencies.push(started.elapsed());
            if completed == self.runs as u64 {
                return Ok(true);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(false)
    }

    /// Returns the ids of the rollouts that the containers have executed.
    fn executed_rollouts(&self, directory: &Utf8Path) -> io::Result<Vec<String>> {
        let mut executed_rollouts = Vec::new();
        for number in 0..self.containers {
            let bill = directory.join(format!("bill-{number}"));
            executed_rollouts.extend(read_bill(&bill)?.into_iter().map(|line| line.rollout_id));
        }
        Ok(executed_rollouts)
    }

    /// Verifies the queue, the files and the executed rollouts.
    fn verify(&self, directory: &Utf8Path, report: &mut ServiceKillReport) -> io::Result<()> {
        let queue = Queue::open(directory.join("service.sqlite").as_std_path()).map_err(io::Error::other)?;
        let first = RunFiles::new(&directory.join("runs"), &Self::run_id(0));
        let mut expected = BTreeMap::new();
        for name in COMPARED_FILES {
            expected.insert(name, first.comparable(name)?);
        }
        for number in 0..self.runs {
            let run_id = Self::run_id(number);
            let entry = match queue.get(&run_id) {
                Ok(entry) => entry,
                Err(error) => {
                    report.problems.push(format!("{run_id} is lost: {error}"));
                    continue;
                }
            };
            let history = queue.history(&run_id).map_err(io::Error::other)?;
            let ends = history.iter().filter(|row| row.trigger == "complete").count();
            if entry.status != RequestState::Completed || ends != 1 || entry.result.is_none() {
                report.problems.push(format!("{run_id} is {} and ended {ends} times", entry.status.as_str()));
            }
            let files = RunFiles::new(&directory.join("runs"), &run_id);
            for (name, expected) in &expected {
                if files.comparable(name)? != *expected {
                    report.problems.push(format!("{run_id}: {name} differs from that of the run in peace"));
                }
            }
        }
        let mut sent: BTreeMap<String, usize> = BTreeMap::new();
        for rollout_id in self.executed_rollouts(directory)? {
            *sent.entry(rollout_id).or_default() += 1;
        }
        report.rollouts = sent.values().sum();
        let doubled = sent.values().filter(|times| **times > 1).count();
        if doubled > 0 {
            report.problems.push(format!("{doubled} rollouts were run more than once"));
        }
        if !sent.len().is_multiple_of(self.runs) {
            report.problems.push(format!("{} rollouts of {} equal runs", sent.len(), self.runs));
        }
        Ok(())
    }
}

fn completed_count(port: u16) -> io::Result<u64> {
    let (_, workspace) = http_request(port, "GET", "/workspace", None, &[])?;
    let counts = &workspace["runs"]["by_status"];
    if let Some(failed) = counts.get("failed").or(counts.get("cancelled")) {
        return Err(io::Error::other(format!("{failed} runs did not end well: {counts}")));
    }
    Ok(counts["completed"].as_u64().unwrap_or(0))
}

/// Returns a random number between 0 and 1 (splitmix64).
fn uniform(state: &mut u64) -> f64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1u64 << 53) as f64
}

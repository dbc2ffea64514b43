//! A service that is killed again and again while many runs are submitted and carried out: what must be true afterwards.

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
use crate::files::{COMPARED, RunFiles};
use crate::process::ServerProcess;
use crate::standing::{StandingService, ask};
use crate::stub::FIELDS;
use crate::waiting::wait_until;
use crate::{RowNames, small_config};

/// Clients that submit at once.
const CLIENTS: usize = 4;

/// How much of it.
#[derive(Debug, Clone, Copy)]
pub struct Endurance<'a> {
    /// The programs of the service and of the containers.
    pub service: &'a str,
    pub stub: &'a str,
    pub runs: usize,
    pub workers: usize,
    pub containers: usize,
    /// The time between two kills is between these.
    pub kill_after: (Duration, Duration),
    /// Chooses the moments of the kills.
    pub seed: u64,
    /// Everything must be over by then.
    pub limit: Duration,
}

/// What was found.
#[derive(Debug, Default)]
pub struct Endured {
    pub kills: usize,
    /// From each start after a kill until everything that the one before held was taken back.
    pub recoveries: Vec<Duration>,
    /// Looks at the service while it worked.
    pub looks: Vec<Duration>,
    pub took: Duration,
    pub rollouts: usize,
    /// Everything that is not as it must be.
    pub problems: Vec<String>,
}

impl Endurance<'_> {
    /// Does it in a directory of its own.
    pub fn endure(&self, directory: &Utf8Path) -> io::Result<Endured> {
        let containers = (0..self.containers)
            .map(|number| {
                let bill = directory.join(format!("bill-{number}"));
                ServerProcess::stub(self.stub, ["--memory", "remember", "--latency-ms", "5", "--bill", bill.as_str()])
            })
            .collect::<io::Result<Vec<_>>>()?;
        // The first run is left in peace: all others must end like it.
        let mut service = self.start(directory)?;
        let port = AtomicU16::new(service.port());
        self.submit_one(service.port(), &containers, 0)?;
        wait_until("the end of the first run", || completed(service.port()).is_ok_and(|count| count > 0));
        let (begun, next) = (Instant::now(), AtomicUsize::new(1));
        let (is_over, mut endured) = (AtomicBool::new(false), Endured::default());
        std::thread::scope(|scope| {
            for _ in 0..CLIENTS {
                scope.spawn(|| self.submit_all(&port, &containers, &next, &is_over));
            }
            let mut random = self.seed;
            loop {
                let (least, most) = self.kill_after;
                let until = Instant::now() + least + (most - least).mul_f64(uniform(&mut random));
                let ended = self.watch(directory, service.port(), until, &mut endured.looks);
                if !matches!(ended, Ok(false)) || begun.elapsed() > self.limit {
                    is_over.store(true, Ordering::SeqCst);
                    return ended.and_then(|done| match done {
                        true => Ok(()),
                        false => Err(io::Error::other(format!("not over after {:?}: {endured:?}", self.limit))),
                    });
                }
                service.kill();
                endured.kills += 1;
                service = match self.start(directory) {
                    Ok(service) => service,
                    Err(error) => {
                        is_over.store(true, Ordering::SeqCst);
                        return Err(error);
                    }
                };
                port.store(service.port(), Ordering::SeqCst);
                endured.recoveries.push(service.ready_after);
            }
        })?;
        endured.took = begun.elapsed();
        self.look(directory, &mut endured)?;
        Ok(endured)
    }

    fn start(&self, directory: &Utf8Path) -> io::Result<StandingService> {
        StandingService::start(self.service, directory, &["--workers", &self.workers.to_string()])
    }

    fn run_id(number: usize) -> String {
        format!("endured-{number:05}")
    }

    fn config(&self, containers: &[ServerProcess], number: usize) -> io::Result<String> {
        let url = containers[number % containers.len()].url();
        let mut config: Config = small_config(&url, RowNames::TaskIds, 3, 2, &FIELDS[..1]);
        config.run.run_id = Some(Self::run_id(number));
        config.gepa.max_generations = 2;
        // A namespace of its own: otherwise runs would wait for each other, and be answered by each other.
        config.cache.namespace = Some(Self::run_id(number));
        toml::to_string(&config).map_err(io::Error::other)
    }

    fn submit_one(&self, port: u16, containers: &[ServerProcess], number: usize) -> io::Result<()> {
        let body = json!({"config": self.config(containers, number)?, "allow_unverified": true});
        let key = format!("key-{number}");
        match ask(port, "POST", "/runs", Some(&body), &[("Idempotency-Key", &key)])? {
            (200 | 201, reply) if reply["run_id"] == Self::run_id(number) => Ok(()),
            (status, reply) => Err(io::Error::other(format!("{status} {reply}"))),
        }
    }

    /// One client: takes the next run and keeps at it until the service has said that it is stored.
    fn submit_all(&self, port: &AtomicU16, containers: &[ServerProcess], next: &AtomicUsize, is_over: &AtomicBool) {
        loop {
            let number = next.fetch_add(1, Ordering::SeqCst);
            if number >= self.runs {
                return;
            }
            while self.submit_one(port.load(Ordering::SeqCst), containers, number).is_err() {
                if is_over.load(Ordering::SeqCst) {
                    return;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }

    /// Looks until the moment comes and every worker may have got on, however slow the machine is: a request that is lost
    /// again and again without any progress is given up, and rightly so. Tells whether all runs are over.
    fn watch(&self, directory: &Utf8Path, port: u16, until: Instant, looks: &mut Vec<Duration>) -> io::Result<bool> {
        let enough = self.billed(directory)?.len() + self.workers;
        let last = until + self.limit;
        while Instant::now() < until || (self.billed(directory)?.len() < enough && Instant::now() < last) {
            let begun = Instant::now();
            let completed = completed(port)?;
            looks.push(begun.elapsed());
            if completed == self.runs as u64 {
                return Ok(true);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(false)
    }

    /// The rollouts that containers were asked for.
    fn billed(&self, directory: &Utf8Path) -> io::Result<Vec<String>> {
        let mut billed = Vec::new();
        for number in 0..self.containers {
            let bill = directory.join(format!("bill-{number}"));
            billed.extend(read_bill(&bill)?.into_iter().map(|line| line.rollout_id));
        }
        Ok(billed)
    }

    /// Compares queue, files and bills with what they must be.
    fn look(&self, directory: &Utf8Path, endured: &mut Endured) -> io::Result<()> {
        let queue = Queue::open(directory.join("service.sqlite").as_std_path()).map_err(io::Error::other)?;
        let first = RunFiles::new(&directory.join("runs"), &Self::run_id(0));
        let mut expected = BTreeMap::new();
        for name in COMPARED {
            expected.insert(name, first.comparable(name)?);
        }
        for number in 0..self.runs {
            let run_id = Self::run_id(number);
            let entry = match queue.get(&run_id) {
                Ok(entry) => entry,
                Err(error) => {
                    endured.problems.push(format!("{run_id} is lost: {error}"));
                    continue;
                }
            };
            let history = queue.history(&run_id).map_err(io::Error::other)?;
            let ends = history.iter().filter(|row| row.trigger == "complete").count();
            if entry.status != RequestState::Completed || ends != 1 || entry.result.is_none() {
                endured.problems.push(format!("{run_id} is {} and ended {ends} times", entry.status.as_str()));
            }
            let files = RunFiles::new(&directory.join("runs"), &run_id);
            for (name, expected) in &expected {
                if files.comparable(name)? != *expected {
                    endured.problems.push(format!("{run_id}: {name} differs from that of the run in peace"));
                }
            }
        }
        let mut sent: BTreeMap<String, usize> = BTreeMap::new();
        for rollout_id in self.billed(directory)? {
            *sent.entry(rollout_id).or_default() += 1;
        }
        endured.rollouts = sent.values().sum();
        let doubled = sent.values().filter(|times| **times > 1).count();
        if doubled > 0 {
            endured.problems.push(format!("{doubled} rollouts were run more than once"));
        }
        if !sent.len().is_multiple_of(self.runs) {
            endured.problems.push(format!("{} rollouts of {} equal runs", sent.len(), self.runs));
        }
        Ok(())
    }
}

fn completed(port: u16) -> io::Result<u64> {
    let (_, workspace) = ask(port, "GET", "/workspace", None, &[])?;
    let counts = &workspace["runs"]["by_status"];
    if let Some(failed) = counts.get("failed").or(counts.get("cancelled")) {
        return Err(io::Error::other(format!("{failed} runs did not end well: {counts}")));
    }
    Ok(counts["completed"].as_u64().unwrap_or(0))
}

/// A number between 0 and 1; splitmix64.
fn uniform(state: &mut u64) -> f64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1u64 << 53) as f64
}

//! Benchmarks of whole runs: CPU time per rollout, wall time relative to the ideal, disk usage, and replays.
//!
//! The container is a separate process. The program exits with an error if a limit is violated.

use std::error::Error;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use camino::Utf8PathBuf;
use serde_json::json;
use synth_e2e::variations::VariationProposer;
use synth_e2e::{RowNames, ServerProcess, cpu_time, small_config};
use synth_gepa::GepaEngine;
use synth_optimizer_core::config::Config;
use synth_optimizer_core::config::gepa::{AcceptanceCriterion, PipelineMode};
use synth_optimizer_core::config::sections::CacheMode;
use synth_optimizer_platform::proposer::Proposer;
use synth_optimizer_platform::runtime::{RunControl, RunOutcome, RunSpec, execute};
use tempfile::TempDir;

/// The allocator of the Python extension.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

type BenchResult<T> = Result<T, Box<dyn Error>>;

/// Limits: CPU time per rollout, and the ratio between the most expensive and the cheapest run length.
const MAX_CPU_MICROS_PER_ROLLOUT: f64 = 150.0;
const MAX_LENGTH_RATIO: f64 = 1.3;
/// Limit: wall time of the published probe, relative to its ideal.
const MAX_IDEAL_RATIO: f64 = 1.5;
const MAX_BYTES_PER_ROLLOUT: f64 = 1024.0;
const MAX_REPLAY_TIME: Duration = Duration::from_secs(2);

fn main() -> BenchResult<()> {
    let violations: Vec<String> = [overhead()?, probe()?, replay()?].into_iter().flatten().collect();
    if violations.is_empty() { Ok(()) } else { Err(violations.join("; ").into()) }
}

/// A stub container and a directory for its runs.
struct Bench {
    directory: TempDir,
    stub: ServerProcess,
    train: u32,
    heldout: u32,
}

struct Measured {
    outcome: RunOutcome,
    rollouts: u64,
    wall: Duration,
    cpu: Duration,
    turns: u64,
}

impl Bench {
    fn new(train: u32, heldout: u32, flags: &[&str]) -> BenchResult<Self> {
        let stub: PathBuf = std::env::current_exe()?.with_file_name("stub_container");
        let (rows, more) = (train.to_string(), heldout.to_string());
        let all = [&["--train", &rows, "--heldout", &more][..], flags].concat();
        let stub = ServerProcess::stub(&stub.to_string_lossy(), all)?;
        Ok(Self { directory: tempfile::tempdir()?, stub, train, heldout })
    }

    /// Returns the configuration of a run in which every proposal gets a full evaluation.
    fn config(&self, run_id: &str) -> BenchResult<Config> {
        let mut config = small_config(&self.stub.url(), RowNames::TaskIds, self.train, self.heldout, &["instructions"]);
        config.run.run_id = Some(run_id.to_owned());
        config.run.output_dir = Utf8PathBuf::try_from(self.directory.path().join("runs"))?;
        config.disk_budget.enabled = false;
        config.gepa.minibatch_acceptance_criterion = AcceptanceCriterion::ImprovementOrEqual;
        config.gepa.skip_perfect_score = false;
        config.gepa.pipeline.adaptive_rollout_concurrency.enabled = false;
        Ok(config)
    }

    fn run(&self, config: Config, proposer_latency: Duration) -> BenchResult<Measured> {
        let proposer = Arc::new(VariationProposer::new(proposer_latency));
        let mut request = RunSpec::new(config);
        request.proposer = Some(Arc::clone(&proposer) as Arc<dyn Proposer>);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (_control, receiver) = RunControl::new(request.config.run.feed_buffer);
        let (began, before) = (Instant::now(), cpu_time()?);
        let outcome = runtime.block_on(execute::<GepaEngine>(request, receiver))?;
        let (wall, cpu) = (began.elapsed(), cpu_time()?.saturating_sub(before));
        if outcome.end.as_str() != "completed" {
            return Err(format!("the run ended as {}: {:?}", outcome.end.as_str(), outcome.end.error()).into());
        }
        let rollouts = outcome.totals.counts.rollouts_finished;
        Ok(Measured { outcome, rollouts, wall, cpu, turns: proposer.turns() })
    }
}

fn print_line(line: &str) -> BenchResult<()> {
    writeln!(std::io::stdout(), "{line}")?;
    Ok(())
}

/// Number of rounds. Every round runs every length once, so that a slow phase of the machine affects all lengths.
const ROUNDS: usize = 7;
/// The samples of one run length.
#[derive(Default)]
struct LengthSamples {
    /// CPU time per rollout in microseconds, by round.
    micros: Vec<f64>,
    /// CPU time per rollout as a multiple of a bare exchange in the same round.
    ratios: Vec<f64>,
    wall: Duration,
    rollouts: u64,
    bytes: f64,
    transactions: u64,
}

/// Sorts the values and returns the median.
fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Measures orchestration with full persistence against a container that answers immediately, with 64 concurrent rollouts.
///
/// Other load on the machine adds to every time. Therefore every round also measures the same HTTP exchanges without any
/// orchestration, and the results are reported as multiples of those. The limit applies to the time of the fastest round. A
/// sample of a short length consists of several runs.
fn overhead() -> BenchResult<Vec<String>> {
    const LENGTHS: [(u32, u32); 3] = [(1_000, 8), (10_000, 2), (100_000, 1)];
    print_line("our own processor time per rollout, zero-latency container, 64 at once, everything stored")?;
    let bench = Bench::new(200, 20, &[])?;
    let mut lengths: [LengthSamples; 3] = Default::default();
    let mut bare = Vec::new();
    for round in 0..ROUNDS {
        let exchange = bare_exchange(&bench.stub.url())?;
        bare.push(exchange);
        for ((rollouts, repeats), length) in LENGTHS.into_iter().zip(&mut lengths) {
            let (mut cpu, mut done) = (Duration::ZERO, 0);
            for repeat in 0..repeats {
                let measured = one_overhead_run(&bench, &format!("overhead-{rollouts}-{round}-{repeat}"), rollouts)?;
                (cpu, done) = (cpu + measured.cpu, done + measured.rollouts);
                length.wall += measured.wall;
                let stored = measured.outcome.run_dir.join("workspace.sqlite");
                length.bytes += std::fs::metadata(&stored)?.len() as f64 - replies(&stored)? as f64;
                length.transactions += measured.outcome.transactions;
                std::fs::remove_dir_all(&measured.outcome.run_dir)?;
            }
            length.rollouts += done;
            let micros = cpu.as_secs_f64() * 1e6 / done as f64;
            length.micros.push(micros);
            length.ratios.push(micros / exchange);
        }
    }
    let exchange = median(&mut bare);
    print_line(&format!(
        "  a bare exchange of the same client: {exchange:.1} us (quietest {:.1} of {ROUNDS} rounds)",
        bare[0]
    ))?;
    let mut violations = Vec::new();
    let mut costs = Vec::new();
    for ((rollouts, _), length) in LENGTHS.into_iter().zip(&mut lengths) {
        let (typical, ratio) = (median(&mut length.micros), median(&mut length.ratios));
        let (least, most) = (length.micros[0], length.micros[ROUNDS - 1]);
        let done = length.rollouts as f64;
        let (bytes, per_commit) = (length.bytes / done, done / length.transactions as f64);
        let rate = done / length.wall.as_secs_f64();
        print_line(&format!(
            "  {rollouts:>7} rollouts: {least:>6.1} us each (median {typical:.1}, worst {most:.1}), {ratio:.2} bare \
             exchanges, {rate:>6.0} rollouts/s, {bytes:>5.0} bytes of workspace each, {per_commit:.1} rollouts per commit"
        ))?;
        costs.push(ratio);
        // In short runs, the tables of an empty workspace dominate.
        if rollouts >= 10_000 && bytes > MAX_BYTES_PER_ROLLOUT {
            violations
                .push(format!("{bytes:.0} bytes of workspace per rollout, the limit is {MAX_BYTES_PER_ROLLOUT:.0}"));
        }
        if least > MAX_CPU_MICROS_PER_ROLLOUT {
            violations.push(format!("{least:.1} us per rollout, the limit is {MAX_CPU_MICROS_PER_ROLLOUT:.0}"));
        }
    }
    let least = costs.iter().copied().fold(f64::MAX, f64::min);
    let most = costs.iter().copied().fold(0.0_f64, f64::max);
    print_line(&format!("  dearest to cheapest length: {:.2}x", most / least))?;
    let grows = costs.last().copied().unwrap_or(0.0) / least;
    if grows > MAX_LENGTH_RATIO {
        violations.push(format!("long runs cost {grows:.2}x per rollout, the limit is {MAX_LENGTH_RATIO}"));
    }
    Ok(violations)
}

/// Returns the CPU time of one HTTP exchange in microseconds, with the same client, requests and replies, 64 concurrently.
fn bare_exchange(container: &str) -> BenchResult<f64> {
    const EXCHANGES: u64 = 10_000;
    // Ignored: another library of the process may have installed a provider.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::builder().no_proxy().build()?;
    let body = json!({
        "rollout_id": "bare", "submission_mode": "sync", "candidate": {"instructions": "Reply with one label."},
        "task": {"task_id": "train:0", "split": "train", "seed": 0},
    })
    .to_string();
    let address = format!("{container}/rollouts");
    let left = Arc::new(AtomicU64::new(EXCHANGES));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let before = cpu_time()?;
    runtime.block_on(async {
        let mut workers = tokio::task::JoinSet::new();
        for _ in 0..64 {
            let (client, body, address, left) = (client.clone(), body.clone(), address.clone(), Arc::clone(&left));
            workers.spawn(async move {
                while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok() {
                    let request = client.post(&address).header("content-type", "application/json").body(body.clone());
                    request.send().await?.error_for_status()?.bytes().await?;
                }
                Ok::<(), reqwest::Error>(())
            });
        }
        while let Some(ended) = workers.join_next().await {
            ended??;
        }
        Ok::<(), Box<dyn Error>>(())
    })?;
    Ok(cpu_time()?.saturating_sub(before).as_secs_f64() * 1e6 / EXCHANGES as f64)
}

fn one_overhead_run(bench: &Bench, run_id: &str, rollouts: u32) -> BenchResult<Measured> {
    let mut config = bench.config(run_id)?;
    config.cache.mode = CacheMode::Off;
    config.gepa.max_total_rollouts = rollouts;
    config.gepa.max_generations = Some(rollouts);
    config.gepa.minibatch_size = Some(32);
    config.gepa.pipeline.mode = PipelineMode::AsyncPipelined;
    config.gepa.pipeline.max_in_flight_candidates = Some(8);
    config.gepa.pipeline.workers.rollout = 64;
    config.gepa.pipeline.workers.propose = Some(4);
    bench.run(config, Duration::ZERO)
}

/// Returns the bytes of compressed replies in a workspace.
fn replies(workspace: &camino::Utf8Path) -> BenchResult<i64> {
    let sql = "SELECT coalesce(sum(pgsize), 0) FROM dbstat WHERE name = 'replies'";
    Ok(rusqlite::Connection::open(workspace)?.query_row(sql, [], |row| row.get(0))?)
}

/// Runs the probe of the published product: 20 workers, 50 ms rollouts, a proposer that takes 0.2 s.
fn probe() -> BenchResult<Vec<String>> {
    const LATENCY: f64 = 0.050;
    const WORKERS: u32 = 20;
    print_line("the published probe: 20 workers, 50 ms rollouts, 0.2 s proposer, serial generations")?;
    let mut violations = Vec::new();
    for (train, heldout, proposals, minibatch) in [(20, 124, 2, 8), (50, 750, 4, 20)] {
        let bench = Bench::new(train, heldout, &["--latency-ms", "50", "--reply-bytes", "2300"])?;
        let mut config = bench.config("probe")?;
        config.gepa.max_generations = Some(2);
        config.gepa.proposals_per_generation = proposals;
        config.gepa.minibatch_size = Some(minibatch);
        config.gepa.pipeline.workers.rollout = WORKERS;
        let measured = bench.run(config, Duration::from_millis(200))?;
        let ideal = measured.rollouts as f64 * LATENCY / f64::from(WORKERS) + measured.turns as f64 * 0.2;
        let wall = measured.wall.as_secs_f64();
        let factor = wall / ideal;
        print_line(&format!(
            "  {} rollouts, {} turns: {wall:.2} s, ideal {ideal:.2} s, {factor:.2}x",
            measured.rollouts, measured.turns
        ))?;
        if factor > MAX_IDEAL_RATIO {
            violations.push(format!("{factor:.2}x of the ideal, the limit is {MAX_IDEAL_RATIO}"));
        }
    }
    Ok(violations)
}

/// Measures the replay of a run with 10,000 rollouts from the cache, without a container.
fn replay() -> BenchResult<Vec<String>> {
    const ROLLOUTS: u32 = 10_000;
    let mut bench = Bench::new(200, 20, &[])?;
    let config = |bench: &Bench, run_id: &str, mode| -> BenchResult<Config> {
        let mut config = bench.config(run_id)?;
        config.cache.mode = mode;
        config.cache.path = Some(Utf8PathBuf::try_from(bench.directory.path().join("cache.sqlite"))?);
        config.cache.namespace = Some("bench".into());
        config.gepa.max_total_rollouts = ROLLOUTS;
        config.gepa.max_generations = Some(ROLLOUTS);
        config.gepa.minibatch_size = Some(32);
        config.gepa.pipeline.workers.rollout = 64;
        Ok(config)
    };
    bench.run(config(&bench, "recorded", CacheMode::Readwrite)?, Duration::ZERO)?;
    let replayed = config(&bench, "replayed", CacheMode::Readonly)?;
    bench.stub.stop();
    let measured = bench.run(replayed, Duration::ZERO)?;
    let wall = measured.wall;
    print_line(&format!("readonly replay of {} cached rollouts: {:.2} s", measured.rollouts, wall.as_secs_f64()))?;
    let slow = wall > MAX_REPLAY_TIME;
    Ok(slow.then(|| format!("the replay took {wall:.1?}, the limit is {MAX_REPLAY_TIME:?}")).into_iter().collect())
}

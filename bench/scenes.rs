//! How busy the workers are: the share of the time in which a rollout runs for each of them, in runs against containers and
//! proposers that take their time.
//!
//! `scenes [SCENE] [reference|sprint] [REPEATS]`. The first and the last fifth of a run do not count.

use std::error::Error;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use camino::Utf8PathBuf;
use serde_json::Value;
use synth_e2e::variations::VariationProposer;
use synth_e2e::{RowNames, ServerProcess, small_config};
use synth_gepa::GepaEngine;
use synth_optimizer_core::config::gepa::{AcceptanceCriterion, PipelineMode, SearchMode};
use synth_optimizer_core::config::sections::CacheMode;
use synth_optimizer_platform::proposer::Proposer;
use synth_optimizer_platform::runtime::{RunControl, RunSpec, execute};

/// The allocator of the Python extension.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

type BenchResult<T> = Result<T, Box<dyn Error>>;

/// How often the container is asked how many rollouts have run.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(100);

struct Scene {
    name: &'static str,
    rows: u32,
    workers: u32,
    turn: Duration,
    rollouts: u32,
    flags: &'static [&'static str],
}

const fn scene(name: &'static str, rows: u32, workers: u32, rollouts: u32, flags: &'static [&'static str]) -> Scene {
    Scene { name, rows, workers, turn: Duration::from_secs(1), rollouts, flags }
}

/// Rollouts take 200 ms on average.
const SCENES: [Scene; 5] = [
    scene("CL", 100, 64, 6_000, &[]),
    Scene { turn: Duration::from_secs(2), ..scene("P2", 100, 64, 6_000, &[]) },
    scene("D", 1_000, 512, 40_000, &[]),
    scene("E20L", 100, 64, 6_000, &["--slow-every", "50", "--slow-factor", "20"]),
    scene("L1", 100, 64, 6_000, &["--spread", "100"]),
];

fn main() -> BenchResult<()> {
    let mut arguments = std::env::args().skip(1);
    let (name, mode) = (arguments.next(), arguments.next());
    let repeats = arguments.next().map_or(Ok(1), |text| text.parse::<u32>())?;
    for scene in SCENES.iter().filter(|scene| name.as_deref().is_none_or(|name| name == scene.name)) {
        for search in [SearchMode::Reference, SearchMode::Sprint] {
            if mode.as_deref().is_some_and(|mode| mode != search.as_str()) {
                continue;
            }
            for _ in 0..repeats {
                let busy = run(scene, search)?;
                let search = search.as_str();
                writeln!(std::io::stdout(), "{:<5} {search:<9} {} workers busy {busy:.3}", scene.name, scene.workers)?;
            }
        }
    }
    Ok(())
}

/// Returns the share of the workers that were busy in the middle of a run.
fn run(scene: &Scene, search: SearchMode) -> BenchResult<f64> {
    let stub: PathBuf = std::env::current_exe()?.with_file_name("stub_container");
    let (rows, heldout) = (scene.rows.to_string(), "20".to_owned());
    let flags = [&["--train", &rows, "--heldout", &heldout, "--latency-ms", "200"][..], scene.flags].concat();
    let stub = ServerProcess::stub(&stub.to_string_lossy(), flags)?;
    let directory = tempfile::tempdir()?;
    let mut config = small_config(&stub.url(), RowNames::TaskIds, scene.rows, 20, &["instructions"]);
    config.run.output_dir = Utf8PathBuf::try_from(directory.path().join("runs"))?;
    config.disk_budget.enabled = false;
    config.cache.mode = CacheMode::Off;
    config.gepa.search = search;
    config.gepa.minibatch_acceptance_criterion = AcceptanceCriterion::ImprovementOrEqual;
    config.gepa.skip_perfect_score = false;
    config.gepa.proposals_per_generation = 1;
    config.gepa.max_total_rollouts = scene.rollouts;
    config.gepa.max_generations = None;
    config.gepa.pipeline.mode = PipelineMode::Auto;
    config.gepa.pipeline.workers.rollout = scene.workers;
    let mut request = RunSpec::new(config);
    request.proposer = Some(Arc::new(VariationProposer::new(scene.turn)) as Arc<dyn Proposer>);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (_control, receiver) = RunControl::new(request.config.run.feed_buffer);
    let samples = runtime.block_on(async {
        let mut samples = Vec::new();
        let mut executed = std::pin::pin!(execute::<GepaEngine>(request, receiver));
        let address = format!("{}/counts", stub.url());
        loop {
            tokio::select! {
                outcome = &mut executed => {
                    let outcome = outcome?;
                    if outcome.end.as_str() != "completed" {
                        return Err(format!("the run {}: {:?}", outcome.end.as_str(), outcome.end.error()).into());
                    }
                    return BenchResult::Ok(samples);
                }
                () = tokio::time::sleep(SAMPLE_INTERVAL) => {
                    let counts: Value = serde_json::from_str(&reqwest::get(&address).await?.text().await?)?;
                    let read = |name: &str| counts[name].as_f64().unwrap_or(0.0);
                    samples.push((read("executions"), read("elapsed_seconds"), read("rollout_seconds")));
                }
            }
        }
    })?;
    let at = |share: f64| {
        let least = share * samples.last().map_or(0.0, |last| last.0);
        samples.iter().find(|sample| sample.0 >= least).copied().unwrap_or_default()
    };
    let ((_, began, before), (_, ended, after)) = (at(0.2), at(0.8));
    Ok((after - before) / (ended - began) / f64::from(scene.workers))
}

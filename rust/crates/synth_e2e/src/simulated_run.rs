//! Simulated runs: their logs, the totals that every document must show, and their run directories.

#[path = "../../synth_gepa/tests/suite/sim/mod.rs"]
mod sim;

use std::collections::BTreeMap;
use std::error::Error;

use camino::Utf8Path;
use serde_json::{Value, json};
use sim::{Pace, World};
use synth_optimizer_core::config::Config;
use synth_optimizer_core::config::sections::Durability;
use synth_optimizer_core::model::answer::FailureClass;
use synth_optimizer_core::model::event::Event;
use synth_optimizer_core::model::event_effects::CallKind;
use synth_optimizer_core::model::event_fields::{RunResumed, Stage};
use synth_optimizer_core::model::usage::{Cost, Usage};
use synth_optimizer_platform::artifacts::{FeedWriter, RunDir};
use synth_optimizer_platform::results::write_results;
use synth_optimizer_platform::workspace::{Batch, RunRow, StoredEvent, Workspace};

/// What happens in a simulated run.
#[derive(Debug, Clone, Default)]
pub struct Simulation {
    pub seed: u64,
    pub arrival_seed: u64,
    /// Probabilities that a rollout and a proposer turn fail.
    pub failure: f64,
    pub proposer_failure: f64,
    /// Price of a rollout in nano dollars, if known.
    pub price: Option<u64>,
    /// Stop or cancel after this many answers.
    pub stop_after: Option<usize>,
    pub cancel_after: Option<usize>,
    /// Kill the process after this many steps of the search, and resume the run.
    pub kill_after: Option<usize>,
    /// Probability that the outcome of a call is unknown after the kill.
    pub forgotten: f64,
    /// Whether every other rollout is answered by the cache.
    pub cached: bool,
    /// Probabilities that a proposal is invalid, and that a score is flipped.
    pub invalid: f64,
    pub noise: f64,
    /// Every rollout from this call number on fails.
    pub breaks_at: Option<u64>,
    /// Changes the configuration.
    pub configure: Option<fn(&mut Config)>,
}

impl Simulation {
    /// Returns the configuration of the run.
    pub fn config(&self) -> Config {
        self.world().config
    }

    fn world(&self) -> World {
        let Self { failure, proposer_failure, price, forgotten, invalid, noise, breaks_at, .. } = *self;
        let mut world = World { failure, proposer_failure, forgotten, invalid, noise, breaks_at, ..World::default() };
        world.rollout_cost = price;
        world.config.run.seed = self.seed;
        world.config.gepa.max_total_rollouts = 160;
        world.config.gepa.max_generations = Some(4);
        if let Some(configure) = self.configure {
            configure(&mut world.config);
        }
        world
    }

    /// Returns the log of the run.
    pub fn log(&self) -> Vec<StoredEvent> {
        let world = self.world();
        let Self { arrival_seed, stop_after, cancel_after, .. } = *self;
        let pace = Pace { arrival_seed, stop_after, cancel_after, ..Pace::default() };
        let run = world.run(pace);
        let mut events = run.events;
        // The last step ends the run: there is nothing to resume after it.
        if let (Some(kill_after), Some(steps)) = (self.kill_after, run.boundaries.len().checked_sub(2)) {
            events.truncate(run.boundaries[1 + kill_after % steps.max(1)]);
            let later = world.resume(&events, pace);
            let kept = events.len() as u64;
            events.push(Event::RunResumed(RunResumed { stored_events: kept, waiting_answers: 0, unknown_outcomes: 0 }));
            events.extend(later);
        }
        if self.cached {
            // The totals in the engine's last event then differ from this log.
            for event in events.iter_mut().step_by(2) {
                if let Event::RolloutFinished(done) = event {
                    done.cached = true;
                }
            }
        }
        let at = |index: usize| START + 7 * index as u64;
        events.into_iter().enumerate().map(|(index, event)| StoredEvent::new(index as u64, at(index), event)).collect()
    }
}

/// When every simulated run starts.
const START: u64 = 1_811_980_800_000;

/// Writes a log and its results as the run directory of `run_id`. Returns the directory, its workspace and the manifest.
pub fn write_run(
    root: &Utf8Path,
    run_id: &str,
    log: &[StoredEvent],
    config: &Value,
) -> Result<(RunDir, Workspace, Value), Box<dyn Error>> {
    let dir = RunDir::open(root, run_id)?;
    let run = RunRow {
        run_id: run_id.into(),
        algorithm: "gepa".into(),
        config: config.clone(),
        config_digest: "0123456789abcdef".repeat(4),
        container_url: "http://127.0.0.1:1".into(),
        cache_mode: "off".into(),
        cache_namespace: format!("gepa:{run_id}"),
        cache_path: None,
        output_dir: root.to_string(),
        run_dir: dir.dir().to_string(),
        created_at: START,
    };
    let workspace = Workspace::create(dir.workspace_db().as_std_path(), &run, Durability::Process)?;
    let mut feed_writer = FeedWriter::open(&dir, |each| workspace.log(0, each))?;
    // Stored in several batches, as a run does.
    for part in log.chunks(97) {
        workspace.commit_blocking(Batch { events: part.to_vec(), ..Batch::default() })?;
        feed_writer.append(part)?;
    }
    let manifest = write_results(&dir, &workspace, feed_writer, None)?;
    Ok((dir, workspace, manifest))
}

/// The totals of a run, computed independently from its log.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct ExpectedTotals {
    calls: BTreeMap<&'static str, u64>,
    cost_nano: u64,
}

impl ExpectedTotals {
    fn add(&mut self, name: &'static str, count: u64) {
        *self.calls.entry(name).or_default() += count;
    }

    pub fn of(log: &[StoredEvent]) -> Self {
        let mut expected = Self::default();
        for stored in log {
            match &stored.event {
                Event::RolloutFinished(done) => {
                    expected.add(if done.stage == Stage::Heldout { "heldout" } else { "train" }, 1);
                    expected.add("rollout_calls", 1);
                    expected.answered(done.cached, &done.usage, false);
                }
                Event::RolloutFailed(failed) => {
                    if matches!(failed.class, FailureClass::NotSent | FailureClass::Withdrawn) {
                        continue;
                    }
                    expected.add(if failed.stage == Stage::Heldout { "heldout" } else { "train" }, 1);
                    expected.add("rollout_calls", 1);
                    expected.add("rollouts_failed", 1);
                    expected.failed(failed.class, failed.cached, &failed.usage);
                }
                Event::ProposerCompleted(done) => {
                    expected.add("proposer_calls", 1);
                    expected.answered(done.cached, &done.usage, false);
                }
                Event::ProposerFailed(failed) => {
                    if matches!(failed.class, FailureClass::NotSent | FailureClass::Withdrawn) {
                        continue;
                    }
                    expected.add("proposer_calls", 1);
                    expected.failed(failed.class, failed.cached, &failed.usage);
                }
                Event::OutcomeUnknown(lost) => {
                    if let Some(stage) = lost.stage {
                        expected.add(if stage == Stage::Heldout { "heldout" } else { "train" }, 1);
                    }
                    let kind = if lost.kind == CallKind::Rollout { "rollout_calls" } else { "proposer_calls" };
                    expected.add(kind, 1);
                    expected.answered(false, &Usage::default(), true);
                }
                _ => {}
            }
        }
        expected
    }

    fn failed(&mut self, class: FailureClass, cached: bool, usage: &Usage) {
        let told = usage.total_tokens.is_some() || (usage.prompt_tokens.is_some() && usage.completion_tokens.is_some());
        let unknown = class == FailureClass::UnknownOutcome || (class == FailureClass::Abandoned && !told);
        self.answered(cached && !unknown, usage, unknown);
    }

    fn answered(&mut self, cached: bool, usage: &Usage, unknown: bool) {
        if cached {
            self.add("cached_calls", 1);
            return;
        }
        self.add("sent_calls", 1);
        self.add("unknown_outcomes", u64::from(unknown));
        self.add("prompt_tokens", usage.prompt_tokens.unwrap_or(0));
        self.add("completion_tokens", usage.completion_tokens.unwrap_or(0));
        let sum = usage.prompt_tokens.zip(usage.completion_tokens).map(|(prompt, completion)| prompt + completion);
        self.add("total_tokens", usage.total_tokens.or(sum).unwrap_or(0));
        match usage.cost {
            Cost::Known(amount) if !unknown => self.cost_nano += amount.0,
            Cost::Known(_) | Cost::Unknown => self.add("unpriced_calls", 1),
        }
    }

    pub fn get(&self, name: &str) -> u64 {
        self.calls.get(name).copied().unwrap_or(0)
    }

    /// Returns all totals, the cost under `cost_usd`.
    pub fn document(&self) -> Value {
        let mut document = json!(self.calls);
        document["cost_usd"] = self.cost_usd();
        document
    }

    pub fn cost_usd(&self) -> Value {
        if self.get("unpriced_calls") > 0 { Value::Null } else { json!(self.cost_nano as f64 / 1e9) }
    }
}

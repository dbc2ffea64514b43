//! Benchmark of the search on scripted tasks: rollouts until the best candidate is truly at a target, and its quality.
//!
//! `search run` measures this project and writes one JSON line per run; `search serve` answers another optimizer's questions
//! about the same tasks, one JSON line each. Run both with `make bench-search`. `search drive` asks another process for scores
//! and proposals instead; `make bench-llm` answers it with a language model. `search replay` chooses among finished prompts on a
//! table of real scores; run it with `make bench-scores`.
//!
//! Time is simulated: a rollout takes 200 ms on one of the workers, a proposer turn takes 1 s.

mod drive;
mod race;
mod replay;
mod worlds;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{self, BufRead as _, Write as _};

use serde_json::{Value, json};
use synth_gepa::GepaEngine;
use synth_optimizer_core::config::Config;
use synth_optimizer_core::config::gepa::{PipelineMode, SearchMode};
use synth_optimizer_core::engine::{Engine as _, Session};
use synth_optimizer_core::model::answer::{Answer, Observation, Proposal, ProposalAnswer, RolloutAnswer};
use synth_optimizer_core::model::command::Command;
use synth_optimizer_core::model::event::Event;
use synth_optimizer_core::model::event_fields::RunStarted;
use synth_optimizer_core::model::ids::{HeldoutRow, RowId, TrainRow};
use synth_optimizer_core::model::program::{Inputs, Module, Program, Row};
use synth_optimizer_core::model::usage::Usage;

use worlds::{INITIAL, KINDS, World};

type Failure = Box<dyn std::error::Error>;

const USAGE: &str = "usage: search run '{\"worlds\": [\"rule\"], ...}' | search serve | \
    search drive '{\"rows\": 60, ...}' | search replay FILE";

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("serve") => serve(),
        Some("run") => run_all(arguments.get(1).map_or("{}", String::as_str)),
        Some("drive") => drive::drive(arguments.get(1).map_or("{}", String::as_str)),
        Some("replay") => replay_scores(arguments.get(1).map_or("-", String::as_str)),
        _ => Err(USAGE.into()),
    }
}

/// What a run asks for: a scripted world, or another process.
trait Task {
    fn rows(&self) -> u32;
    fn initial(&self) -> &str;
    fn score(&mut self, text: &str, row: u32, repeat: &str) -> Result<f64, Failure>;
    fn propose(&mut self, text: &str, evidence: &[(u32, f64)], turn: u64) -> Result<String, Failure>;
    /// Returns what the line of a run tells about a best candidate.
    fn record(&self, text: &str) -> Result<Value, Failure>;
    /// Returns what the line of a run tells about the last best candidate.
    fn record_end(&self, text: &str) -> Value;
}

impl Task for World {
    fn rows(&self) -> u32 {
        self.rows
    }

    fn initial(&self) -> &str {
        INITIAL
    }

    fn score(&mut self, text: &str, row: u32, repeat: &str) -> Result<f64, Failure> {
        Ok(World::score(self, text, row, repeat))
    }

    fn propose(&mut self, text: &str, evidence: &[(u32, f64)], turn: u64) -> Result<String, Failure> {
        Ok(World::propose(self, text, evidence, turn))
    }

    fn record(&self, text: &str) -> Result<Value, Failure> {
        Ok(json!(self.quality(text)))
    }

    fn record_end(&self, text: &str) -> Value {
        json!({
            "quality": self.quality(text), "expected": self.expected(text),
            "expected_of_initial": self.expected(INITIAL), "is_initial": text == INITIAL,
        })
    }
}

/// Replays the choice among finished prompts on a table of scores, read from a file or, for `-`, from the standard input.
fn replay_scores(path: &str) -> Result<(), Failure> {
    let table = if path == "-" { io::read_to_string(io::stdin())? } else { std::fs::read_to_string(path)? };
    let mut out = io::stdout().lock();
    for line in replay::replay(&table)? {
        writeln!(out, "{line}")?;
    }
    Ok(())
}

/// The names of the values that make a task.
const TASK: [&str; 5] = ["world", "rows", "noise", "learns", "seed"];

/// Rows of a minibatch in sprints, as in gepa, and what the reference search derives from a limit of 200 rollouts or more.
const MINIBATCH: u32 = 3;
const REFERENCE_MINIBATCH: u32 = 8;

const ROLLOUT_MS: u64 = 200;
const PROPOSER_MS: u64 = 1000;
const WORKERS: u64 = 64;

/// The calls under way, on a simulated clock.
struct Calls {
    now_ms: u64,
    /// When each worker is free.
    workers: BinaryHeap<Reverse<u64>>,
    /// When each call ends, its place in the order of the requests, and its number.
    ends: BinaryHeap<Reverse<(u64, u64, u64)>>,
    requested: u64,
}

impl Calls {
    fn new(workers: u64) -> Self {
        let workers = (0..workers.max(1)).map(|_| Reverse(0)).collect();
        Self { now_ms: 0, workers, ends: BinaryHeap::new(), requested: 0 }
    }

    /// Starts a rollout on the worker that is free first.
    fn start_rollout(&mut self, call: u64) {
        let Reverse(free) = self.workers.pop().unwrap_or_default();
        let end = free.max(self.now_ms) + ROLLOUT_MS;
        self.workers.push(Reverse(end));
        self.start(call, end);
    }

    fn start_turn(&mut self, call: u64) {
        self.start(call, self.now_ms + PROPOSER_MS);
    }

    fn start(&mut self, call: u64, end: u64) {
        self.ends.push(Reverse((end, self.requested, call)));
        self.requested += 1;
    }

    /// Moves the clock to the end of the next call and returns its number.
    fn next(&mut self) -> Option<u64> {
        let Reverse((end, _, call)) = self.ends.pop()?;
        self.now_ms = end;
        Some(call)
    }
}

/// Reads a task from JSON.
fn world(value: &Value) -> Result<World, Failure> {
    let name = value["world"].as_str().ok_or("no world")?;
    let kind = KINDS.iter().find(|(known, _)| *known == name).ok_or("no such world")?.1;
    Ok(World {
        kind,
        rows: value["rows"].as_u64().ok_or("no rows")? as u32,
        noise: value["noise"].as_f64().ok_or("no noise")?,
        learns: value["learns"].as_f64().ok_or("no learns")?,
        seed: value["seed"].as_u64().ok_or("no seed")?,
        best_mean: 0.0,
    }
    .prepared())
}

/// Answers questions about tasks: scores, proposals and true quality.
fn serve() -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    let mut last: Option<(Vec<Value>, World)> = None;
    for line in io::stdin().lock().lines() {
        let asked: Value = serde_json::from_str(&line?)?;
        let task: Vec<Value> = TASK.iter().map(|name| asked[name].clone()).collect();
        let world = match last.take().filter(|(of, _)| *of == task) {
            Some((_, world)) => world,
            None => world(&asked)?,
        };
        last = Some((task, world));
        let text = asked["text"].as_str().unwrap_or(INITIAL);
        let answer = match asked["ask"].as_str() {
            Some("score") => {
                let rows = asked["of"].as_array().ok_or("no rows")?;
                let repeat = asked["repeat"].to_string();
                let scores = rows.iter().filter_map(Value::as_u64).map(|row| world.score(text, row as u32, &repeat));
                json!(scores.collect::<Vec<f64>>())
            }
            Some("propose") => {
                let evidence: Vec<(u32, f64)> = serde_json::from_value(asked["evidence"].clone())?;
                json!(world.propose(text, &evidence, asked["turn"].as_u64().unwrap_or(0)))
            }
            Some("quality") => json!(world.quality(text)),
            _ => return Err("unknown question".into()),
        };
        writeln!(out, "{answer}")?;
        out.flush()?;
    }
    Ok(())
}

/// Runs one plan or a list of plans.
fn run_all(plans: &str) -> Result<(), Failure> {
    match serde_json::from_str(plans)? {
        Value::Array(plans) => plans.iter().try_for_each(run_plan),
        plan => run_plan(&plan),
    }
}

/// Runs every combination of the lists in `plan` and writes one line per run.
fn run_plan(plan: &Value) -> Result<(), Failure> {
    let list = |name: &str, usual: Value| match plan.get(name) {
        Some(Value::Array(values)) => values.clone(),
        Some(value) => vec![value.clone()],
        None => vec![usual],
    };
    let mut out = io::stdout().lock();
    for name in list("worlds", json!("rule")) {
        for rows in list("rows", json!(50)) {
            for noise in list("noise", json!(0.0)) {
                for learns in list("learns", json!(0.5)) {
                    for search in list("search", json!("sprint")) {
                        for window in list("window", json!(1)) {
                            for budget in list("budget", json!(3000)) {
                                for seed in seeds(plan) {
                                    let task = json!({
                                        "world": name, "rows": rows, "noise": noise, "learns": learns, "seed": seed,
                                        "search": search, "window": window, "budget": budget,
                                        "workers": plan.get("workers").cloned().unwrap_or(json!(WORKERS)),
                                        "heldout": plan.get("heldout").cloned().unwrap_or(json!(1)),
                                        "sprint": plan.get("sprint").cloned().unwrap_or(json!({})),
                                        "gepa": plan.get("gepa").cloned().unwrap_or(json!({})),
                                    });
                                    writeln!(out, "{}", run(&task, &mut world(&task)?)?)?;
                                }
                            }
                        }
                    }
                }
            }
        }
    }
    Ok(())
}

fn seeds(plan: &Value) -> std::ops::Range<u64> {
    let first = plan["first_seed"].as_u64().unwrap_or(0);
    first..first + plan["seeds"].as_u64().unwrap_or(1)
}

/// Runs one search. Returns the task with the best candidate after each change of it: rollouts, its record, seconds. The
/// record of a candidate of a scripted world is its true quality.
fn run(task: &Value, world: &mut impl Task) -> Result<Value, Failure> {
    let engine = GepaEngine::new(&config(task)?, inputs(world, task["heldout"].as_u64().unwrap_or(1) as u32))?;
    let mut session = Session::new(&engine);
    let mut events = session.start(RunStarted {
        algorithm: "gepa".into(),
        config_digest: String::new(),
        seed: task["seed"].as_u64().unwrap_or(0),
        container_url: String::new(),
    });
    events.extend(session.observe(&Observation::Begin)?);
    let mut calls = Calls::new(task["workers"].as_u64().unwrap_or(WORKERS));
    let mut texts = std::collections::BTreeMap::new();
    let (mut rollouts, mut turns) = (0u64, 0u64);
    let mut best = Vec::new();
    let mut counts = std::collections::BTreeMap::<&str, u64>::new();
    let mut end = Value::Null;
    loop {
        for event in events {
            match &event {
                Event::CandidateRegistered(candidate) => {
                    texts.insert(candidate.candidate_id.clone(), candidate.payload["prompt"].clone());
                }
                Event::CandidateAccepted(_) => {
                    if let Some(id) = event.best_candidate() {
                        best.push(json!([rollouts, world.record(&texts[id])?, calls.now_ms as f64 / 1000.0]));
                    }
                }
                Event::RolloutsRequested(batch) => {
                    let first = batch.first_call_id.0;
                    (first..first + batch.row_ids.len() as u64).for_each(|call| calls.start_rollout(call));
                    *counts.entry(batch.stage.as_str()).or_default() += batch.row_ids.len() as u64;
                }
                Event::ProposerStarted(turn) => {
                    turns += 1;
                    calls.start_turn(turn.call_id.0);
                }
                Event::RolloutFinished(_) => rollouts += 1,
                Event::CheckDecided(check) => *counts.entry(check.verdict.as_str()).or_default() += 1,
                Event::RunFinished(run) => {
                    let score = |role: &str| {
                        let of = |score: &&synth_optimizer_core::model::event_fields::NamedScore| {
                            score.role == role && score.split == "heldout"
                        };
                        json!(run.scores.iter().find(of).map(|found| found.score))
                    };
                    end = world.record_end(&texts[&run.best_candidate_id]);
                    end["stopped_by"] = json!(run.stopped_by.kind.as_str());
                    end["gain"] = json!(run.heldout_gain);
                    end["claim"] = json!(run.claim);
                    end["seed"] = score("seed");
                    end["best"] = score("best");
                }
                _ => {}
            }
        }
        let next = if engine.is_terminal(session.state()) { None } else { calls.next() };
        let Some(call_id) = next.map(synth_optimizer_core::model::ids::CallId) else { break };
        let Some(command) = engine.command(session.state(), call_id) else {
            events = Vec::new();
            continue;
        };
        let answer = answer(world, &command)?;
        events = session.accept_answer(call_id, answer)?;
    }
    let mut line = task.clone();
    line["best"] = json!(best);
    line["rollouts"] = json!(rollouts);
    line["seconds"] = json!(calls.now_ms as f64 / 1000.0);
    line["turns"] = json!(turns);
    line["counts"] = json!(counts);
    line["end"] = end;
    Ok(line)
}

fn answer(world: &mut impl Task, command: &Command) -> Result<Answer, Failure> {
    match command {
        Command::Rollout(rollout) => {
            let row = row_number(&rollout.row_id, world.rows());
            let reward = world.score(&rollout.payload["prompt"], row, &rollout.replicate.to_string())?;
            let (objectives, usage) = (Default::default(), Usage::default());
            Ok(Answer::Rollout(RolloutAnswer { reward, objectives, usage, cached: false, trace_digest: None }))
        }
        Command::Propose(turn) => {
            let rows = world.rows();
            let scored = |row: &synth_optimizer_core::model::command::EvidenceRow| {
                Some((row_number(&row.row_id, rows), row.score?))
            };
            let evidence: Vec<(u32, f64)> = turn.evidence.iter().filter_map(scored).collect();
            let proposal = |index: u64| {
                let number = u64::from(turn.question.generation) * 8 + index;
                let text = world.propose(&turn.question.base["prompt"], &evidence, number)?;
                Ok(Proposal { fields: [("prompt".to_owned(), text)].into(), ..Proposal::default() })
            };
            Ok(Answer::Proposal(ProposalAnswer {
                proposals: (0..u64::from(turn.question.proposal_count))
                    .map(proposal)
                    .collect::<Result<_, Failure>>()?,
                problems: Vec::new(),
                usage: Usage::default(),
                cached: false,
                requested_model: "scripted".into(),
                effective_model: "scripted".into(),
            }))
        }
    }
}

/// Returns the number of a row. Held-out rows follow the train rows.
fn row_number(id: &RowId, train_rows: u32) -> u32 {
    let (split, number) = id.as_str().split_once(':').unwrap_or_default();
    let number: u32 = number.parse().unwrap_or_default();
    if split == "heldout" { train_rows + number } else { number }
}

fn config(task: &Value) -> Result<Config, Failure> {
    let mut config = Config::default();
    config.run.seed = task["seed"].as_u64().unwrap_or(0);
    config.candidate.target_modules = vec!["prompt".into()];
    config.proposer.max_consecutive_invalid = 150;
    let budget = task["budget"].as_u64().unwrap_or(3000) as u32;
    let heldout = task["heldout"].as_u64().unwrap_or(1) as u32;
    let gepa = &mut config.gepa;
    gepa.search = SearchMode::parse(task["search"].as_str().unwrap_or("sprint")).ok_or("no such search")?;
    gepa.max_train_rollouts = Some(budget);
    gepa.max_heldout_rollouts = Some(2 * heldout);
    gepa.max_generations = Some(u32::MAX);
    let is_reference = gepa.search == SearchMode::Reference;
    gepa.minibatch_size = Some(if is_reference { REFERENCE_MINIBATCH } else { MINIBATCH });
    gepa.proposals_per_generation = 1;
    // The quality of the result is that of the candidate that the search prefers.
    gepa.sprint.return_unproven = true;
    let window = task["window"].as_u64().unwrap_or(1) as u32;
    gepa.pipeline.mode = if window > 1 { PipelineMode::AsyncPipelined } else { PipelineMode::SyncSerial };
    gepa.pipeline.max_in_flight_candidates = Some(window);
    let mut settings = json!(config);
    for (section, place) in [("gepa", "/gepa"), ("sprint", "/gepa/sprint")] {
        for (name, value) in task[section].as_object().into_iter().flatten() {
            settings.pointer_mut(place).ok_or("no section")?[name] = value.clone();
        }
    }
    Ok(serde_json::from_value(settings)?)
}

fn inputs(world: &impl Task, heldout: u32) -> Inputs {
    let row =
        |split: &str, index: u32| Row { id: RowId::new(&format!("{split}:{index}")), stratum: None, texts: Vec::new() };
    let rows = |split: &str, count: u32| (0..count).map(|index| row(split, index)).collect();
    let pool: Vec<TrainRow> = (0..world.rows()).map(TrainRow).collect();
    Inputs {
        program: Program {
            program_id: "scripted".into(),
            modules: vec![Module { field: "prompt".into(), template_variables: Vec::new() }],
            targets: vec!["prompt".into()],
            seed: [("prompt".to_owned(), world.initial().to_owned())].into(),
        },
        train: rows("train", world.rows()),
        heldout: rows("heldout", heldout),
        pareto_pool: pool.clone(),
        minibatch_pool: pool.clone(),
        reflection_pool: pool,
        heldout_pool: (0..heldout).map(HeldoutRow).collect(),
    }
}

//! Benchmarks of the engine: time per rollout for 1,000 to 1,000,000 rollouts, one Pareto selection, and memory.
//!
//! Run with `make bench`. Times are compared within one run, because machines are noisy.

use std::collections::VecDeque;
use std::hint::black_box;
use std::io::{self, Write};
use std::process::Command;
use std::time::{Duration, Instant};

use synth_gepa::{Frontier, GepaEngine, random_stream};
use synth_optimizer_core::config::Config;
use synth_optimizer_core::config::gepa::AcceptanceCriterion;
use synth_optimizer_core::engine::{Engine, Session};
use synth_optimizer_core::model::answer::{
    Answer, CallFailure, FailureClass, Observation, Proposal, ProposalAnswer, RolloutAnswer,
};
use synth_optimizer_core::model::error::OptimizerError;
use synth_optimizer_core::model::event::Event;
use synth_optimizer_core::model::event_fields::RunStarted;
use synth_optimizer_core::model::ids::{CallId, CandidateId, HeldoutRow, RowId, TrainRow};
use synth_optimizer_core::model::program::{Inputs, Module, Program, Row};
use synth_optimizer_core::model::usage::{Cost, NanoUsd, Usage};

/// The shape of a run.
struct Shape {
    name: &'static str,
    rows: u32,
    minibatch: u32,
    /// Whether scores are only 0 or 1, so that most frontier cells are tied.
    binary: bool,
    sizes: &'static [u32],
}

const SHAPES: &[Shape] = &[
    Shape {
        name: "50 rows, minibatch 3, binary",
        rows: 50,
        minibatch: 3,
        binary: true,
        sizes: &[1_000, 10_000, 100_000, 1_000_000],
    },
    Shape {
        name: "200 rows, minibatch 8, graded",
        rows: 200,
        minibatch: 8,
        binary: false,
        sizes: &[1_000, 10_000, 100_000, 1_000_000],
    },
    Shape {
        name: "1000 rows, minibatch 8, binary",
        rows: 1000,
        minibatch: 8,
        binary: true,
        sizes: &[10_000, 100_000, 1_000_000],
    },
];

/// Limits of the engine.
const MAX_MICROS_PER_ROLLOUT: f64 = 10.0;
const MAX_GROWTH: f64 = 1.3;
const MAX_SELECTION_MICROS: f64 = 1000.0;

struct Measured {
    rollouts: u64,
    per_rollout: Duration,
    candidates: usize,
    pool: usize,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut out = io::stdout().lock();
    // Memory is measured in a separate process, because memory that earlier runs have freed would be reused unnoticed.
    if let Some(shape) = std::env::args().nth(1).and_then(|place| SHAPES.get(place.parse::<usize>().ok()?)) {
        let before = resident_bytes();
        let engine = engine(shape, 1_000_000)?;
        let mut session = Session::new(&engine);
        drive(shape, &engine, &mut session)?;
        writeln!(out, "{}", resident_bytes().saturating_sub(before))?;
        return Ok(());
    }
    let mut within = true;
    writeln!(out, "decide + evolve, per rollout")?;
    for (place, shape) in SHAPES.iter().enumerate() {
        writeln!(out, "  {}", shape.name)?;
        let mut times = Vec::new();
        for run in fastest(shape)? {
            let micros = run.per_rollout.as_secs_f64() * 1e6;
            times.push(micros);
            let (candidates, pool) = (run.candidates, run.pool);
            writeln!(
                out,
                "    {:>9} rollouts  {micros:>6.2} us each  {candidates:>6} candidates, {pool:>6} in the pool",
                run.rollouts
            )?;
        }
        let (low, high) = times.iter().fold((f64::MAX, 0f64), |(low, high), time| (low.min(*time), high.max(*time)));
        writeln!(out, "    slowest to fastest: {:.2}x", high / low)?;
        within &= high <= MAX_MICROS_PER_ROLLOUT && high <= MAX_GROWTH * low;
        let child = Command::new(std::env::current_exe()?).arg(place.to_string()).output()?;
        let bytes: f64 = String::from_utf8_lossy(&child.stdout).trim().parse()?;
        writeln!(out, "    memory of the state after 1,000,000 rollouts: {:.0} MB", bytes / 1e6)?;
    }
    writeln!(out, "one Pareto selection")?;
    for (candidates, cells) in [(50, 100), (200, 300), (500, 500), (1000, 1000)] {
        for (kind, binary) in [("binary", true), ("graded", false)] {
            let micros = selection(candidates, cells, binary).as_secs_f64() * 1e6;
            within &= micros <= MAX_SELECTION_MICROS;
            writeln!(out, "  {candidates:>5} candidates x {cells:>5} rows, {kind}: {micros:>8.1} us")?;
        }
    }
    writeln!(
        out,
        "limits: {MAX_MICROS_PER_ROLLOUT} us per rollout, {MAX_GROWTH}x growth, {MAX_SELECTION_MICROS} us per selection"
    )?;
    if within { Ok(()) } else { Err("a limit is broken".into()) }
}

/// Returns the resident memory of this process.
fn resident_bytes() -> usize {
    const PAGE: usize = 4096;
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split_whitespace().nth(1).and_then(|pages| pages.parse::<usize>().ok()).map_or(0, |pages| pages * PAGE)
}

/// Returns the fastest batch of each size. Every batch has as many rollouts as the longest run, so that other load affects all
/// sizes equally, and the sizes alternate.
fn fastest(shape: &Shape) -> Result<Vec<Measured>, OptimizerError> {
    const ROUNDS: u32 = 5;
    let longest = shape.sizes.iter().copied().max().unwrap_or(1);
    let mut best: Vec<Option<Measured>> = shape.sizes.iter().map(|_| None).collect();
    for _ in 0..ROUNDS {
        for (size, best) in shape.sizes.iter().zip(&mut best) {
            let runs = (longest / size).max(1);
            let mut batch = run(shape, *size)?;
            for _ in 1..runs {
                batch.per_rollout += run(shape, *size)?.per_rollout;
            }
            batch.per_rollout /= runs;
            if best.as_ref().is_none_or(|best| batch.per_rollout < best.per_rollout) {
                *best = Some(batch);
            }
        }
    }
    Ok(best.into_iter().flatten().collect())
}

fn run(shape: &Shape, rollouts: u32) -> Result<Measured, OptimizerError> {
    let engine = engine(shape, rollouts)?;
    let mut session = Session::new(&engine);
    let (spent, finished) = drive(shape, &engine, &mut session)?;
    let per_rollout = spent.div_f64(finished.max(1) as f64);
    let state = session.state();
    Ok(Measured { rollouts: finished, per_rollout, candidates: state.candidates.len(), pool: state.pool.len() })
}

fn engine(shape: &Shape, rollouts: u32) -> Result<GepaEngine, OptimizerError> {
    let mut config = Config::default();
    config.candidate.target_modules = vec!["prompt".into()];
    config.gepa.max_train_rollouts = Some(rollouts);
    config.gepa.max_heldout_rollouts = Some(20);
    config.gepa.max_generations = Some(u32::MAX);
    config.gepa.minibatch_size = Some(shape.minibatch);
    config.gepa.skip_perfect_score = false;
    // Good candidates pass the minibatch gate, so that the work per rollout does not depend on the parent's score.
    config.gepa.minibatch_acceptance_criterion = AcceptanceCriterion::ImprovementOrEqual;
    config.gepa.minibatch_accept_margin = 0.45;
    GepaEngine::new(&config, inputs(shape.rows))
}

/// Answers every call immediately. Returns the time spent in the engine and the number of rollouts.
fn drive(
    shape: &Shape,
    engine: &GepaEngine,
    session: &mut Session<'_, GepaEngine>,
) -> Result<(Duration, u64), OptimizerError> {
    let mut queue = VecDeque::new();
    // Rollouts are requested soon after their candidate is registered, so the last few candidates are enough.
    let mut good = VecDeque::from(vec![CandidateId::new(""); 8]);
    let (mut spent, mut finished) = (Duration::ZERO, 0u64);
    let mut events = session.start(RunStarted {
        algorithm: "gepa".into(),
        config_digest: String::new(),
        seed: 0,
        container_url: String::new(),
    });
    events.extend(session.observe(&Observation::Begin)?);
    loop {
        for event in events {
            match event {
                // One in three candidates is good, so that the work per rollout stays constant during the run.
                Event::CandidateRegistered(candidate)
                    if candidate.generation.is_none() || candidate.payload.values().any(|text| text.len() % 3 == 0) =>
                {
                    good.push_back(candidate.candidate_id);
                    good.pop_front();
                }
                Event::RolloutsRequested(batch) => {
                    let good = good.contains(&batch.candidate_id);
                    for (offset, row) in batch.row_ids.iter().enumerate() {
                        let call_id = CallId(batch.first_call_id.0 + offset as u64);
                        // One rollout in fifty fails and is retried.
                        let answer = if batch.attempt == 1 && call_id.0.is_multiple_of(50) {
                            failure()
                        } else {
                            rollout(if good { reward(batch.candidate_id.as_str(), row, shape.binary) } else { 0.0 })
                        };
                        queue.push_back((call_id, answer));
                    }
                }
                Event::ProposerStarted(turn) => {
                    queue.push_back((turn.call_id, proposals(turn.generation, turn.proposal_count)));
                }
                Event::RolloutFinished(_) => finished += 1,
                _ => {}
            }
        }
        let Some((call_id, answer)) = queue.pop_front().filter(|_| !engine.is_terminal(session.state())) else { break };
        let start = Instant::now();
        events = session.accept_answer(call_id, answer)?;
        spent += start.elapsed();
    }
    Ok((spent, finished))
}

fn inputs(rows: u32) -> Inputs {
    let row = |split: &str, index: u32| Row {
        id: RowId::new(&format!("{split}:{index}")),
        stratum: None,
        texts: vec![format!("{split} row {index}: a question of ordinary length that no other row has")],
    };
    let program = Program {
        program_id: "bench".into(),
        modules: vec![Module { field: "prompt".into(), template_variables: Vec::new() }],
        targets: vec!["prompt".into()],
        seed: [("prompt".to_owned(), "Answer the question.".to_owned())].into(),
    };
    let pool: Vec<TrainRow> = (0..rows).map(TrainRow).collect();
    Inputs {
        program,
        train: (0..rows).map(|index| row("train", index)).collect(),
        heldout: vec![row("heldout", 0)],
        pareto_pool: pool.clone(),
        minibatch_pool: pool.clone(),
        reflection_pool: pool,
        heldout_pool: vec![HeldoutRow(0)],
    }
}

/// Returns the score of a good candidate: 1 for nine of ten rows, or a number above 0.5.
fn reward(candidate: &str, row: &RowId, binary: bool) -> f64 {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    for byte in candidate.bytes().chain(row.as_str().bytes()) {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    hash ^= hash >> 29;
    let unit = (hash.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 11) as f64 / (1u64 << 53) as f64;
    if binary { f64::from(u8::from(unit < 0.9)) } else { 0.5 + (unit * 500.0).round() / 1000.0 }
}

fn rollout(reward: f64) -> Answer {
    let cost = Cost::Known(NanoUsd(1000));
    let usage = Usage { prompt_tokens: Some(100), completion_tokens: Some(20), total_tokens: None, cost };
    let trace_digest = Some("0".repeat(64));
    Answer::Rollout(RolloutAnswer { reward, objectives: Default::default(), usage, cached: false, trace_digest })
}

fn failure() -> Answer {
    let (class, message) = (FailureClass::Failed, "broken".to_owned());
    Answer::Failed(CallFailure {
        class,
        message,
        retryable: true,
        usage: Usage::default(),
        cached: false,
        models: None,
    })
}

fn proposals(generation: u32, count: u32) -> Answer {
    let proposal = |index: u32| Proposal {
        fields: [(
            "prompt".to_owned(),
            format!(
                "Answer the question, variant {generation:08}-{index}{}",
                "!".repeat((generation as usize + index as usize) % 3)
            ),
        )]
        .into(),
        ..Proposal::default()
    };
    Answer::Proposal(ProposalAnswer {
        proposals: (0..count).map(proposal).collect(),
        problems: Vec::new(),
        usage: Usage::default(),
        cached: false,
        requested_model: "bench".into(),
        effective_model: "bench".into(),
    })
}

fn selection(candidates: u32, cells: usize, binary: bool) -> Duration {
    let mut random = random_stream(3, "scores", u64::from(candidates));
    let mut frontier = Frontier::new(cells);
    for _ in 0..candidates {
        let quality = random.unit() * 0.5 + 0.25;
        let score = |draw: f64| if binary { f64::from(u8::from(draw < quality)) } else { (draw * 100.0).round() };
        let values: Vec<Option<f64>> = (0..cells).map(|_| Some(score(random.unit()))).collect();
        let mean = values.iter().flatten().sum::<f64>() / cells as f64;
        frontier.insert(mean, &values);
    }
    const REPEATS: u32 = 200;
    let start = Instant::now();
    for _ in 0..REPEATS {
        let places = black_box(&frontier).undominated();
        let weights: Vec<u64> = places.iter().map(|place| frontier.cells_won(*place)).collect();
        black_box(random.weighted(&weights));
    }
    start.elapsed() / REPEATS
}

//! Writes the run directories of simulated runs, and beside them `expected.json` with the totals that every document shows.
//!
//! Usage: `simulated_runs DIRECTORY COUNT`

use std::error::Error;

use camino::Utf8PathBuf;
use serde_json::{Map, Value, json};
use synth_e2e::simulated_run::{ExpectedTotals, Simulation, write_run};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let root = Utf8PathBuf::from(arguments.next().ok_or("DIRECTORY is missing")?);
    let count: u64 = arguments.next().ok_or("COUNT is missing")?.parse()?;
    let config = json!({"gepa": {"max_total_rollouts": 160}});
    let mut expected = Map::new();
    for seed in 0..count {
        let turn = seed as usize;
        let simulation = Simulation {
            seed,
            arrival_seed: seed + 1,
            failure: [0.0, 0.1, 0.5][turn % 3],
            proposer_failure: [0.0, 0.4][turn % 2],
            price: (seed % 4 != 3).then_some(2_000_000),
            stop_after: (seed % 5 == 2).then_some(20 + turn),
            cancel_after: (seed % 5 == 4).then_some(30 + turn),
            kill_after: (seed % 2 == 1).then_some(40 + turn),
            forgotten: [0.0, 0.5][turn / 2 % 2],
            cached: seed % 7 == 6,
            ..Simulation::default()
        };
        let log = simulation.log();
        let run_id = format!("run-{seed}");
        write_run(&root, &run_id, &log, &config)?;
        expected.insert(run_id, ExpectedTotals::of(&log).document());
    }
    std::fs::write(root.join("expected.json"), Value::Object(expected).to_string())?;
    Ok(())
}

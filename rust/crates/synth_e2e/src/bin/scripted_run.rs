//! Executes or resumes a run with the scripted proposer, and prints the outcome as one JSON line
//! and its warnings to stderr.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use camino::Utf8PathBuf;
use serde_json::{Value, json};
use synth_e2e::{ScriptedFault, ScriptedProposer, cpu_time};
use synth_gepa::GepaEngine;
use synth_optimizer_core::config::{Config, ConfigContent, ConfigSource, load_with, render};
use synth_optimizer_core::model::answer::FailureClass;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_platform::logs;
use synth_optimizer_platform::read_text_file;
use synth_optimizer_platform::runtime::{Hooks, RunControl, RunSpec, execute};

const USAGE: &str = "\
scripted_run: runs or resumes a config with a proposer that needs no model; prints one JSON line
  --config FILE             the config
  --set KEY=VALUE           changes a field, as often as wanted
  --takeover HOLDER         supersedes this process if it holds the run, such as `pid 4711`
  --workers N               rollouts at once, without adapting to the load
  --proposer-latency-ms N   time of one proposer turn
  --proposer-invalid-every N  answers of every Nth generation are invalid until they are repaired
  --proposer-fail-every N   turns of every Nth generation fail
";

/// The command line.
#[derive(Debug, Default)]
struct Arguments {
    config: Utf8PathBuf,
    sets: Vec<String>,
    proposer: ScriptedProposer,
    takeover: Option<String>,
}

impl Arguments {
    fn parse(mut rest: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut arguments = Self::default();
        while let Some(name) = rest.next() {
            let value = rest.next().ok_or_else(|| format!("{name} needs a value\n{USAGE}"))?;
            let number = || value.parse::<u32>().map_err(|_| format!("{name} needs a number, not {value:?}"));
            match name.as_str() {
                "--config" => arguments.config = value.into(),
                "--takeover" => arguments.takeover = Some(value),
                "--set" => arguments.sets.push(value),
                "--workers" => {
                    arguments.sets.push(format!("gepa.pipeline.workers.rollout={}", number()?));
                    arguments.sets.push("gepa.pipeline.adaptive_rollout_concurrency.enabled=false".into());
                }
                "--proposer-latency-ms" => arguments.proposer.latency = Duration::from_millis(number()?.into()),
                "--proposer-invalid-every" => {
                    arguments.proposer.fault = Some(ScriptedFault::InvalidFields { every: number()? });
                }
                "--proposer-fail-every" => {
                    let class = FailureClass::Failed;
                    arguments.proposer.fault = Some(ScriptedFault::Fails { every: number()?, class });
                }
                _ => return Err(format!("unknown flag {name}\n{USAGE}")),
            }
        }
        Ok(arguments)
    }
}

fn main() -> ExitCode {
    let arguments = match Arguments::parse(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(problem) => {
            let _ = writeln!(io::stderr(), "{problem}");
            return ExitCode::from(2);
        }
    };
    logs::install(|record| {
        let _ = writeln!(io::stderr(), "{}", record.message);
    });
    logs::set_levels([logs::LevelFilter::WARN; logs::LOGGERS.len()]);
    let ended = read(&arguments).and_then(|config| execute_run(config, arguments));
    let (mut line, code) = match ended {
        Ok(outcome) => (outcome, ExitCode::SUCCESS),
        Err(error) => {
            let line = json!({
                "error": error.code.as_str(), "message": error.message, "detail": error.detail, "hint": error.hint,
                "findings": render(&error.findings),
            });
            (line, ExitCode::from(error.code.row().exit))
        }
    };
    line["cpu_seconds"] = cpu_time().map_or(Value::Null, |time| time.as_secs_f64().into());
    let _ = writeln!(io::stdout(), "{line}");
    code
}

fn read(arguments: &Arguments) -> Result<Config, OptimizerError> {
    let path = &arguments.config;
    let io_error = |error: io::Error| OptimizerError::new(ErrorCode::Io, format!("{path}: {error}"));
    let path = path.canonicalize_utf8().map_err(io_error)?;
    let text = std::fs::read_to_string(&path).map_err(io_error)?;
    let base_dir = path.parent().unwrap_or(&path);
    let environment: BTreeMap<String, String> =
        std::env::vars().filter(|(name, _)| name.starts_with("SYNTH_OPTIMIZERS_")).collect();
    let source = ConfigSource { name: path.as_str(), content: ConfigContent::Toml(&text), base_dir };
    Ok(load_with(source, &environment, &arguments.sets, &read_text_file)?.config)
}

/// Executes the run. Returns the outcome for the tests: the run directory and how the run ended.
fn execute_run(config: Config, arguments: Arguments) -> Result<Value, OptimizerError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| OptimizerError::new(ErrorCode::Io, format!("no runtime: {error}")))?;
    let (_control, receiver) = RunControl::new(config.run.feed_buffer);
    let mut request = RunSpec::new(config);
    request.proposer = Some(Arc::new(arguments.proposer));
    request.takeover = arguments.takeover;
    request.hooks = kill_hooks();
    let outcome = runtime.block_on(execute::<GepaEngine>(request, receiver))?;
    match outcome.end.error() {
        Some(error) => Err(error.clone()),
        None => Ok(json!({
            "run_id": outcome.run_id,
            "status": outcome.end.as_str(),
            "run_dir": outcome.run_dir,
            "best_candidate_id": outcome.totals.best_candidate_id(),
            "transactions": outcome.transactions,
        })),
    }
}

/// Returns hooks for `SYNTH_OPTIMIZERS_TEST_KILL_AT=n`: the process kills itself with SIGKILL at the n-th boundary.
fn kill_hooks() -> Hooks {
    let Some(at) = std::env::var("SYNTH_OPTIMIZERS_TEST_KILL_AT").ok().and_then(|at| at.parse::<u64>().ok()) else {
        return Hooks::default();
    };
    let boundaries = AtomicU64::new(0);
    Hooks::new(move |_| {
        if boundaries.fetch_add(1, Ordering::SeqCst) + 1 == at {
            let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        }
    })
}

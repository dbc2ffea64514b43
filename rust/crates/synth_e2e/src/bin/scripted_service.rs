//! The service with the scripted proposer: prints its port, then serves until its standard input closes. With `--work` it
//! does not serve: it executes all queued requests, prints one JSON line for each, and exits.

use std::io::{self, Read, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use synth_e2e::service_process::scripted_proposers;
use synth_e2e::variations::VariationProposer;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_service::queue::{LeaseHolder, Queue};
use synth_optimizer_service::service::{Service, Settings, Workers};

const USAGE: &str = "\
scripted_service: the service with a proposer that needs no model
  --db FILE              the database
  --config-root DIR      where configurations are
  --workers N            runs at once (4)
  --lease-ms N           how long a worker that is not heard of keeps its request
  --write-timeout-ms N   how long a client may take nothing of an answer
  --variations yes       propose endless variations instead of the scripted improvements
  --work NAME            work off the queue under this name instead of serving it
";

/// The command line.
#[derive(Debug)]
struct Arguments {
    settings: Settings,
    work: Option<String>,
}

impl Arguments {
    fn parse(mut rest: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut settings = Settings { db: "service.sqlite".into(), bind: "127.0.0.1:0".into(), ..Settings::default() };
        settings.proposers = scripted_proposers();
        let mut work = None;
        while let Some(name) = rest.next() {
            let value = rest.next().ok_or_else(|| format!("{name} needs a value\n{USAGE}"))?;
            let number = || value.parse::<u64>().map_err(|_| format!("{name} needs a number, not {value:?}"));
            match name.as_str() {
                "--db" => settings.db = value.into(),
                "--config-root" => settings.config_root = value.into(),
                "--workers" => settings.workers = number()? as usize,
                "--lease-ms" => settings.lease = Duration::from_millis(number()?),
                "--write-timeout-ms" => settings.write_timeout = Duration::from_millis(number()?),
                "--variations" => {
                    settings.proposers = Some(|_| Some(Arc::new(VariationProposer::new(Duration::from_millis(50)))));
                }
                "--work" => work = Some(value),
                _ => return Err(format!("unknown flag {name}\n{USAGE}")),
            }
        }
        Ok(Self { settings, work })
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
    let ended = match arguments.work {
        Some(name) => work(Settings { worker_id: name, ..arguments.settings }),
        None => serve(arguments.settings),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "{error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(settings: Settings) -> Result<(), OptimizerError> {
    let service = Arc::new(Service::start(settings)?);
    let printed = writeln!(io::stdout(), "{}", service.address().port()).and_then(|()| io::stdout().flush());
    printed.map_err(|error| OptimizerError::new(ErrorCode::Io, format!("cannot print the port: {error}")))?;
    let stopping = Arc::clone(&service);
    std::thread::spawn(move || {
        let _ = io::copy(&mut io::stdin().take(u64::MAX), &mut io::sink());
        stopping.shut_down();
    });
    loop {
        if let Some(ended) = service.wait(Duration::from_secs(1)) {
            return ended;
        }
    }
}

fn work(settings: Settings) -> Result<(), OptimizerError> {
    let queue = Queue::open(settings.db.as_std_path())?;
    let worker = Arc::new(Workers::new(queue, settings, LeaseHolder::Worker));
    while let Some(job) = worker.start_next()? {
        let ended = loop {
            if let Some(ended) = job.wait(Duration::from_secs(1)) {
                break ended;
            }
        };
        let line = json!({"run_id": ended.entry.run_id, "status": ended.entry.status, "message": ended.message});
        let _ = writeln!(io::stdout(), "{line}");
    }
    Ok(())
}

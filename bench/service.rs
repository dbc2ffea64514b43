//! Benchmarks of the service: repeated kills, stream clients that never read, a long history, an idle service, and control
//! requests.
//!
//! Containers and service are separate processes. The program exits with an error if a limit is violated.

use std::collections::BTreeMap;
use std::error::Error;
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};
use serde_json::{Value, json};
use synth_e2e::cpu::{cpu_time_of, peak_memory_bytes};
use synth_e2e::run_files::COMPARED_FILES;
use synth_e2e::service_kill_test::ServiceKillTest;
use synth_e2e::service_process::{ServiceProcess, http_request};
use synth_e2e::stream_clients::{StreamClients, read_event_lines};
use synth_e2e::stub::FIELDS;
use synth_e2e::wait::wait_until;
use synth_e2e::{RowNames, RunFiles, ServerProcess, small_config, submission, write_config};
use synth_optimizer_core::config::sections::CacheMode;
use synth_optimizer_core::config::{ConfigContent, ConfigSource, ResolvedConfig, load};
use synth_optimizer_core::model::envelope::unix_millis_of;
use synth_optimizer_platform::clock::unix_millis;
use synth_optimizer_service::queue::{
    Claim, ClaimFilter, Completion, LeaseHolder, LeaseProof, Queue, workspace_status,
};
use tempfile::TempDir;

type BenchResult<T> = Result<T, Box<dyn Error>>;

/// Limit: time from the start of a service until it has recovered the requests of its predecessor.
const MAX_RECOVERY_TIME: Duration = Duration::from_secs(1);
/// Limit: latency of a status request while the service is working.
const MAX_STATUS_LATENCY: Duration = Duration::from_millis(200);
/// Limit: additional memory of a service with 1,000 stream clients.
const MAX_GROWTH_MEGABYTES: u64 = 200;
/// Limit: duration of a claim in a queue with a long history, relative to an empty queue.
const MAX_HISTORY_SLOWDOWN: f64 = 3.0;
const FINISHED_REQUESTS: usize = 100_000;
const CLAIM_COUNT: usize = 200;

/// Number of runs that wait for their container, and of open event streams.
const IDLE_RUNS: usize = 10;
const IDLE_STREAMS: usize = 100;
/// How long the CPU time of an idle service is measured, and how many times.
const IDLE_WINDOW: Duration = Duration::from_secs(20);
const IDLE_WINDOWS: usize = 3;
/// Limit: CPU time of an idle service, as a fraction of one core.
const MAX_IDLE_CPU: f64 = 0.0038;
/// Limit: time from the creation of an event, shortly before its commit, until a client receives it.
const MAX_EVENT_LATENCY: Duration = Duration::from_millis(20);

/// Limit: time from the acknowledgement of a control request until the run is in the wanted state.
const MAX_CONTROL_LATENCY: Duration = Duration::from_secs(1);
const CONTROLLED_RUNS: usize = 20;

/// Runs all benchmarks, or the one that the argument names: `idle`, `kills`, `readers`, `history` or `control`. `idle PROGRAM`
/// measures another build of the scripted service.
fn main() -> BenchResult<()> {
    let mut arguments = std::env::args().skip(1);
    let violations = match (arguments.next().as_deref(), arguments.next()) {
        (Some("idle"), other) => idle(other)?,
        (Some("kills"), None) => kills()?,
        (Some("readers"), None) => readers()?,
        (Some("history"), None) => history()?,
        (Some("control"), None) => control()?,
        (None, _) => [kills()?, readers()?, history()?, idle(None)?, control()?].concat(),
        (Some(other), _) => return Err(format!("there is no measurement {other:?}").into()),
    };
    if violations.is_empty() { Ok(()) } else { Err(violations.join("; ").into()) }
}

fn program(name: &str) -> BenchResult<String> {
    let beside: PathBuf = std::env::current_exe()?.parent().ok_or("no directory")?.join(name);
    Ok(Utf8PathBuf::try_from(beside)?.into_string())
}

fn print_line(text: &str) -> BenchResult<()> {
    Ok(writeln!(std::io::stdout(), "{text}")?)
}

/// Returns the quantile of the times.
fn quantile(times: &mut [Duration], part: f64) -> Duration {
    times.sort_unstable();
    let place = ((times.len() as f64 * part) as usize).min(times.len().saturating_sub(1));
    times.get(place).copied().unwrap_or_default()
}

/// Executes 1,000 runs on 16 workers while the service is killed every few seconds.
fn kills() -> BenchResult<Vec<String>> {
    let directory = TempDir::new()?;
    let (service, stub) = (program("scripted_service")?, program("stub_container")?);
    let test = ServiceKillTest {
        service: &service,
        stub: &stub,
        runs: 1000,
        workers: 16,
        containers: 24,
        kill_after: (Duration::from_secs(1), Duration::from_secs(4)),
        seed: 11,
        limit: Duration::from_secs(1800),
    };
    let mut report = test.run(Utf8Path::from_path(directory.path()).ok_or("not UTF-8")?)?;
    let slowest = report.recoveries.iter().max().copied().unwrap_or_default();
    let status_latencies = quantile(&mut report.status_latencies, 0.95);
    print_line(&format!(
        "kills: 1000 runs on 16 workers, {} kills in {:.1} s, {} rollouts, {} problems; recovery at most {:.0} ms; a look \
         at the service 95 % within {:.1} ms",
        report.kills,
        report.elapsed.as_secs_f64(),
        report.rollouts,
        report.problems.len(),
        slowest.as_secs_f64() * 1e3,
        status_latencies.as_secs_f64() * 1e3,
    ))?;
    let mut violations = report.problems;
    violations.truncate(5);
    if slowest > MAX_RECOVERY_TIME {
        violations.push(format!("a recovery took {slowest:?}"));
    }
    if status_latencies > MAX_STATUS_LATENCY {
        violations.push(format!("a look took {status_latencies:?}"));
    }
    Ok(violations)
}

/// Serves one run to 1,000 stream clients, of which 100 never read.
fn readers() -> BenchResult<Vec<String>> {
    let directory = TempDir::new()?;
    let place = Utf8Path::from_path(directory.path()).ok_or("not UTF-8")?;
    let stub =
        ServerProcess::stub(&program("stub_container")?, ["--latency-ms", "20", "--train", "60", "--heldout", "10"])?;
    let mut config = small_config(&stub.url(), RowNames::TaskIds, 60, 10, &FIELDS[..1]);
    config.gepa.max_generations = Some(30);
    config.cache.mode = CacheMode::Off;
    write_config(&place.join("gepa.toml"), &config)?;
    let flags = ["--workers", "2", "--write-timeout-ms", "2000"];
    let service = ServiceProcess::start(&program("scripted_service")?, place, &flags)?;
    let port = service.port();
    let submit = |run_id: &str| -> BenchResult<()> {
        let body = json!({
            "config_path": "gepa.toml", "overrides": [format!("run.run_id={run_id}")], "allow_unverified": true,
            "auto_start": false,
        });
        match http_request(port, "POST", "/runs", Some(&body), &[])? {
            (201, _) => Ok(()),
            (status, reply) => Err(format!("{status} {reply}").into()),
        }
    };
    let work = move || {
        let started = Instant::now();
        http_request(port, "POST", "/worker/run-next", Some(&json!({})), &[]).map(|_| started.elapsed())
    };
    submit("bench-alone")?;
    let alone = work()?;
    let before = peak_memory_bytes(service.pid())?;
    submit("bench-watched")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let clients = StreamClients { port, readers: 900, stalled: 100 };
    let mut working = None;
    let report = runtime.block_on(clients.run("bench-watched", || working = Some(std::thread::spawn(work))))?;
    let watched = working.ok_or("no client connected")?.join().map_err(|_| "the run broke")??;
    let grown = peak_memory_bytes(service.pid())?.saturating_sub(before) / (1024 * 1024);
    print_line(&format!(
        "readers: 900 read all {:?} events, 100 never read ({} of them dropped); the run took {:.2} s alone and {:.2} s \
         watched ({:.2}x); the service grew by {grown} MB",
        report.events,
        report.dropped,
        alone.as_secs_f64(),
        watched.as_secs_f64(),
        watched.as_secs_f64() / alone.as_secs_f64(),
    ))?;
    let mut violations = report.problems;
    let of = |run_id: &str, name: &str| RunFiles::new(&place.join("runs"), run_id).comparable(name);
    for name in COMPARED_FILES {
        if of("bench-alone", name)? != of("bench-watched", name)? {
            violations.push(format!("{name} of the run that was watched differs"));
        }
    }
    if report.events.is_none() {
        violations.push("not every reader saw every event".into());
    }
    if grown > MAX_GROWTH_MEGABYTES {
        violations.push(format!("the service grew by {grown} MB"));
    }
    Ok(violations)
}

/// Measures a service with waiting runs and idle streams, then the event latency of one active run.
fn idle(service: Option<String>) -> BenchResult<Vec<String>> {
    let directory = TempDir::new()?;
    let place = Utf8Path::from_path(directory.path()).ok_or("not UTF-8")?;
    let (service, stub) = (service.map_or_else(|| program("scripted_service"), Ok)?, program("stub_container")?);
    let workers = (IDLE_RUNS + 1).to_string();
    let service = ServiceProcess::start(&service, place, &["--workers", &workers])?;
    let port = service.port();
    let begin = |run_id: &str, latency: &str| -> BenchResult<ServerProcess> {
        let container = ServerProcess::stub(&stub, ["--latency-ms", latency, "--train", "60", "--heldout", "10"])?;
        let mut config = small_config(&container.url(), RowNames::TaskIds, 60, 10, &FIELDS[..1]);
        config.gepa.max_generations = Some(20);
        config.cache.mode = CacheMode::Off;
        config.container.rollout_timeout_seconds = 3600;
        write_config(&place.join(format!("{run_id}.toml")), &config)?;
        let overrides = [format!("run.run_id={run_id}")];
        let body = json!({"config_path": format!("{run_id}.toml"), "overrides": overrides, "allow_unverified": true});
        match http_request(port, "POST", "/runs", Some(&body), &[])? {
            (201, _) => Ok(container),
            (status, reply) => Err(format!("{status} {reply}").into()),
        }
    };
    let names: Vec<String> = (0..IDLE_RUNS).map(|n| format!("idle-{n}")).collect();
    let _containers = names.iter().map(|run_id| begin(run_id, "3600000")).collect::<BenchResult<Vec<_>>>()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (used, mut latencies) = runtime.block_on(async {
        let open = std::sync::Arc::new(tokio::sync::Semaphore::new(0));
        for n in 0..IDLE_STREAMS {
            let (run_id, open) = (names[n % IDLE_RUNS].clone(), std::sync::Arc::clone(&open));
            tokio::spawn(async move { read_event_lines(port, &run_id, || open.add_permits(1), |_| {}).await });
        }
        drop(open.acquire_many(u32::try_from(IDLE_STREAMS)?).await?);
        tokio::time::sleep(IDLE_WINDOW / 4).await;
        let mut used = Vec::new();
        for _ in 0..IDLE_WINDOWS {
            let before = cpu_time_of(service.pid())?;
            tokio::time::sleep(IDLE_WINDOW).await;
            used.push((cpu_time_of(service.pid())? - before).as_secs_f64() / IDLE_WINDOW.as_secs_f64());
        }
        let _container = begin("live", "20")?;
        let mut latencies = Vec::new();
        read_event_lines(
            port,
            "live",
            || {},
            |line| {
                let now = unix_millis();
                let event = line.strip_prefix(b"data: ").and_then(|json| serde_json::from_slice::<Value>(json).ok());
                let made = event.as_ref().and_then(|event| unix_millis_of(event["ts"].as_str()?));
                latencies.extend(made.map(|made| Duration::from_millis(now.saturating_sub(made))));
            },
        )
        .await?;
        Ok::<_, Box<dyn Error>>((used, latencies))
    })?;
    let of = |pick: fn(f64, f64) -> f64| used.iter().copied().reduce(pick).unwrap_or_default();
    let mean = used.iter().sum::<f64>() / used.len() as f64;
    let (median, most) = (quantile(&mut latencies, 0.5), quantile(&mut latencies, 0.95));
    print_line(&format!(
        "idle: {IDLE_RUNS} runs and {IDLE_STREAMS} streams take {:.3} % of a core ({:.3} to {:.3}); {} events reach a client \
         50 % within {} ms and 95 % within {} ms",
        mean * 100.0,
        of(f64::min) * 100.0,
        of(f64::max) * 100.0,
        latencies.len(),
        median.as_millis(),
        most.as_millis(),
    ))?;
    let mut violations = Vec::new();
    if mean > MAX_IDLE_CPU {
        violations.push(format!("an idle service takes {:.3} % of a core", mean * 100.0));
    }
    if most > MAX_EVENT_LATENCY {
        violations.push(format!("an event takes {most:?}"));
    }
    Ok(violations)
}

/// Pauses, resumes and cancels runs in the middle of a batch, with a container that does not answer.
fn control() -> BenchResult<Vec<String>> {
    let directory = TempDir::new()?;
    let place = Utf8Path::from_path(directory.path()).ok_or("not UTF-8")?;
    let (service, stub) = (program("scripted_service")?, program("stub_container")?);
    let service = ServiceProcess::start(&service, place, &["--workers", "1"])?;
    let container = ServerProcess::stub(&stub, ["--hang", "--train", "60", "--heldout", "10"])?;
    let mut config = small_config(&container.url(), RowNames::TaskIds, 60, 10, &FIELDS[..1]);
    config.cache.mode = CacheMode::Off;
    config.container.rollout_timeout_seconds = 3600;
    write_config(&place.join("gepa.toml"), &config)?;
    let post =
        |path: &str, body: Value, expected: u16| match http_request(service.port(), "POST", path, Some(&body), &[])? {
            (status, _) if status == expected => Ok(()),
            (status, reply) => Err(Box::<dyn Error>::from(format!("{path}: {status} {reply}"))),
        };
    let request = |run_id: &str| service.get(&format!("/runs/{run_id}")).map(|(_, body)| body).unwrap_or_default();
    let is_under_way = |run_id: &str| request(run_id)["run"]["rollouts_requested"].as_u64().is_some_and(|n| n > 0);
    let mut times: BTreeMap<&str, Vec<Duration>> = BTreeMap::new();
    for n in 0..CONTROLLED_RUNS {
        let run_id = format!("controlled-{n}");
        let overrides = [format!("run.run_id={run_id}")];
        let body = json!({"config_path": "gepa.toml", "overrides": overrides, "allow_unverified": true});
        post("/runs", body, 201)?;
        for (action, status) in [("pause", "paused"), ("resume", "running"), ("cancel", "cancelled")] {
            if action != "resume" {
                wait_until("a batch is under way", || is_under_way(&run_id));
            }
            post(&format!("/runs/{run_id}/{action}"), json!({}), 202)?;
            let started = Instant::now();
            wait_until(status, || request(&run_id)["request"]["status"] == status);
            times.entry(action).or_default().push(started.elapsed());
        }
    }
    let mut violations = Vec::new();
    for (action, mut times) in times {
        let (median, most) = (quantile(&mut times, 0.5), quantile(&mut times, 0.95));
        print_line(&format!(
            "control: {action} in the middle of a batch takes {} ms (median of {CONTROLLED_RUNS}), 95 % within {} ms",
            median.as_millis(),
            most.as_millis(),
        ))?;
        if most > MAX_CONTROL_LATENCY {
            violations.push(format!("{action} takes {most:?}"));
        }
    }
    Ok(violations)
}

/// Measures claims in an empty queue and in a queue with a long history.
fn history() -> BenchResult<Vec<String>> {
    let directory = TempDir::new()?;
    let queue = Queue::open(&directory.path().join("service.sqlite"))?;
    let started = Instant::now();
    for n in 0..CLAIM_COUNT {
        submit(&queue, &format!("first-{n}"))?;
    }
    let submits = CLAIM_COUNT as f64 / started.elapsed().as_secs_f64();
    let mut empty = claims(&queue)?;
    insert_finished_requests(&directory.path().join("service.sqlite"))?;
    for n in 0..CLAIM_COUNT {
        submit(&queue, &format!("second-{n}"))?;
    }
    let mut long = claims(&queue)?;
    let (empty, long) = (quantile(&mut empty, 0.95), quantile(&mut long, 0.95));
    let started = Instant::now();
    let page = queue.list(&[], 50, None)?;
    let listed = started.elapsed();
    let started = Instant::now();
    workspace_status(&queue.path)?;
    let status = started.elapsed();
    let ratio = long.as_secs_f64() / empty.as_secs_f64();
    print_line(&format!(
        "history: {submits:.0} durable submits/s; a claim 95 % within {:.2} ms, with {FINISHED_REQUESTS} finished requests {:.2} ms \
         ({ratio:.2}x); a page of {} in {:.1} ms; the whole status in {:.0} ms",
        empty.as_secs_f64() * 1e3,
        long.as_secs_f64() * 1e3,
        page.items.len(),
        listed.as_secs_f64() * 1e3,
        status.as_secs_f64() * 1e3,
    ))?;
    Ok((ratio > MAX_HISTORY_SLOWDOWN).then(|| format!("a claim became {ratio:.2}x as slow")).into_iter().collect())
}

fn config(run_id: &str) -> BenchResult<ResolvedConfig> {
    let value = json!({
        "run": {"output_dir": "/nowhere/runs", "run_id": run_id},
        "container": {"url": format!("http://{run_id}.test")},
        "dataset": {"train_seeds": [0, 1, 2], "heldout_seeds": [10, 11]},
        "candidate": {"target_modules": ["instruction"]},
        "policy": {"provider": "openai", "model": "m"},
        "proposer": {"model": "m"},
    });
    let source =
        ConfigSource { name: "bench", content: ConfigContent::Mapping(value), base_dir: Utf8Path::new("/nowhere") };
    Ok(load(source, &BTreeMap::new(), &[])?)
}

fn submit(queue: &Queue, run_id: &str) -> BenchResult<()> {
    let config = config(run_id)?;
    queue.submit(&submission(&config))?;
    Ok(())
}

/// Claims and completes all requests. Returns the duration of each claim.
fn claims(queue: &Queue) -> BenchResult<Vec<Duration>> {
    let mut times = Vec::new();
    loop {
        let started = Instant::now();
        let claim = Claim {
            lease_id: "lease",
            worker_id: Some("bench"),
            lease: Duration::from_secs(60),
            holder: LeaseHolder::Caller,
            filter: ClaimFilter::Background,
        };
        let Some(entry) = queue.claim(&claim)? else { return Ok(times) };
        times.push(started.elapsed());
        let lease_proof = LeaseProof::Token(entry.fencing_token);
        queue.start(&entry.request_id, lease_proof)?;
        queue.complete(&entry.request_id, lease_proof, &Completion::default())?;
    }
}

/// Inserts copies of a completed request with its history.
fn insert_finished_requests(path: &std::path::Path) -> BenchResult<()> {
    let db = rusqlite::Connection::open(path)?;
    let columns: Vec<String> = db
        .prepare(
            "SELECT name FROM pragma_table_info('run_requests') WHERE name NOT IN ('seq', 'request_id', 'run_id')",
        )?
        .query_map([], |row| row.get(0))?
        .collect::<Result<_, _>>()?;
    let columns = columns.join(", ");
    let numbers =
        format!("WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {FINISHED_REQUESTS})");
    db.execute_batch(&format!(
        "BEGIN;
         INSERT INTO run_requests (request_id, run_id, {columns})
           {numbers} SELECT 'old-' || i, 'old-' || i, {columns} FROM n, (SELECT * FROM run_requests WHERE seq = 1);
         INSERT INTO request_history (request_seq, at, from_state, to_state, \"trigger\", worker_id, fencing_token, detail_json)
           SELECT r.seq, h.at, h.from_state, h.to_state, h.\"trigger\", h.worker_id, h.fencing_token, h.detail_json
           FROM run_requests AS r, (SELECT * FROM request_history WHERE request_seq = 1) AS h WHERE r.run_id LIKE 'old-%';
         COMMIT;"
    ))?;
    Ok(())
}

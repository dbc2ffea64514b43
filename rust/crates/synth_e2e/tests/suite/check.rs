//! Preflight checks: they report every problem at once, send no rollout, and leave no files or processes.

use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};

use crate::harness::{TestDir, stub};
use camino::{Utf8Path, Utf8PathBuf};
use synth_e2e::model_server::write_rules;
use synth_e2e::stub::FIELDS;
use synth_e2e::{ModelServer, RowNames, ScriptedProposer, ServerProcess, read_bill, small_config};
use synth_gepa::{GepaEngine, shortfalls};
use synth_optimizer_core::config::Config;
use synth_optimizer_core::config::gepa::SubmissionMode;
use synth_optimizer_core::config::proposer::ProposerBackend;
use synth_optimizer_core::config::sections::CacheMode;
use synth_optimizer_core::model::control::ControlRequest;
use synth_optimizer_platform::artifacts::RunDir;
use synth_optimizer_platform::container::{Client, ManagedProcess, start};
use synth_optimizer_platform::proposer::Proposer;
use synth_optimizer_platform::runtime::{CheckReport, Finding, HookPoint, Hooks, RunControl, RunSpec, check, execute};

const RUN: &str = "checked";

/// Starts a stub container. Returns it with a test directory and a config for both.
fn world(flags: &[&str]) -> (ServerProcess, TestDir, Config) {
    let test_dir = TestDir::new();
    let bill = test_dir.path().join("bill");
    let stub = stub(&[flags, &["--train", "12", "--heldout", "6", "--bill", bill.as_str()]].concat());
    let config = config(&test_dir, &stub.url());
    (stub, test_dir, config)
}

fn config(test_dir: &TestDir, url: &str) -> Config {
    let mut config = small_config(url, RowNames::TaskIds, 12, 6, &FIELDS[..1]);
    config.run.output_dir = test_dir.path().join("runs");
    config.run.run_id = Some(RUN.into());
    config.container.connect_retries = 0;
    config
}

fn run_spec(config: &Config, proposer: Option<Arc<dyn Proposer>>, hooks: Hooks) -> RunSpec {
    RunSpec { proposer, hooks, ..RunSpec::new(config.clone()) }
}

fn scripted() -> Option<Arc<dyn Proposer>> {
    Some(Arc::new(ScriptedProposer::default()))
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// Asserts that a check is `Send`: a service runs checks on any of its threads.
fn sendable<T: Send>(future: T) -> T {
    future
}

fn checked_with(config: &Config, proposer: Option<Arc<dyn Proposer>>) -> CheckReport {
    let before = files(&config.run.output_dir);
    let (run_spec, limits) = (run_spec(config, proposer, Hooks::default()), shortfalls(config));
    let report = block_on(sendable(check::<GepaEngine>(&run_spec, &[], &limits)));
    assert_eq!(files(&config.run.output_dir), before, "the check changed the output directory");
    assert_eq!(report.ok, report.blockers.is_empty());
    report
}

fn checked(config: &Config) -> CheckReport {
    checked_with(config, scripted())
}

/// Returns every file and directory below a directory, with its size.
fn files(root: &Utf8Path) -> Vec<(Utf8PathBuf, u64)> {
    let mut found = Vec::new();
    let mut open = vec![root.to_owned()];
    while let Some(path) = open.pop() {
        let Ok(known) = path.metadata() else { continue };
        found.push((path.clone(), if known.is_dir() { 0 } else { known.len() }));
        open.extend(path.read_dir_utf8().into_iter().flatten().map(|entry| entry.unwrap().into_path()));
    }
    found.sort();
    found
}

/// Returns stage, code and field of each finding.
fn summarize(findings: &[Finding]) -> Vec<(&str, &str, Option<&str>)> {
    findings.iter().map(|found| (found.stage.as_str(), found.code.as_str(), found.field.as_deref())).collect()
}

fn run(config: &Config, hooks: Hooks, receiver: synth_optimizer_platform::runtime::ControlReceiver) -> &'static str {
    block_on(execute::<GepaEngine>(run_spec(config, scripted(), hooks), receiver)).unwrap().end.as_str()
}

#[test]
fn a_valid_config_passes_and_reports_facts() {
    let (_stub, test_dir, config) = world(&[]);
    let report = checked(&config);
    assert_eq!(summarize(&report.blockers), []);
    assert_eq!(summarize(&report.warnings), []);
    let container = report.facts.container.as_ref().unwrap();
    assert_eq!(container.url, config.container.url);
    assert_eq!(container.dialects, ["taskset"]);
    assert_eq!(container.fields, FIELDS[..1]);
    assert!(container.contract_version.starts_with("synth_optimizers.gepa."));
    let rows = report.facts.rows.unwrap();
    assert_eq!((rows.train, rows.heldout, rows.pareto_pool, rows.heldout_pool), (12, 6, 12, 6));
    assert!(!config.run.output_dir.exists(), "the check left the output directory");
    assert!(read_bill(&test_dir.path().join("bill")).unwrap().is_empty(), "the check ran a rollout");
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["ok"], true);
    assert!(json["plan"].is_null());
    assert_eq!(json["facts"]["container"]["program_id"], container.program_id.clone().unwrap());
}

#[test]
fn problems_of_all_stages_are_reported_together() {
    let test_dir = TestDir::new();
    let port = free_port();
    let mut config = config(&test_dir, &format!("http://127.0.0.1:{port}"));
    std::fs::write(test_dir.path().join("file"), "").unwrap();
    config.run.output_dir = test_dir.path().join("file/runs");
    config.proposer.backend = ProposerBackend::OpenaiCompatible;
    config.proposer.base_url = Some("http://127.0.0.1:9/v1".into());
    config.proposer.model = Some("model".into());
    config.proposer.api_key_env = Some("NO_SUCH_KEY_IN_THIS_TEST".into());
    let report = checked_with(&config, None);
    assert_eq!(
        summarize(&report.blockers),
        [
            ("output", "synth_optimizer_io_error", Some("run.output_dir")),
            ("container", "synth_optimizer_container_error", Some("container.url")),
            ("proposer", "synth_optimizer_proposer_error", Some("proposer.api_key_env")),
            ("proposer", "synth_optimizer_proposer_error", Some("proposer.base_url")),
        ]
    );
    assert_eq!(report.blockers.iter().map(|found| found.retryable).collect::<Vec<_>>(), [false, true, false, false]);
    assert!(report.blockers[2].message.contains("NO_SUCH_KEY_IN_THIS_TEST"));
    assert!(report.blockers[3].message.contains("127.0.0.1:9 cannot be reached"), "{}", report.blockers[3].message);
    assert!(report.facts.container.is_none() && report.facts.proposer.is_none());
}

#[test]
fn a_readonly_cache_must_exist_and_contain_the_task() {
    let (_stub, test_dir, mut config) = world(&[]);
    config.cache.path = Some(test_dir.path().join("cache.sqlite"));
    config.cache.namespace = Some("shared".into());
    config.cache.mode = CacheMode::Readonly;
    let miss = ("cache", "synth_optimizer_cache_miss", Some("cache.path"));
    assert_eq!(summarize(&checked(&config).blockers), [miss]);
    config.cache.mode = CacheMode::Readwrite;
    assert!(checked(&config).ok);
    assert!(!test_dir.path().join("cache.sqlite").exists(), "the check created a cache");
    assert_eq!(run(&config, Hooks::default(), RunControl::new(10).1), "completed");
    config.cache.mode = CacheMode::Readonly;
    config.run.run_id = Some("replayed".into());
    let replayed = checked(&config);
    assert!(replayed.ok, "{replayed:?}");
    assert_eq!(replayed.facts.rows.unwrap().train, 12);
    config.cache.namespace = Some("another".into());
    assert_eq!(summarize(&checked(&config).blockers), [miss]);
    config.cache.mode = CacheMode::Readwrite;
    std::fs::write(test_dir.path().join("cache.sqlite"), vec![7; 5000]).unwrap();
    assert_eq!(summarize(&checked(&config).blockers), [("cache", "synth_optimizer_cache_corrupt", Some("cache.path"))]);
}

#[test]
fn a_locked_run_cannot_start() {
    let (_stub, _place, config) = world(&[]);
    let held = RunDir::open(&config.run.output_dir, RUN).unwrap();
    let report = checked(&config);
    assert_eq!(summarize(&report.blockers), [("output", "synth_optimizer_io_error", Some("run.run_id"))]);
    assert!(report.blockers[0].retryable && report.blockers[0].message.contains("in use by pid"));
    drop(held);
    assert!(checked(&config).ok);
    drop(RunDir::open(&config.run.output_dir, RUN).unwrap());
}

#[test]
fn only_an_unfinished_run_with_the_same_config_is_resumed() {
    let (_stub, _place, mut config) = world(&["--latency-ms", "5"]);
    config.cache.mode = CacheMode::Off;
    let (control, receiver) = RunControl::new(1000);
    let control = Mutex::new(Some(control));
    let hooks = Hooks::new(move |hook_point| {
        if hook_point == HookPoint::AfterFeed
            && let Some(control) = control.lock().unwrap().take()
        {
            assert!(control.send(ControlRequest::interrupt("enough")));
        }
    });
    assert_eq!(run(&config, hooks, receiver), "interrupted");
    let begun = checked(&config);
    assert!(begun.ok, "{begun:?}");
    assert_eq!(summarize(&begun.warnings), [("output", "run_is_resumed", Some("run.run_id"))]);
    let mut other = config.clone();
    other.gepa.minibatch_size = Some(5);
    let refused = checked(&other);
    assert_eq!(summarize(&refused.blockers), [("output", "synth_optimizer_config_error", Some("run.run_id"))]);
    assert!(refused.blockers[0].message.contains("gepa.minibatch_size: 3 -> 5"), "{}", refused.blockers[0].message);
    assert_eq!(run(&config, Hooks::default(), RunControl::new(10).1), "completed");
    let over = checked(&config);
    assert!(over.ok, "{over:?}");
    assert_eq!(summarize(&over.warnings), [("output", "run_already_ended", Some("run.run_id"))]);
}

#[test]
fn missing_rows_and_fields_are_reported_together() {
    let (_stub, _place, mut config) = world(&[]);
    config.candidate.target_modules = vec![FIELDS[0].into(), "no_such_field".into(), "nor_this".into()];
    let rows = config.taskset.as_mut().unwrap();
    rows.heldout_ids = rows.heldout_ids.known().iter().cloned().chain(["test:77".to_owned()]).collect();
    let report = checked(&config);
    assert_eq!(
        summarize(&report.blockers),
        [
            ("task", "synth_optimizer_container_error", Some("candidate.target_modules[1]")),
            ("task", "synth_optimizer_container_error", Some("candidate.target_modules[2]")),
            ("task", "synth_optimizer_container_error", Some("taskset.heldout_ids")),
        ]
    );
    let rows = &report.blockers[2].message;
    assert!(rows.ends_with("the container does not return task \"test:77\""), "{rows}");
    assert!(report.facts.container.is_some() && report.facts.rows.is_none());
}

#[test]
fn limits_that_are_too_small_are_reported() {
    let (_stub, _place, mut config) = world(&["--modes", "blocking"]);
    config.gepa.max_cost_usd = 0.1;
    config.gepa.rollout_estimated_cost_usd = Some(0.01);
    config.gepa.proposer_estimated_cost_usd = Some(0.01);
    assert_eq!(summarize(&checked(&config).blockers), [("budget", "budget_too_small", Some("gepa.max_cost_usd"))]);
    config.gepa.max_cost_usd = 0.0;
    config.gepa.max_total_rollouts = 23;
    config.gepa.rollout_submission_mode = SubmissionMode::Async;
    let report = checked(&config);
    assert!(report.ok, "{report:?}");
    assert_eq!(
        summarize(&report.warnings),
        [
            ("container", "transport_fallback", Some("gepa.rollout_submission_mode")),
            ("budget", "heldout_partial", Some("gepa.max_total_rollouts")),
        ]
    );
}

#[test]
fn a_check_starts_and_stops_a_managed_container() {
    let test_dir = TestDir::new();
    let port = free_port();
    let mut config = config(&test_dir, &format!("http://127.0.0.1:{port}"));
    let stub = env!("CARGO_BIN_EXE_stub_container");
    config.container.command =
        [stub, "--port", &port.to_string(), "--train", "12", "--heldout", "6"].map(str::to_owned).to_vec();
    let report = checked(&config);
    assert!(report.ok, "{report:?}");
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err(), "the container still listens");
    // A container that a crashed run left is only a warning, because the run would end it.
    let run_dir = test_dir.path().join("runs").join(RUN);
    let left = leave_container(&config, &run_dir);
    std::fs::write(run_dir.join("run.lock"), "pid 1").unwrap();
    let report = checked(&config);
    assert!(report.ok, "{report:?}");
    assert_eq!(summarize(&report.warnings), [("container", "container_left_behind", Some("container.command"))]);
    assert_eq!(report.facts.rows.unwrap().train, 12);
    block_on(left.stop()).unwrap();
    config.container.command = vec!["sh".into(), "-c".into(), "echo no such model; exit 3".into()];
    let report = checked(&config);
    assert_eq!(
        summarize(&report.blockers),
        [("container", "synth_optimizer_container_error", Some("container.command"))]
    );
    assert!(report.blockers[0].message.contains("no such model"), "{}", report.blockers[0].message);
    assert!(!report.blockers[0].hint.contains(".log"), "the hint names a log that was removed");
}

#[test]
fn the_proposer_is_prepared_without_a_turn() {
    let (_stub, _place, mut config) = world(&[]);
    let codex = std::env::var("SYNTH_E2E_CODEX").expect("SYNTH_E2E_CODEX must name the codex binary");
    let server = ModelServer::start(write_rules).unwrap();
    config.proposer.command = vec![codex];
    config.proposer.base_url = Some(server.base_url());
    config.proposer.provider = "loopback".into();
    config.proposer.model = Some("stub-model".into());
    let report = checked_with(&config, None);
    assert!(report.ok, "{report:?}");
    let ready = report.facts.proposer.unwrap();
    assert_eq!((ready.backend.as_str(), ready.model.as_str()), ("codex_app_server", "stub-model"));
    assert!(!ready.version.is_empty());
    assert!(server.requests().is_empty(), "the check paid for a turn");
    config.proposer.command = vec!["/no/such/codex".into()];
    let report = checked_with(&config, None);
    let missing = ("proposer", "synth_optimizer_proposer_error", Some("proposer.command"));
    assert_eq!(summarize(&report.blockers), [missing]);
    // All problems are reported together: the key, the endpoint and the program.
    config.proposer.api_key_env = Some("NO_SUCH_KEY_IN_THIS_TEST".into());
    config.proposer.base_url = Some("http://127.0.0.1:9/v1".into());
    let report = checked_with(&config, None);
    let problem = |field| ("proposer", "synth_optimizer_proposer_error", Some(field));
    let expected = [problem("proposer.api_key_env"), problem("proposer.base_url"), missing];
    assert_eq!(summarize(&report.blockers), expected);
}

/// Starts the container of a run that no process executes.
fn leave_container(config: &Config, run_dir: &Utf8Path) -> ManagedProcess {
    std::fs::create_dir_all(run_dir).unwrap();
    let client = Client::new(&config.container).unwrap();
    block_on(start(config, run_dir, &client)).unwrap().unwrap()
}

fn free_port() -> u16 {
    // Below the ephemeral ports, so that no other test gets it by chance.
    static NEXT: AtomicU16 = AtomicU16::new(20_000);
    let apart = (std::process::id() % 10_000) as u16;
    loop {
        let port = NEXT.fetch_add(1, Ordering::Relaxed) + apart;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

#[test]
fn a_check_shows_the_rows_that_only_the_container_knows() {
    let (_stub, _test_dir, mut config) = world(&[]);
    (config.taskset, config.gepa.minibatch_size) = (None, None);
    let report = checked(&config);
    assert!(report.ok, "{report:#?}");
    let rows = report.facts.rows.unwrap();
    assert_eq!((rows.train, rows.heldout), (12, 6));
    let resolved = report.resolved.unwrap();
    let plan = synth_gepa::plan(&resolved);
    assert_eq!((plan.train_rows, plan.heldout_rows), (Some(12), Some(6)));
    // A dry run does not ask the container.
    let plan = synth_gepa::plan(&config);
    assert_eq!((plan.train_rows, plan.heldout_rows), (None, None));
    assert!(plan.notes[0].contains("known only to the container"), "{:?}", plan.notes);
}

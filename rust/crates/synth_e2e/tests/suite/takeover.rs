//! Takeover: a process is stopped until its lease has expired, and another process supersedes it. The successor completes
//! the run, and the superseded process writes and sends nothing, also after it continues.

use std::collections::BTreeSet;
use std::process::Stdio;
use std::sync::Arc;

use crate::harness::run_thread::start_spec;
use crate::harness::stopped_process::{StoppableProcess, digests};
use crate::harness::{TestDir, assert_consistent, count, stub};
use synth_e2e::run_files::COMPARED_FILES;
use synth_e2e::stub::FIELDS;
use synth_e2e::wait::{FOREVER, wait_until};
use synth_e2e::{RowNames, ScriptedProposer, ServerProcess, read_bill, small_config, write_config};
use synth_optimizer_core::config::Config;
use synth_optimizer_core::config::sections::CacheMode;
use synth_optimizer_core::model::error::ErrorCode;
use synth_optimizer_platform::clock::boot_millis;
use synth_optimizer_platform::runtime::{HookPoint, Hooks, RunLease, RunSpec};
use synth_optimizer_platform::workspace::is_ownership_lost;

fn world(latency: &str) -> (ServerProcess, TestDir, Config) {
    let test_dir = TestDir::new();
    let bill = test_dir.path().join("bill");
    let stub = stub(&["--memory", "remember", "--latency-ms", latency, "--bill", bill.as_str()]);
    let mut config = small_config(&stub.url(), RowNames::TaskIds, 6, 3, &FIELDS[..1]);
    config.cache.mode = CacheMode::Off;
    write_config(&test_dir.config(), &config).unwrap();
    (stub, test_dir, config)
}

fn bill(test_dir: &TestDir) -> Vec<String> {
    read_bill(&test_dir.path().join("bill")).unwrap().into_iter().map(|line| line.rollout_id).collect()
}

/// Starts a run and stops its process once it has sent this many rollouts, in the middle of a batch.
fn stop_in_a_batch(test_dir: &TestDir, run_id: &str, sent: usize) -> StoppableProcess {
    let before = bill(test_dir).len();
    let mut command = test_dir.command(run_id, &["--workers", "4"]);
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let stopped = StoppableProcess(child);
    wait_until("rollouts are in flight", || bill(test_dir).len() >= before + sent);
    stopped.stop();
    stopped
}

#[test]
fn a_superseded_process_writes_nothing_after_it_continues() {
    let (_stub, test_dir, _config) = world("250");
    test_dir.finish("e2e-clean", &["--workers", "4"]);
    let settled = bill(&test_dir).len();

    let stopped = stop_in_a_batch(&test_dir, "e2e-asleep", 3);
    let holder = format!("pid {}", stopped.0.id());
    // A takeover must name the process that it supersedes.
    for other in [&[][..], &["--takeover", "pid 1"], &["--takeover", &holder[..holder.len() - 1]]] {
        let refused = test_dir.run("e2e-asleep", other);
        assert!(!refused.status.success() && refused.stdout.contains(&holder), "{}", refused.stdout);
    }
    let files = test_dir.finish("e2e-asleep", &["--workers", "4", "--takeover", &holder]);
    assert_eq!((count(&files, "run.resumed"), count(&files, "gepa.run.finished")), (1, 1));
    let clean = test_dir.files("e2e-clean");
    for name in COMPARED_FILES {
        assert_eq!(files.comparable(name).unwrap(), clean.comparable(name).unwrap(), "{name}");
    }
    let ours = bill(&test_dir).split_off(settled);
    assert_eq!(ours.len(), ours.iter().collect::<BTreeSet<_>>().len(), "a rollout was run twice");

    let before = digests(&test_dir.path().join("runs"));
    let (output, code) = stopped.continue_to_end();
    assert_eq!(output["error"], ErrorCode::StateTransition.as_str(), "{output}");
    assert!(
        output["message"].as_str().unwrap().starts_with("fenced: another process has taken over the run"),
        "{output}"
    );
    assert_ne!(code, Some(0));
    assert_eq!(digests(&test_dir.path().join("runs")), before);
    assert_eq!(bill(&test_dir).len(), settled + ours.len(), "the superseded process called the container");
    assert_consistent(&files);
}

#[test]
fn a_process_that_continues_beside_its_successor_ends_immediately() {
    let (_stub, test_dir, _config) = world("250");
    test_dir.finish("e2e-clean", &["--workers", "4"]);
    let settled = bill(&test_dir).len();
    let stopped = stop_in_a_batch(&test_dir, "e2e-asleep", 3);
    let holder = format!("pid {}", stopped.0.id());
    let mut command = test_dir.command("e2e-asleep", &["--workers", "4", "--takeover", &holder]);
    let mut next = StoppableProcess(command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap());
    let files = test_dir.files("e2e-asleep");
    wait_until("the successor works", || files.events().is_ok_and(|_| count(&files, "run.resumed") == 1));
    let (output, _) = stopped.continue_to_end();
    assert!(output["message"].as_str().unwrap().starts_with("fenced: "), "{output}");
    wait_until("the successor has ended", || next.0.try_wait().unwrap().is_some());
    assert!(next.0.wait().unwrap().success());
    for name in COMPARED_FILES {
        let clean = test_dir.files("e2e-clean").comparable(name).unwrap();
        assert_eq!(files.comparable(name).unwrap(), clean, "{name}");
    }
    let ours = bill(&test_dir).split_off(settled);
    assert_eq!(ours.len(), ours.iter().collect::<BTreeSet<_>>().len(), "a rollout was run twice");
    assert_consistent(&files);
}

/// Executes a run in this process, with a lease that is revoked at the given hook point.
fn run_under(config: &Config, lease: RunLease, ends_at: u32) -> synth_optimizer_core::model::error::OptimizerError {
    let (own, met) = (lease.clone(), std::sync::atomic::AtomicU32::new(0));
    let hooks = Hooks::new(move |hook_point| {
        if hook_point == HookPoint::AfterFeed && met.fetch_add(1, std::sync::atomic::Ordering::SeqCst) + 1 == ends_at {
            own.revoke();
        }
    });
    let mut spec = RunSpec::new(config.clone());
    (spec.hooks, spec.lease) = (hooks, Some(lease));
    spec.proposer = Some(Arc::new(ScriptedProposer::default()));
    start_spec(spec).end().unwrap_err()
}

#[test]
fn a_run_sends_nothing_after_its_lease_expires_and_resumes_under_another() {
    let (_stub, test_dir, mut config) = world("0");
    config.run.output_dir = test_dir.path().join("runs");
    config.run.run_id = Some("e2e-leased".into());
    test_dir.finish("e2e-clean", &[]);
    let settled = bill(&test_dir).len();
    for ends_at in 1..=4 {
        let error = run_under(&config, RunLease::until(u64::MAX), ends_at);
        assert!(is_ownership_lost(&error), "{error}");
        let (sent, files) = (bill(&test_dir).len(), digests(&test_dir.files("e2e-leased").directory));
        // While another run completes on the same container, this one sends nothing more.
        let beside = test_dir.finish(&format!("e2e-beside-{ends_at}"), &[]);
        let later: BTreeSet<String> = bill(&test_dir).split_off(sent).into_iter().collect();
        assert_eq!(later, beside.ledger().unwrap().live);
        assert_eq!(digests(&test_dir.files("e2e-leased").directory), files);
        assert!(!test_dir.files("e2e-leased").path("result_manifest.json").exists());
    }
    let over = RunLease::until(0);
    assert!(is_ownership_lost(&run_under(&config, over, 0)));
    let files = test_dir.finish("e2e-leased", &[]);
    for name in COMPARED_FILES {
        let clean = test_dir.files("e2e-clean").comparable(name).unwrap();
        assert_eq!(files.comparable(name).unwrap(), clean, "{name}");
    }
    let live = files.ledger().unwrap().live;
    let ours: Vec<String> = bill(&test_dir).split_off(settled).into_iter().filter(|id| live.contains(id)).collect();
    assert_eq!(ours.len(), ours.iter().collect::<BTreeSet<_>>().len(), "a rollout was run twice");
    assert_consistent(&files);
}

#[test]
fn an_expired_lease_ends_a_long_batch() {
    let (_stub, test_dir, mut config) = world(&FOREVER.as_millis().to_string());
    config.run.output_dir = test_dir.path().join("runs");
    config.run.run_id = Some("e2e-leased".into());
    let error = run_under(&config, RunLease::until(boot_millis() + 700), 0);
    assert!(is_ownership_lost(&error) && error.message.contains("has expired"), "{error}");
    assert_eq!(count(&test_dir.files("e2e-leased"), "rollout.finished"), 0, "the container had answered");
}

//! Runs whose process is stopped past its lease and superseded: the successor ends the run as if nothing had happened,
//! and nothing of the other appears anywhere, also when it wakes up again.

use std::collections::BTreeSet;
use std::process::Stdio;
use std::sync::Arc;

use crate::harness::sleeper::{Sleeper, digests};
use crate::harness::steered::begin;
use crate::harness::{Place, assert_sound, count, stub};
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

fn world(latency: &str) -> (ServerProcess, Place, Config) {
    let place = Place::new();
    let bill = place.path().join("bill");
    let stub = stub(&["--memory", "remember", "--latency-ms", latency, "--bill", bill.as_str()]);
    let mut config = small_config(&stub.url(), RowNames::TaskIds, 6, 3, &FIELDS[..1]);
    config.cache.mode = CacheMode::Off;
    write_config(&place.config(), &config).unwrap();
    (stub, place, config)
}

fn bill(place: &Place) -> Vec<String> {
    read_bill(&place.path().join("bill")).unwrap().into_iter().map(|line| line.rollout_id).collect()
}

/// Starts a run and stops its process when it has sent so many rollouts that some of a batch are under way.
fn asleep_in_a_batch(place: &Place, run_id: &str, sent: usize) -> Sleeper {
    let before = bill(place).len();
    let mut command = place.command(run_id, &["--workers", "4"]);
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let sleeper = Sleeper(child);
    wait_until("rollouts are under way", || bill(place).len() >= before + sent);
    sleeper.stop();
    sleeper
}

#[test]
fn a_stopped_process_is_superseded_and_writes_nothing_when_it_wakes() {
    let (_stub, place, _config) = world("250");
    place.finish("e2e-clean", &["--workers", "4"]);
    let settled = bill(&place).len();

    let sleeper = asleep_in_a_batch(&place, "e2e-asleep", 3);
    let holder = format!("pid {}", sleeper.0.id());
    // Nobody takes a run from a process without naming it.
    for other in [&[][..], &["--takeover", "pid 1"], &["--takeover", &holder[..holder.len() - 1]]] {
        let refused = place.run("e2e-asleep", other);
        assert!(!refused.status.success() && refused.stdout.contains(&holder), "{}", refused.stdout);
    }
    let files = place.finish("e2e-asleep", &["--workers", "4", "--takeover", &holder]);
    assert_eq!((count(&files, "run.resumed"), count(&files, "gepa.run.finished")), (1, 1));
    let clean = place.files("e2e-clean");
    for name in COMPARED_FILES {
        assert_eq!(files.comparable(name).unwrap(), clean.comparable(name).unwrap(), "{name}");
    }
    let ours = bill(&place).split_off(settled);
    assert_eq!(ours.len(), ours.iter().collect::<BTreeSet<_>>().len(), "a rollout was run twice");

    let before = digests(&place.path().join("runs"));
    let (said, code) = sleeper.wake();
    assert_eq!(said["error"], ErrorCode::StateTransition.as_str(), "{said}");
    assert!(said["message"].as_str().unwrap().starts_with("fenced: another process has taken the run over"), "{said}");
    assert_ne!(code, Some(0));
    assert_eq!(digests(&place.path().join("runs")), before);
    assert_eq!(bill(&place).len(), settled + ours.len(), "the superseded process called the container");
    assert_sound(&files);
}

#[test]
fn a_process_that_wakes_while_its_successor_works_ends_at_once() {
    let (_stub, place, _config) = world("250");
    place.finish("e2e-clean", &["--workers", "4"]);
    let settled = bill(&place).len();
    let sleeper = asleep_in_a_batch(&place, "e2e-asleep", 3);
    let holder = format!("pid {}", sleeper.0.id());
    let mut command = place.command("e2e-asleep", &["--workers", "4", "--takeover", &holder]);
    let mut next = Sleeper(command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap());
    let files = place.files("e2e-asleep");
    wait_until("the successor works", || files.events().is_ok_and(|_| count(&files, "run.resumed") == 1));
    let (said, _) = sleeper.wake();
    assert!(said["message"].as_str().unwrap().starts_with("fenced: "), "{said}");
    wait_until("the successor has ended", || next.0.try_wait().unwrap().is_some());
    assert!(next.0.wait().unwrap().success());
    for name in COMPARED_FILES {
        let clean = place.files("e2e-clean").comparable(name).unwrap();
        assert_eq!(files.comparable(name).unwrap(), clean, "{name}");
    }
    let ours = bill(&place).split_off(settled);
    assert_eq!(ours.len(), ours.iter().collect::<BTreeSet<_>>().len(), "a rollout was run twice");
    assert_sound(&files);
}

/// Runs in this process, under a lease that ends at the given boundary.
fn run_under(config: &Config, lease: RunLease, ends_at: u32) -> synth_optimizer_core::model::error::OptimizerError {
    let (own, met) = (lease.clone(), std::sync::atomic::AtomicU32::new(0));
    let hooks = Hooks::new(move |boundary| {
        if boundary == HookPoint::AfterFeed && met.fetch_add(1, std::sync::atomic::Ordering::SeqCst) + 1 == ends_at {
            own.revoke();
        }
    });
    let mut request = RunSpec::new(config.clone());
    (request.hooks, request.lease) = (hooks, Some(lease));
    request.proposer = Some(Arc::new(ScriptedProposer::default()));
    begin(request).end().unwrap_err()
}

#[test]
fn a_run_whose_lease_ends_sends_nothing_more_and_goes_on_under_another() {
    let (_stub, place, mut config) = world("0");
    config.run.output_dir = place.path().join("runs");
    config.run.run_id = Some("e2e-leased".into());
    place.finish("e2e-clean", &[]);
    let settled = bill(&place).len();
    for ends_at in 1..=4 {
        let error = run_under(&config, RunLease::until(u64::MAX), ends_at);
        assert!(is_ownership_lost(&error), "{error}");
        let (sent, files) = (bill(&place).len(), digests(&place.files("e2e-leased").directory));
        // Another run goes to its end on the same container: of this one nothing comes any more.
        let beside = place.finish(&format!("e2e-beside-{ends_at}"), &[]);
        let later: BTreeSet<String> = bill(&place).split_off(sent).into_iter().collect();
        assert_eq!(later, beside.ledger().unwrap().live);
        assert_eq!(digests(&place.files("e2e-leased").directory), files);
        assert!(!place.files("e2e-leased").path("result_manifest.json").exists());
    }
    let over = RunLease::until(0);
    assert!(is_ownership_lost(&run_under(&config, over, 0)));
    let files = place.finish("e2e-leased", &[]);
    for name in COMPARED_FILES {
        let clean = place.files("e2e-clean").comparable(name).unwrap();
        assert_eq!(files.comparable(name).unwrap(), clean, "{name}");
    }
    let live = files.ledger().unwrap().live;
    let ours: Vec<String> = bill(&place).split_off(settled).into_iter().filter(|id| live.contains(id)).collect();
    assert_eq!(ours.len(), ours.iter().collect::<BTreeSet<_>>().len(), "a rollout was run twice");
    assert_sound(&files);
}

#[test]
fn a_lease_that_ends_during_a_long_batch_ends_the_run_soon() {
    let (_stub, place, mut config) = world(&FOREVER.as_millis().to_string());
    config.run.output_dir = place.path().join("runs");
    config.run.run_id = Some("e2e-leased".into());
    let error = run_under(&config, RunLease::until(boot_millis() + 700), 0);
    assert!(is_ownership_lost(&error) && error.message.contains("run out"), "{error}");
    assert_eq!(count(&place.files("e2e-leased"), "rollout.finished"), 0, "the container had answered");
}

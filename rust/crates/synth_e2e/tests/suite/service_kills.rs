//! A service that is killed repeatedly: every run ends exactly once, no run is lost, and no rollout is sent twice.

use std::time::Duration;

use camino::Utf8Path;
use synth_e2e::service_kill_test::ServiceKillTest;

#[test]
fn every_run_ends_exactly_once_when_the_service_is_killed_repeatedly() {
    let seed = std::env::var("SYNTH_E2E_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(7);
    println!("SYNTH_E2E_SEED={seed}");
    let directory = tempfile::tempdir().unwrap();
    let test = ServiceKillTest {
        service: env!("CARGO_BIN_EXE_scripted_service"),
        stub: env!("CARGO_BIN_EXE_stub_container"),
        runs: 120,
        workers: 16,
        containers: 24,
        kill_after: (Duration::from_millis(200), Duration::from_millis(900)),
        seed,
        limit: Duration::from_secs(300),
    };
    let report = test.run(Utf8Path::from_path(directory.path()).unwrap()).unwrap();
    println!("{} kills, {} rollouts, recoveries {:?}", report.kills, report.rollouts, report.recoveries);
    assert_eq!(report.problems, Vec::<String>::new());
    assert!(report.kills >= 5, "only {} kills", report.kills);
}

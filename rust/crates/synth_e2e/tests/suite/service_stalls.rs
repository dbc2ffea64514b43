//! Stalled runs: a run that stores no event for too long fails, even if its thread hangs, and the next run gets its worker and
//! container.

use std::sync::Arc;
use std::time::Duration;

use crate::harness::{TestDir, stub};
use serde_json::{Value, json};
use synth_e2e::scripted::ScriptedProposer;
use synth_e2e::service_process::http_request;
use synth_e2e::stub::FIELDS;
use synth_e2e::wait::{FOREVER, wait_for};
use synth_e2e::{RowNames, small_config, write_config};
use synth_optimizer_core::config::Config;
use synth_optimizer_platform::proposer::Proposer;
use synth_optimizer_service::service::{Service, Settings};

/// Returns a proposer that never answers in the runs `waits` and `hangs`.
fn stalled_proposer(config: &Config) -> Option<Arc<dyn Proposer>> {
    let latency = match config.run.run_id.as_deref() {
        // A waiting run can still be interrupted.
        Some("waits") => FOREVER,
        // A hanging thread, as in a call to a failed disk, receives no control request.
        Some("hangs") => loop {
            std::thread::park();
        },
        _ => Duration::ZERO,
    };
    Some(Arc::new(ScriptedProposer { latency, fault: None }))
}

fn wait_for_end(port: u16, run_id: &str) -> Value {
    wait_for("the end", || {
        let (status, detail) = http_request(port, "GET", &format!("/runs/{run_id}"), None, &[]).unwrap();
        assert_eq!(status, 200, "{detail}");
        (detail["request"]["is_terminal"] == true).then(|| detail["request"].clone())
    })
}

#[test]
fn a_stalled_run_fails_and_the_next_run_starts() {
    let dir = TestDir::new();
    let stub = stub(&[]);
    let mut config = small_config(&stub.url(), RowNames::TaskIds, 6, 3, &FIELDS[..1]);
    config.gepa.max_generations = Some(1);
    // A run may stall as long as its longest timeout allows.
    config.container.startup_timeout_seconds = 1;
    config.gepa.rollout_async_timeout_seconds = 1;
    config.proposer.startup_timeout_seconds = 1;
    config.proposer.timeout_seconds = 1;
    write_config(&dir.config(), &config).unwrap();
    let (db, config_root) = (dir.path().join("service.sqlite"), dir.path().into());
    let mut settings = Settings { db, config_root, ..Settings::default() };
    settings.bind = "127.0.0.1:0".into();
    settings.workers = 1;
    settings.stall_timeout = Duration::from_millis(200);
    settings.proposers = Some(stalled_proposer);
    let service = Service::start(settings).unwrap();
    let port = service.address().port();
    wait_for("readiness", || (http_request(port, "GET", "/ready", None, &[]).unwrap().0 == 200).then_some(()));
    for run_id in ["waits", "hangs", "next"] {
        // The last run may stall for as long as a busy machine needs.
        let timeout = if run_id == "next" { FOREVER.as_secs() } else { 1 };
        let body = json!({
            "config_path": "gepa.toml",
            "overrides": [format!("run.run_id={run_id}"), format!("container.rollout_timeout_seconds={timeout}")],
            "allow_unverified": true,
        });
        let (status, reply) = http_request(port, "POST", "/runs", Some(&body), &[]).unwrap();
        assert_eq!(status, 201, "{reply}");
    }
    for run_id in ["waits", "hangs"] {
        let request = wait_for_end(port, run_id);
        let error = &request["error"];
        assert_eq!((&request["status"], &request["lease_id"]), (&json!("failed"), &Value::Null), "{request}");
        assert_eq!(error["error_code"], "synth_optimizer_failed", "{error}");
        let message = error["message"].as_str().unwrap();
        assert!(message.starts_with(&format!("run {run_id} made no progress for ")), "{message}");
        assert!(error["hint"].as_str().unwrap().contains("--stall-timeout-seconds"), "{error}");
    }
    // The worker and the container are free again.
    assert_eq!(wait_for_end(port, "next")["status"], "completed");
    service.shut_down();
    wait_for("the end of the service", || service.wait(Duration::from_millis(100))).unwrap();
}

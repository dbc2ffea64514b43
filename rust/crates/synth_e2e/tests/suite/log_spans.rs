//! Log records of other threads and of spawned tasks name the run and the request that they belong to.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use synth_e2e::logs::{capture_records, captured_records};
use synth_e2e::service_process::http_request;
use synth_e2e::wait::{WAIT_TIMEOUT, wait_for};
use synth_e2e::{RowNames, ScriptedProposer, small_config, write_config};
use synth_gepa::GepaEngine;
use synth_optimizer_core::config::gepa::SubmissionMode;
use synth_optimizer_core::config::sections::CacheMode;
use synth_optimizer_core::model::control::ControlRequest;
use synth_optimizer_core::model::error::ErrorCode;
use synth_optimizer_core::model::event::Event;
use synth_optimizer_platform::logs::LogRecord;
use synth_optimizer_platform::runtime::{RunControl, RunSpec, execute, spawn};
use synth_optimizer_service::service::{Service, Settings};

use crate::harness::run_thread::{on_event, world};
use crate::harness::{TestDir, stub};
use synth_e2e::stub::FIELDS;

fn field<'a>(record: &'a LogRecord, name: &str) -> Option<&'a Value> {
    record.fields.iter().find(|(known, _)| *known == name).map(|(_, value)| value)
}

/// Returns the captured records with this message.
fn records(message: &str) -> Vec<LogRecord> {
    captured_records().into_iter().filter(|record| record.message == message).collect()
}

#[test]
fn a_spawned_task_names_its_run() {
    capture_records();
    let gate = tempfile::tempdir().unwrap();
    let (_stub, test_dir, mut config) = world(&["--gate", gate.path().join("open").to_str().unwrap()]);
    config.gepa.rollout_submission_mode = SubmissionMode::Async;
    let (control, receiver) = RunControl::new(1);
    let wanted: fn(&Event) -> bool = |event| matches!(event, Event::RolloutsRequested(_));
    // The cancel asks the container to terminate every rollout, each in a task of its own.
    let hooks = on_event(&test_dir, "steered", wanted, move || assert!(control.send(ControlRequest::cancel("enough"))));
    let spec = RunSpec { proposer: Some(Arc::new(ScriptedProposer::default())), hooks, ..RunSpec::new(config) };
    let (ends, ended) = std::sync::mpsc::channel();
    spawn("spans", || execute::<GepaEngine>(spec, receiver), move |end| ends.send(end).unwrap()).unwrap();
    assert_eq!(ended.recv_timeout(WAIT_TIMEOUT).unwrap().unwrap().end.as_str(), "cancelled");
    let replies = records("reply read").into_iter().filter(|reply| reply.thread == "synth-optimizers-spans");
    let runs: Vec<_> = replies.map(|reply| field(&reply, "run_id").cloned()).collect();
    assert!(!runs.is_empty() && runs.iter().all(|run| *run == Some(json!("steered"))), "{runs:?}");
}

#[test]
fn a_writer_thread_names_its_run() {
    capture_records();
    let (_stub, _test_dir, mut config) = world(&[]);
    config.cache.mode = CacheMode::Readwrite;
    config.cache.max_mb = 0;
    let (_control, receiver) = RunControl::new(1);
    let spec = RunSpec { proposer: Some(Arc::new(ScriptedProposer::default())), ..RunSpec::new(config) };
    let (ends, ended) = std::sync::mpsc::channel();
    spawn("run", || execute::<GepaEngine>(spec, receiver), move |end| ends.send(end).unwrap()).unwrap();
    assert_eq!(ended.recv_timeout(WAIT_TIMEOUT).unwrap().unwrap_err().code, ErrorCode::CacheFull);
    let records = records("the cache stores no further answers");
    let writer = records.iter().find(|record| record.thread == "cache-writer").unwrap();
    assert_eq!(field(writer, "run_id"), Some(&json!("steered")));
}

#[test]
fn a_blocking_write_names_its_request() {
    capture_records();
    let (dir, stub) = (TestDir::new(), stub(&[]));
    write_config(&dir.config(), &small_config(&stub.url(), RowNames::TaskIds, 6, 3, &FIELDS[..1])).unwrap();
    let settings = Settings {
        bind: "127.0.0.1:0".into(),
        db: dir.path().join("service.sqlite"),
        config_root: dir.path().into(),
        ..Settings::default()
    };
    let service = Service::start(settings).unwrap();
    let port = service.address().port();
    wait_for("readiness", || (http_request(port, "GET", "/ready", None, &[]).unwrap().0 == 200).then_some(()));
    let body = json!({
        "config_path": "gepa.toml",
        "overrides": ["run.run_id=spans"],
        "allow_unverified": true,
        "auto_start": false,
    });
    let (status, reply) = http_request(port, "POST", "/runs", Some(&body), &[]).unwrap();
    assert_eq!(status, 201, "{reply}");
    let headers = [("x-request-id", "the-cancel")];
    let (status, reply) = http_request(port, "POST", "/runs/spans/cancel", Some(&json!({})), &headers).unwrap();
    assert!(status < 300, "{reply}");
    let moves = records("run request moved");
    let cancel = moves.iter().rfind(|record| field(record, "run_id") == Some(&json!("spans"))).unwrap();
    assert_eq!(field(cancel, "request_id"), Some(&json!("the-cancel")), "{cancel:?}");
    service.shut_down();
    wait_for("the end of the service", || service.wait(Duration::from_millis(100))).unwrap();
}

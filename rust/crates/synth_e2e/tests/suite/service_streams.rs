//! Many clients of a run's event stream, some of which never read: the run is not affected, and every reader receives all events.

use std::time::Duration;

use crate::harness::{TestDir, stub};
use synth_e2e::run_files::COMPARED_FILES;
use synth_e2e::service_process::{ServiceProcess, http_request};
use synth_e2e::stream_clients::StreamClients;
use synth_e2e::stub::FIELDS;
use synth_e2e::{RowNames, cpu::peak_memory_bytes, small_config, write_config};

const READERS: usize = 180;
const STALLED: usize = 20;
/// Maximum growth of the service's memory. One megabyte per client would be 200.
const MAX_GROWTH_MEGABYTES: u64 = 64;

#[test]
fn clients_that_never_read_affect_neither_the_run_nor_other_clients() {
    let dir = TestDir::new();
    let stub = stub(&["--latency-ms", "5", "--train", "40", "--heldout", "10"]);
    let mut config = small_config(&stub.url(), RowNames::TaskIds, 40, 10, &FIELDS[..1]);
    config.gepa.max_generations = Some(12);
    config.cache.mode = synth_optimizer_core::config::sections::CacheMode::Off;
    write_config(&dir.config(), &config).unwrap();
    let flags = ["--workers", "2", "--write-timeout-ms", "1000"];
    let service = ServiceProcess::start(env!("CARGO_BIN_EXE_scripted_service"), dir.path(), &flags).unwrap();
    let port = service.port();
    let submit = |run_id: &str| {
        let overrides = [format!("run.run_id={run_id}")];
        let body = serde_json::json!({
            "config_path": "gepa.toml", "overrides": overrides, "allow_unverified": true, "auto_start": false,
        });
        let (status, reply) = http_request(port, "POST", "/runs", Some(&body), &[]).unwrap();
        assert_eq!(status, 201, "{reply}");
    };
    let work = move || {
        let (status, reply) =
            http_request(port, "POST", "/worker/run-next", Some(&serde_json::json!({})), &[]).unwrap();
        assert_eq!((status, &reply["request"]["status"]), (200, &"completed".into()), "{reply}");
    };
    submit("e2e-alone");
    work();
    let before = peak_memory_bytes(service.pid()).unwrap();
    submit("e2e-watched");
    let clients = StreamClients { port, readers: READERS, stalled: STALLED };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut working = None;
    let report = runtime.block_on(async {
        let running = clients.run("e2e-watched", || working = Some(std::thread::spawn(work)));
        tokio::time::timeout(Duration::from_secs(120), running).await.expect("in time").unwrap()
    });
    working.unwrap().join().unwrap();
    assert_eq!(report.problems, Vec::<String>::new());
    let events = dir.files("e2e-watched").events().unwrap().len() as u64;
    assert_eq!(report.events, Some(events), "{report:?}");
    assert!(report.dropped > 0, "no stalled client was dropped: {report:?}");
    for name in COMPARED_FILES {
        let (alone, watched) = (dir.files("e2e-alone"), dir.files("e2e-watched"));
        assert_eq!(watched.comparable(name).unwrap(), alone.comparable(name).unwrap(), "{name}");
    }
    let growth_mb = peak_memory_bytes(service.pid()).unwrap().saturating_sub(before) / (1024 * 1024);
    println!("{report:?}; {events} events; the service grew by {growth_mb} MB");
    assert!(growth_mb < MAX_GROWTH_MEGABYTES, "the service grew by {growth_mb} MB");
}

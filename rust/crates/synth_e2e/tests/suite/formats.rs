//! Recorded files of format 1. Every release opens, replays and resumes them.
//!
//! `SYNTH_E2E_RECORD=DIR cargo nextest run -p synth_e2e -E 'test(record_the_formats)'` writes them again, for a new format.

use std::os::unix::process::ExitStatusExt;

use camino::{Utf8Path, Utf8PathBuf};
use serde_json::Value;
use std::collections::BTreeMap;
use synth_e2e::stub::FIELDS;
use synth_e2e::wait::WAIT_TIMEOUT;
use synth_e2e::{RowNames, RunFiles, ServerProcess, run_to_end, small_config, submission, write_config};
use synth_optimizer_core::config::gepa::SearchMode;
use synth_optimizer_core::config::sections::CacheMode;
use synth_optimizer_core::config::{Config, ConfigContent, ConfigSource, from_stored, load};
use synth_optimizer_core::model::event::Event;
use synth_optimizer_platform::artifacts::{RunPaths, events_replay, run_status};
use synth_optimizer_platform::workspace::{Reader, Workspace, workspace_status};
use synth_optimizer_service::queue::Queue;

use crate::harness::{TestDir, assert_consistent, finished, stub};

const KILL_AT: &str = "SYNTH_OPTIMIZERS_TEST_KILL_AT";
const RUNS: [&str; 5] = ["completed", "failed", "interrupted", "killed", "unknown"];
/// The directory in which the recorded runs were written.
const RECORDED_IN: &str = "/srv/synth-optimizers";

fn recorded() -> Utf8PathBuf {
    Utf8Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/formats/v1")
}

fn recorded_config(stub: &ServerProcess, output_dir: Utf8PathBuf) -> Config {
    let mut config = small_config(&stub.url(), RowNames::TaskIds, 6, 3, &FIELDS[..1]);
    config.run.output_dir = output_dir;
    // The defaults at the time of the recording.
    config.gepa.search = SearchMode::Reference;
    config.gepa.rebase = false;
    config
}

/// Copies a recorded run into a new output directory.
fn restore(run: &str) -> (TestDir, RunFiles) {
    let test_dir = TestDir::new();
    let files = test_dir.files(run);
    std::fs::create_dir_all(&files.directory).unwrap();
    for entry in recorded().join(run).read_dir_utf8().unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), files.directory.join(entry.file_name())).unwrap();
    }
    (test_dir, files)
}

fn expected() -> Value {
    serde_json::from_str(&std::fs::read_to_string(recorded().join("expected.json")).unwrap()).unwrap()
}

/// Returns what users see of a run, without its directory.
fn shown(files: &RunFiles) -> Value {
    let paths = RunPaths::of_dir(&files.directory).unwrap();
    let mut overview = serde_json::to_value(run_status(&paths).unwrap()).unwrap();
    let fields = overview.as_object_mut().unwrap();
    fields.retain(|name, _| !matches!(name.as_str(), "run_dir" | "holder"));
    overview
}

#[test]
fn recorded_runs_open_and_replay() {
    for run in RUNS {
        let (_test_dir, files) = restore(run);
        assert_eq!(shown(&files), expected()[run], "{run}");
        let status = workspace_status(files.path("workspace.sqlite").as_std_path()).unwrap();
        assert_eq!(status["runs"][0]["invariant_report"]["violations"], serde_json::json!([]), "{run}");
        // The tables can be derived from the log again.
        let workspace =
            Workspace::open(files.path("workspace.sqlite").as_std_path(), Config::default().run.durability).unwrap();
        assert!(workspace.last_sequence().unwrap().is_some());
        workspace.close().unwrap();
        assert!(!events_replay(&files.path("events.jsonl")).unwrap().is_empty(), "{run}");
    }
}

#[test]
fn recorded_runs_resume() {
    let stub = stub(&["--memory", "forget"]);
    for run in RUNS {
        let (test_dir, files) = restore(run);
        let lost = Reader::open(files.path("workspace.sqlite").as_std_path()).unwrap().totals().unwrap();
        write_config(&test_dir.config(), &recorded_config(&stub, test_dir.path().join("runs"))).unwrap();
        if run == "failed" {
            assert!(!test_dir.run(run, &[]).status.success());
            continue;
        }
        let ended = test_dir.finish(run, &[]);
        assert_consistent(&ended);
        let unknown = finished(&ended).rollouts.unknown_outcomes;
        assert!(unknown >= lost.counts.rollouts.unknown_outcomes, "{run}");
        assert_eq!(finished(&ended).best_candidate_id.as_str(), expected()["completed"]["best_candidate_id"], "{run}");
    }
    let (_dir, unknown) = restore("unknown");
    assert!(unknown.events().unwrap().iter().any(|event| matches!(event, Event::OutcomeUnknown(_))));
}

/// `gepa resume` takes the stored configuration, so that a run keeps the defaults of the version that started it.
#[test]
fn recorded_runs_resume_with_their_stored_configuration() {
    let stub = stub(&["--memory", "forget"]);
    let today = Config::default().gepa;
    for run in ["interrupted", "killed", "unknown"] {
        let (test_dir, files) = restore(run);
        let row = Reader::open(files.path("workspace.sqlite").as_std_path()).unwrap().run_row().unwrap();
        let mut config = from_stored(&row.config, "workspace.sqlite").unwrap().config;
        let earlier = &config.gepa;
        assert_eq!((earlier.search, earlier.rebase), (SearchMode::Reference, false), "{run}");
        assert_eq!((earlier.proposals_per_generation, today.proposals_per_generation), (2, 1), "{run}");
        // The container and the run are in other places than when they were recorded.
        config.container.url = stub.url();
        config.run.output_dir = test_dir.path().join("runs");
        write_config(&test_dir.config(), &config).unwrap();
        let ended = test_dir.finish(run, &[]);
        assert_consistent(&ended);
        assert_eq!(finished(&ended).best_candidate_id.as_str(), expected()["completed"]["best_candidate_id"], "{run}");
        let asked = ended.events().unwrap().into_iter().filter_map(|event| match event {
            Event::ProposerStarted(turn) => Some(turn.proposal_count),
            _ => None,
        });
        let asked: Vec<u32> = asked.collect();
        assert!(asked.len() >= 2 && asked.iter().all(|proposals| *proposals == 2), "{run}: {asked:?}");
    }
}

#[test]
fn a_recorded_cache_answers_a_readonly_run() {
    let (test_dir, files) = restore("completed");
    let stub = stub(&[]);
    let mut config = recorded_config(&stub, test_dir.path().join("runs"));
    drop(stub);
    config.cache.mode = CacheMode::Readonly;
    config.cache.path = Some(files.path("request_cache.sqlite"));
    config.cache.namespace = Some("gepa:completed".into());
    write_config(&test_dir.config(), &config).unwrap();
    let replayed = test_dir.finish("replayed", &[]);
    assert_eq!(finished(&replayed).best_candidate_id, finished(&files).best_candidate_id);
}

#[test]
fn a_recorded_queue_opens() {
    let test_dir = TestDir::new();
    let path = test_dir.path().join("service.sqlite");
    std::fs::copy(recorded().join("service.sqlite"), &path).unwrap();
    let queue = Queue::open(path.as_std_path()).unwrap();
    let requests = queue.list(&[], 10, None).unwrap();
    let shown: Vec<(String, String)> =
        requests.items.iter().map(|entry| (entry.run_id.clone(), entry.status.to_string())).collect();
    assert_eq!(serde_json::json!(shown), expected()["queue"]);
}

/// Records the files of this format below `SYNTH_E2E_RECORD`.
#[test]
fn record_the_formats() {
    let Ok(target) = std::env::var("SYNTH_E2E_RECORD").map(Utf8PathBuf::from) else { return };
    let root = Utf8Path::new(RECORDED_IN);
    let _ = std::fs::remove_dir_all(root);
    std::fs::create_dir_all(root).unwrap();
    let mut expected = serde_json::Map::new();
    for run in RUNS {
        let flags: &[&str] = match run {
            "failed" => &["--reward", "null"],
            "interrupted" => &["--memory", "forget", "--overload-every", "9"],
            _ => &["--memory", "forget"],
        };
        // An outage for which the run does not wait interrupts it.
        let impatient = ["run.outage_patience_seconds=0", "container.overload_retries=0"];
        let impatient = impatient.iter().filter(|_| run == "interrupted").flat_map(|set| ["--set", set]);
        let stub = stub(flags);
        let test_dir = TestDir::new();
        write_config(&test_dir.config(), &recorded_config(&stub, root.join("runs"))).unwrap();
        // Killed runs stop between two durable writes, with calls in flight.
        let kills: &[&str] = match run {
            "killed" => &["20"],
            "unknown" => &["20", "10"],
            _ => &["100000"],
        };
        for kill in kills {
            let mut command = test_dir.command(run, &["--workers", "4"]);
            command.args(impatient.clone()).env(KILL_AT, kill);
            let ended = run_to_end(command, WAIT_TIMEOUT).unwrap();
            assert_eq!(ended.status.signal() == Some(9), kills[0] != "100000", "{run}: {}", ended.stdout);
        }
        let files = RunFiles::new(&root.join("runs"), run);
        std::fs::create_dir_all(target.join(run)).unwrap();
        // Opening moves the WAL into the file.
        Workspace::open(files.path("workspace.sqlite").as_std_path(), Config::default().run.durability)
            .unwrap()
            .close()
            .unwrap();
        for name in ["workspace.sqlite", "events.jsonl", "result_manifest.json", "request_cache.sqlite"] {
            if run == "completed" || name != "request_cache.sqlite" {
                let _ = std::fs::copy(files.path(name), target.join(run).join(name));
            }
        }
        expected.insert(run.to_owned(), shown(&files));
    }
    let path = root.join("service.sqlite");
    let queue = Queue::open(path.as_std_path()).unwrap();
    let stub = stub(&[]);
    for run in ["first", "second"] {
        write_config(&root.join("gepa.toml"), &recorded_config(&stub, root.join("runs"))).unwrap();
        let text = std::fs::read_to_string(root.join("gepa.toml")).unwrap();
        let source = ConfigSource { name: "gepa.toml", content: ConfigContent::Toml(&text), base_dir: root };
        let config = load(source, &BTreeMap::new(), &[format!("run.run_id={run}")]).unwrap();
        queue.submit(&submission(&config)).unwrap();
    }
    let entries = queue.list(&[], 10, None).unwrap().items;
    queue
        .control(&entries[0].request_id, &synth_optimizer_core::model::control::ControlRequest::cancel("not needed"))
        .unwrap();
    queue.checkpoint().unwrap();
    drop(queue);
    let queue = Queue::open(path.as_std_path()).unwrap();
    let shown: Vec<(String, String)> = queue
        .list(&[], 10, None)
        .unwrap()
        .items
        .iter()
        .map(|entry| (entry.run_id.clone(), entry.status.to_string()))
        .collect();
    queue.checkpoint().unwrap();
    std::fs::copy(&path, target.join("service.sqlite")).unwrap();
    expected.insert("queue".to_owned(), serde_json::json!(shown));
    std::fs::write(target.join("expected.json"), serde_json::to_string_pretty(&expected).unwrap() + "\n").unwrap();
    std::fs::remove_dir_all(root).unwrap();
}

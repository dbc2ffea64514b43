//! The results of a run that has ended.
use crate::sample;
use camino::{Utf8Path, Utf8PathBuf};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use synth_optimizer_core::config::sections::{CacheMode, Durability};
use synth_optimizer_core::model::canonical::hex;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::run_view::RunView;
use synth_optimizer_platform::artifacts::{
    FeedWriter, RegistryEntry, RegistryStatus, RunDir, RunPaths, register, run_summary,
};
use synth_optimizer_platform::cache::{Cache, CacheProfile, CacheSettings};
use synth_optimizer_platform::results::{starting_entry, write_failure, write_results};
use synth_optimizer_platform::workspace::{Batch, RunRow, StoredEvent, Workspace};

struct ResultsFixture {
    _temporary: tempfile::TempDir,
    root: Utf8PathBuf,
    dir: RunDir,
    workspace: Workspace,
    cache: CacheProfile,
}

impl ResultsFixture {
    /// Creates a run directory with this log in the feed and the workspace.
    fn new(log: &[StoredEvent]) -> Self {
        let temporary = tempfile::tempdir().unwrap();
        let root = Utf8PathBuf::from_path_buf(temporary.path().to_owned()).unwrap();
        let dir = RunDir::open(&root, "run-1").unwrap();
        let settings = CacheSettings {
            mode: CacheMode::Off,
            path: dir.request_cache(),
            namespace: "gepa:run-1".into(),
            max_bytes: 1 << 30,
        };
        let run = RunRow {
            run_id: "run-1".into(),
            algorithm: "gepa".into(),
            config: json!({ "proposer": { "backend": "codex_app_server" } }),
            config_digest: "0123456789abcdef".repeat(4),
            container_url: "http://127.0.0.1:9000".into(),
            cache_mode: "off".into(),
            cache_namespace: "gepa:run-1".into(),
            cache_path: None,
            output_dir: root.to_string(),
            run_dir: dir.dir().to_string(),
            created_at: 1_811_980_800_000,
        };
        let workspace = Workspace::create(dir.workspace_db().as_std_path(), &run, Durability::Process).unwrap();
        register(&dir, RegistryStatus::Started, &starting_entry(&run)).unwrap();
        let mut feed = FeedWriter::open(&dir, |each| workspace.log(0, each)).unwrap();
        feed.append(log).unwrap();
        workspace.commit_blocking(Batch { events: log.to_vec(), ..Batch::default() }).unwrap();
        Self { _temporary: temporary, root, dir, workspace, cache: Cache::open(&settings).unwrap().profile() }
    }

    fn write(&self) -> Result<(RegistryStatus, Value), OptimizerError> {
        let feed_writer = FeedWriter::open(&self.dir, |each| self.workspace.log(0, each))?;
        write_results(&self.dir, &self.workspace, feed_writer, Some(&self.cache))
            .map(|manifest| (status_of(&manifest), manifest))
    }

    fn registry(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.root.join("run_registry.jsonl")).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Returns the text of a file, with the path of this test replaced.
    fn text(&self, path: &Utf8Path) -> String {
        std::fs::read_to_string(path).unwrap().replace(self.root.as_str(), "/runs")
    }
}

fn status_of(manifest: &Value) -> RegistryStatus {
    serde_json::from_value(manifest["status"].clone()).unwrap()
}

fn json_of(path: &Utf8Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn a_finished_run_writes_all_results() {
    let fixture = ResultsFixture::new(&sample::finished());
    let (status, manifest) = fixture.write().unwrap();
    assert_eq!(status, RegistryStatus::Completed);
    let dir = &fixture.dir;
    assert_eq!(json_of(&dir.manifest()), manifest);
    insta::assert_snapshot!("manifest", mask(&fixture.text(&dir.manifest())));
    insta::assert_snapshot!("best_candidate", fixture.text(&dir.best_candidate()));
    insta::assert_snapshot!("frontier", fixture.text(&dir.frontier()));

    let registry = json_of(&dir.candidate_registry());
    let statuses: Vec<(&str, &str)> = registry
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| (entry["candidate_id"].as_str().unwrap(), entry["status"].as_str().unwrap()))
        .collect();
    assert_eq!(
        statuses,
        [(sample::SEED, "accepted"), (sample::CHILD, "accepted"), (sample::WORSE, "rejected_minibatch")]
    );
    assert_eq!(registry[0]["failed_rows"][0]["failure_class"], "timeout");
    assert_eq!(registry[1], json_of(&dir.best_candidate()));

    for known in manifest["artifact_refs"].as_array().unwrap() {
        let bytes = std::fs::read(known["path"].as_str().unwrap()).unwrap();
        assert_eq!(known["bytes"], bytes.len());
        assert_eq!(known["sha256"], hex(&Sha256::digest(&bytes)));
    }
    let kinds: Vec<&str> =
        manifest["artifact_refs"].as_array().unwrap().iter().map(|known| known["kind"].as_str().unwrap()).collect();
    assert_eq!(
        kinds,
        [
            "best_candidate",
            "candidate_registry",
            "frontier",
            "cache_profile",
            "score_chart_svg",
            "lineage_svg",
            "events_normalized_jsonl",
            "events_jsonl",
            "report_html"
        ]
    );
    assert!(manifest["cost_usd"].is_null(), "unknown is not zero");
    assert_eq!(json_of(&dir.cache_profile())["mode"], "off");
    let lines = fixture.registry();
    assert_eq!(lines.len(), 2);
    assert_eq!((&lines[1]["status"], &lines[1]["proposer_backend"]), (&json!("completed"), &json!("codex_app_server")));
    assert_eq!(lines[1]["best_candidate_id"], sample::CHILD);
    assert_eq!(lines[1]["usage"], manifest["usage"]);
}

#[test]
fn writing_results_again_changes_nothing() {
    let fixture = ResultsFixture::new(&sample::finished());
    fixture.write().unwrap();
    let read = || -> Vec<(String, Vec<u8>)> {
        let mut files: Vec<_> = fixture
            .dir
            .dir()
            .read_dir_utf8()
            .unwrap()
            .map(|entry| entry.unwrap().into_path())
            .filter(|path| !path.as_str().contains("workspace.sqlite"))
            .map(|path| (path.to_string(), std::fs::read(&path).unwrap()))
            .collect();
        files.sort();
        files
    };
    let before = read();
    // The state after a crash while results are written.
    std::fs::remove_file(fixture.dir.manifest()).unwrap();
    std::fs::remove_file(fixture.dir.frontier()).unwrap();
    fixture.write().unwrap();
    assert_eq!(read(), before);
    assert_eq!(fixture.registry().len(), 2);
}

#[test]
fn artifacts_are_recorded_in_the_workspace() {
    let fixture = ResultsFixture::new(&sample::finished());
    let (_, manifest) = fixture.write().unwrap();
    let db = rusqlite::Connection::open(fixture.dir.workspace_db()).unwrap();
    let mut statement = db.prepare("SELECT path, kind, bytes FROM artifacts ORDER BY path").unwrap();
    let rows: Vec<(String, String, i64)> = statement
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
        .unwrap()
        .map(Result::unwrap)
        .collect();
    assert_eq!(rows.len(), 9);
    assert_eq!((rows[0].0.as_str(), rows[0].1.as_str()), ("best_candidate.json", "best_candidate"));
    assert!(rows.iter().all(|(_, _, bytes)| *bytes > 0));
    let (stored, best): (String, String) = db
        .query_row("SELECT manifest_json, best_candidate_id FROM manifests", [], |row| Ok((row.get(0)?, row.get(1)?)))
        .unwrap();
    assert_eq!(serde_json::from_str::<Value>(&stored).unwrap(), manifest);
    assert_eq!(best, sample::CHILD);
}

#[test]
fn a_cancelled_run_writes_its_partial_results() {
    let fixture = ResultsFixture::new(&sample::cancelled());
    let (status, manifest) = fixture.write().unwrap();
    assert_eq!(status, RegistryStatus::Cancelled);
    assert_eq!(manifest["schema_version"], "gepa_failure_manifest.v1");
    assert_eq!((&manifest["status"], &manifest["best_candidate_id"]), (&json!("cancelled"), &json!(sample::CHILD)));
    assert_eq!(manifest["failure"]["error_code"], "synth_optimizer_cancelled");
    assert_eq!(manifest["failure"]["message"], "enough seen");
    assert_eq!(manifest["failure"]["hint"], ErrorCode::Cancelled.row().hint);
    // The totals are computed from the log, not taken from its last event.
    assert_eq!((&manifest["rollouts"]["train"], &manifest["usage"]["sent_calls"]), (&json!(11), &json!(10)));
    assert_eq!(json_of(&fixture.dir.best_candidate())["candidate_id"], sample::CHILD);
    assert_eq!(fixture.registry()[1]["status"], "cancelled");
}

#[test]
fn a_failed_run_records_its_error() {
    let fixture = ResultsFixture::new(&sample::failed());
    let (status, manifest) = fixture.write().unwrap();
    assert_eq!(status, RegistryStatus::Failed);
    assert_eq!(manifest["failure"]["error_code"], "synth_optimizer_container_error");
    assert_eq!(manifest["failure"]["hint"], ErrorCode::Container.row().hint);
    assert_eq!(manifest["failure"]["message"], "connection refused");
    assert_eq!(fixture.registry()[1]["status"], "failed");
}

#[test]
fn a_live_run_has_no_result() {
    let fixture = ResultsFixture::new(&sample::search().events);
    assert_eq!(fixture.write().unwrap_err().code, ErrorCode::Invariant);
    assert!(!fixture.dir.manifest().exists());
    let mut view = RunView::default();
    let apply = |stored: StoredEvent| {
        view.apply(stored.sequence, stored.unix_millis, &stored.event);
        Ok(())
    };
    fixture.workspace.log(0, apply).unwrap();
    assert_eq!(view.candidates.len(), 3);
    assert_eq!(view.frontier().iter().map(|member| member.candidate_id.as_str()).collect::<Vec<_>>(), [sample::CHILD]);
    assert!(view.end.is_none());
}

#[test]
fn the_summary_of_a_live_run_shows_one_moment() {
    let (events, half) = (sample::finished(), sample::finished().len() / 2);
    let ResultsFixture { _temporary, root, dir, workspace, .. } = ResultsFixture::new(&events[..half]);
    drop(dir);
    let paths = RunPaths::new(&root, "run-1").unwrap();
    let before = run_summary(&paths).unwrap();
    // The summary reads the log, then the manifest, then the tables. A pipe in place of the manifest holds it in the middle.
    let pipe = paths.manifest();
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let reading = std::thread::spawn(move || run_summary(&paths).unwrap());
    // Opening the pipe waits until the summary reads it.
    let manifest = std::fs::OpenOptions::new().write(true).open(&pipe).unwrap();
    workspace.commit_blocking(Batch { events: events[half..].to_vec(), ..Batch::default() }).unwrap();
    std::io::Write::write_all(&mut &manifest, b"{}").unwrap();
    drop(manifest);
    assert_eq!(reading.join().unwrap(), before);
}

#[test]
fn a_failure_before_the_log_has_a_manifest() {
    let temporary = tempfile::tempdir().unwrap();
    let root = Utf8Path::from_path(temporary.path()).unwrap();
    let dir = RunDir::open(root, "run-1").unwrap();
    let error = OptimizerError::new(ErrorCode::Container, "no server answers at http://127.0.0.1:9000")
        .with_detail("connection refused");
    for _ in 0..2 {
        let result = write_failure(&dir, &RegistryEntry::default(), &error).unwrap();
        assert_eq!(status_of(&result), RegistryStatus::Failed);
        assert_eq!(json_of(&dir.manifest()), result);
    }
    let manifest = json_of(&dir.manifest());
    assert_eq!(manifest["schema_version"], "gepa_failure_manifest.v1");
    assert_eq!((&manifest["run_id"], &manifest["status"]), (&json!("run-1"), &json!("failed")));
    assert_eq!(manifest["best_candidate_id"], "unavailable");
    assert_eq!(
        manifest["failure"],
        json!({
            "error_code": "synth_optimizer_container_error",
            "message": "no server answers at http://127.0.0.1:9000",
            "hint": error.hint,
            "detail": "connection refused",
            "is_outage": false,
        })
    );
    let registry = std::fs::read_to_string(root.join("run_registry.jsonl")).unwrap();
    assert_eq!(registry.lines().count(), 1);
    let cancelled = OptimizerError::new(ErrorCode::Cancelled, "interrupt");
    let result = write_failure(&dir, &RegistryEntry::default(), &cancelled).unwrap();
    assert_eq!(status_of(&result), RegistryStatus::Cancelled);
}

#[test]
fn a_failure_manifest_never_replaces_a_result() {
    let fixture = ResultsFixture::new(&sample::finished());
    let (_, manifest) = fixture.write().unwrap();
    let error = OptimizerError::new(ErrorCode::Config, "another config");
    write_failure(&fixture.dir, &RegistryEntry::default(), &error).unwrap();
    assert_eq!(json_of(&fixture.dir.manifest()), manifest);
    assert_eq!(fixture.registry().len(), 2);
}

/// Masks digests and sizes, which depend on the path of the test.
fn mask(text: &str) -> String {
    text.lines()
        .map(|line| match line.trim_start() {
            trimmed if trimmed.starts_with("\"sha256\"") => "      \"sha256\": …,".to_owned(),
            trimmed if trimmed.starts_with("\"bytes\"") => "      \"bytes\": …,".to_owned(),
            _ => line.to_owned(),
        })
        .collect::<Vec<_>>()
        .join("\n")
}

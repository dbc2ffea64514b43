//! The artifacts of a run: listed with kind and digest, and served only by their known names.

use std::io::Read;
use std::os::unix::fs::symlink;

use camino::{Utf8Path, Utf8PathBuf};
use synth_optimizer_core::config::sections::Durability;
use synth_optimizer_platform::artifacts::{FeedWriter, RunDir, artifacts, open_artifact};
use synth_optimizer_platform::results::write_results;
use synth_optimizer_platform::workspace::models::ReadError;
use synth_optimizer_platform::workspace::{Reader, RunRow, Workspace};
use tempfile::TempDir;

use super::agreement::assert_agrees;
use super::script::{run_row, sha256, whole_run};

struct ArtifactsFixture {
    _temporary: TempDir,
    root: Utf8PathBuf,
    dir: Utf8PathBuf,
}

/// Creates the directory of a run without its last `left_out` batches.
fn fixture(left_out: usize) -> ArtifactsFixture {
    let temporary = tempfile::tempdir().unwrap();
    let root = Utf8PathBuf::from_path_buf(temporary.path().to_owned()).unwrap();
    let dir = RunDir::open(&root, "run-1").unwrap();
    let run = RunRow { output_dir: root.to_string(), run_dir: dir.dir().to_string(), ..run_row() };
    let workspace = Workspace::create(dir.workspace_db().as_std_path(), &run, Durability::Process).unwrap();
    let mut feed = FeedWriter::open(&dir, |each| workspace.log(0, each)).unwrap();
    let batches = whole_run();
    let shown = batches.len() - left_out;
    for batch in batches.into_iter().take(shown) {
        feed.append(&batch.events).unwrap();
        workspace.commit_blocking(batch).unwrap();
    }
    if left_out == 0 {
        write_results(&dir, &workspace, feed, None).unwrap();
    }
    workspace.close().unwrap();
    ArtifactsFixture { _temporary: temporary, root, dir: dir.dir().to_owned() }
}

fn reader(dir: &Utf8Path) -> Reader {
    Reader::open(dir.join("workspace.sqlite").as_std_path()).unwrap()
}

fn assert_refused(dir: &Utf8Path, name: &str) {
    match open_artifact(dir, Some(&reader(dir)), name) {
        Err(ReadError::NotFound(refusal)) => {
            assert_eq!(refusal.code, "artifact_not_found");
            assert!(refusal.message.len() < 400 && !refusal.hint.contains(dir.as_str()), "{refusal:?}");
        }
        other => panic!("{name:?}: {other:?}"),
    }
}

#[test]
fn every_file_is_listed_with_its_digest() {
    let fixture = fixture(0);
    let reader = reader(&fixture.dir);
    let listed = artifacts(&fixture.dir, Some(&reader)).unwrap();
    let names: Vec<&str> = listed.items.iter().map(|entry| entry.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "result_manifest.json",
            "best_candidate.json",
            "candidate_registry.json",
            "frontier.json",
            "score_chart.svg",
            "lineage.svg",
            "report.html",
            "events.jsonl",
            "events.normalized.jsonl",
            "workspace.sqlite",
        ]
    );
    for entry in listed.items.iter().filter(|entry| entry.name != "workspace.sqlite") {
        let bytes = std::fs::read(fixture.dir.join(&entry.name)).unwrap();
        assert_eq!((entry.bytes, entry.sha256.clone()), (bytes.len() as u64, Some(sha256(&bytes))), "{}", entry.name);
        let mut opened = open_artifact(&fixture.dir, Some(&reader), &entry.name).unwrap();
        let mut content = Vec::new();
        opened.file.read_to_end(&mut content).unwrap();
        assert_eq!((&opened.entry, content), (entry, bytes));
    }
    for (alias, name) in [("manifest.json", "result_manifest.json"), ("event_feed.jsonl", "events.jsonl")] {
        assert_eq!(open_artifact(&fixture.dir, Some(&reader), alias).unwrap().entry.name, name);
    }
    // Without a workspace, the written files are still listed.
    assert_eq!(artifacts(&fixture.dir, None).unwrap().items.len(), 9);
}

#[test]
fn a_growing_file_has_no_digest_and_a_live_database_is_not_served() {
    let fixture = fixture(2);
    let listed = artifacts(&fixture.dir, Some(&reader(&fixture.dir))).unwrap();
    let found: Vec<(&str, &Option<String>)> =
        listed.items.iter().map(|entry| (entry.name.as_str(), &entry.sha256)).collect();
    assert_eq!(found, [("events.jsonl", &None)]);
    assert_refused(&fixture.dir, "workspace.sqlite");
}

#[test]
fn transcripts_are_listed_and_served() {
    let fixture = fixture(2);
    let turns = fixture.dir.join("proposer_transcripts");
    std::fs::create_dir(&turns).unwrap();
    for name in ["turn_000002_0.jsonl.zst", "turn_000001_0.jsonl.zst", ".turn.jsonl.zst", "notes.txt"] {
        std::fs::write(turns.join(name), name).unwrap();
    }
    symlink(fixture.dir.join("events.jsonl"), turns.join("turn_000003_0.jsonl.zst")).unwrap();
    let reader = reader(&fixture.dir);
    let listed = artifacts(&fixture.dir, Some(&reader)).unwrap().items;
    let found: Vec<&str> = listed.iter().map(|entry| entry.name.as_str()).collect();
    let named = ["1", "2"].map(|turn| format!("proposer_transcripts/turn_00000{turn}_0.jsonl.zst"));
    assert_eq!(found, ["events.jsonl", &named[0], &named[1]]);
    for entry in &listed[1..] {
        let bytes = std::fs::read(fixture.dir.join(&entry.name)).unwrap();
        assert_eq!(entry.sha256, Some(sha256(&bytes)));
        assert_eq!(&open_artifact(&fixture.dir, Some(&reader), &entry.name).unwrap().entry, entry);
    }
    for name in [
        "proposer_transcripts",
        "proposer_transcripts/",
        "proposer_transcripts/.turn.jsonl.zst",
        "proposer_transcripts/notes.txt",
        "proposer_transcripts/turn_000003_0.jsonl.zst",
        "proposer_transcripts/../events.jsonl",
        "proposer_transcripts/./turn_000001_0.jsonl.zst",
        "turn_000001_0.jsonl.zst",
    ] {
        assert_refused(&fixture.dir, name);
    }
    // A link to another directory is not followed.
    std::fs::rename(&turns, fixture.root.join("elsewhere")).unwrap();
    symlink(fixture.root.join("elsewhere"), &turns).unwrap();
    assert_refused(&fixture.dir, &named[0]);
}

#[test]
fn no_other_file_is_served() {
    let fixture = fixture(0);
    let outside = fixture.root.join("x");
    std::fs::write(&outside, "secret").unwrap();
    for name in ["control.json", "request_cache.sqlite", "workspace.sqlite-wal", ".hidden", "notes.txt"] {
        std::fs::write(fixture.dir.join(name), if name.ends_with("wal") { "" } else { "secret" }).unwrap();
        assert_refused(&fixture.dir, name);
    }
    let long = "a".repeat(300);
    for name in [
        "../x",
        "..",
        ".",
        "",
        "/",
        "run.lock",
        "./frontier.json",
        "frontier.json/",
        "frontier.json\0",
        "a\0b",
        "..%2fx",
        "..\\x",
        "\u{2025}/x",
        "\u{ff0e}\u{ff0e}/x",
        "\u{2024}\u{2024}/x",
        "FRONTIER.JSON",
        &long,
        &format!("{}../x", "../".repeat(50)),
        "../run-1/frontier.json",
    ] {
        assert_refused(&fixture.dir, name);
    }
    assert_refused(&fixture.dir, outside.as_str());
    assert_refused(&fixture.dir, fixture.dir.join("frontier.json").as_str());
    // Known names that are links to a file and to nothing, or a directory.
    std::fs::remove_file(fixture.dir.join("frontier.json")).unwrap();
    symlink(&outside, fixture.dir.join("frontier.json")).unwrap();
    assert_refused(&fixture.dir, "frontier.json");
    std::fs::remove_file(fixture.dir.join("score_chart.svg")).unwrap();
    symlink("nowhere", fixture.dir.join("score_chart.svg")).unwrap();
    assert_refused(&fixture.dir, "score_chart.svg");
    std::fs::remove_file(fixture.dir.join("best_candidate.json")).unwrap();
    std::fs::create_dir(fixture.dir.join("best_candidate.json")).unwrap();
    assert_refused(&fixture.dir, "best_candidate.json");
    let left = artifacts(&fixture.dir, Some(&reader(&fixture.dir))).unwrap().items;
    assert!(
        left.iter()
            .all(|entry| !["frontier.json", "score_chart.svg", "best_candidate.json"].contains(&entry.name.as_str()))
    );
}

/// The files, written from the log, match the models, read from the tables.
#[test]
fn read_models_match_the_result_files() {
    assert_agrees(&fixture(0).dir);
}

//! The files of a run: listed with what they are, and given away by their known names only.

use std::io::Read;
use std::os::unix::fs::symlink;

use camino::{Utf8Path, Utf8PathBuf};
use synth_optimizer_core::config::sections::Durability;
use synth_optimizer_platform::artifacts::{FeedWriter, RunDir, artifacts, open_artifact, write_results};
use synth_optimizer_platform::workspace::models::ReadError;
use synth_optimizer_platform::workspace::{Reader, RunRow, Workspace};
use tempfile::TempDir;

use super::agreement::assert_agrees;
use super::script::{run_row, sha256, whole_run};

struct Place {
    _temporary: TempDir,
    root: Utf8PathBuf,
    dir: Utf8PathBuf,
}

/// The directory of a run that is over, or of one before its last batches.
fn place(left_out: usize) -> Place {
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
    Place { _temporary: temporary, root, dir: dir.dir().to_owned() }
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
    let place = place(0);
    let reader = reader(&place.dir);
    let listed = artifacts(&place.dir, Some(&reader)).unwrap();
    let names: Vec<&str> = listed.items.iter().map(|entry| entry.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "result_manifest.json",
            "best_candidate.json",
            "candidate_registry.json",
            "frontier.json",
            "score_chart.svg",
            "events.jsonl",
            "events.normalized.jsonl",
            "workspace.sqlite",
        ]
    );
    for entry in listed.items.iter().filter(|entry| entry.name != "workspace.sqlite") {
        let bytes = std::fs::read(place.dir.join(&entry.name)).unwrap();
        assert_eq!((entry.bytes, entry.sha256.clone()), (bytes.len() as u64, Some(sha256(&bytes))), "{}", entry.name);
        let mut opened = open_artifact(&place.dir, Some(&reader), &entry.name).unwrap();
        let mut content = Vec::new();
        opened.file.read_to_end(&mut content).unwrap();
        assert_eq!((&opened.entry, content), (entry, bytes));
    }
    for (alias, name) in [("manifest.json", "result_manifest.json"), ("event_feed.jsonl", "events.jsonl")] {
        assert_eq!(open_artifact(&place.dir, Some(&reader), alias).unwrap().entry.name, name);
    }
    // Without a workspace there is still what was written.
    assert_eq!(artifacts(&place.dir, None).unwrap().items.len(), 7);
}

#[test]
fn a_file_that_grows_has_no_digest_and_a_live_database_is_not_given() {
    let place = place(2);
    let listed = artifacts(&place.dir, Some(&reader(&place.dir))).unwrap();
    let found: Vec<(&str, &Option<String>)> =
        listed.items.iter().map(|entry| (entry.name.as_str(), &entry.sha256)).collect();
    assert_eq!(found, [("events.jsonl", &None)]);
    assert_refused(&place.dir, "workspace.sqlite");
}

#[test]
fn what_was_said_in_each_turn_is_listed_and_given() {
    let place = place(2);
    let turns = place.dir.join("proposer_transcripts");
    std::fs::create_dir(&turns).unwrap();
    for name in ["turn_000002_0.jsonl.zst", "turn_000001_0.jsonl.zst", ".turn.jsonl.zst", "notes.txt"] {
        std::fs::write(turns.join(name), name).unwrap();
    }
    symlink(place.dir.join("events.jsonl"), turns.join("turn_000003_0.jsonl.zst")).unwrap();
    let reader = reader(&place.dir);
    let listed = artifacts(&place.dir, Some(&reader)).unwrap().items;
    let found: Vec<&str> = listed.iter().map(|entry| entry.name.as_str()).collect();
    let named = ["1", "2"].map(|turn| format!("proposer_transcripts/turn_00000{turn}_0.jsonl.zst"));
    assert_eq!(found, ["events.jsonl", &named[0], &named[1]]);
    for entry in &listed[1..] {
        let bytes = std::fs::read(place.dir.join(&entry.name)).unwrap();
        assert_eq!(entry.sha256, Some(sha256(&bytes)));
        assert_eq!(&open_artifact(&place.dir, Some(&reader), &entry.name).unwrap().entry, entry);
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
        assert_refused(&place.dir, name);
    }
    // A directory that is elsewhere is not looked into.
    std::fs::rename(&turns, place.root.join("elsewhere")).unwrap();
    symlink(place.root.join("elsewhere"), &turns).unwrap();
    assert_refused(&place.dir, &named[0]);
}

#[test]
fn nothing_else_is_given_away() {
    let place = place(0);
    let outside = place.root.join("x");
    std::fs::write(&outside, "secret").unwrap();
    for name in ["control.json", "request_cache.sqlite", "workspace.sqlite-wal", ".hidden", "notes.txt"] {
        std::fs::write(place.dir.join(name), if name.ends_with("wal") { "" } else { "secret" }).unwrap();
        assert_refused(&place.dir, name);
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
        assert_refused(&place.dir, name);
    }
    assert_refused(&place.dir, outside.as_str());
    assert_refused(&place.dir, place.dir.join("frontier.json").as_str());
    // A link with a known name, to a file and to nothing, and a directory.
    std::fs::remove_file(place.dir.join("frontier.json")).unwrap();
    symlink(&outside, place.dir.join("frontier.json")).unwrap();
    assert_refused(&place.dir, "frontier.json");
    std::fs::remove_file(place.dir.join("score_chart.svg")).unwrap();
    symlink("nowhere", place.dir.join("score_chart.svg")).unwrap();
    assert_refused(&place.dir, "score_chart.svg");
    std::fs::remove_file(place.dir.join("best_candidate.json")).unwrap();
    std::fs::create_dir(place.dir.join("best_candidate.json")).unwrap();
    assert_refused(&place.dir, "best_candidate.json");
    let left = artifacts(&place.dir, Some(&reader(&place.dir))).unwrap().items;
    assert!(
        left.iter()
            .all(|entry| !["frontier.json", "score_chart.svg", "best_candidate.json"].contains(&entry.name.as_str()))
    );
}

/// Whatever is written from the log and whatever is read from the tables say the same.
#[test]
fn the_models_say_what_the_files_say() {
    assert_agrees(&place(0).dir);
}
